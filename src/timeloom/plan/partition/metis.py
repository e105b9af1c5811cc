"""Partitions by METIS, of the union of the snapshots that are for training: few edges cut, parts of like size.

Snapshots from ``t_stop`` on are not looked at for nodes that exist before it; the others are placed as they are born.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

import numpy as np

from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.plan.partition.hashed import dealt, hashed
from timeloom.plan.partition.newborn import place_newborn
from timeloom.plan.partition.owners import Chunks, Owners, refuse_parts
from timeloom.plan.partition.union import GraphOfSnapshots, Union, union_of

Balance = Literal["nodes", "edges"]
ChunksBy = Literal["metis", "hash", "random"]
_MOST_SEED = (1 << 31) - 1


def metis_owners(graph: GraphOfSnapshots, t_stop: int, ranks: int, seed: int, *, balance: Balance = "edges") -> Owners:
    """Return owners by METIS on the union of the snapshots before ``t_stop``; nodes born later follow neighbours.

    ``balance`` says what the ranks have alike: nodes, or nodes plus the edges into them over all these snapshots.
    """
    refuse_parts("ranks", ranks)
    union = union_of(graph, t_stop)
    part_N = np.full(graph.num_nodes, -1, np.int32)
    linked = np.flatnonzero(union.is_linked)
    part_N[linked] = metis_parts(union.within(linked), ranks, seed, balance=balance)
    owner_N = place_newborn(graph, t_stop, part_N, width=ranks, seed=seed)
    return Owners(owner_N=owner_N, num_ranks=ranks, name="metis")


def chunks(
    graph: GraphOfSnapshots, t_stop: int, owners: Owners, per_owner: int, *, seed: int, by: ChunksBy = "metis"
) -> Chunks:
    """Return so many chunks of each owner: by METIS inside the owner, or by hash or dealt out (FlareDTDG 3.3)."""
    refuse_parts("chunks", per_owner)
    assert owners.num_nodes == graph.num_nodes, "owners of another graph"
    part_N = np.full(graph.num_nodes, -1, np.int32)
    if by == "metis":
        union = union_of(graph, t_stop)
        is_linked = union.is_linked
        for rank in range(owners.num_ranks):
            nodes = np.flatnonzero((owners.owner_N == rank) & is_linked)
            part_N[nodes] = metis_parts(union.within(nodes), per_owner, seed, balance="nodes")
        part_N = place_newborn(graph, t_stop, part_N, width=per_owner, seed=seed, group_N=owners.owner_N)
    elif by == "hash":
        # Another seed than that of the owners: else each owner's nodes would share what is left of their hash.
        part_N = hashed(np.arange(graph.num_nodes), per_owner, seed ^ (1 << 62))
    else:
        for rank in range(owners.num_ranks):
            nodes = owners.nodes_of(rank)
            part_N[nodes] = dealt(len(nodes), per_owner, seed + rank)
    return Chunks(owners=owners, chunk_N=part_N, per_owner=per_owner, name=by)


def metis_parts(union: Union, parts: int, seed: int, *, balance: Balance, edge_weights: Int64s | None = None) -> Int32s:
    """Return the part of each node of a simple graph. Parts may be empty where there are few nodes."""
    if parts == 1 or not union.num_nodes:
        return np.zeros(union.num_nodes, np.int32)
    if union.num_nodes <= parts:
        return np.arange(union.num_nodes, dtype=np.int32)
    pymetis = _pymetis()
    weights = union.events_N + 1 if balance == "edges" else None
    largest = max(len(union.neighbours_E), 0 if weights is None else int(weights.sum()))
    width = pymetis.zero_copy_dtype()
    if largest > np.iinfo(width).max:
        raise TooLarge(
            f"METIS was asked to cut a graph of {len(union.neighbours_E)} adjacencies (largest count {largest}), but "
            f"this build of it counts to {np.iinfo(width).max}: use --set partition.by=hash, or partition.by=load"
        )
    adjacency = pymetis.CSRAdjacency(union.starts.astype(width), union.neighbours_E.astype(width, copy=False))
    options = pymetis.Options(seed=seed % _MOST_SEED)
    counted = None if weights is None else weights.astype(width)
    weighed = None if edge_weights is None else edge_weights.astype(width)
    found = pymetis.part_graph(parts, adjacency=adjacency, vweights=counted, eweights=weighed, options=options)
    return np.asarray(found[1], np.int32)


def _pymetis() -> Any:
    try:
        return importlib.import_module("pymetis")
    except ImportError:
        raise BadConfig(
            "a partition by METIS was asked for, but pymetis is not installed: pip install 'timeloom[metis]', or "
            "choose another partition by name, such as --set partition.by=hash"
        ) from None
