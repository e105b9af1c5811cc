"""The training loop: epochs over the earliest part, chosen by the next part, tested once on the last."""

from __future__ import annotations

import time
from collections.abc import Iterator

from timeloom.records import Ended, EpochEnded, Evaluated, Record, Saved
from timeloom.train.deviate import deviations
from timeloom.train.evaluate import MOST_SAMPLED, by_metric, evaluate, evaluate_baselines, marks_of, sampled
from timeloom.train.goals.goal import Draw
from timeloom.train.optim import rate_in
from timeloom.train.planning import plan_epoch
from timeloom.train.told import told_by_ranks
from timeloom.train.trainer import Trainer


def train(trainer: Trainer) -> Iterator[Record]:
    """Train to the end, and yield a record of everything that happens. Checkpoints are written on the way."""
    progress = trainer.progress
    trainer.refuse_faults("the start")
    baselines = evaluate_baselines(trainer.session, "val")
    while not progress.ended:
        began = time.monotonic()
        yield from _steps(trainer)
        yield from end_epoch(trainer, time.monotonic() - began, baselines)
    yield from finish(trainer)


def end_epoch(trainer: Trainer, seconds: float, baselines: dict[str, dict[str, float]]) -> Iterator[Record]:
    """Collective. Tell what an epoch came to, validate, say why the run ends where it does, and save if it is time."""
    session, progress = trainer.session, trainer.progress
    settings, told = session.settings.train, _told(trainer, seconds)
    # Nobody hears of the epoch before it was validated: a run that is stopped there does that again.
    validates = (progress.epoch + 1) % settings.validate_every == 0 or progress.epoch + 1 == settings.epochs
    validated = [validate(trainer, baselines)] if validates else []
    trainer.refuse_faults("validation")
    yield told
    yield from deviations(session, progress.epoch)
    yield from validated
    yield from trainer.control.epoch_ended(progress.epoch, told.seconds, progress.step + 1, trainer.spans)
    yield from told_by_ranks(trainer)
    progress.epoch += 1
    progress.losses, progress.nodes, progress.edges = [], 0, 0
    trainer.carry = None
    if settings.patience and progress.stale * settings.validate_every >= settings.patience:
        progress.ended = "patience"
    elif progress.epoch >= settings.epochs:
        progress.ended = "epochs"
    if trainer.agree_due() and not progress.ended:
        yield trainer.save()


def _steps(trainer: Trainer) -> Iterator[Record]:
    """Go over all windows of training once; steps that were done before an interruption are not done again."""
    session, progress, settings = trainer.session, trainer.progress, trainer.session.settings
    plan = plan_epoch(
        settings, session.split.train_stop, epoch=progress.epoch, ranks=session.world.size,
        schedule=trainer.control.schedule,
    )  # fmt: skip
    draw = Draw(seed=settings.train.seed, epoch=progress.epoch)
    step, place = next(plan), 0
    while True:
        if place >= len(progress.losses):
            session.check_stop()
            yield trainer.step(step, draw)
            if trainer.due:
                yield trainer.save()
            trainer.check_stop()
        if step.ends_epoch:
            return
        step, place = plan.send(trainer.outcome(place)), place + 1


def _told(trainer: Trainer, seconds: float) -> EpochEnded:
    """Return what an epoch came to."""
    progress, settings = trainer.progress, trainer.session.settings
    losses = [loss for loss in progress.losses if loss == loss]
    return EpochEnded(
        epoch=progress.epoch, loss=sum(losses) / len(losses) if losses else float("nan"),
        learning_rate=rate_in(settings.optim, progress.epoch, settings.train.epochs, progress.drops),
        nodes=progress.nodes, edges=progress.edges, seconds=seconds,
    )  # fmt: skip


def validate(trainer: Trainer, baselines: dict[str, dict[str, float]]) -> Evaluated:
    """Score the validation part, remember the parameters if they are the best, and lower the rate at a standstill."""
    session, progress, began = trainer.session, trainer.progress, time.monotonic()
    scores = evaluate(trainer.worker, "val")
    trainer.remember_best(scores[session.metric])
    optim = session.settings.optim
    if optim.schedule == "plateau" and progress.since_drop * session.settings.train.validate_every >= optim.step_epochs:
        progress.drops, progress.since_drop = progress.drops + 1, 0
    return Evaluated(
        epoch=progress.epoch, split="val", scores=scores, baselines=baselines, seconds=time.monotonic() - began
    )


def finish(trainer: Trainer) -> Iterator[Record]:
    """Save, then test the best parameters, once."""
    progress = trainer.progress
    saved: Saved = trainer.save()
    yield saved
    trainer.use_best()
    began = time.monotonic()
    baselines = evaluate_baselines(trainer.session, "test")
    marks = marks_of(trainer.worker, "test", most_sampled=MOST_SAMPLED)
    scores = by_metric(trainer.session, marks)
    trainer.refuse_faults("the test")
    yield Evaluated(
        epoch=progress.best_epoch, split="test", scores=scores, baselines=baselines, seconds=time.monotonic() - began
    )
    # Snapshots of the test part were placed only now.
    yield from trainer.worker.tell(progress.epoch).records
    yield from sampled(trainer.session, marks, "test")
    yield Ended(reason=progress.ended, epochs=progress.epoch, best_epoch=progress.best_epoch, seconds=progress.seconds)
