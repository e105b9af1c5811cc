"""How long groups take and what they save together, from what changes between snapshots (SPEC section 5).

The rows of several snapshots are a table of versions: those of the first one, then, with every further snapshot, the
rows that differ from the one before. So two groups that overlap save all that their common snapshots cost the second
one: t(i) + t(j) - t(i and j), the union's chain having a single first snapshot. Eq. 17 of REAL leaves out snapshot j
and is right only for neighbours.

Shape letters: T snapshots, K groups, B how far apart groups may be and still overlap, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.sizes import SnapshotSizes
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.cost import CACHED_BYTES, Costs, Kernel

Way = Literal["full", "versions", "delta"]
"""How rows are made: a pass over every snapshot, a table of versions, or a chain of sums that deltas go over."""
Spreads = Literal["none", "in", "both"]
"""Which degrees make a node send something else when they change: none (mean, sum, attention; features that stay), the
in-degree (norm sym), or both (norm both; features made of degrees)."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Changes:
    """How large T snapshots are, and how many rows of each differ from the snapshot before."""

    num_nodes: int
    edges_T: Int64s
    rows_T: Int64s
    """Rows of a first layer that change; for the first snapshot, all."""
    heard_T: Int64s
    """The edges that these rows hear."""
    entries_T: Int64s
    """What a chain of deltas goes over (SPEC 3.1): changed edges, and edges out of nodes that send something else."""

    def __len__(self) -> int:
        return len(self.edges_T)


def changes_of(graph: DynamicGraph, last: int, *, spreads: Spreads, hops: int = 1) -> Changes:
    """Return what changes in snapshots 0 to ``last`` (exclusive).

    Where nothing but the edges themselves changes what is sent, and messages go one hop, only the deltas of the store
    are read; else every snapshot is passed over once.
    """
    count, size = last, graph.num_nodes
    table = np.zeros((4, count), np.int64)
    table[0] = graph.statistics["edges"][:count]
    heard_N = np.zeros(size, np.int64)
    whole = None if spreads == "none" and hops == 1 else graph.snapshots(0, last)
    for t in range(count):
        delta = graph.delta(t)
        np.add.at(heard_N, delta.targets, (delta.new != 0).astype(np.int64) - (delta.old != 0))
        if t == 0:
            table[1:, 0] = size, table[0, 0], table[0, 0]
            if whole is not None:
                next(whole)
            continue
        dirty_N = np.zeros(size, np.bool_)
        dirty_N[delta.targets] = True
        entries = len(delta)
        if whole is not None:
            sends_N = _senders(delta.sources, delta.targets, delta.new - delta.old, size, spreads)
            snapshot = next(whole)
            entries += _spread(snapshot, dirty_N, sends_N, hops)
        table[1:, t] = int(dirty_N.sum()), int(heard_N[dirty_N].sum()), entries
    return Changes(num_nodes=size, edges_T=table[0], rows_T=table[1], heard_T=table[2], entries_T=table[3])


def _senders(sources: Int64s, targets: Int64s, change: Float64s, size: int, spreads: Spreads) -> np.ndarray:
    """Return the nodes that send something else, since a degree of theirs is another one."""
    sends_N = np.zeros(size, np.bool_)
    for ends in {"none": [], "in": [targets], "both": [targets, sources]}[spreads]:
        sends_N |= np.bincount(ends, change, size) != 0
    return sends_N


def _spread(snapshot: Snapshot, dirty_N: np.ndarray, sends_N: np.ndarray, hops: int) -> int:
    """Mark whoever hears of a node that sends something else; return how many edges tell of it in the first hop."""
    sources, targets = snapshot.sources, snapshot.targets
    tells = sends_N[sources]
    dirty_N |= sends_N
    dirty_N[targets[tells]] = True
    for _ in range(hops - 1):
        dirty_N[targets[dirty_N[sources]]] = True
    return int(tells.sum())


def changes_of_sizes(sizes: SnapshotSizes) -> Changes:
    """Return an estimate where only sizes are known: changed edges end at nodes drawn at random, of mean degree."""
    nodes = max(int(sizes.num_nodes.max()), 1)
    changed = sizes.added + sizes.removed
    active = np.maximum(sizes.num_nodes, 1)
    rows = np.rint(active * -np.expm1(-changed / active)).astype(np.int64)
    heard = np.minimum(np.ceil(rows * sizes.edges / active).astype(np.int64), sizes.edges)
    rows[0], heard[0] = nodes, sizes.edges[0]
    return Changes(num_nodes=nodes, edges_T=sizes.edges, rows_T=rows, heard_T=heard, entries_T=changed)


def head_of(changes: Changes, last: int) -> Changes:
    """Return the changes of snapshots 0 to ``last`` (exclusive)."""
    return Changes(
        num_nodes=changes.num_nodes, edges_T=changes.edges_T[:last], rows_T=changes.rows_T[:last],
        heard_T=changes.heard_T[:last], entries_T=changes.entries_T[:last],
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What a model computes for every row, as far as its time depends on it."""

    sum_widths: tuple[int, ...] = (32,)
    """The width of each sum over neighbours."""
    attended: tuple[int, ...] = ()
    """The width of the values of each attention."""
    flops: int = 2048
    """Operations of products for each row of the first layer, shared by snapshots and groups that have it."""
    width: int = 32
    """Numbers that come out for each row."""
    recur_flops: int = 12_288
    """Operations for each node and snapshot of every group, which nobody shares: memory, further layers, the head."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupTimes:
    """What K groups take and save, in predicted seconds."""

    seconds_K: Float64s
    shared_K: Float64s
    """The part of it that groups may share: the first layer's rows."""
    reuse_KB: Float64s


def group_times(
    changes: Changes, *, length: int, stride: int, encoding: Encoding, costs: Costs,
    ways: Sequence[Way] = ("full", "versions"),
) -> GroupTimes:  # fmt: skip
    """Return the times of the groups of ``length`` snapshots that begin every ``stride``, and what pairs save.

    Rows are made in that one of the ways that takes the least time, those of the union of two groups by a table or a
    chain, if there is to be one, or apart: passes share nothing.
    """
    if not 1 <= length <= len(changes) or stride < 1 or not ways:
        raise BadConfig(
            f"groups of {length} snapshots every {stride} cannot be made of {len(changes)} snapshots: give a length of "
            f"1 to {len(changes)} and a stride of 1 or more"
        )
    first_K = np.arange(0, len(changes) - length + 1, stride)
    chains = _Chains(changes, encoding, costs)
    own_s = length * float(_products(costs, changes.num_nodes, encoding.recur_flops))
    shared_K = chains.seconds(first_K, first_K + length, ways)
    sharing = [way for way in ways if way != "full"]
    band = min((length - 1) // stride, len(first_K) - 1) if sharing else 0
    reuse_KB = np.zeros((len(first_K), band))
    for d in range(1, band + 1):
        apart = shared_K[:-d] + shared_K[d:]
        union = chains.seconds(first_K[:-d], first_K[d:] + length, sharing)
        reuse_KB[:-d, d - 1] = np.maximum(apart - union, 0.0)
    return GroupTimes(shared_K + own_s, shared_K, reuse_KB)


class _Chains:
    """What the rows of consecutive snapshots take, for any of them in a constant time."""

    def __init__(self, changes: Changes, encoding: Encoding, costs: Costs) -> None:
        size, count = changes.num_nodes, len(changes)
        everyone = np.full(count, size)
        self._whole_T = _rows_seconds(changes, encoding, costs, everyone, changes.edges_T)
        version_T = _rows_seconds(changes, encoding, costs, changes.rows_T, changes.heard_T)
        version_T += float(_marginal(costs, "gather", 0, size, encoding.width, size))
        delta_T = np.full(count, float(_products(costs, size, encoding.flops)))
        for width, passes in [*((w, 2) for w in encoding.sum_widths), *((w, 3) for w in encoding.attended)]:
            delta_T += passes * _marginal(costs, "step", everyone, changes.entries_T, width, size)
        self._call_s = _calls(encoding, costs)
        self._sums = {
            way: np.concatenate([[0.0], np.cumsum(part)])
            for way, part in (("full", self._whole_T), ("versions", version_T), ("delta", delta_T))
        }

    def seconds(self, first: Int64s, last: Int64s, ways: Sequence[Way]) -> Float64s:
        """Return the time of the rows of snapshots ``first`` to ``last``, by that of the ways that takes the least."""
        told = []
        for way in ways:
            sums = self._sums[way]
            if way == "full":
                told.append(sums[last] - sums[first] + (last - first) * self._call_s)
            else:
                told.append(self._whole_T[first] + sums[last] - sums[first + 1] + self._call_s)
        least: Float64s = np.min(told, axis=0)
        return least


def measured(predicted: GroupTimes, seconds_K: Float64s) -> GroupTimes:
    """Return measured times in place of predicted ones; what is saved is as much more or less as the two groups took.

    Savings are not measured: before groups are put together nobody has seen them.
    """
    if len(seconds_K) != len(predicted.seconds_K):
        raise BadConfig(f"{len(seconds_K)} times were measured of {len(predicted.seconds_K)} groups: measure each")
    factor_K = seconds_K / np.maximum(predicted.seconds_K, 1e-300)
    reuse_KB = predicted.reuse_KB.copy()
    for d in range(1, reuse_KB.shape[1] + 1):
        reuse_KB[:-d, d - 1] *= (factor_K[:-d] + factor_K[d:]) / 2
    return GroupTimes(seconds_K, predicted.shared_K * factor_K, reuse_KB)


def _marginal(costs: Costs, kernel: Kernel, rows: Any, edges: Any, width: int, num_nodes: int) -> Any:
    """Return what rows and edges add to a call; the law is that of a graph of so many nodes."""
    law = costs.laws[kernel]
    _, row, number, edge, edge_number = law.cached if 4 * num_nodes * width <= CACHED_BYTES else law.beyond
    return (row + number * width) * rows + (edge + edge_number * width) * edges


def _products(costs: Costs, rows: Any, flops: int) -> Any:
    return _marginal(costs, "multiply", rows, rows * flops / 1000, 1, 1)


def _rows_seconds(changes: Changes, encoding: Encoding, costs: Costs, rows_T: Int64s, edges_T: Int64s) -> Float64s:
    """Return what the given rows of each snapshot take, forward and backward."""
    told: Float64s = _products(costs, rows_T.astype(np.float64), encoding.flops)
    for width in encoding.sum_widths:
        told = told + 2 * _marginal(costs, "sum", rows_T, edges_T, width, changes.num_nodes)
    for width in encoding.attended:
        told = told + _marginal(costs, "attend", rows_T, edges_T, width, changes.num_nodes)
    return told


def _calls(encoding: Encoding, costs: Costs) -> float:
    """Return what the calls themselves take, however little they do."""
    sums, attends, products = (costs.laws[kernel].cached[0] for kernel in ("sum", "attend", "multiply"))
    return 2 * len(encoding.sum_widths) * sums + len(encoding.attended) * attends + products
