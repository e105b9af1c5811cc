"""Small graphs with chunks, and what is left of them by the definition: what tests of FlareDTDG's windows share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from timeloom.graph.keys import KeyLayout
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.order import Chunking, ChunkOrder

LAYOUT = KeyLayout(node_bits=31)


def snapshot_of(edges: set[tuple[int, int]], num_nodes: int, *, t: int = 0, weighted: bool = False) -> Snapshot:
    """Return a snapshot; the weight of an edge follows from its ends."""
    pairs = np.array(sorted(edges, key=lambda edge: (edge[1], edge[0])), np.int64).reshape(-1, 2)
    weights = ((pairs[:, 0] * 7 + pairs[:, 1] * 3) % 5 - 1.5).astype(np.float64) if weighted else None
    alive = np.zeros(num_nodes, np.bool_)
    alive[pairs.ravel()] = True
    return Snapshot(t, num_nodes, LAYOUT, LAYOUT.pack(pairs[:, 0], pairs[:, 1]), weights, alive)


@dataclass(frozen=True)
class Scene:
    """A snapshot, chunks, and an order of an epoch."""

    snapshot: Snapshot
    chunking: Chunking
    seed: int
    epoch: int


def chunking_of(owner_N: list[int], chunk_N: list[int], *, num_owners: int, per_owner: int) -> Chunking:
    return Chunking(np.array(owner_N, np.int32), np.array(chunk_N, np.int32), num_owners, per_owner)


@st.composite
def scenes(draw: st.DrawFn, *, most_owners: int = 3) -> Scene:
    """Draw graphs that may have no edge, owners without a node, chunks without a node, loops and negative weights."""
    num_nodes = draw(st.integers(1, 14))
    num_owners, per_owner = draw(st.integers(1, most_owners)), draw(st.integers(1, 5))
    nodes = st.integers(0, num_nodes - 1)
    edges = draw(st.sets(st.tuples(nodes, nodes), max_size=40))
    owners = draw(st.lists(st.integers(0, num_owners - 1), min_size=num_nodes, max_size=num_nodes))
    chunks = draw(st.lists(st.integers(0, per_owner - 1), min_size=num_nodes, max_size=num_nodes))
    return Scene(
        snapshot_of(edges, num_nodes, weighted=draw(st.booleans())),
        chunking_of(owners, chunks, num_owners=num_owners, per_owner=per_owner),
        draw(st.integers(0, 2**40)),
        draw(st.integers(0, 9)),
    )


def chosen_nodes(order: ChunkOrder, num_chunks: int) -> set[int]:
    """Return the nodes of the first so many chunks of every owner, one by one."""
    chunking = order.chunking
    return {
        node
        for node in range(chunking.num_nodes)
        if order.place_Q[chunking.owner_N[node] * chunking.per_owner + chunking.chunk_N[node]]
        < num_chunks * chunking.num_owners
    }


@st.composite
def flare_settings(draw: st.DrawFn) -> FlareSettings:
    """Draw settings of all kinds of decay and history."""
    decayed = draw(st.integers(0, 5))
    decay: Any = draw(st.sampled_from(("paper", "public", "list")))
    ratios = draw(st.lists(st.floats(0.01, 1.0), min_size=decayed, max_size=decayed)) if decay == "list" else []
    split = draw(st.booleans())
    return FlareSettings(
        full=draw(st.integers(1, 4)), decayed=decayed, decay=decay, alpha=draw(st.floats(0.01, 1.0)),
        ratios=tuple(sorted(ratios, reverse=True)), chunks=draw(st.integers(1, 40)), split=split,
        loss=draw(st.sampled_from(("last", "blocks"))), history=draw(st.sampled_from(("decayed", "full", "recent"))),
        warmup=split and draw(st.booleans()),
    )  # fmt: skip
