"""How changes become a segment of a store: keyframes, deltas, and what is worth knowing of every snapshot.

A snapshot is stored whole (a keyframe) where the deltas since the last keyframe have grown as large as itself, else as
a delta. So reading any snapshot touches at most about twice its size, however few or many edges change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.delta import Delta, apply, compose_all, ones_if_none
from timeloom.graph.ingest.spill import Block, Columns, Spill
from timeloom.graph.keys import Float64s, Int64s, KeyLayout
from timeloom.graph.snapshot import STATISTICS
from timeloom.graph.store import StoreWriter
from timeloom.jit import kernel

LONGEST_CHAIN = 64
Int32s = NDArray[np.int32]
Int8s = NDArray[np.int8]


@kernel(
    "int64(int64[::1], float64[::1], float64[::1], int64, int64, int64, "
    "int32[::1], int32[::1], int8[::1], int32[::1], int64[::1])"
)
def _move_degrees(
    keys: Int64s, old: Float64s, new: Float64s, low: int, high: int, mask: int,
    into: Int32s, out_of: Int32s, was_active: Int8s, touched: Int32s, counts: Int64s,
) -> int:  # fmt: skip
    """Follow one delta: degrees, edge counts, and the nodes touched with whether they were active before."""
    n = 0
    for i in range(len(keys)):
        step = (1 if new[i] != 0.0 else 0) - (1 if old[i] != 0.0 else 0)
        if step == 0:
            counts[3] += 1
            continue
        counts[0] += step
        counts[1 if step > 0 else 2] += 1
        target, source = keys[i] >> high, (keys[i] >> low) & mask
        for node in (target, source):
            if was_active[node] < 0:
                was_active[node] = 1 if into[node] + out_of[node] > 0 else 0
                touched[n] = node
                n += 1
        into[target] += step
        out_of[source] += step
    return n


@kernel("void(int32[::1], int64, int32[::1], int32[::1], int8[::1], int64[::1], int64[::1])")
def _settle(
    touched: Int32s, t: int, into: Int32s, out_of: Int32s, was_active: Int8s, first_seen: Int64s, counts: Int64s
) -> None:
    """Count which of the touched nodes came and went between two snapshots."""
    for i in range(len(touched)):
        node = touched[i]
        active = into[node] + out_of[node] > 0
        if active and was_active[node] == 0:
            counts[4] += 1
            if first_seen[node] < 0:
                first_seen[node] = t
                counts[5] += 1
            else:
                counts[6] += 1
        elif not active and was_active[node] == 1:
            counts[4] -= 1
            counts[7] += 1
        was_active[node] = -1


@dataclass(slots=True)
class NodeTrack:
    """What is followed of every node: its degrees now, and the snapshot that saw it first (-1: never seen)."""

    into: Int32s
    out_of: Int32s
    first_seen: Int64s
    was_active: Int8s = field(init=False)

    def __post_init__(self) -> None:
        self.was_active = np.full(len(self.into), -1, np.int8)

    @property
    def num_active(self) -> int:
        """How many nodes have an edge now."""
        return int(np.count_nonzero(self.into + self.out_of))


def new_track(num_nodes: int) -> NodeTrack:
    """Return a track in which no node has been seen."""
    return NodeTrack(np.zeros(num_nodes, np.int32), np.zeros(num_nodes, np.int32), np.full(num_nodes, -1, np.int64))


def plan_keyframes(
    num_changes: Int64s, num_edges: Int64s, *, weighted: bool, chain: tuple[int, int] = (0, 0)
) -> NDArray[np.bool_]:
    """Say which snapshots to store whole, given the sizes of all deltas and snapshots.

    ``chain`` is how many deltas, and changes in them, there have been since the last keyframe of the segments before.
    """
    edge_bytes, change_bytes = (16, 24) if weighted else (8, 9)
    whole = np.zeros(len(num_edges), np.bool_)
    deltas, chain_bytes = chain[0], chain[1] * change_bytes
    for t, (changes, edges) in enumerate(zip(num_changes.tolist(), num_edges.tolist(), strict=True)):
        if changes:
            deltas, chain_bytes = deltas + 1, chain_bytes + changes * change_bytes
            if chain_bytes > edges * edge_bytes or deltas > LONGEST_CHAIN:
                whole[t], deltas, chain_bytes = True, 0, 0
    return whole


class SegmentWriter:
    """Writes the snapshots of one segment in order; give it each snapshot's changes as blocks sorted by key."""

    def __init__(
        self, store: StoreWriter, segment: int, layout: KeyLayout, track: NodeTrack, whole: NDArray[np.bool_],
        *, weighted: bool, first: int, limit_bytes: int,
    ) -> None:  # fmt: skip
        self._store, self._layout, self._track, self._weighted = store, layout, track, weighted
        self._whole, self._first, self._limit_bytes = whole, first, limit_bytes
        self._name = f"s{segment}"
        self._base = Spill(store.scratch, "base", limit_bytes // 4)
        self._chain = Spill(store.scratch, "chain", limit_bytes // 4)
        self._chain_parts: list[list[Block]] = []
        self._counts = np.zeros(len(STATISTICS), np.int64)
        self._statistics: list[Int64s] = []
        self._ends: list[tuple[int, int]] = []
        names = {"keyframe.keys": "<i8", "delta.keys": "<i8"}
        if weighted:
            names |= {"keyframe.weights": "<f8", "delta.old": "<f8", "delta.new": "<f8"}
        else:
            names |= {"delta.appears": "|u1"}
        self._arrays = {name: store.open(f"{self._name}.{name}", dtype) for name, dtype in names.items()}

    def go_on_from(self, keys: Int64s, weights: Float64s, num_active: int) -> None:
        """Start from the last snapshot of the segment before."""
        self._counts[0], self._counts[4] = len(keys), num_active
        self._base.add({"key": keys, "weight": weights})

    def add(self, blocks: list[Block]) -> None:
        """Write the next snapshot."""
        t = len(self._ends)
        touched = [self._follow(block.read()) for block in blocks]
        if touched:
            track = self._track
            state = (track.into, track.out_of, track.was_active, track.first_seen, self._counts)
            _settle(np.concatenate(touched), self._first + t, *state)
        self._statistics.append(self._counts.copy())
        self._counts[[1, 2, 3, 5, 6, 7]] = 0
        for block in blocks:
            self._chain.add(block.read())
        self._chain_parts.append(self._chain.blocks[len(self._chain.blocks) - len(blocks) :])
        if self._whole[t]:
            self._write_keyframe()
        else:
            for block in blocks:
                self._write_delta(block.read())
        self._ends.append((self._arrays["keyframe.keys"].num_rows, self._arrays["delta.keys"].num_rows))

    def _follow(self, rows: Columns) -> Int32s:
        track, layout = self._track, self._layout
        touched = np.empty(min(2 * len(rows["key"]), len(track.into)), np.int32)
        high = layout.node_bits + layout.type_bits
        count = _move_degrees(
            rows["key"], rows["old"], rows["new"], layout.type_bits, high, layout.most_nodes - 1,
            track.into, track.out_of, track.was_active, touched, self._counts,
        )  # fmt: skip
        return touched[:count]

    def _write_delta(self, rows: Columns) -> None:
        self._arrays["delta.keys"].write(rows["key"])
        if self._weighted:
            self._arrays["delta.old"].write(rows["old"])
            self._arrays["delta.new"].write(rows["new"])
        else:
            self._arrays["delta.appears"].write((rows["new"] != 0.0).astype(np.uint8))

    def _write_keyframe(self) -> None:
        """Write the whole snapshot, one range of keys after another, so that none needs to fit in memory."""
        fresh = Spill(self._store.scratch, "base", self._limit_bytes // 4)
        for low, high in self._key_ranges():
            parts = _rows_between(self._base.blocks, low, high)
            keys = np.concatenate([part["key"] for part in parts]) if parts else np.empty(0, np.int64)
            weights = np.concatenate([part["weight"] for part in parts]) if parts else np.empty(0)
            deltas = [self._delta_between(blocks, low, high) for blocks in self._chain_parts]
            keys, found = apply(keys, weights, compose_all(deltas, self._layout))
            weights = ones_if_none(keys, found)
            self._arrays["keyframe.keys"].write(keys)
            if self._weighted:
                self._arrays["keyframe.weights"].write(weights)
            fresh.add({"key": keys, "weight": weights})
        self._base.close()
        self._chain.close()
        self._base, self._chain_parts = fresh, []

    def _delta_between(self, blocks: list[Block], low: int, high: int) -> Delta:
        parts = _rows_between(blocks, low, high)
        if not parts:
            return compose_all([], self._layout)
        key, old, new = (np.concatenate([part[name] for part in parts]) for name in ("key", "old", "new"))
        return Delta(self._layout, key, old, new)

    def _key_ranges(self) -> list[tuple[int, int]]:
        """Cut all keys into ranges of which each holds few enough rows."""
        blocks = self._base.blocks + self._chain.blocks
        total = sum(block.num_rows for block in blocks)
        pieces = -(-total * 120 // self._limit_bytes)
        bounds = [0, np.iinfo(np.int64).max]
        if pieces > 1:
            # Blocks may hold one range of keys after another, so all of them are asked, in proportion to their rows.
            stride = max(total // (16 * pieces), 1)
            places = [(block, place) for block in blocks for place in range(0, block.num_rows, stride)]
            sample = sorted(int(block.read(place, place + 1)["key"][0]) for block, place in places)
            bounds[1:1] = sample[16::16]
        bounds = sorted(set(bounds))
        return list(pairwise(bounds))

    def finish(self, starts: Int64s) -> Int64s:
        """Write the segment's index; return the statistics of its snapshots."""
        self._base.close()
        self._chain.close()
        ends = np.array(self._ends, np.int64).reshape(-1, 2)
        statistics = np.array(self._statistics, np.int64).reshape(-1, len(STATISTICS))
        self._store.put(f"{self._name}.starts", starts)
        self._store.put(f"{self._name}.whole", self._whole.astype(np.uint8))
        self._store.put(f"{self._name}.ends", ends)
        self._store.put(f"{self._name}.statistics", statistics)
        return statistics


def _rows_between(blocks: list[Block], low: int, high: int) -> list[Columns]:
    """Return the rows whose keys lie in a range, from those blocks that have any."""
    places = [(block, block.find("key", low), block.find("key", high)) for block in blocks]
    return [block.read(first, last) for block, first, last in places if first < last]
