"""How groups are trained as a schedule says: which rank takes which of them in which step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from timeloom.errors import BadConfig
from timeloom.plan.batch.windows import in_turn
from timeloom.plan.schedule.schedule import Schedule
from timeloom.plan.types import Plan, Unit


def scheduled(units: Sequence[Unit], schedule: Schedule, *, seed: int, epoch: int, shuffle: bool) -> Plan:
    """Yield one epoch: every rank's units of each step, steps in another order in every (seed, epoch) if asked for.

    The order of steps changes nothing about how long an epoch takes; without another one every epoch would see the same
    groups at the same place (SPEC section 5). A rank with nothing to do in a step is named in it with no unit, since it
    takes part in what ranks do together. Units must start from zero: they are computed in any order.
    """
    refuse_misfit(units, schedule)
    order = np.arange(len(schedule.steps))
    if shuffle:
        np.random.Generator(np.random.Philox([seed, epoch])).shuffle(order)
    yield from in_turn([
        {rank: tuple(units[g] for g in groups) for rank, groups in enumerate(schedule.steps[number])}
        for number in order
    ])  # fmt: skip


def refuse_misfit(units: Sequence[Unit], schedule: Schedule) -> None:
    """Refuse units that a schedule is not about, or that cannot be computed in any order."""
    num_groups = sum(len(groups) for step in schedule.steps for groups in step)
    if num_groups != len(units):
        raise BadConfig(f"a schedule of {num_groups} groups cannot be trained on {len(units)} windows: solve again")
    if any(not unit.fresh or unit.keep >= 0 for unit in units):
        raise BadConfig(
            "windows that inherit a state follow each other and cannot be scheduled: use --set window.state=zero"
        )
