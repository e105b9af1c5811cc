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
from timeloom.train.evaluate import by_metric
from timeloom.train.goals.goal import Draw, Marks
from timeloom.train.trainer import Trainer
from timeloom.train.walk import first_carry
from timeloom.train.whole import WholeWorker


def train_live(trainer: Trainer) -> Iterator[Record]:
    """Predict and learn, snapshot by snapshot, and yield a record of everything that happens."""
    session, progress = trainer.session, trainer.progress
    first, last = first_scored(session.split), session.split.test_stop
    everything = session.goal.baselines("test", first, last)
    while progress.epoch < last:
        session.check_stop()
        trainer.check_stop()
        t, began = progress.epoch, time.monotonic()
        newest = t - max(session.split.horizon, 1)
        progress.losses, progress.nodes, progress.edges = [], 0, 0
        if newest >= 0:
            yield from _learn(trainer, newest)
        marks = _predict(trainer, t, newest, scored=t >= first)
        if t >= first:
            progress.live.append({"t": t, **marks.as_json()})
        losses = [loss for loss in progress.losses if loss == loss]
        yield EpochEnded(
            epoch=t, loss=losses[-1] if losses else float("nan"), learning_rate=session.settings.optim.rate,
            nodes=progress.nodes, edges=progress.edges, seconds=time.monotonic() - began,
        )  # fmt: skip
        if t >= first:
            scores = by_metric(session, marks)
            yield Evaluated(epoch=t, split="live", scores=scores, baselines={}, seconds=time.monotonic() - began)
        progress.epoch += 1
        if trainer.agree_due() and progress.epoch < last:
            yield trainer.save()
    progress.ended = "snapshots"
    yield trainer.save()
    yield _summary(trainer, "all", first, everything)
    yield _summary(
        trainer, "test", session.split.val_stop, session.goal.baselines("test", session.split.val_stop, last)
    )
    yield Ended(reason=progress.ended, epochs=progress.epoch, best_epoch=progress.epoch - 1, seconds=progress.seconds)


def first_scored(split: Split) -> int:
    """Return the first snapshot whose prediction counts: by then all labels are known that scales were made of."""
    return split.train_stop - 1 + max(split.horizon, 1)


def _worker(trainer: Trainer) -> WholeWorker:
    assert isinstance(trainer.worker, WholeWorker), "several ranks do not follow the live protocol"
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
    for place in range(live.steps):
        fit, held = (
            Draw(seed=session.settings.train.seed, epoch=place, side=side, held_out=live.held_out)
            for side in ("fit", "held")
        )  # fmt: skip
        yield trainer.step(Step(units={0: (unit,)}, ends_epoch=False), fit)
        session.predictor.eval()
        with torch.no_grad():
            loss, _ = worker.loss(unit, held, trainer.carry)
        if loss is None or float(loss) < best_loss:
            best_loss, stale = (np.inf if loss is None else float(loss)), 0
            best = {name: value.detach().clone() for name, value in session.predictor.state_dict().items()}
        else:
            stale += 1
            if stale >= live.patience:
                break
    if best is not None:
        session.predictor.load_state_dict(best)


def _predict(trainer: Trainer, t: int, newest: int, *, scored: bool) -> Marks:
    """Return how good the prediction after snapshot t is; the state after ``newest`` is kept for the next."""
    session, marks = trainer.session, Marks()
    session.predictor.eval()
    unit = _window(trainer, newest, t, keep=newest)
    with torch.no_grad(), session.computing():
        (seen,), kept = session.walker.walk(unit, _worker(trainer).before(unit, trainer.carry))
        if scored:
            session.goal.score(session.head, seen, "test", marks)
    trainer.carry = kept if kept is not None else first_carry(session.model, session.feed)
    return marks


def _summary(trainer: Trainer, split: str, first: int, baselines: dict[str, Marks]) -> Evaluated:
    """Return the scores of all predictions from ``first`` on, beside the baselines."""
    marks = Marks()
    for entry in trainer.progress.live:
        if entry["t"] >= first:
            marks.take_in(entry)
    return Evaluated(
        epoch=trainer.progress.epoch, split=split, scores=by_metric(trainer.session, marks),
        baselines={name: by_metric(trainer.session, marked) for name, marked in baselines.items()}, seconds=0.0,
    )  # fmt: skip
