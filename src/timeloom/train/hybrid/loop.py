"""The loop of ranks that train apart: rounds, of which as many make an epoch as go over all targets of training."""

from __future__ import annotations

import time
from collections.abc import Iterator

from timeloom.records import Record
from timeloom.train.checkpoint import fitting, name_of
from timeloom.train.evaluate import evaluate_baselines
from timeloom.train.hybrid.apart import Apart, Clock
from timeloom.train.hybrid.beside import restore_beside, saved_beside
from timeloom.train.hybrid.worker import HybridWorker
from timeloom.train.loop import end_epoch, finish
from timeloom.train.session import Stopped
from timeloom.train.trainer import Trainer


def train_apart(trainer: Trainer, clock: Clock = time.monotonic) -> Iterator[Record]:
    """Train to the end, and yield a record of everything that happens; ``clock`` says when a round is due.

    An epoch is over after the first round at whose end all ranks together went over as many targets as the snapshots
    of training have, or the share of them that was asked for.
    """
    worker, progress = trainer.worker, trainer.progress
    assert isinstance(worker, HybridWorker), "ranks that train apart have caches"
    trainer.refuse_faults("the start")
    baselines = evaluate_baselines(trainer.session, "val")
    apart = Apart(trainer, worker, clock)
    if trainer.beside_saved is not None:
        with fitting(name_of(progress.epoch, progress.step)):
            restore_beside(trainer.beside_saved, trainer, apart, worker)
    trainer.beside = lambda: saved_beside(trainer, apart, worker)
    with worker.building():
        while not progress.ended:
            began = time.monotonic()
            while not apart.epoch_is_over:
                yield from apart.round()
                if apart.stopping:
                    raise Stopped
                if trainer.due:
                    yield trainer.save()
            yield from end_epoch(trainer, time.monotonic() - began, baselines)
        yield from finish(trainer)
