"""Blocks come window by window, the same whether there is room for their edges or not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.plan.flare import chunking_of, snapshot_of
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.blocks import Block, Slicer, ranked_sides, sides_of
from timeloom.plan.batch.cut import EpochCut, SidesStore
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.order import chunk_order
from timeloom.plan.batch.trapezoid import exchanging, trapezoids

CHUNKING = chunking_of(
    [node % 2 for node in range(60)], [node // 2 % 5 for node in range(60)], num_owners=2, per_owner=5
)
SETTINGS = FlareSettings(full=2, decayed=2, chunks=5, alpha=0.3)
UNITS = [units[0] for units in trapezoids(SETTINGS, 9)]


class Counted:
    """Nine snapshots that count how often they are read."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, 60, (9, 200, 2)).tolist()
        self.all = [snapshot_of({(u, v) for u, v in edges}, 60, t=t, weighted=True) for t, edges in enumerate(drawn)]
        self.read = list[int]()

    def snapshot(self, t: int) -> Snapshot:
        self.read.append(t)
        return self.all[t]


def arrays_of(block: Block) -> list[Any]:
    assert block.into.edges is not None
    assert block.weights_K is not None
    return [
        block.num_own, block.into.starts.tolist(), block.into.neighbours.tolist(), block.into.edges.tolist(),
        block.weights_K.tolist(), block.exchange.halo_H.tolist(), block.exchange.rows_S.tolist(),
        block.in_degrees_O.tolist(), block.out_degrees_O.tolist(),
    ]  # fmt: skip


def size_of_one(graph: Counted) -> int:
    return max(sides_of(one, CHUNKING, 0).num_bytes for one in graph.all)


@pytest.mark.parametrize(("room", "reads"), [(20, 9), (4.1, 18), (0, None)])
def test_blocks_are_the_same_with_any_room(room: float, reads: int | None) -> None:
    """With room for all a snapshot is read once in a run, with room for a window once in an epoch."""
    graph = Counted()
    store = SidesStore(graph, CHUNKING, 1, budget_bytes=int(room * size_of_one(graph)))
    for epoch in range(2):
        order = chunk_order(CHUNKING, seed=7, epoch=epoch)
        cut, slicer = EpochCut(store, order, SETTINGS), Slicer(order, 1)
        for unit in UNITS:
            for place, t in enumerate(range(unit.first, unit.last)):
                edges = ranked_sides(sides_of(graph.all[t], CHUNKING, 1), order)
                expected = slicer.block(edges, unit.chunks[place], halo=exchanging(SETTINGS, unit)[place])
                assert arrays_of(cut.block(unit, t)) == arrays_of(expected)
            assert store.num_bytes <= max(room, 0) * size_of_one(graph)
    assert store.num_made == len(graph.read)
    if reads is not None:
        assert len(graph.read) == reads


def test_the_snapshots_used_last_are_kept() -> None:
    graph = Counted()
    store = SidesStore(graph, CHUNKING, 0, budget_bytes=2 * size_of_one(graph) + 10)
    for t in (0, 1, 0, 2, 0, 1):
        store.sides(t)
    assert graph.read == [0, 1, 2, 1], "1 gave way to 2, 2 to 1, and 0 was always in use"
    assert store.num_bytes == sum(sides_of(graph.all[t], CHUNKING, 0).num_bytes for t in (0, 1))


@pytest.mark.parametrize("room", [100, 2, 0])
def test_an_epoch_holds_on_to_no_more_than_a_window_and_than_there_is_room_for(room: int) -> None:
    graph = Counted()
    store = SidesStore(graph, CHUNKING, 0, budget_bytes=room * size_of_one(graph))
    cut = EpochCut(store, chunk_order(CHUNKING, seed=7, epoch=0), SETTINGS)
    for unit, t in itertools.chain.from_iterable(((u, t) for t in range(u.first, u.last)) for u in UNITS):
        cut.block(unit, t)
        assert all(unit.first <= kept < unit.last for kept in cut._ranked)
        assert len(cut._ranked) <= room


def test_another_number_of_chunks_than_the_graph_was_cut_into_is_refused() -> None:
    store = SidesStore(Counted(), CHUNKING, 0, budget_bytes=0)
    with pytest.raises(AssertionError, match="5 chunks, not 128"):
        EpochCut(store, chunk_order(CHUNKING, seed=7, epoch=0), FlareSettings())
