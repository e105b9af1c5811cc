"""The one way to read a graph: its snapshots, deltas, features and labels, each without reading the rest."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.delta import NO_KEYS, Delta, apply, compose_all, diff
from timeloom.graph.features import Features, Labels, open_features, open_labels
from timeloom.graph.keys import Float64s, Int64s, KeyLayout
from timeloom.graph.names import NodeIds, open_ids
from timeloom.graph.snapshot import STATISTICS, Snapshot
from timeloom.graph.store import Store
from timeloom.graph.times import Clock

# An append replaces the arrays whose names begin so.
_REPLACED = ("nodes.", "types.", "tail.")


@dataclass(frozen=True)
class _Segment:
    """Consecutive snapshots that were written together."""

    store: Store
    name: str
    first: int
    count: int
    weighted: bool

    def array(self, name: str) -> NDArray[Any]:
        return self.store.array(f"{self.name}.{name}")

    def is_whole(self, t: int) -> bool:
        return bool(self.array("whole")[t - self.first])

    @cached_property
    def _wholes(self) -> Int64s:
        """The snapshots that are stored whole."""
        return self.first + np.flatnonzero(self.array("whole"))

    @cached_property
    def _changes(self) -> Int64s:
        """The snapshots stored as a delta in which something changes."""
        ends = self.array("ends")[:, 1]
        return self.first + np.flatnonzero(ends != np.concatenate([[0], ends[:-1]]))

    def whole_before(self, t: int) -> int:
        """Return the last snapshot up to t that is stored whole (-1: there is none here)."""
        place = int(np.searchsorted(self._wholes, t, side="right"))
        return int(self._wholes[place - 1]) if place else -1

    def changes_between(self, after: int, t: int) -> list[int]:
        """Return the snapshots after ``after`` and up to t in which something changes."""
        low, high = np.searchsorted(self._changes, [after, t], side="right")
        found: list[int] = self._changes[low:high].tolist()
        return found

    def bounds(self, t: int, kind: int) -> tuple[int, int]:
        ends, row = self.array("ends"), t - self.first
        return (int(ends[row - 1, kind]) if row else 0), int(ends[row, kind])

    def keyframe(self, t: int) -> tuple[Int64s, Float64s | None]:
        low, high = self.bounds(t, 0)
        weights = self.array("keyframe.weights")[low:high] if self.weighted else None
        return self.array("keyframe.keys")[low:high], weights

    def delta(self, t: int, layout: KeyLayout) -> Delta:
        low, high = self.bounds(t, 1)
        keys = self.array("delta.keys")[low:high]
        if self.weighted:
            return Delta(layout, keys, self.array("delta.old")[low:high], self.array("delta.new")[low:high])
        appears = self.array("delta.appears")[low:high].astype(np.float64)
        return Delta(layout, keys, 1.0 - appears, appears)


class DynamicGraph:
    """A graph on disk. Opening reads a manifest; everything else is read, page by page, when it is asked for.

    Note: `t` is an index; `starts[t]` is the time at which snapshot t begins, in ticks of `clock`.
    """

    def __init__(self, path: Path) -> None:
        self.store = Store(path)
        manifest = self.store.manifest
        self.name: str = manifest["name"]
        self.num_nodes: int = manifest["num_nodes"]
        self.clock = Clock(manifest["clock"])
        self.layout = KeyLayout(**manifest["layout"])
        self.ids: NodeIds = open_ids(self.store, "nodes")
        self.type_ids: NodeIds = open_ids(self.store, "types")
        self._segments = [_Segment(self.store, **entry) for entry in manifest["segments"]]
        self._firsts = [segment.first for segment in self._segments]
        self._num_snapshots: int = manifest["num_snapshots"]
        # What is mapped now stays what it is for as long as this graph is open, even when an append replaces it.
        for name in self.store.names:
            if name.startswith(_REPLACED):
                self.store.array(name)
        self.first_seen: Int64s = self.store.array("nodes.first_seen")
        """The snapshot in which each node first has an edge (-1: in none)."""

    def __len__(self) -> int:
        return self._num_snapshots

    def __repr__(self) -> str:
        return f"<DynamicGraph {self.name!r}: {len(self)} snapshots, {self.num_nodes} nodes>"

    @property
    def path(self) -> Path:
        """The folder."""
        return self.store.path

    @property
    def starts(self) -> Int64s:
        """The time at which each snapshot begins."""
        return self._joined("starts")

    @property
    def end(self) -> int:
        """The time at which the last snapshot ends."""
        return int(self.store.manifest["end"])

    @property
    def statistics(self) -> dict[str, Int64s]:
        """Numbers counted for every snapshot while it was written, by name (see `snapshot.STATISTICS`)."""
        table = self._joined("statistics")
        return {name: table[:, place] for place, name in enumerate(STATISTICS)}

    def num_edges(self, t: int) -> int:
        """Return how many edges snapshot t has, without reading it."""
        return int(self.segment_row("statistics", t)[STATISTICS.index("edges")])

    def _joined(self, name: str) -> Int64s:
        parts = [segment.array(name) for segment in self._segments]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _checked(self, t: int) -> int:
        if not -len(self) <= t < len(self):
            raise BadConfig(
                f"snapshot {t} of {self.name!r} was asked for, but it has {len(self)} (0 to {len(self) - 1})"
            )
        return t % len(self)

    def _bound(self, t: int) -> int:
        return t if t == len(self) else self._checked(t)

    def _segment_of(self, t: int) -> _Segment:
        return self._segments[bisect_right(self._firsts, t) - 1]

    def _edges(self, t: int) -> tuple[Int64s, Float64s | None]:
        """Return the keys and weights of snapshot t, from the keyframe before it and the deltas since."""
        base, changed = -1, list[tuple[_Segment, int]]()
        for segment in reversed(self._segments[: bisect_right(self._firsts, t)]):
            base = segment.whole_before(t)
            changed[:0] = [(segment, s) for s in segment.changes_between(base, t)]
            if base >= 0:
                break
        keys, weights = self._segment_of(base).keyframe(base) if base >= 0 else (NO_KEYS, None)
        deltas = [segment.delta(s, self.layout) for segment, s in changed]
        if not deltas:
            return keys, weights
        if weights is None and any(segment.weighted for segment, _ in changed):
            weights = np.ones(len(keys))
        return apply(keys, weights, compose_all(deltas, self.layout))

    def _snapshot(self, t: int, keys: Int64s, weights: Float64s | None) -> Snapshot:
        return Snapshot(t, self.num_nodes, self.layout, keys, weights, self._alive(t, keys))

    def _alive(self, t: int, keys: Int64s) -> NDArray[np.bool_]:
        alive = np.zeros(self.num_nodes, np.bool_)
        if "nodes.present" in self.store:
            present = self.store.array("nodes.present")
            alive[present[(present[:, 1] <= t) & (t < present[:, 2]), 0]] = True
        # A node with an edge is there, whatever a list says: else its neighbours would hear of nobody.
        alive[self.layout.sources(keys)] = True
        alive[self.layout.targets(keys)] = True
        return alive

    def stored(self, t: int) -> tuple[tuple[Int64s, Float64s | None] | None, Delta | None]:
        """Return snapshot t as it is stored: its keys and weights where it is stored whole, else its delta."""
        t = self._checked(t)
        segment = self._segment_of(t)
        return (segment.keyframe(t), None) if segment.is_whole(t) else (None, segment.delta(t, self.layout))

    def is_weighted(self, t: int) -> bool:
        """Say whether the part of the graph that snapshot t was written with stores weights."""
        return self._segment_of(self._checked(t)).weighted

    @property
    def num_keyframes(self) -> int:
        """How many snapshots are stored whole."""
        return sum(int(np.count_nonzero(segment.array("whole"))) for segment in self._segments)

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t (negative: from the end)."""
        t = self._checked(t)
        return self._snapshot(t, *self._edges(t))

    def snapshots(self, first: int = 0, last: int | None = None) -> Iterator[Snapshot]:
        """Yield snapshots ``first`` up to ``last`` (exclusive); each made from the one before if cheaper.

        Negative numbers count from the end.
        """
        first, last = self._bound(first), len(self) if last is None else self._bound(last)
        keys, weights = NO_KEYS, None
        for t in range(first, last):
            segment = self._segment_of(t)
            if t == first or segment.is_whole(t):
                keys, weights = self._edges(t)
            elif len(delta := segment.delta(t, self.layout)):
                weights = np.ones(len(keys)) if weights is None and segment.weighted else weights
                keys, weights = apply(keys, weights, delta)
            yield self._snapshot(t, keys, weights)

    def delta(self, t: int) -> Delta:
        """Return what changes snapshot t - 1 into snapshot t (for t = 0: everything appears)."""
        t = self._checked(t)
        segment = self._segment_of(t)
        if not segment.is_whole(t):
            return segment.delta(t, self.layout)
        before = self._edges(t - 1) if t else (NO_KEYS, None)
        return diff(*before, *self._edges(t), self.layout)

    def segment_row(self, name: str, t: int) -> NDArray[Any]:
        """Return snapshot t's row of an array that every segment has."""
        t = self._checked(t)
        segment = self._segment_of(t)
        return np.asarray(segment.array(name)[t - segment.first])

    @property
    def num_edge_types(self) -> int:
        """How many types edges have (0: none)."""
        return len(self.type_ids) if self.layout.type_bits else 0

    @property
    def features(self) -> Features:
        """The features of the nodes, by snapshot."""
        return open_features(self)

    @property
    def labels(self) -> Labels:
        """The labels of the nodes, by snapshot."""
        return open_labels(self)


def open_graph(path: str | PathLike[str]) -> DynamicGraph:
    """Open a graph for reading; this takes milliseconds whatever its size."""
    return DynamicGraph(Path(path))
