"""Blocks are the induced subgraphs they stand for, on one rank and on several; exchanges fit (T17, T19, T20)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from tests.plan.flare import Scene, chosen_nodes, chunking_of, scenes, snapshot_of
from timeloom.graph.buckets import left
from timeloom.graph.csr import Csr
from timeloom.plan.batch.blocks import Block, Slicer, all_sides, ranked_sides, sides_of, whole_block
from timeloom.plan.batch.order import ChunkOrder, chunk_order

Edge = tuple[int, int, int]


def edges_of(csr: Csr, rows: np.ndarray) -> list[Edge]:
    """Return (source, target, place in the snapshot) of each edge, rows being translated to nodes."""
    assert csr.edges is not None
    targets = np.repeat(np.arange(len(csr.starts) - 1), np.diff(csr.starts))
    return list(zip(rows[csr.neighbours].tolist(), rows[targets].tolist(), csr.edges.tolist(), strict=True))


def induced(scene: Scene, nodes: set[int]) -> list[Edge]:
    """Return the edges of the scene's snapshot between some nodes."""
    pairs = zip(scene.snapshot.sources.tolist(), scene.snapshot.targets.tolist(), strict=True)
    return [(u, v, place) for place, (u, v) in enumerate(pairs) if u in nodes and v in nodes]


def order_of(scene: Scene) -> ChunkOrder:
    return chunk_order(scene.chunking, seed=scene.seed, epoch=scene.epoch)


def check_transposed(block: Block) -> None:
    """Check that both ways of listing a block's edges tell of the same ones, in ascending order."""
    rows = np.arange(block.num_rows)
    into = edges_of(block.into, rows)
    assert block.out_of.edges is not None
    back = edges_of(block.out_of, rows)
    assert [(u, v) for v, u, _ in back] == [into[place][:2] for _, _, place in back]
    assert sorted(place for _, _, place in back) == list(range(len(into)))
    assert all(low <= high for low, high in itertools.pairwise(v for _, v, _ in into))


def weight_of(scene: Scene, place: int) -> float:
    return abs(float(scene.snapshot.weights[place]))


@given(scenes())
def test_the_first_chunks_of_a_snapshot_are_the_subgraph_that_their_nodes_induce(scene: Scene) -> None:
    """T17: every prefix, of every snapshot, against the definition; and one prefix holds the next smaller one."""
    order = order_of(scene)
    edges, before = ranked_sides(all_sides(scene.snapshot, scene.chunking, cross=True), order), set[int]()
    for num_chunks in range(scene.chunking.per_owner + 1):
        nodes = chosen_nodes(order, num_chunks)
        assert before <= nodes
        before = nodes
        block = whole_block(edges, order, num_chunks)
        assert set(order.nodes[: block.num_own].tolist()) == nodes
        assert block.num_own == order.ends[num_chunks] == block.num_rows
        found = edges_of(block.into, order.nodes)
        assert sorted(found) == sorted(induced(scene, nodes))
        check_transposed(block)
        if scene.snapshot.stored_weights is None:
            assert block.weights_K is None
        else:
            assert block.weights_K is not None
            assert block.weights_K.tolist() == [scene.snapshot.stored_weights[place] for _, _, place in found]
        for row in range(block.num_own):
            node = int(order.nodes[row])
            assert block.in_degrees_O[row] == sum(weight_of(scene, at) for _, v, at in found if v == node)
            assert block.out_degrees_O[row] == sum(weight_of(scene, at) for u, _, at in found if u == node)
    assert block.num_edges == len(scene.snapshot)


@given(scenes())
def test_neighbours_of_a_row_come_in_the_order_of_rows(scene: Scene) -> None:
    """So sums over neighbours add in an order that only the epoch's order of nodes decides."""
    order = order_of(scene)
    edges = ranked_sides(all_sides(scene.snapshot, scene.chunking, cross=True), order)
    for num_chunks in range(scene.chunking.per_owner + 1):
        into = whole_block(edges, order, num_chunks).into
        for low, high in itertools.pairwise(into.starts.tolist()):
            assert sorted(into.neighbours[low:high].tolist()) == into.neighbours[low:high].tolist()


def blocks_of(scene: Scene, num_chunks: int, *, halo: bool) -> tuple[ChunkOrder, list[Block]]:
    """Return the blocks of all ranks."""
    order, blocks = order_of(scene), []
    for owner in range(scene.chunking.num_owners):
        edges = ranked_sides(sides_of(scene.snapshot, scene.chunking, owner), order)
        slicer = Slicer(order, owner)
        slicer.block(edges, scene.chunking.per_owner, halo=True)  # leaves nothing behind
        blocks.append(slicer.block(edges, num_chunks, halo=halo))
    return order, blocks


def nodes_of(order: ChunkOrder, owner: int, block: Block) -> np.ndarray:
    return np.concatenate([order.own(owner).nodes[: block.num_own], block.exchange.halo_H])


@given(scenes())
def test_ranks_that_drop_edges_see_the_masked_graph_and_ranks_that_exchange_see_all_of_it(scene: Scene) -> None:
    """T20, as far as indices go: nodes, edges and degrees of all ranks against one process."""
    per_owner, owner_N = scene.chunking.per_owner, scene.chunking.owner_N
    for num_chunks, halo in itertools.product((1, per_owner), (False, True)):
        order, blocks = blocks_of(scene, num_chunks, halo=halo)
        edges = ranked_sides(all_sides(scene.snapshot, scene.chunking, cross=halo), order)
        whole = whole_block(edges, order, num_chunks)
        found = list[Edge]()
        for owner, block in enumerate(blocks):
            nodes = nodes_of(order, owner, block)
            mine = edges_of(block.into, nodes)
            found += mine
            if block.weights_K is not None:
                assert block.weights_K.tolist() == [scene.snapshot.weights[place] for _, _, place in mine]
            check_transposed(block)
            assert (owner_N[nodes[: block.num_own]] == owner).all()
            assert (owner_N[nodes[block.num_own :]] != owner).all()
            assert (block.into.starts[block.num_own :] == block.num_edges).all(), "halo rows receive nothing"
            for row, node in enumerate(nodes[: block.num_own].tolist()):
                assert block.in_degrees_O[row] == whole.in_degrees_O[order.rows[node]]
                assert block.out_degrees_O[row] == whole.out_degrees_O[order.rows[node]]
        assert sorted(found) == sorted(edges_of(whole.into, order.nodes))
        if not halo:
            assert all(block.num_rows == block.num_own for block in blocks)


@given(scenes())
def test_numbering_nodes_anew_gives_the_same_blocks(scene: Scene) -> None:
    """The ablation without shrinking costs more and computes the same."""
    order = order_of(scene)
    for owner, halo in itertools.product(range(scene.chunking.num_owners), (False, True)):
        edges = ranked_sides(sides_of(scene.snapshot, scene.chunking, owner), order)
        fast, slow = (Slicer(order, owner, shrink=shrink) for shrink in (True, False))
        for num_chunks in range(scene.chunking.per_owner + 1):
            one, other = (slicer.block(edges, num_chunks, halo=halo) for slicer in (fast, slow))
            rows = np.arange(one.num_rows)
            assert sorted(edges_of(one.into, rows)) == sorted(edges_of(other.into, rows))
            check_transposed(other)
            assert one.in_degrees_O.tolist() == other.in_degrees_O.tolist()
            assert one.out_degrees_O.tolist() == other.out_degrees_O.tolist()
            assert one.exchange.halo_H.tolist() == other.exchange.halo_H.tolist()
            assert one.exchange.rows_S.tolist() == other.exchange.rows_S.tolist()


@given(scenes())
def test_what_a_rank_sends_is_what_the_other_receives_and_no_more_than_is_read(scene: Scene) -> None:
    ranks = range(scene.chunking.num_owners)
    for num_chunks in range(scene.chunking.per_owner + 1):
        order, blocks = blocks_of(scene, num_chunks, halo=True)
        for here, there in itertools.product(ranks, ranks):
            sender, receiver = blocks[here].exchange, blocks[there].exchange
            begin, got = sum(sender.sent[:there]), sum(receiver.received[:here])
            rows = sender.rows_S[begin : begin + sender.sent[there]]
            nodes = receiver.halo_H[got : got + receiver.received[here]]
            assert order.own(here).nodes[rows].tolist() == nodes.tolist()
            assert all(row < blocks[here].num_own for row in rows)
        for block in blocks:
            read = set(block.into.neighbours[block.into.neighbours >= block.num_own].tolist())
            assert read == set(range(block.num_own, block.num_rows))
            assert len(block.exchange.halo_H) == sum(block.exchange.received)
            assert len(block.exchange.rows_S) == sum(block.exchange.sent)


@given(scenes())
def test_an_owners_order_is_its_part_of_the_order_of_all(scene: Scene) -> None:
    order, chunking = order_of(scene), scene.chunking
    assert sorted(order.nodes.tolist()) == list(range(chunking.num_nodes))
    assert (order.rows[order.nodes] == np.arange(chunking.num_nodes)).all()
    for owner in range(chunking.num_owners):
        own = order.own(owner)
        assert own.nodes.tolist() == [node for node in order.nodes.tolist() if chunking.owner_N[node] == owner]
        assert (order.own_rows[own.nodes] == np.arange(len(own.nodes))).all()
        for num_chunks in range(chunking.per_owner + 1):
            prefix = set(own.nodes[: own.ends[num_chunks]].tolist())
            assert prefix == {node for node in chosen_nodes(order, num_chunks) if chunking.owner_N[node] == owner}


def test_an_order_is_keyed_by_seed_epoch_and_owner() -> None:
    """T21: nothing but these decides, so that every rank knows every other's order; and each of them matters."""
    chunking = chunking_of([0, 1] * 40, [place // 2 for place in range(80)], num_owners=2, per_owner=40)
    assert (chunk_order(chunking, seed=3, epoch=5).nodes == chunk_order(chunking, seed=3, epoch=5).nodes).all()
    first = chunk_order(chunking, seed=3, epoch=5).place_Q
    assert (first != chunk_order(chunking, seed=3, epoch=6).place_Q).any()
    assert (first != chunk_order(chunking, seed=4, epoch=5).place_Q).any()
    assert (first[:40] // 2 != first[40:] // 2).any(), "two owners shuffle alike"
    assert (first % 2 == np.repeat([0, 1], 40)).all(), "of chunks at one position, the first owner's come first"
    # One owner's shuffle does not depend on how many others there are.
    alone = chunk_order(chunking_of([0] * 40, list(range(40)), num_owners=1, per_owner=40), seed=3, epoch=5)
    assert (alone.place_Q == first[:40] // 2).all()


@given(scenes())
def test_other_ids_inside_chunks_are_the_same_nodes_in_other_rows(scene: Scene) -> None:
    """T19: nodes that swap ids with nodes of their chunk leave blocks of the same shape, and the same edges."""
    chunking = scene.chunking
    renamed = np.arange(chunking.num_nodes)
    for chunk in range(chunking.num_owners * chunking.per_owner):
        members = np.flatnonzero(chunking.numbers == chunk)
        renamed[members] = members[::-1]
    pairs = zip(renamed[scene.snapshot.sources].tolist(), renamed[scene.snapshot.targets].tolist(), strict=True)
    other = Scene(snapshot_of(set(pairs), chunking.num_nodes), chunking, scene.seed, scene.epoch)
    order = order_of(scene)
    for num_chunks in range(chunking.per_owner + 1):
        blocks = [
            whole_block(ranked_sides(all_sides(one.snapshot, chunking, cross=True), order), order, num_chunks)
            for one in (scene, other)
        ]
        assert blocks[0].num_own == blocks[1].num_own
        assert set(renamed[order.nodes[: blocks[0].num_own]]) == set(order.nodes[: blocks[1].num_own])
        before, after = (edges_of(block.into, order.nodes) for block in blocks)
        assert sorted((renamed[u], renamed[v]) for u, v, _ in before) == sorted((u, v) for u, v, _ in after)


def test_a_tiny_case_by_hand() -> None:
    """Two ranks of two chunks: a path 0 -> 1 -> 2 -> 3 and an edge 3 -> 0; node i is in chunk i % 2 of rank i // 2."""
    chunking = chunking_of([0, 0, 1, 1], [0, 1, 0, 1], num_owners=2, per_owner=2)
    order = ChunkOrder(chunking, np.array([0, 2, 3, 1], np.int32))  # rank 0: chunk 0 first; rank 1: chunk 1 first
    assert order.nodes.tolist() == [0, 3, 1, 2]
    assert order.ends.tolist() == [0, 2, 4]
    snapshot = snapshot_of({(0, 1), (1, 2), (2, 3), (3, 0)}, 4)
    slicer, edges = Slicer(order, 0), ranked_sides(sides_of(snapshot, chunking, 0), order)
    small = slicer.block(edges, 1, halo=True)
    assert (small.num_own, small.exchange.halo_H.tolist()) == (1, [3])
    assert small.exchange.received == (0, 1)
    assert (small.exchange.rows_S.tolist(), small.exchange.sent) == ([], (0, 0))
    assert (small.into.starts.tolist(), small.into.neighbours.tolist()) == ([0, 1, 1], [1])
    assert small.into.edges is not None
    assert small.into.edges.tolist() == [0], "3 -> 0 is the first edge of the snapshot"
    assert (small.in_degrees_O.tolist(), small.out_degrees_O.tolist()) == ([1.0], [0.0])
    whole = slicer.block(edges, 2, halo=True)
    assert (whole.num_own, whole.exchange.halo_H.tolist()) == (2, [3])
    assert (whole.exchange.rows_S.tolist(), whole.exchange.sent) == ([1], (0, 1))
    assert whole.out_degrees_O.tolist() == [1.0, 1.0], "1 -> 2 leaves to rank 1 and counts"
    dropped = slicer.block(edges, 2, halo=False)
    assert (dropped.num_rows, dropped.num_edges, dropped.out_degrees_O.tolist()) == (2, 1, [1.0, 0.0])


def test_a_slice_touches_nothing_but_what_is_left() -> None:
    """The arrays of the other buckets are replaced by nonsense, and a small slice is what it was."""
    rng = np.random.default_rng(1)
    pairs = {(int(u), int(v)) for u, v in rng.integers(0, 300, (3000, 2))}
    snapshot = snapshot_of(pairs, 300)
    chunking = chunking_of([0] * 300, [node % 30 for node in range(300)], num_owners=1, per_owner=30)
    order = chunk_order(chunking, seed=1, epoch=0)
    edges = ranked_sides(all_sides(snapshot, chunking, cross=True), order).inner
    before = left(edges, 3, order.rows)
    num_buckets, num_edges = edges.chosen(3)
    assert 0 < num_edges < len(snapshot) / 50
    kept = np.zeros(len(snapshot), np.bool_)
    for bucket in edges.order_B[:num_buckets]:
        kept[edges.buckets.starts[bucket] : edges.buckets.starts[bucket + 1]] = True
    edges.buckets.sources_E[~kept] = -(2**30)
    edges.buckets.targets_E[~kept] = -(2**30)
    after = left(edges, 3, order.rows)
    assert after.sources_K.tolist() == before.sources_K.tolist()
    assert after.targets_K.tolist() == before.targets_K.tolist()
    assert (after.sources_K < order.ends[3]).all()
    assert (after.targets_K < order.ends[3]).all()


@pytest.mark.parametrize("bad", [{"owner": [0, 2]}, {"chunk": [0, -1]}, {"owner": [0]}])
def test_chunks_that_do_not_exist_are_refused(bad: dict[str, list[int]]) -> None:
    with pytest.raises(AssertionError):
        chunking_of(bad.get("owner", [0, 1]), bad.get("chunk", [0, 1]), num_owners=2, per_owner=2)
