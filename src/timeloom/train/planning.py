"""Which plan the settings ask for."""

from __future__ import annotations

from timeloom.plan.batch.windows import in_epochs, steps_of, together, training_windows
from timeloom.plan.types import Plan
from timeloom.train.settings import RunSettings


def plan_epoch(settings: RunSettings, train_stop: int, *, epoch: int, ranks: int) -> Plan:
    """Return the plan of an epoch over the snapshots before ``train_stop``."""
    window = settings.window
    shuffle = window.shuffle and window.state == "zero"
    apart = settings.system.divide == "windows"
    plan = in_epochs(
        training_windows(window, train_stop), groups=window.groups, seed=settings.train.seed, epoch=epoch,
        shuffle=shuffle, ranks=ranks if apart else 1,
    )  # fmt: skip
    return plan if apart else together(plan, ranks)


def updates_of(settings: RunSettings, train_stop: int, *, ranks: int) -> int:
    """Return how many updates an epoch has."""
    return steps_of(settings.window, train_stop, ranks=ranks if settings.system.divide == "windows" else 1)
