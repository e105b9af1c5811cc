"""The live protocol: every snapshot is predicted before anything is learnt from its labels (ROLAND).

After snapshot t there is a prediction of the label of ``t + horizon``. Before it, the model learns from the newest
label that is known by then, starting from the state as it was; a share of that label's targets only decides when to
stop. The first few snapshots are learnt from and not scored: scales, and what baselines know, are made of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from timeloom.graph.tasks import Split
from timeloom.plan.types import Step, Unit
from timeloom.records import Ended, EpochEnded, Evaluated, Record
from timeloom.train.arrivals import Arrivals
from timeloom.train.evaluate import MOST_SAMPLED, by_metric, of_all_ranks, sampled
from timeloom.train.goals.goal import Draw, Marks
from timeloom.train.planning import in_batches
from timeloom.train.told import told_by_ranks
from timeloom.train.trainer import Trainer
from timeloom.train.worker import LiveWorker

_MOST_OF_ONE = 20
"""Of so many targets of one snapshot a checkpoint keeps what was predicted."""


def train_live(trainer: Trainer, arrivals: Arrivals) -> Iterator[Record]:
    """Predict and learn, snapshot by snapshot, and yield a record of everything that happens."""
    progress, first = trainer.progress, first_scored(trainer.session.split)
    saved = -1
    trainer.refuse_faults("the start")
    while True:
        if arrivals.waits(trainer) and saved < progress.epoch:
            # Who knows how long it will be.
            saved = progress.epoch
            yield trainer.save()
        if not arrivals.ready(trainer):
            break
        trainer.session.check_stop()
        trainer.check_stop()
        yield from _at(trainer, arrivals, scored=progress.epoch >= first)
        progress.epoch += 1
        if trainer.agree_due():
            saved = progress.epoch
            yield trainer.save()
    progress.ended = arrivals.ended
    yield trainer.save()
    yield _summary(trainer, "all", _marks_from(trainer, first), arrivals.baselines(trainer, first))
    tested = trainer.session.split.val_stop
    marks = _marks_from(trainer, tested)
    yield _summary(trainer, "test", marks, arrivals.baselines(trainer, tested))
    yield from sampled(trainer.session, marks, "test")
    yield Ended(reason=progress.ended, epochs=progress.epoch, best_epoch=progress.epoch - 1, seconds=progress.seconds)


def _at(trainer: Trainer, arrivals: Arrivals, *, scored: bool) -> Iterator[Record]:
    """Learn from the newest label that is known, then predict the next one."""
    session, progress = trainer.session, trainer.progress
    t, began = progress.epoch, time.monotonic()
    newest = t - max(session.split.horizon, 1)
    progress.losses, progress.nodes, progress.edges = [], 0, 0
    if newest >= 0:
        yield from _learn(trainer, newest)
    marks = _predict(trainer, t, newest, scored=scored)
    trainer.refuse_faults(f"the prediction after snapshot {t}")
    if scored:
        progress.live.append({"t": t, **marks.as_json(), "baselines": arrivals.told(trainer)})
    losses = [loss for loss in progress.losses if loss == loss]
    yield EpochEnded(
        epoch=t, loss=losses[-1] if losses else float("nan"), learning_rate=session.settings.optim.rate,
        nodes=progress.nodes, edges=progress.edges, seconds=time.monotonic() - began,
    )  # fmt: skip
    if scored:
        scores = by_metric(session, marks)
        yield Evaluated(epoch=t, split="live", scores=scores, baselines={}, seconds=time.monotonic() - began)
    yield from told_by_ranks(trainer)


def first_scored(split: Split) -> int:
    """Return the first snapshot whose prediction counts: by then all labels are known that scales were made of."""
    return split.train_stop - 1 + max(split.horizon, 1)


def _worker(trainer: Trainer) -> LiveWorker:
    assert isinstance(trainer.worker, LiveWorker), "others were refused"
    return trainer.worker


def _window(trainer: Trainer, first: int, t: int, keep: int = -1) -> Unit:
    """Return the window that ends with snapshot t: from ``first`` on with the kept state, or a whole one anew."""
    session = trainer.session
    if session.settings.window.state == "zero" or session.restarts:
        first = max(0, t - session.settings.window.length + 1)
        return Unit(first=first, last=t + 1, targets=(t,), fresh=True)
    return Unit(first=max(first, 0), last=t + 1, targets=(t,), fresh=first <= 0, keep=keep)


def _learn(trainer: Trainer, t: int) -> Iterator[Record]:
    """Learn from the label of snapshot t until the targets held out gain no more; keep the best parameters."""
    session, live = trainer.session, trainer.session.settings.live
    worker, unit, best, best_loss, stale = _worker(trainer), _window(trainer, t, t), None, np.inf, 0
    batches = in_batches([unit], session.settings)
    for place in range(live.steps):
        fit, held = (
            Draw(seed=session.settings.train.seed, epoch=place, side=side, held_out=live.held_out)
            for side in ("fit", "held")
        )  # fmt: skip
        units = dict.fromkeys(range(session.world.size), (batches[place % len(batches)],))
        yield trainer.step(Step(units=units, ends_epoch=False), fit)
        session.predictor.eval()
        loss = worker.held(unit, held, trainer.carry)
        if loss is None or loss < best_loss:
            best_loss, stale = (np.inf if loss is None else loss), 0
            best = {name: value.detach().clone() for name, value in session.predictor.state_dict().items()}
        else:
            stale += 1
            if stale >= live.patience:
                break
    if best is not None:
        session.predictor.load_state_dict(best)


def _predict(trainer: Trainer, t: int, newest: int, *, scored: bool) -> Marks:
    """Collective. Return how good the prediction after snapshot t is; the state after ``newest`` is kept."""
    session = trainer.session
    marks = Marks(most_sampled=_MOST_OF_ONE if t >= session.split.val_stop else 0)
    session.predictor.eval()
    seen, trainer.carry = _worker(trainer).look(_window(trainer, newest, t, keep=newest), trainer.carry)
    with torch.no_grad(), session.computing():
        for one in seen if scored else ():
            session.goal.score(session.head, one, "test", marks)
    return of_all_ranks(session, marks)[0] if session.world.size > 1 else marks


def _marks_from(trainer: Trainer, first: int) -> Marks:
    """Return the marks of all predictions from ``first`` on."""
    marks = Marks(most_sampled=MOST_SAMPLED)
    for entry in trainer.progress.live:
        if entry["t"] >= first:
            marks.take_in(entry)
    return marks


def _summary(trainer: Trainer, split: str, marks: Marks, baselines: dict[str, Marks]) -> Evaluated:
    """Return the scores of predictions beside those of the baselines."""
    return Evaluated(
        epoch=trainer.progress.epoch, split=split, scores=by_metric(trainer.session, marks),
        baselines={name: by_metric(trainer.session, marked) for name, marked in baselines.items()}, seconds=0.0,
    )  # fmt: skip
