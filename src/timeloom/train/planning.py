"""Which plan the settings ask for."""

from __future__ import annotations

from dataclasses import replace

from timeloom.plan.batch.scheduled import scheduled
from timeloom.plan.batch.trapezoid import in_trapezoids, trapezoids_of_epoch
from timeloom.plan.batch.windows import in_epochs, steps_of, together, training_windows
from timeloom.plan.schedule.schedule import Schedule
from timeloom.plan.types import Plan, Unit
from timeloom.train.settings import RunSettings


def plan_epoch(
    settings: RunSettings, train_stop: int, *, epoch: int, ranks: int, schedule: Schedule | None = None
) -> Plan:
    """Return the plan of an epoch over the snapshots before ``train_stop``, by a schedule where there is one."""
    if settings.system.unit == "trapezoid":
        trapezoids = trapezoids_of_epoch(settings.flare, train_stop, seed=settings.train.seed, epoch=epoch)
        return in_trapezoids(trapezoids, num_ranks=ranks)
    window = settings.window
    shuffle = window.shuffle and window.state == "zero"
    apart = settings.system.divide == "windows"
    units = in_batches(training_windows(window, train_stop), settings)
    if schedule is not None:
        return scheduled(units, schedule, seed=settings.train.seed, epoch=epoch, shuffle=shuffle)
    plan = in_epochs(
        units, groups=groups_of(settings), seed=settings.train.seed, epoch=epoch,
        shuffle=shuffle, ranks=ranks if apart else 1,
    )  # fmt: skip
    return plan if apart else together(plan, ranks)


def groups_of(settings: RunSettings) -> int:
    """Return how many windows a rank computes together where no schedule says which."""
    schedule = settings.schedule
    return schedule.limit if schedule.scheduler == "pair_consecutive" else settings.window.groups


def updates_of(settings: RunSettings, train_stop: int, *, ranks: int) -> int:
    """Return how many updates an epoch has (the first one, where the sequence is cut at random)."""
    if settings.system.unit == "trapezoid":
        return len(trapezoids_of_epoch(settings.flare, train_stop, seed=settings.train.seed, epoch=0))
    window = replace(settings.window, groups=groups_of(settings))
    updates = steps_of(window, train_stop, ranks=ranks if settings.system.divide == "windows" else 1)
    return updates * batches_of(settings)


def batches_of(settings: RunSettings) -> int:
    """Return into how many batches the targets of a window are dealt out."""
    return settings.distdy.updates if settings.system.divide == "targets" else 1


def in_batches(units: list[Unit], settings: RunSettings) -> list[Unit]:
    """Return windows, each as often as its targets have batches."""
    return [replace(unit, batch=batch) for unit in units for batch in range(batches_of(settings))]
