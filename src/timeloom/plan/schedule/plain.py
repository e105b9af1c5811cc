"""Schedules that look at no times: groups in the order of time."""

from __future__ import annotations

from timeloom.plan.schedule.instance import Instance
from timeloom.plan.schedule.schedule import Schedule, schedule_of


def in_order(problem: Instance) -> Schedule:
    """Return one group a device and step, in the order of time (PSG)."""
    return _runs(problem, 1)


def pair_consecutive(problem: Instance) -> Schedule:
    """Return as many consecutive groups a device and step as there may be (REAL's type II default: pairs)."""
    return _runs(problem, problem.limit)


def _runs(problem: Instance, length: int) -> Schedule:
    count, devices = len(problem), problem.num_devices
    bins = [range(first, min(first + length, count)) for first in range(0, count, length)]
    return schedule_of([bins[first : first + devices] for first in range(0, len(bins), devices)], devices)
