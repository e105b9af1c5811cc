"""The edges into one server's nodes in the last few snapshots: all of the oldest, and what changed since (DistDy 3.2).

An edge is stored where its target lives, as a row aggregates its incoming edges. By runs (SPEC D9.1): a node that
arrives brings all its edges, one that stays stores those that came and those that went, and one that leaves takes its
edges along without a word, because the list of nodes that left says it all. With a log every change is also written to
disk as it arrives.

Shape letters: E edges.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.csr import Int32s
from timeloom.graph.delta import NO_KEYS, NO_WEIGHTS, Delta, apply
from timeloom.graph.keys import Float64s, Int64s, KeyLayout
from timeloom.graph.segment_log import SegmentLog


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeChange:
    """What changes on a server from one snapshot to the next."""

    left: Int32s
    """Nodes whose edges are not here any more, ascending."""
    gone: Int64s
    """Keys of edges that are gone, of nodes that stay."""
    came: Int64s
    """Keys of edges that came or have another weight, of nodes that stay, and all of nodes that arrive; ascending."""
    weights: Float64s | None
    """The weights of what came (None: all weigh 1)."""


class EdgeWindow:
    """The edges into one server's nodes over a window of snapshots."""

    def __init__(self, layout: KeyLayout, *, window: int, weighted: bool, log: SegmentLog | None = None) -> None:
        if window < 1:
            raise BadConfig(f"a window of {window} snapshots was asked for: give 1 or more")
        self.layout, self.window, self.weighted, self._log = layout, window, weighted, log
        self._keys: Int64s = NO_KEYS
        self._weights: Float64s | None = NO_WEIGHTS if weighted else None
        self._changes: deque[tuple[int, EdgeChange]] = deque()
        """What changed in each snapshot after the oldest."""
        self._first = self._next = 0

    @property
    def snapshots(self) -> range:
        """The snapshots that are held."""
        return range(self._first, self._next)

    @property
    def entry_bytes(self) -> int:
        """What an edge takes: its key, and its weight where there are weights."""
        return 16 if self.weighted else 8

    @property
    def run_bytes(self) -> int:
        """The bytes of edges and changes, without the lists of nodes that left."""
        changes = sum(_edge_bytes(change) for _, change in self._changes)
        return self._keys.nbytes + (0 if self._weights is None else self._weights.nbytes) + changes

    @property
    def held_bytes(self) -> int:
        """The bytes of all arrays."""
        return self.run_bytes + sum(change.left.nbytes for _, change in self._changes)

    def append(self, t: int, change: EdgeChange) -> None:
        """Add snapshot t; the oldest leaves where the window is full."""
        assert t == self._next or self._first == self._next, "snapshots follow each other"
        if change.weights is not None and not self.weighted:
            raise BadConfig(f"snapshot {t} brings weights to a window of edges that all weigh 1: make it with weights")
        if self.weighted and change.weights is None:
            ones = np.ones(len(change.came))
            change = EdgeChange(left=change.left, gone=change.gone, came=change.came, weights=ones)
        if self._log is not None:
            weights = NO_WEIGHTS if change.weights is None else change.weights
            arrays: dict[str, NDArray[Any]] = {"left": change.left, "gone": change.gone, "came": change.came}
            self._log.write("edges", t, {**arrays, "weights": weights})
        if self._first == self._next:
            self._first = t
            self._keys, self._weights = _changed(self._keys, self._weights, change, self.layout)
        else:
            self._changes.append((t, change))
            if t - self._first == self.window:
                _, oldest = self._changes.popleft()
                self._keys, self._weights = _changed(self._keys, self._weights, oldest, self.layout)
                self._first += 1
        self._next = t + 1

    def edges(self, t: int) -> tuple[Int64s, Float64s | None]:
        """Return the keys, ascending, and the weights of the edges into this server's nodes in snapshot t."""
        if t not in self.snapshots:
            held = f"{self._first} to {self._next - 1}" if self._next > self._first else "none"
            raise BadConfig(f"edges of snapshot {t} were asked for, but the window holds {held}: widen the window")
        keys, weights = self._keys, self._weights
        for s, change in self._changes:
            if s <= t:
                keys, weights = _changed(keys, weights, change, self.layout)
        return keys, weights


def _edge_bytes(change: EdgeChange) -> int:
    return change.gone.nbytes + change.came.nbytes + (0 if change.weights is None else change.weights.nbytes)


def _changed(
    keys: Int64s, weights: Float64s | None, change: EdgeChange, layout: KeyLayout
) -> tuple[Int64s, Float64s | None]:
    """Return what a change makes of edges, as arrays of their own that are no longer than they need be."""
    if len(change.left):
        stays = ~_among(layout.targets(keys), change.left)
        keys, weights = keys[stays], None if weights is None else weights[stays]
    touched = np.concatenate([change.gone, change.came])
    came = np.ones(len(change.came)) if change.weights is None else change.weights
    new = np.concatenate([np.zeros(len(change.gone)), came])
    order = np.argsort(touched, kind="stable")
    delta = Delta(layout, touched[order], NO_WEIGHTS, new[order])
    keys, weights = apply(keys, weights, delta)
    return keys.copy(), None if weights is None else weights.copy()


def _among(nodes: Int64s, wanted: Int32s) -> NDArray[np.bool_]:
    places = np.minimum(np.searchsorted(wanted, nodes), len(wanted) - 1)
    found: NDArray[np.bool_] = wanted[places] == nodes
    return found


def logged_edges(
    log: SegmentLog, t: int, layout: KeyLayout, *, weighted: bool, first: int = 0
) -> tuple[Int64s, Float64s | None]:
    """Return the edges of any snapshot so far, by all changes from the first one that was appended."""
    keys: Int64s = NO_KEYS
    weights: Float64s | None = NO_WEIGHTS if weighted else None
    for s in range(first, t + 1):
        arrays = log.read("edges", s)
        change = EdgeChange(
            left=arrays["left"], gone=arrays["gone"], came=arrays["came"],
            weights=arrays["weights"] if weighted else None,
        )  # fmt: skip
        keys, weights = _changed(keys, weights, change, layout)
    return keys, weights
