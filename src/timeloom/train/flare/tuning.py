"""Trials that choose the shape of windows before a run begins (FlareDTDG 3.5, SPEC D7.6).

Every trial trains a few epochs from the same first weights, and nothing of it is left when the next one begins. What
rank 0 measured is what all ranks go by.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time

import numpy as np
import torch

from timeloom.errors import BadConfig, Diverged
from timeloom.graph.tasks import GraphLike
from timeloom.plan.batch.order import chunk_order
from timeloom.plan.tune.memory import ChunkSizes, MemoryLaw, chunk_sizes
from timeloom.plan.tune.window import Choice, Trial, TrialOutcome, tune
from timeloom.plan.types import Step
from timeloom.records import Tuned
from timeloom.train.evaluate import evaluate, evaluate_baselines
from timeloom.train.flare.epoch import Stores
from timeloom.train.flare.memory import Peak
from timeloom.train.flare.trials import TrialLog
from timeloom.train.flare.worker import FlareWorker
from timeloom.train.goals.goal import Draw
from timeloom.train.planning import plan_epoch
from timeloom.train.session import Session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

_EDGE_BYTES = 24
"""Both lists of edges, and the place of each in the other."""


def refuse_tuning(settings: RunSettings) -> None:
    """Refuse to tune where there is nothing to be tuned."""
    if settings.system.unit != "trapezoid":
        raise BadConfig(
            f"--tune chooses windows that shrink, but system.name={settings.system.name} has none: use --system flare"
        )


def told_of(choice: Choice) -> Tuned:
    """Return the record of a search."""
    flare = choice.flare
    return Tuned(
        full=flare.full, decayed=flare.decayed, alpha=flare.alpha, score=choice.score,
        trials=tuple(
            (trial.flare.full, trial.flare.alpha, told.loss_before, told.loss_after, told.seconds, told.peak_bytes)
            for trial, told in choice.trials
        ),
    )  # fmt: skip


def tuned(session: Session, log: TrialLog) -> Choice:
    """Collective. Return the windows with which the validation loss falls fastest, within the memory allowed.

    What the log knows is not tried again. The session's parameters are afterwards what they were.
    """
    settings, is_warm = session.settings, False
    first = {name: value.detach().clone() for name, value in session.predictor.state_dict().items()}
    evaluate_baselines(session, "val")
    with Stores(session) as stores:
        search = tune(settings.flare, settings.tune, sizes=_sizes(session, stores), law=_law(session))
        trial = next(search)
        log.open()
        while True:
            outcome = log.find(trial)
            if outcome is None:
                if not is_warm:
                    # What is made once, such as buckets of edges, would count against the windows tried first.
                    _tried(session, stores, dataclasses.replace(trial, epochs=1))
                    session.predictor.load_state_dict(first)
                    is_warm = True
                outcome = _agreed(session, _tried(session, stores, trial))
                session.predictor.load_state_dict(first)
                log.add(trial, outcome)
            try:
                trial = search.send(outcome)
            except StopIteration as ended:
                choice: Choice = ended.value
                return choice


def _tried(session: Session, stores: Stores, trial: Trial) -> TrialOutcome:
    """Collective. Train so many epochs; return what this rank saw of it."""
    settings = dataclasses.replace(session.settings, flare=trial.flare)
    other = dataclasses.replace(session, settings=settings)
    trainer = Trainer(other, None)
    trainer.worker = FlareWorker(other, stores)
    try:
        before = _loss(trainer)
        peak, began = Peak(session.device), time.monotonic()
        learns = _learns(trainer, trial.epochs)
        seconds, taken = time.monotonic() - began, peak.num_bytes
        return TrialOutcome(
            loss_before=before, loss_after=_loss(trainer) if learns else math.inf, seconds=seconds,
            peak_bytes=0.0 if taken is None else taken,
        )  # fmt: skip
    finally:
        trainer.close()


def _learns(trainer: Trainer, epochs: int) -> bool:
    """Collective. Train; say whether losses stayed numbers: windows that lead to others are not chosen."""
    try:
        for _ in range(epochs):
            _train_epoch(trainer)
    except Diverged:
        # All ranks find it, at the same step.
        return False
    return True


def _train_epoch(trainer: Trainer) -> None:
    """Collective. Take the steps of one epoch."""
    session, progress = trainer.session, trainer.progress
    plan = plan_epoch(
        session.settings, session.split.train_stop, epoch=progress.epoch, ranks=session.world.size
    )  # fmt: skip
    draw = Draw(seed=session.settings.train.seed, epoch=progress.epoch)
    step: Step = next(plan)
    while True:
        session.check_stop()
        trainer.step(step, draw)
        trainer.check_stop()
        if step.ends_epoch:
            break
        step = plan.send(trainer.outcome(len(progress.losses) - 1))
    progress.epoch, progress.losses, trainer.carry = progress.epoch + 1, [], None


def _loss(trainer: Trainer) -> float:
    """Collective. Return a validation score that is the better the lower it is."""
    session = trainer.session
    score = evaluate(trainer.worker, "val")[session.metric]
    return -score if session.goal.is_better(session.metric, 1.0, 0.0) else score


def _agreed(session: Session, mine: TrialOutcome) -> TrialOutcome:
    """Collective. Return what rank 0 saw, and the most memory that any rank took."""
    told = json.dumps(dataclasses.asdict(mine)).encode()
    found = [TrialOutcome(**json.loads(one)) for one in session.world.gather_bytes(told, "control/trial")]
    return dataclasses.replace(found[0], peak_bytes=max(one.peak_bytes for one in found))


def _sizes(session: Session, stores: Stores) -> ChunkSizes:
    """Collective. Return how many rows and edges the first chunks of each snapshot have; the first rank counts."""
    graph: GraphLike = session.graph
    order = chunk_order(stores.chunking, seed=session.settings.train.seed, epoch=0)
    told = b""
    if session.world.rank == 0:
        snapshots = (graph.snapshot(t) for t in range(session.split.train_stop))
        halo = session.settings.flare.temporal_halo == "exchange"
        sizes = chunk_sizes(snapshots, order, temporal_halo=halo)
        told = np.concatenate([sizes.rows_C[None], sizes.edges_TC]).astype(np.int64).tobytes()
    found = np.frombuffer(session.world.broadcast_bytes(told, "control/sizes"), np.int64)
    found = found.reshape(session.split.train_stop + 1, -1)
    return ChunkSizes(found[0].copy(), found[1:].copy())


def _law(session: Session) -> MemoryLaw:
    """Return bytes a row and an edge before anything was measured: what a layer keeps of a row on its way."""
    hidden = session.settings.model.hidden
    item = torch.finfo(session.feed.dtype).bits // 8
    layers = max(1, session.settings.model.layers)
    return MemoryLaw(fixed=float(1 << 20), row=float(16 * hidden * item * layers), edge=float(_EDGE_BYTES))
