"""Is a plan one that may be carried out?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from timeloom.plan.types import Outcome, Plan, Step, Unit


def run_dry(plan: Plan) -> list[Step]:
    """Return the steps of an epoch of a plan, told that nothing was lost and no time passed."""
    steps = [next(plan)]
    while not steps[-1].ends_epoch:
        steps.append(plan.send(Outcome(loss=0.0, seconds=0.0)))
    return steps


def problems(steps: list[Step], units: list[Unit]) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with an epoch over these units."""
    planned = Counter(unit for step in steps for ours in step.units.values() for unit in ours)
    for unit, count in Counter(units).items():
        if planned[unit] != count:
            yield f"{unit} is planned {planned[unit]} times, not {count}"
    yield from (f"{unit} is planned and no unit of the epoch" for unit in planned.keys() - set(units))
    for unit in units:
        if not unit.first <= min(unit.targets, default=unit.first) <= max(unit.targets, default=unit.first) < unit.last:
            yield f"{unit} has targets outside its snapshots"
        if unit.keep >= 0 and not unit.first <= unit.keep < unit.last:
            yield f"{unit} keeps the state of a snapshot outside its own"
    for number, step in enumerate(steps):
        if step.ends_epoch != (number == len(steps) - 1):
            yield f"step {number} of {len(steps)} says ends_epoch={step.ends_epoch}"
    yield from _broken_chains(steps)


def _broken_chains(steps: list[Step]) -> Iterator[str]:
    """Yield a sentence for every unit that goes on from a state that no unit before it kept."""
    kept: dict[int, int] = {}
    for number, step in enumerate(steps):
        for rank, ours in step.units.items():
            for unit in ours:
                if not unit.fresh and kept.get(rank) != unit.first - 1:
                    yield f"step {number}: {unit} goes on after snapshot {unit.first - 1}, kept was {kept.get(rank)}"
                if unit.keep >= 0:
                    kept[rank] = unit.keep
