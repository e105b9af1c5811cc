"""The features of one server's nodes in the last few snapshots, each value stored once (DistDy 3.2).

A row of features is cut into segments. A run is a node's stay on this server over consecutive snapshots (SPEC D9.1):
of a run the whole row is stored as it was at its first snapshot inside the window, and of every later snapshot the
segments that changed. When the oldest snapshot leaves the window, the changes of the next one are written into the
whole rows (the rebase), and rows of runs that ended are overwritten by the last ones, so that arrays are always exactly
as long as they need to be: what `held_bytes` says is what these arrays take.

Shape letters: N nodes, F features, S segments, P stored whole rows, C nodes that changed in a snapshot, A arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.csr import Int32s
from timeloom.graph.features import Float32s
from timeloom.graph.keys import Int64s
from timeloom.graph.segment_log import SegmentLog
from timeloom.jit import inlined, kernel

Masks = NDArray[np.uint32]
MOST_SEGMENTS = 32
_RUNNING = (1 << 31) - 1
_NO_NODES: Int32s = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """How a row of features is cut."""

    num_features: int
    num_segments: int = 4  # DistDy 5.1

    def __post_init__(self) -> None:
        if not 1 <= self.num_segments <= MOST_SEGMENTS:
            raise BadConfig(f"rows in {self.num_segments} segments were asked for: give 1 to {MOST_SEGMENTS}")

    @property
    def bounds(self) -> Int64s:
        """Where each segment begins, and where the last ends; lengths differ by 1 at most."""
        return np.arange(self.num_segments + 1) * self.num_features // self.num_segments

    @property
    def row_bytes(self) -> int:
        """The bytes of a whole row."""
        return 4 * self.num_features

    def changed_bytes(self, masks: Masks) -> Int64s:
        """Return the bytes of the segments that each mask names."""
        widths = np.diff(self.bounds)
        bits = (masks[:, None] >> np.arange(self.num_segments, dtype=np.uint32)) & 1
        return 4 * (bits.astype(np.int64) @ widths)


def changed_segments(before_NF: Float32s, after_NF: Float32s, layout: SegmentLayout) -> Masks:
    """Return a mask for each row: bit s is set where segment s differs in any bit."""
    masks = np.zeros(len(after_NF), np.uint32)
    before, after = (np.ascontiguousarray(rows).view(np.int32) for rows in (before_NF, after_NF))
    assert before.shape == after.shape, (before.shape, after.shape)
    _compare(before, after, layout.bounds, masks)
    return masks


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureChange:
    """What changes on a server from one snapshot to the next. All lists of nodes ascend; no node is in two."""

    arrived: Int32s
    rows_AF: Float32s
    changed: Int32s
    """Nodes that stay, and of whose segments some changed."""
    masks: Masks
    rows_CF: Float32s
    """Their whole new rows, of which what changed is kept."""
    ended: Int32s
    """Nodes that were here in the snapshot before and are not any more."""


@dataclass(slots=True)
class _Block:
    """One snapshot of the window."""

    t: int
    arrived: Int32s
    ended: Int32s
    changed: Int32s
    masks: Masks
    starts: Int64s
    values: Float32s

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        return self.arrived, self.ended, self.changed, self.masks, self.starts, self.values


class FeatureWindow:
    """The features of one server's nodes over a window of snapshots."""

    def __init__(self, layout: SegmentLayout, *, window: int, log: SegmentLog | None = None) -> None:
        if window < 1:
            raise BadConfig(f"a window of {window} snapshots was asked for: give 1 or more")
        self.layout, self.window, self._log = layout, window, log
        self._blocks: deque[_Block] = deque()
        self._rows_PF: Float32s = np.empty((0, layout.num_features), np.float32)
        self._node_P, self._start_P, self._last_P, self._older_P = (np.empty(0, np.int32) for _ in range(4))
        self._slot_N: Int32s = np.empty(0, np.int32)

    @property
    def snapshots(self) -> range:
        """The snapshots that are held."""
        return range(self._blocks[0].t, self._blocks[-1].t + 1) if self._blocks else range(0)

    @property
    def whole_bytes(self) -> int:
        """The bytes of whole rows."""
        return self._rows_PF.nbytes

    @property
    def changed_bytes(self) -> int:
        """The bytes of changed segments."""
        return sum(block.values.nbytes for block in self._blocks)

    @property
    def held_bytes(self) -> int:
        """The bytes of all arrays: rows, changes, and what finds them."""
        return sum(array.nbytes for array in self._arrays())

    def _arrays(self) -> Iterator[NDArray[np.generic]]:
        yield from (self._rows_PF, self._node_P, self._start_P, self._last_P, self._older_P, self._slot_N)
        for block in self._blocks:
            yield from block.arrays()

    def append(self, t: int, num_nodes: int, change: FeatureChange) -> None:
        """Add snapshot t of a graph of so many nodes; the oldest leaves the window where that is full."""
        assert not self._blocks or t == self._blocks[-1].t + 1, "snapshots follow each other"
        if len(self._blocks) == self.window:
            self._slide()
        if num_nodes > len(self._slot_N):
            self._slot_N = np.concatenate([self._slot_N, np.full(num_nodes - len(self._slot_N), -1, np.int32)])
        self._last_P[self._slot_N[change.ended]] = t - 1
        if self.window == 1:
            self._free(change.ended, t - 1)
        self._arrive(t, change.arrived, change.rows_AF)
        self._blocks.append(self._block(t, change))
        if len(self._blocks) == 1:
            self._fold(self._blocks[0])

    def _block(self, t: int, change: FeatureChange) -> _Block:
        starts = np.zeros(len(change.changed) + 1, np.int64)
        np.cumsum(self.layout.changed_bytes(change.masks) // 4, out=starts[1:])
        values = np.empty(int(starts[-1]), np.float32)
        _gather(change.masks, np.ascontiguousarray(change.rows_CF), self.layout.bounds, starts, values)
        # Copies: a view would hold on to an array that nobody counts.
        lists = change.arrived.copy(), change.ended.copy(), change.changed.copy(), change.masks.copy()
        return _Block(t, *lists, starts, values)

    def rows(self, t: int, nodes: NDArray[np.integer]) -> Float32s:
        """Return the features of nodes that are here in snapshot t; the cost is what is copied and a search a block."""
        if t not in self.snapshots:
            held = f"{self.snapshots[0]} to {self.snapshots[-1]}" if self._blocks else "none"
            raise BadConfig(f"features of snapshot {t} were asked for, but the window holds {held}: widen the window")
        slots, known = np.empty(len(nodes), np.int32), nodes.astype(np.int64)
        missing = _find(known, t, self._slot_N, self._start_P, self._last_P, self._older_P, slots)
        if missing >= 0:
            raise BadConfig(
                f"features of node {nodes[missing]} in snapshot {t} were asked for, but it is not here then"
            )
        found_NF = self._rows_PF[slots]
        starts = self._start_P[slots]
        for block in self._blocks:
            if self._blocks[0].t < block.t <= t:
                _overwrite(
                    known, starts, block.t, block.changed, block.masks, block.starts, block.values, self.layout.bounds,
                    found_NF,
                )  # fmt: skip
        return found_NF

    def _arrive(self, t: int, nodes: Int32s, rows_AF: Float32s) -> None:
        """Begin a run of each node."""
        before = len(self._node_P)
        self._resize(before + len(nodes))
        new = np.arange(before, before + len(nodes), dtype=np.int32)
        self._rows_PF[before:], self._node_P[before:] = rows_AF, nodes
        self._start_P[before:], self._last_P[before:] = t, _RUNNING
        self._older_P[before:] = self._slot_N[nodes]
        self._slot_N[nodes] = new

    def _resize(self, count: int) -> None:
        # Nobody else holds on to these arrays: `rows` returns copies. Growing by realloc moves pages, not bytes.
        self._rows_PF.resize((count, self.layout.num_features), refcheck=False)
        for array in (self._node_P, self._start_P, self._last_P, self._older_P):
            array.resize(count, refcheck=False)

    def _slide(self) -> None:
        """Let the oldest snapshot go; the next one's changes become part of the whole rows."""
        oldest = self._blocks.popleft()
        if self._blocks:
            self._free(self._blocks[0].ended, oldest.t)
            self._fold(self._blocks[0])

    def _fold(self, block: _Block) -> None:
        """Write a snapshot's changes into the whole rows: it is the oldest now, and goes to the disk."""
        if self._log is not None:
            arrived = self._slots_of(block.arrived, block.t)
            names = ("arrived", "ended", "changed", "masks", "starts", "values")
            arrays = dict(zip(names, block.arrays(), strict=True))
            self._log.write("features", block.t, {**arrays, "rows": self._rows_PF[arrived]})
        slots = self._slots_of(block.changed, block.t)
        _scatter(slots, block.masks, block.starts, block.values, self.layout.bounds, self._rows_PF)
        block.arrived = block.changed = _NO_NODES
        block.masks, block.starts = np.empty(0, np.uint32), np.zeros(1, np.int64)
        block.values = np.empty(0, np.float32)

    def _slots_of(self, nodes: Int32s, t: int) -> Int32s:
        slots = np.empty(len(nodes), np.int32)
        missing = _find(
            nodes.astype(np.int64), t, self._slot_N, self._start_P, self._last_P, self._older_P, slots
        )  # fmt: skip
        assert missing < 0, f"node {nodes[missing]} has no run at snapshot {t}"
        return slots

    def _free(self, nodes: Int32s, last: int) -> None:
        """Forget the runs of these nodes that ended with snapshot ``last``."""
        count = _forget(
            nodes, last, self._slot_N, self._node_P, self._start_P, self._last_P, self._older_P, self._rows_PF
        )  # fmt: skip
        self._resize(count)


@kernel("void(int32[:, ::1], int32[:, ::1], int64[::1], uint32[::1])")
def _compare(before: Int32s, after: Int32s, bounds: Int64s, masks: Masks) -> None:
    for i in range(len(after)):
        for s in range(len(bounds) - 1):
            for f in range(bounds[s], bounds[s + 1]):
                if before[i, f] != after[i, f]:
                    masks[i] |= np.uint32(1) << np.uint32(s)
                    break


@kernel("void(uint32[::1], float32[:, ::1], int64[::1], int64[::1], float32[::1])")
def _gather(masks: Masks, rows_CF: Float32s, bounds: Int64s, starts: Int64s, values: Float32s) -> None:
    for i in range(len(masks)):
        at = starts[i]
        for s in range(len(bounds) - 1):
            if (masks[i] >> np.uint32(s)) & np.uint32(1):
                for f in range(bounds[s], bounds[s + 1]):
                    values[at] = rows_CF[i, f]
                    at += 1


@inlined
def _write(mask: int, at: int, values: Float32s, bounds: Int64s, row: Float32s) -> None:
    for s in range(len(bounds) - 1):
        if (mask >> np.uint32(s)) & np.uint32(1):
            for f in range(bounds[s], bounds[s + 1]):
                row[f] = values[at]
                at += 1


@kernel("void(int32[::1], uint32[::1], int64[::1], float32[::1], int64[::1], float32[:, ::1])")
def _scatter(
    slots: Int32s, masks: Masks, starts: Int64s, values: Float32s, bounds: Int64s, rows_PF: Float32s
) -> None:  # fmt: skip
    for i in range(len(slots)):
        _write(masks[i], starts[i], values, bounds, rows_PF[slots[i]])


@kernel(
    "void(int64[::1], int32[::1], int64, int32[::1], uint32[::1], int64[::1], float32[::1], int64[::1], "
    "float32[:, ::1])"
)
def _overwrite(
    nodes: Int64s, begins: Int32s, t: int, changed: Int32s, masks: Masks, starts: Int64s, values: Float32s,
    bounds: Int64s, out: Float32s,
) -> None:  # fmt: skip
    for i in range(len(nodes)):
        # A run that begins later than this snapshot's change holds it already.
        if begins[i] >= t:
            continue
        low, high = 0, len(changed)
        while low < high:
            middle = (low + high) // 2
            if changed[middle] < nodes[i]:
                low = middle + 1
            else:
                high = middle
        if low < len(changed) and changed[low] == nodes[i]:
            _write(masks[low], starts[low], values, bounds, out[i])


@kernel("int64(int64[::1], int64, int32[::1], int32[::1], int32[::1], int32[::1], int32[::1])")
def _find(
    nodes: Int64s, t: int, slot_N: Int32s, start_P: Int32s, last_P: Int32s, older_P: Int32s, slots: Int32s
) -> int:  # fmt: skip
    """Find the run of each node that has snapshot t; return the place of a node that has none (-1: all have one)."""
    for i in range(len(nodes)):
        if not 0 <= nodes[i] < len(slot_N):
            return i
        slot = slot_N[nodes[i]]
        while slot >= 0 and start_P[slot] > t:
            slot = older_P[slot]
        if slot < 0 or last_P[slot] < t:
            return i
        slots[i] = slot
    return -1


@kernel("int64(int32[::1], int64, int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], float32[:, ::1])")
def _forget(
    nodes: Int32s, last: int, slot_N: Int32s, node_P: Int32s, start_P: Int32s, last_P: Int32s, older_P: Int32s,
    rows_PF: Float32s,
) -> int:  # fmt: skip
    count = len(node_P)
    for v in nodes:
        newer, slot = np.int32(-1), slot_N[v]
        while last_P[slot] != last:
            newer, slot = slot, older_P[slot]
        if newer < 0:
            slot_N[v] = older_P[slot]
        else:
            older_P[newer] = older_P[slot]
        count -= 1
        if slot == count:
            continue
        # The last row takes the free place, and whoever points to it points there.
        rows_PF[slot] = rows_PF[count]
        node_P[slot], start_P[slot] = node_P[count], start_P[count]
        last_P[slot], older_P[slot] = last_P[count], older_P[count]
        owner = node_P[slot]
        if slot_N[owner] == count:
            slot_N[owner] = slot
        else:
            newer = slot_N[owner]
            while older_P[newer] != count:
                newer = older_P[newer]
            older_P[newer] = slot
    return count
