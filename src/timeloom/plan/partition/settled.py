"""Owners for systems that never move a node, made by the rules of those that do.

greedy: METIS on the first snapshot with edges; every later node follows its neighbours. online: where DistDy's
partitioner has put each node by the end of the training snapshots, with room for `SLACK` times what the fullest window
takes; nodes born later follow their neighbours.

Shape letters: N nodes, K servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from timeloom.graph.delta import NO_KEYS, diff
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.segment_parts import stored_bytes
from timeloom.graph.segments import SegmentLayout
from timeloom.plan.partition.metis import metis_parts
from timeloom.plan.partition.newborn import place_newborn
from timeloom.plan.partition.online import Arrival, OnlinePartitioner, OnlineSettings
from timeloom.plan.partition.owners import Owners, refuse_parts
from timeloom.plan.partition.union import GraphOfSnapshots, snapshots_of, union_of_snapshot

SLACK = 1.3
_FEATURES = SegmentLayout(128)  # DistDy 5.1; what a node takes beside its edges


def greedy_owners(graph: GraphOfSnapshots, ranks: int, seed: int) -> Owners:
    """Return owners by METIS on the first snapshot that has an edge."""
    refuse_parts("ranks", ranks)
    part_N = np.full(graph.num_nodes, -1, np.int32)
    first = 0
    for first, snapshot in enumerate(snapshots_of(graph, 0, len(graph)), 1):  # noqa: B007
        if len(snapshot):
            union = union_of_snapshot(snapshot)
            nodes = np.flatnonzero(union.is_linked)
            part_N[nodes] = metis_parts(union.within(nodes), ranks, seed, balance="nodes")
            break
    owner_N = place_newborn(graph, first, part_N, width=ranks, seed=seed)
    return Owners(owner_N=owner_N, num_ranks=ranks, name="greedy")


def online_owners(
    graph: GraphOfSnapshots, t_stop: int, ranks: int, seed: int, settings: OnlineSettings
) -> Owners:  # fmt: skip
    """Return owners by DistDy's partitioner on the snapshots before ``t_stop``; the cost is that of two passes."""
    refuse_parts("ranks", ranks)
    needed = [_window_bytes(arrival, settings.window) for arrival in _arrivals(graph, t_stop)]
    placer = OnlinePartitioner(np.full(ranks, int(SLACK * max(needed, default=0) / ranks) + 1), settings)
    part_N = np.full(graph.num_nodes, -1, np.int32)
    for arrival in _arrivals(graph, t_stop):
        server_N = placer.place(arrival).server_N
        part_N = np.where(server_N >= 0, server_N, part_N).astype(np.int32)
    owner_N = place_newborn(graph, t_stop, part_N, width=ranks, seed=seed)
    return Owners(owner_N=owner_N, num_ranks=ranks, name=f"online/{settings.payoff}")


def _arrivals(graph: GraphOfSnapshots, t_stop: int) -> Iterator[Arrival]:
    keys: Int64s = NO_KEYS
    weights: Float64s | None = None
    for snapshot in snapshots_of(graph, 0, t_stop):
        delta = diff(keys, weights, snapshot.keys, snapshot.stored_weights, snapshot.layout)
        keys, weights = snapshot.keys, snapshot.stored_weights
        unchanged, weighted = np.zeros(snapshot.num_nodes, np.uint32), weights is not None
        full_N, changed_N = stored_bytes(snapshot, delta, unchanged, _FEATURES, weighted=weighted)
        yield Arrival(snapshot=snapshot, full_N=full_N, changed_N=changed_N)


def _window_bytes(arrival: Arrival, window: int) -> int:
    sizes: Int64s = arrival.full_N + (window - 1) * arrival.changed_N
    return int(sizes[arrival.snapshot.alive].sum())
