"""Is a plan one that may be carried out?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

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
    misshapen = [told for unit in planned for told in _misshapen(unit)]
    yield from misshapen or _broken_chains(steps)
    yield from _uneven(steps)


def _misshapen(unit: Unit) -> Iterator[str]:
    """Yield a sentence for what cannot be meant about the chunks of a unit."""
    chunks, kept_from = unit.chunks, unit.kept_from
    if not chunks and not kept_from:
        return
    if not len(chunks) == len(kept_from) == unit.last - unit.first:
        yield f"{unit} has chunks for {len(chunks)} and keeps from {len(kept_from)} of its snapshots"
        return
    if min(chunks) < 1:
        yield f"{unit} has a snapshot without a chunk"
    if any(old > new for old, new in pairwise(chunks)):
        yield f"{unit} computes more of a snapshot than of the one after it"
    if not all(0 <= low <= high for low, high in zip(kept_from, chunks, strict=True)):
        yield f"{unit} keeps chunks that it does not compute"


def _uneven(steps: list[Step]) -> Iterator[str]:
    """Yield a sentence for every step whose ranks compute parts of the same nodes' windows and are not in step."""
    for number, step in enumerate(steps):
        shapes = {ours for ours in step.units.values() if any(unit.chunks for unit in ours)}
        if shapes and len(set(step.units.values())) > 1:
            yield f"step {number}: ranks compute different windows of chunks, so that their exchanges do not meet"


def _broken_chains(steps: list[Step]) -> Iterator[str]:
    """Yield a sentence for every unit that goes on from a state that no unit before it kept."""
    kept: dict[int, int] = {}
    kept_chunks: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for rank, ours in step.units.items():
            for unit in ours:
                if unit.chunks:
                    told = _taken_over(unit, kept_chunks.setdefault(rank, []))
                    yield from (f"step {number}: {sentence}" for sentence in told)
                elif not unit.fresh and kept.get(rank) != unit.first - 1:
                    yield f"step {number}: {unit} goes on after snapshot {unit.first - 1}, kept was {kept.get(rank)}"
                if unit.keep >= 0:
                    kept[rank] = unit.keep


def _taken_over(unit: Unit, kept: list[int]) -> Iterator[str]:
    """Yield a sentence for every chunk whose kept state is not that after the snapshot before, and keep the unit's.

    ``kept`` holds, for each chunk in the order of the epoch, the snapshot that its kept state is that after.
    """
    if unit.fresh or not kept:
        if not unit.fresh:
            yield f"{unit} goes on from another unit, and there is none"
        kept[:] = [unit.first - 1] * max(unit.chunks)
    before = 0
    for t, chunks in zip(range(unit.first, unit.last), unit.chunks, strict=True):
        wrong = {kept[place] for place in range(before, min(chunks, len(kept))) if kept[place] != t - 1}
        if (wrong or chunks > len(kept)) and not unit.fresh:
            yield f"{unit} goes on after snapshot {t - 1} with chunks {before} to {chunks}, kept was {sorted(wrong)}"
        before = chunks
    for t, low, high in zip(range(unit.first, unit.last), unit.kept_from, unit.chunks, strict=True):
        kept[low:high] = [t] * (high - low)
