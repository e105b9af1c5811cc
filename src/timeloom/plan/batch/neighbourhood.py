"""Which rows of which snapshots do some nodes depend on, and what would it take to hold them (SPEC D8.3)?

The *depth* of a node in a snapshot is how many hops of messages its row must have heard there; a row of depth 0 is only
read, and one of depth -1 is not needed. Targets have the depth of the whole model. Two sets are exact:

- ``union``: one set for all snapshots, the iterated neighbourhood in all of them together (as published).
- ``causal``: what is needed at each snapshot alone. A layer that remembers needs a row's past, never its future.

The neighbourhood within each snapshot alone, which the paper's text describes, is wrong beyond one layer.

Shape letters: T snapshots, N nodes that are held, P nodes of what is cut from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig, TooLarge
from timeloom.jit import kernel
from timeloom.plan.batch.rows import Int32s, Source

Bytes = NDArray[np.uint8]
Depths = NDArray[np.int8]
Sets = Literal["union", "causal"]
MOST_HOPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReach:
    """What a layer needs of other rows."""

    hops: int = 1
    """How far messages travel in a snapshot."""
    remembers: bool = True
    """A row's state depends on the row's own past."""

    def __post_init__(self) -> None:
        if self.hops < 0:
            raise BadConfig(f"a layer of {self.hops} hops was described: give 0 or more")


Layers = Sequence[LayerReach]
"""The layers of a model, the first one first."""


@dataclass(frozen=True)
class Neighbourhood:
    """The rows that some nodes depend on, the deepest first; targets therefore come first."""

    first: int
    last: int
    """The snapshot after the last one."""
    both: bool
    """Messages also go from targets to sources."""
    num_targets: int
    places_N: Int32s
    """Where each row lies in what is cut from."""
    depth_TN: Depths

    def __len__(self) -> int:
        return len(self.places_N)

    @property
    def hops(self) -> int:
        """The depth of the targets."""
        return int(self.depth_TN.max(initial=0))

    @cached_property
    def rows_read(self) -> int:
        """How many rows are read, of all snapshots together."""
        return int(np.count_nonzero(self.depth_TN >= 0))


@kernel("int64(int32[::1], int32[::1], int32[::1], int64, int64, uint8[::1], uint8, int64)")
def _spread(
    starts: Int32s, neighbours: Int32s, order: Int32s, low: int, high: int, seen: Bytes, mark: int, count: int
) -> int:
    for i in range(low, high):
        v = order[i]
        for e in range(starts[v], starts[v + 1]):
            u = neighbours[e]
            if seen[u] == 0:
                seen[u] = mark
                order[count] = u
                count += 1
    return count


@kernel("void(int32[::1], int32[::1])")
def number(places: Int32s, local: Int32s) -> None:
    """Write each row's own number, counted from 1, to where it lies."""
    for i in range(len(places)):
        local[places[i]] = i + 1


@kernel("void(int32[::1], int32[::1], int32[::1], int32[::1], int8[::1], int8)")
def _deepen(starts: Int32s, neighbours: Int32s, places: Int32s, local: Int32s, depth: Depths, at: int) -> None:
    for i in range(len(places)):
        if depth[i] != at:
            continue
        v = places[i]
        for e in range(starts[v], starts[v + 1]):
            j = local[neighbours[e]] - 1
            if depth[j] < at - 1:
                depth[j] = at - 1


@kernel("void(int8[::1], int8[::1], int8)")
def _remember(depth: Depths, after: Depths, at: int) -> None:
    for i in range(len(depth)):
        if after[i] >= at and depth[i] < at:
            depth[i] = at


def why_not_cached(*, mixes_states: bool, sees_all: bool) -> str | None:
    """Return why a model's rows depend on more than a neighbourhood of the model's hops (None: they do not)."""
    if mixes_states:
        return (
            "convolves its state, so that a row depends on one hop more with every snapshot, and no cache of a few "
            "hops is enough: use --system vertex or --system flare, which exchange rows, or a model whose recurrence "
            "reads no neighbours, such as tgcn"
        )
    if sees_all:
        return (
            "reads all nodes of a snapshot at once, so that no neighbourhood is enough: use --system vertex or "
            "--system flare, or a model that reads neighbours alone, such as evolvegcn_o"
        )
    return None


def refuse_if_integrated(model: str, *, mixes_states: bool, sees_all: bool) -> None:
    """Refuse a model whose rows depend on more than a neighbourhood of the model's hops (SPEC D8.4)."""
    why = why_not_cached(mixes_states=mixes_states, sees_all=sees_all)
    if why is not None:
        raise BadConfig(f"model {model!r} {why}")


def total_hops(layers: Layers) -> int:
    """Return how far messages travel through all layers."""
    hops = sum(layer.hops for layer in layers)
    if hops > MOST_HOPS:
        raise BadConfig(f"a model of {hops} hops was described; neighbourhoods have at most {MOST_HOPS}")
    return hops


def find_neighbourhood(
    source: Source, targets: Int32s, layers: Layers, *, first: int, last: int, sets: Sets, both: bool
) -> Neighbourhood:
    """Return the rows that targets (ascending, each once) depend on in snapshots ``first`` to ``last`` (exclusive).

    The cost is the edges of the rows that hear, once for each snapshot; a source on disk is read once for each hop.
    """
    assert (targets[1:] > targets[:-1]).all(), "targets are ascending, each once"
    places_N, ends = _union(source, targets, total_hops(layers), first=first, last=last, both=both)
    depths = np.arange(len(ends) - 1, -1, -1, dtype=np.int8)
    depth_N = np.repeat(depths, np.diff(ends, prepend=0))
    # One row for all snapshots; compiled loops refuse the read-only rows that broadcast_to gives.
    depth_TN = np.lib.stride_tricks.as_strided(depth_N, (last - first, len(places_N)), (0, 1))
    found = Neighbourhood(first, last, both, len(targets), places_N, depth_TN)
    return found if sets == "union" else _causal(source, found, layers)


def _union(
    source: Source, targets: Int32s, hops: int, *, first: int, last: int, both: bool
) -> tuple[Int32s, list[int]]:
    """Return the rows in order of depth, ascending within each, and where each depth ends."""
    order, seen = np.empty(source.num_nodes, np.int32), np.zeros(source.num_nodes, np.uint8)
    order[: len(targets)] = targets
    seen[targets] = 1
    ends = [len(targets)]
    low = 0
    for _ in range(hops):
        high = count = ends[-1]
        # Only rows found in the last hop can lead to new ones: the others were spread from already.
        for t in range(first, last) if high > low else ():
            rows = source.rows(t)
            count = _spread(rows.starts_M, rows.neighbours_E, order, low, high, seen, 1, count)
            if both:
                count = _spread(rows.out_starts_M, rows.out_neighbours_E, order, low, high, seen, 1, count)
        order[high:count].sort()
        ends.append(count)
        low = high
    return order[: ends[-1]].copy(), ends


def _causal(source: Source, union: Neighbourhood, layers: Layers) -> Neighbourhood:
    """Return the rows of the union that are needed, each only where and as deep as it is."""
    local = np.zeros(source.num_nodes, np.int32)
    number(union.places_N, local)
    at = total_hops(layers)
    depth_TN = np.full(union.depth_TN.shape, -1, np.int8)
    depth_TN[:, : union.num_targets] = at
    for layer in reversed(layers):
        for place in reversed(range(len(depth_TN))):
            depth_N = depth_TN[place]
            if layer.remembers and place + 1 < len(depth_TN):
                _remember(depth_N, depth_TN[place + 1], at)
            rows = source.rows(union.first + place)
            for depth in range(at, at - layer.hops, -1):
                _deepen(rows.starts_M, rows.neighbours_E, union.places_N, local, depth_N, depth)
                if union.both:
                    _deepen(rows.out_starts_M, rows.out_neighbours_E, union.places_N, local, depth_N, depth)
        at -= layer.hops
    deepest_N = depth_TN.max(axis=0, initial=-1)
    order = np.argsort(-deepest_N, kind="stable")
    order = order[deepest_N[order] >= 0]
    places_N = union.places_N[order]
    depths = np.ascontiguousarray(depth_TN[:, order])
    return Neighbourhood(union.first, union.last, union.both, union.num_targets, places_N, depths)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What holding a neighbourhood takes, told before any of it is built."""

    num_targets: int
    num_nodes: int
    rows_read: int
    num_edges: int
    graph_bytes: int
    """The arrays of the edges, the degrees and the nodes."""

    def total_bytes(self, row_bytes: int) -> int:
        """Return all that is held where each row read takes ``row_bytes`` of features (and labels)."""
        return self.graph_bytes + self.rows_read * row_bytes


def refuse_over_budget(forecast: Forecast, *, row_bytes: int, budget_bytes: int, hops: int) -> None:
    """Refuse a cache that would not fit, in numbers, and say what would."""
    asked = forecast.total_bytes(row_bytes)
    if asked > budget_bytes:
        raise TooLarge(
            f"caching the {hops}-hop neighbourhood of {forecast.num_targets} nodes takes {asked} bytes "
            f"({forecast.num_nodes} nodes, {forecast.rows_read} rows and {forecast.num_edges} edges of all snapshots),"
            f" but the budget is {budget_bytes}: use --system vertex or --system flare, which hold a rank's own rows "
            "and exchange the others, or more ranks, fewer layers, or a larger budget"
        )
