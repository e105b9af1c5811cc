"""Where nodes go that a partition of the past has not seen.

A node is placed when it first has an edge, beside most of the neighbours that are placed by then, from that snapshot
alone: what comes later moves nobody (SPEC section 10, "no future leaks"). A part that is full counts less, as in linear
deterministic greedy (Stanton and Kliot 2012). A node without any neighbour to follow goes where its hash says.

Shape letters: N nodes, E edges of a snapshot, P parts.
"""

from __future__ import annotations

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import kernel
from timeloom.plan.partition.hashed import hashed
from timeloom.plan.partition.union import GraphOfSnapshots, snapshots_of

_PASSES = 8
SLACK = 1.1  # a part may have a tenth more nodes than the mean of its group before it takes no more newcomers


@kernel(
    "int64(int64[::1], int32[::1], int64[::1], int32[::1], int64[::1], int32[::1], "
    "Array(int32, 1, 'C', readonly=True), int64, float64, int32[::1], int64[::1])"
)
def _place(
    nodes: Int64s, otherwise: Int32s, starts_out: Int64s, neighbours_out: Int32s, starts_in: Int64s,
    neighbours_in: Int32s, group_N: Int32s, width: int, slack: float, part_N: Int32s, sizes_P: Int64s,
) -> int:  # fmt: skip
    """Place nodes beside their neighbours, and those without any as ``otherwise`` says (-1: not yet)."""
    counts = np.zeros(width, np.int64)
    placed = 0
    for j in range(len(nodes)):
        v = nodes[j]
        base = np.int64(group_N[v]) * width
        counts[:] = 0
        for i in range(starts_out[v], starts_out[v + 1]):
            u = neighbours_out[i]
            if part_N[u] >= 0 and group_N[u] == group_N[v]:
                counts[part_N[u]] += 1
        for i in range(starts_in[v], starts_in[v + 1]):
            u = neighbours_in[i]
            if part_N[u] >= 0 and group_N[u] == group_N[v]:
                counts[part_N[u]] += 1
        total = 1
        for p in range(width):
            total += sizes_P[base + p]
        capacity = slack * total / width + 1.0
        best, best_score = otherwise[j], 0.0
        for p in range(width):
            score = counts[p] * (1.0 - sizes_P[base + p] / capacity)
            if score > best_score:
                best, best_score = p, score
        if best >= 0:
            part_N[v] = best
            sizes_P[base + best] += 1
            placed += 1
    return placed


def place_newborn(
    graph: GraphOfSnapshots, first: int, part_N: Int32s, *, width: int, seed: int, group_N: Int32s | None = None
) -> Int32s:
    """Return the parts with a place for every node that has none (-1).

    Snapshots from ``first`` on are looked at in their order. With ``group_N`` every group has ``width`` parts of its
    own, and a node follows only neighbours of its group.
    """
    part_N = part_N.copy()
    groups = np.zeros(len(part_N), np.int32) if group_N is None else group_N
    sizes_P = part_sizes(part_N, groups, width)
    for snapshot in snapshots_of(graph, first, len(graph)):
        if (part_N >= 0).all():
            break
        here = np.zeros(len(part_N), np.bool_)
        here[snapshot.sources] = here[snapshot.targets] = True
        place_in(snapshot, np.flatnonzero(here & (part_N < 0)), groups, width, part_N, sizes_P, seed)
    rest = np.flatnonzero(part_N < 0)
    part_N[rest] = hashed(rest, width, seed)
    return part_N


def place_in(
    snapshot: Snapshot, nodes: Int64s, groups: Int32s, width: int, part_N: Int32s, sizes_P: Int64s, seed: int
) -> None:
    """Place the new nodes of one snapshot; ``part_N`` and ``sizes_P`` are changed."""
    if not len(nodes):
        return
    out, into = snapshot.outgoing(), snapshot.incoming()
    rows = out.starts, out.neighbours, into.starts, into.neighbours
    # Nodes beside what is placed come first; then those beside them; what is left begins a group of its own.
    for _ in range(_PASSES):
        waiting = np.full(len(nodes), -1, np.int32)
        if not _place(nodes, waiting, *rows, groups, width, SLACK, part_N, sizes_P):
            break
        nodes = nodes[part_N[nodes] < 0]
    _place(nodes, hashed(nodes, width, seed), *rows, groups, width, SLACK, part_N, sizes_P)


def part_sizes(part_N: Int32s, groups: Int32s, width: int) -> Int64s:
    """Return how many nodes each part of each group has."""
    placed = part_N >= 0
    num_groups = int(groups.max(initial=0)) + 1
    flat = groups[placed].astype(np.int64) * width + part_N[placed]
    return np.bincount(flat, minlength=num_groups * width)
