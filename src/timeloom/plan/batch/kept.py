"""Which states a window starts from, and which it keeps for the next one (SPEC section 7, "State inheritance").

There is one kept state for every node, no more: that after the last snapshot in which the node was computed and will
not be again in the next window. Of a snapshot's block, rows that were computed at the snapshot before it in the same
window go on from there, with their gradient; rows that were not go on from the kept state, without. Since windows have
as many chunks of a snapshot at the same age, the kept state of a row is always the one after the snapshot before.

Every array here goes over rows of an epoch's order (`order.py`), an owner's own or all: a kept state of one epoch is
nothing to the next, which starts anew.

Shape letters: N rows (all nodes of the order).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from timeloom.graph.keys import Int64s
from timeloom.plan.types import Unit


@dataclass(frozen=True, slots=True)
class StateRows:
    """Where the states of one snapshot of a unit come from, and which of them are kept."""

    t: int
    going_on: int
    """Rows 0 to `going_on` go on from the snapshot before, with its gradient ..."""
    size: int
    """... and rows `going_on` to `size`, the end of the block, from what is kept, as a constant."""
    kept_from: int
    """After the snapshot, the states of rows `kept_from` to `size` replace what is kept of these rows."""


def state_rows(unit: Unit, ends: Int64s) -> tuple[StateRows, ...]:
    """Return what goes where in a unit with chunks; ``ends`` are those of an order.

    What is kept is one state for every row, the start for all of them where the unit is fresh. All of a unit's reading
    comes before all of its keeping.
    """
    assert len(unit.chunks) == len(unit.kept_from) == unit.last - unit.first, f"{unit} does not say its chunks"
    found, before = [], 0
    for place, (chunks, kept_from) in enumerate(zip(unit.chunks, unit.kept_from, strict=True)):
        size = int(ends[chunks])
        found.append(StateRows(unit.first + place, before, size, int(ends[kept_from])))
        before = size
    return tuple(found)


NOT_READ = -2


def kept_after(units: Iterable[Unit], ends: Int64s) -> Int64s:
    """Return [N] the snapshot after which each row's kept state is, once these units of an epoch are done.

    The start of a fresh unit counts as the state after the snapshot before its first.
    """
    after_N = np.full(int(ends[-1]), -1)
    for unit in units:
        if unit.fresh:
            after_N[:] = unit.first - 1
        for rows in state_rows(unit, ends):
            after_N[rows.kept_from : rows.size] = rows.t
    return after_N


def kept_before(unit: Unit, ends: Int64s) -> Int64s:
    """Return [N] the snapshot after which a unit takes each row's kept state to be, or NOT_READ."""
    wanted_N = np.full(int(ends[-1]), NOT_READ)
    if not unit.fresh:
        for rows in state_rows(unit, ends):
            wanted_N[rows.going_on : rows.size] = rows.t - 1
    return wanted_N


def out_of_step(kept_after_N: Int64s, unit: Unit, ends: Int64s) -> int:
    """Return how many kept states are not those that a unit takes them to be.

    That happens where a run goes on with another number of ranks in the middle of an epoch: other ranks have other
    chunks, so some nodes were kept after an earlier or a later snapshot than the windows now ask for. They go on with
    what there is. ``kept_after_N`` is in the order that the unit will use. Between epochs nothing is kept: this is 0.
    """
    wanted_N = kept_before(unit, ends)
    return int(np.count_nonzero((wanted_N != NOT_READ) & (wanted_N != kept_after_N)))
