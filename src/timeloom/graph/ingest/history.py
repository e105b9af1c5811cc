"""What each edge went through: from its events, sorted by edge and time, to the changes of its weight.

Two passes over sorted rows. First the events of one edge in one window become one *contribution*. Then each edge's
contributions become the changes of its weight: a contribution counts for `life` windows from its own on (0 = for ever),
so a snapshot depends on the past alone, and the weight is the policy over everything that counts. An edge whose weight
is 0 is absent (SPEC D1.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.ingest.order import sort_rows, sorting_order
from timeloom.graph.ingest.spill import Columns
from timeloom.graph.keys import Float64s, Int64s
from timeloom.jit import kernel

Int32s = NDArray[np.int32]
Int8s = NDArray[np.int8]


class Policy(IntEnum):
    """What becomes of several events of one edge that count at the same time."""

    sum = 0
    count = 1
    last = 2
    mean = 3
    max = 4


_COUNT, _LAST, _MEAN, _MAX = int(Policy.count), int(Policy.last), int(Policy.mean), int(Policy.max)


class Contributions(NamedTuple):
    """An edge's events of one window, merged: the window, the value (a mean's sum) and the number of events."""

    key: Int64s
    t: Int64s
    value: Float64s
    events: Int64s

    def rows(self, which: slice | NDArray[np.bool_ | np.uint32]) -> Contributions:
        """Return some of them."""
        return Contributions(self.key[which], self.t[which], self.value[which], self.events[which])


class Changes(NamedTuple):
    """Edges whose weight changes at snapshot ``t``, sorted by edge and then by snapshot."""

    t: Int32s
    key: Int64s
    old: Float64s
    new: Float64s

    def rows(self, which: slice) -> Changes:
        """Return some of them."""
        return Changes(self.t[which], self.key[which], self.old[which], self.new[which])


def room_for_contributions(count: int) -> Contributions:
    """Return contributions to be filled in."""
    return Contributions(
        np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count), np.empty(count, np.int64)
    )


def joined(parts: Sequence[Contributions]) -> Contributions:
    """Return several contributions as one."""
    keys, times, values, events = zip(*parts, strict=True)
    return Contributions(np.concatenate(keys), np.concatenate(times), np.concatenate(values), np.concatenate(events))


NO_CONTRIBUTIONS = room_for_contributions(0)


@kernel(
    "Tuple((int64, int64))(int64[::1], int32[::1], int64[::1], float64[::1], int64, int64, int64, "
    "int64[::1], int64[::1], float64[::1], int64[::1])"
)
def _merge_windows(
    key: Int64s, window: Int32s, time: Int64s, weight: Float64s, policy: int, begun: int, last_time: int,
    out_key: Int64s, out_t: Int64s, out_value: Float64s, out_count: Int64s,
) -> tuple[int, int]:  # fmt: skip
    """Merge rows into contributions; the first one goes on with what ``out`` holds already, where one was ``begun``."""
    timed, weighted = len(time) > 0, len(weight) > 0 and policy != _COUNT
    n, ties = begun - 1, 0
    for i in range(len(key)):
        value = weight[i] if weighted else 1.0
        if n < 0 or key[i] != out_key[n] or window[i] != out_t[n]:
            n += 1
            out_key[n], out_t[n], out_value[n], out_count[n] = key[i], window[i], value, 1
            continue
        out_count[n] += 1
        if policy == _LAST:
            if timed and time[i] == (time[i - 1] if i > 0 else last_time) and value != out_value[n]:
                ties += 1
            out_value[n] = value
        elif policy == _MAX:
            out_value[n] = max(out_value[n], value)
        else:
            out_value[n] += value
    return n + 1, ties


@kernel("int64(int64[::1], float64[::1], int64[::1], boolean)")
def _add_up(key: Int64s, value: Float64s, events: Int64s, largest: bool) -> int:
    """Merge all contributions of each edge into one, in place and in the order in which changes add them up."""
    n = -1
    for i in range(len(key)):
        if n >= 0 and key[i] == key[n]:
            value[n] = max(value[n], value[i]) if largest else value[n] + value[i]
            events[n] += events[i]
        else:
            n += 1
            key[n], value[n], events[n] = key[i], value[i], events[i]
    return n + 1


@kernel(
    "int64(int64[::1], int64[::1], float64[::1], int64[::1], int64, int64, int64, int64, "
    "int32[::1], int64[::1], float64[::1], float64[::1])"
)
def _find_changes(
    key: Int64s, t: Int64s, value: Float64s, count: Int64s, policy: int, life: int, first: int, end: int,
    out_t: Int32s, out_key: Int64s, out_old: Float64s, out_new: Float64s,
) -> int:  # fmt: skip
    n, start = 0, 0
    while start < len(key):
        stop = start + 1
        while stop < len(key) and key[stop] == key[start]:
            stop += 1
        # Contributions oldest..upto (exclusive) count now; every step lets one begin, one end, or both.
        oldest, upto, before, total, events = start, start, 0.0, 0.0, 0
        while upto < stop or (life > 0 and oldest < upto):
            now = t[upto] if upto < stop else end
            begins, ends = upto < stop, False
            if life > 0 and oldest < upto and t[oldest] + life <= now:
                begins, ends, now = begins and t[oldest] + life == now, True, t[oldest] + life
            if now >= end:
                break
            if ends:
                oldest += 1
            if begins:
                upto += 1
            if life == 0:
                newest = value[upto - 1]
                if policy == _LAST or upto - start == 1:
                    total = newest
                elif policy == _MAX:
                    total = max(total, newest)
                else:
                    total += newest
                events += count[upto - 1]
            else:
                total, events = 0.0, 0
                for k in range(oldest, upto):
                    if policy == _LAST or k == oldest:
                        total = value[k]
                    elif policy == _MAX:
                        total = max(total, value[k])
                    else:
                        total += value[k]
                    events += count[k]
            weight = total / events if policy == _MEAN and events > 0 else total
            if weight != before:
                if now >= first:
                    out_t[n], out_key[n], out_old[n], out_new[n] = now, key[start], before, weight
                    n += 1
                before = weight
        start = stop
    return n


@kernel("void(int64[::1], int32[::1], float64[::1], int64[::1])")
def _count_operations(key: Int64s, window: Int32s, weight: Float64s, counts: Int64s) -> None:
    """Count operations without effect, with one, and windows whose operations cancel (rows before window 0 set up)."""
    now, opened, moved = 0.0, 0.0, False
    for i in range(len(key)):
        if i == 0 or key[i] != key[i - 1]:
            now, opened, moved = 0.0, 0.0, False
        elif window[i] != window[i - 1]:
            opened, moved = now, False
        if window[i] >= 0:
            counts[0 if weight[i] == now else 1] += 1
            moved = moved or weight[i] != now
            closes = i + 1 == len(key) or key[i + 1] != key[i] or window[i + 1] != window[i]
            if closes and moved and weight[i] == opened:
                counts[2] += 1
        now = weight[i]


@dataclass(slots=True)
class HistoryCounts:
    """What was seen while following: merged events, and events that could not show."""

    groups: int = 0
    """Contributions: the different (edge, window) pairs."""
    zeros: int = 0
    """Contributions whose value is 0, so that alone they are no edge."""
    ties: int = 0
    """Events that replaced another one of the same time, so that the order of the rows decided."""
    idle: int = 0
    """Operations without effect: the edge was there already, or gone already."""
    moved: int = 0
    """Operations with an effect."""
    vanished: int = 0
    """Edges whose operations within one window cancel, so that no snapshot shows them."""


class Follower:
    """Turns sorted rows into changes; it is given blocks in order and remembers the edge that a block ends within."""

    def __init__(
        self,
        policy: Policy,
        *,
        life: int,
        operations: bool,
        first: int,
        end: int,
        tail: Contributions = NO_CONTRIBUTIONS,
    ) -> None:
        self._policy, self._life, self._operations = policy, life, operations
        self._first, self._end, self._tail = first, end, tail
        self._waiting = NO_CONTRIBUTIONS
        self._operation_rows: list[Columns] = []
        self._keeps = keeps_tail(policy, life, operations)
        self._kept: list[Contributions] = []
        self._last_time = 0
        self.counts = HistoryCounts()

    def follow(self, rows: Columns) -> Changes:
        """Return the changes of all edges that end within these rows."""
        if self._operations:
            self._watch(rows)
        waiting, begun = self._waiting, int(len(self._waiting.key) > 0)
        out = room_for_contributions(len(rows["key"]) + begun)
        if begun:
            # What a block cut off goes on, event by event, so that sums do not depend on where blocks end.
            for column, known in zip(out, waiting, strict=True):
                column[0] = known[-1]
        time, weight = rows.get("time", NO_CONTRIBUTIONS.key), rows.get("weight", NO_CONTRIBUTIONS.value)
        size, ties = _merge_windows(
            rows["key"], rows["window"], time, weight, self._policy, begun, self._last_time, *out
        )  # fmt: skip
        self.counts.ties += ties
        self._last_time = int(time[-1]) if len(time) else 0
        merged = (
            joined([waiting.rows(slice(0, -1)), out.rows(slice(0, size))])
            if len(waiting.key) > 1
            else out.rows(slice(0, size))
        )
        # The last edge may go on in the next block.
        split = int(np.searchsorted(merged.key, merged.key[-1]))
        self._waiting = merged.rows(slice(split, None))
        return self._finish(merged.rows(slice(0, split)), int(merged.key[-1]))

    def end(self) -> Changes:
        """Return the changes of everything not finished yet."""
        self._watch_all()
        waiting, self._waiting = self._waiting, NO_CONTRIBUTIONS
        return self._finish(waiting, None)

    def _finish(self, edges: Contributions, before: int | None) -> Changes:
        """Return the changes of whole edges, and of the tail's edges below ``before`` (None: all that are left)."""
        self.counts.groups += len(edges.key)
        if not self._operations:
            self.counts.zeros += int(np.count_nonzero(edges.value == 0.0))
        upto = len(self._tail.key) if before is None else int(np.searchsorted(self._tail.key, before))
        if upto:
            head = self._tail.rows(slice(0, upto))
            self._tail = self._tail.rows(slice(upto, None))
            edges = in_order(joined([head, edges]))
        room = 2 * len(edges.key) + 1
        out = Changes(np.empty(room, np.int32), np.empty(room, np.int64), np.empty(room), np.empty(room))
        size = _find_changes(*edges, self._policy, self._life, self._first, self._end, *out)
        if self._keeps:
            self._kept.append(self._still_counting(edges))
        return out.rows(slice(0, size))

    def _still_counting(self, edges: Contributions) -> Contributions:
        """Return what of these edges counts beyond the last snapshot."""
        if self._life > 0:
            return edges.rows(edges.t >= self._end - self._life)
        key, value, events = edges.key.copy(), edges.value.copy(), edges.events.copy()
        size = _add_up(key, value, events, self._policy == Policy.max)
        return Contributions(key[:size], np.full(size, -1), value[:size], events[:size])

    def take_kept(self) -> Contributions:
        """Return what counts beyond the last snapshot, of the edges finished since this was asked last."""
        kept, self._kept = joined([NO_CONTRIBUTIONS, *self._kept]), []
        return kept

    def _watch(self, rows: Columns) -> None:
        """Gather operations until an edge is whole, then count what they did."""
        self._operation_rows.append({name: rows[name] for name in ("key", "window", "weight")})
        if rows["key"][0] != rows["key"][-1]:
            split = int(np.searchsorted(rows["key"], rows["key"][-1]))
            last = {name: column[split:].copy() for name, column in self._operation_rows[-1].items()}
            self._operation_rows[-1] = {name: column[:split] for name, column in self._operation_rows[-1].items()}
            self._watch_all()
            self._operation_rows = [last]

    def _watch_all(self) -> None:
        parts, self._operation_rows = self._operation_rows, []
        if not parts:
            return
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        known = np.isin(self._tail.key, rows["key"])
        if known.any():
            before = {"key": self._tail.key[known], "weight": self._tail.value[known]}
            before["window"] = np.full(len(before["key"]), -1, np.int32)
            rows = sort_rows({name: np.concatenate([before[name], rows[name]]) for name in rows}, ["key", "window"])
        counts = np.zeros(3, np.int64)
        _count_operations(rows["key"], rows["window"], rows["weight"], counts)
        self.counts.idle += int(counts[0])
        self.counts.moved += int(counts[1])
        self.counts.vanished += int(counts[2])


def in_order(contributions: Contributions) -> Contributions:
    """Return contributions sorted by edge and then by window."""
    order, _ = sorting_order([contributions.key, contributions.t])
    return contributions if order is None else contributions.rows(order)


def keeps_tail(policy: Policy, life: int, operations: bool) -> bool:
    """Say whether the last snapshot alone is too little to go on from, so that contributions must be kept."""
    return not operations and (life > 1 or (life == 0 and policy in (Policy.mean, Policy.max)))
