"""Is every node owned by exactly one rank, by the rule that was named, and by nothing that comes later?"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.tiny import TinyGraph
from tests.plan.partition.graphs import drawn, graph_of
from timeloom.errors import BadConfig
from timeloom.plan.partition.choose import PartitionName, PartitionSettings, partition
from timeloom.plan.partition.hashed import hash_owners, random_owners
from timeloom.plan.partition.metis import chunks, metis_owners
from timeloom.plan.partition.owners import Owners
from timeloom.plan.partition.quality import quality
from timeloom.plan.partition.union import union_of


@given(num_nodes=st.integers(0, 3000), ranks=st.integers(1, 9), seed=st.integers(0, 2**62 - 1))
def test_a_hash_keeps_every_node_where_it_is_when_others_are_appended(num_nodes: int, ranks: int, seed: int) -> None:
    few, many = hash_owners(num_nodes, ranks, seed), hash_owners(num_nodes + 17, ranks, seed)
    assert (many.owner_N[:num_nodes] == few.owner_N).all()
    assert few.sizes.sum() == num_nodes


def test_a_hash_deals_evenly_but_for_chance_and_seeds_differ() -> None:
    found = hash_owners(100_000, 5, 7)
    assert np.abs(found.sizes - 20_000).max() < 5 * np.sqrt(100_000 * 0.2 * 0.8)
    other = hash_owners(100_000, 5, 8)
    assert abs(np.mean(found.owner_N == other.owner_N) - 0.2) < 0.01


@given(num_nodes=st.integers(0, 300), ranks=st.integers(1, 9), seed=st.integers(0, 2**62 - 1))
def test_nodes_that_are_dealt_out_are_even_to_one(num_nodes: int, ranks: int, seed: int) -> None:
    sizes = random_owners(num_nodes, ranks, seed).sizes
    assert sizes.sum() == num_nodes
    assert sizes.max() - sizes.min() <= 1


def test_owners_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        hash_owners(5, 2, 0).owner_N[0] = 1


def test_the_union_is_simple_symmetric_and_of_the_past_only() -> None:
    graph = graph_of(6, [(0, 1), (1, 0), (2, 2), (3, 1)], [(1, 0), (3, 0)], [(4, 5)])
    union = union_of(graph, 2)
    rows = [union.neighbours_E[a:b].tolist() for a, b in zip(union.starts[:-1], union.starts[1:], strict=True)]
    assert rows == [[1, 3], [0, 3], [], [0, 1], [], []]
    assert union.events_N.tolist() == [3, 2, 1, 0, 0, 0]
    inner = union.within(np.array([0, 3]))
    assert inner.neighbours_E.tolist() == [1, 0]
    assert inner.starts.tolist() == [0, 1, 2]
    assert inner.events_N.tolist() == [3, 0]


NAMES: tuple[PartitionName, ...] = ("greedy", "online")


def two_cliques(size: int) -> TinyGraph:
    edges = [(u + base, v + base) for base in (0, size) for u in range(size) for v in range(u)]
    return graph_of(2 * size, [*edges, (0, size)])


def test_metis_cuts_two_cliques_at_their_bridge() -> None:
    found = metis_owners(two_cliques(8), 1, 2, 0)
    assert len(set(found.owner_N[:8].tolist())) == len(set(found.owner_N[8:].tolist())) == 1
    assert quality(found, two_cliques(8)).cut_T.tolist() == [1]


@pytest.mark.parametrize("by", ["hash", "random", "metis", "load", "greedy", "online"])
@pytest.mark.parametrize("ranks", [1, 2, 5, 90])
def test_every_node_has_one_owner_and_the_same_call_gives_the_same(by: Any, ranks: int) -> None:
    graph, settings = drawn(3), PartitionSettings(by=by, seed=4)
    found, again = partition(graph, 3, ranks, settings), partition(graph, 3, ranks, settings)
    assert found.num_nodes == graph.num_nodes
    assert found.sizes.sum() == graph.num_nodes
    assert (found.owner_N == again.owner_N).all()
    assert (found.name.split("/")[0], found.num_ranks) == (by, ranks)


@pytest.mark.parametrize("by", ["hash", "random", "metis", "load", "greedy", "online"])
@pytest.mark.parametrize("graph", [graph_of(1, []), graph_of(3, [], []), graph_of(1, [(0, 0)]), graph_of(2, [(0, 1)])])
def test_graphs_with_hardly_anything_in_them_are_partitioned(by: Any, graph: TinyGraph) -> None:
    for t_stop in range(len(graph) + 1):
        owners = partition(graph, t_stop, 3, PartitionSettings(by=by))
        assert owners.sizes.sum() == graph.num_nodes
        assert quality(owners, graph).edges_TR.sum() == sum(len(snapshot) for snapshot in graph.all)
        assert chunks(graph, t_stop, owners, 2, seed=0).chunk_N.max() < 2


def test_greedy_keeps_what_the_first_snapshot_said_and_online_follows_later_ones() -> None:
    """Two cliques that exchange a quarter of their nodes after the first of five snapshots."""
    size = 12
    first = [(u + base, v + base) for base in (0, size) for u in range(size) for v in range(u)]
    swapped = np.arange(2 * size)
    swapped[:3], swapped[size : size + 3] = np.arange(size, size + 3), np.arange(3)
    later = [(int(swapped[u]), int(swapped[v])) for u, v in first]
    graph = graph_of(2 * size, first, *[later] * 4)
    cuts = {by: quality(partition(graph, 5, 2, PartitionSettings(by=by)), graph) for by in NAMES}
    assert cuts["greedy"].cut_T[0] == 0
    assert cuts["online"].cut_T[4] == 0 < cuts["greedy"].cut_T[4]


@pytest.mark.parametrize("by", ["hash", "random", "metis", "load", "greedy", "online"])
def test_snapshots_after_the_training_ones_change_no_owner_of_a_node_seen_by_then(by: Any) -> None:
    """T35 for partitions: a node is placed from the snapshots up to its birth alone."""
    graph = drawn(5)
    other = TinyGraph([*graph.all[:4], *drawn(6).all[4:]])
    settings = PartitionSettings(by=by)
    one, two = (partition(g, 3, 3, settings).owner_N for g in (graph, other))
    seen = np.zeros(graph.num_nodes, np.bool_)
    for snapshot in graph.all[:4]:
        seen |= snapshot.alive
    assert seen[40:].any(), "nodes born after training are among those that stay"
    assert (one[seen] == two[seen]).all()


def test_a_node_born_later_goes_to_most_of_its_neighbours() -> None:
    size = 10
    graph = two_cliques(size)
    late = [(2 * size, 0), (1, 2 * size), (size, 2 * size), (2 * size + 1, size), (2 * size + 2, 2 * size + 1)]
    edges = list(zip(graph.all[0].sources.tolist(), graph.all[0].targets.tolist(), strict=True))
    grown = graph_of(2 * size + 4, edges, late)
    owner_N = metis_owners(grown, 1, 2, 0).owner_N
    assert owner_N[2 * size] == owner_N[0]
    assert owner_N[2 * size + 1] == owner_N[size]
    assert owner_N[2 * size + 2] == owner_N[2 * size + 1], "a newcomer that follows a newcomer"
    assert owner_N[2 * size + 3] == hash_owners(2 * size + 4, 2, 0).owner_N[2 * size + 3], "a node never linked"


def test_newcomers_that_all_follow_one_node_do_not_all_go_to_its_rank() -> None:
    graph = two_cliques(8)
    edges = list(zip(graph.all[0].sources.tolist(), graph.all[0].targets.tolist(), strict=True))
    star = [(0, v) for v in range(16, 116)] + [(8, v) for v in range(16, 116, 3)]
    sizes = metis_owners(graph_of(116, edges, [*edges, *star]), 1, 2, 0).sizes
    assert sizes.max() <= 1.15 * 58 + 34, "a full rank takes no more, where another neighbour has room"
    assert sizes.min() > 16


def test_without_a_training_edge_metis_has_nothing_to_cut_and_all_are_placed() -> None:
    for t_stop in (0, 1):
        found = metis_owners(graph_of(9, [], [(0, 1), (2, 1), (5, 6)]), t_stop, 3, 0)
        assert found.sizes.sum() == 9
        assert len({found.owner_N[v] for v in (0, 1, 2)}) == 1


def test_metis_that_is_missing_is_a_sentence_and_no_other_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        BadConfig, match=r"pymetis is not installed: pip install 'timeloom\[metis\]'.*partition.by=hash"
    ):
        metis_owners(drawn(1), 3, 2, 0)


def brute_quality(owners: Owners, graph: TinyGraph, t: int) -> tuple[int, list[int], list[int]]:
    edges, owner = graph.edges(t), owners.owner_N.tolist()
    ranks = range(owners.num_ranks)
    halos = [{e.source for e in edges if owner[e.target] == r and owner[e.source] != r} for r in ranks]
    return (
        sum(owner[e.source] != owner[e.target] for e in edges),
        [sum(owner[e.target] == r for e in edges) for r in ranks],
        [len(halo) for halo in halos],
    )


@pytest.mark.parametrize("ranks", [1, 3, 70, 130])
def test_the_report_counts_what_a_count_edge_by_edge_finds(ranks: int) -> None:
    graph = drawn(2, num_nodes=150, num_edges=400)
    owners = hash_owners(150, ranks, 1)
    found = quality(owners, graph, 1, 5)
    assert (found.first, len(found.cut_T)) == (1, 4)
    for row, t in enumerate(range(1, 5)):
        told = int(found.cut_T[row]), found.edges_TR[row].tolist(), found.halo_TR[row].tolist()
        assert told == brute_quality(owners, graph, t)
    assert found.nodes_R.tolist() == owners.sizes.tolist()


def test_balances_are_the_largest_over_the_mean() -> None:
    owners = Owners(owner_N=np.array([0, 0, 0, 1], np.int32), num_ranks=2, name="mine")
    found = quality(owners, graph_of(4, [(3, 0), (3, 1), (0, 3)], [(0, 3)]))
    assert found.node_balance == 1.5
    assert found.edge_balance == 1.0
    assert found.step_balance == pytest.approx((2 + 1) * 2 / 4)
    assert found.cut_share == 1.0
    empty = quality(owners, graph_of(4, []))
    assert (empty.edge_balance, empty.step_balance, empty.cut_share) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("by", ["metis", "hash", "random"])
@pytest.mark.parametrize(("ranks", "per_owner"), [(1, 4), (3, 5), (2, 1), (4, 40)])
def test_chunks_are_parts_of_their_owner(by: Any, ranks: int, per_owner: int) -> None:
    graph = drawn(8)
    owners = hash_owners(graph.num_nodes, ranks, 0)
    found, again = (chunks(graph, 3, owners, per_owner, seed=1, by=by) for _ in range(2))
    assert (found.chunk_N == again.chunk_N).all()
    assert sum(found.sizes_of(rank).sum() for rank in range(ranks)) == graph.num_nodes
    assert all(len(found.sizes_of(rank)) == per_owner for rank in range(ranks))
    if by == "random":
        assert all(np.ptp(found.sizes_of(rank)) <= 1 for rank in range(ranks))


def test_chunks_by_metis_keep_neighbours_together_inside_their_owner() -> None:
    graph = two_cliques(8)
    owners = Owners(owner_N=np.zeros(16, np.int32), num_ranks=1, name="one")
    found = chunks(graph, 1, owners, 2, seed=0)
    assert len(set(found.chunk_N[:8].tolist())) == len(set(found.chunk_N[8:].tolist())) == 1
    assert found.sizes_of(0).tolist() == [8, 8]


def test_a_node_born_later_joins_the_chunk_of_its_neighbours_of_the_same_owner() -> None:
    graph = two_cliques(8)
    edges = list(zip(graph.all[0].sources.tolist(), graph.all[0].targets.tolist(), strict=True))
    # Node 16 has three neighbours in the clique of the other owner and one in its own owner's first clique.
    cliques = [*edges, *[(u + 24, v + 24) for u in range(8) for v in range(u)]]
    grown = graph_of(32, cliques, [(24, 16), (25, 16), (26, 16), (3, 16)])
    owner_N = np.array([0] * 24 + [1] * 8, np.int32)
    found = chunks(grown, 1, Owners(owner_N=owner_N, num_ranks=2, name="mine"), 2, seed=0)
    assert found.chunk_N[16] == found.chunk_N[3]


def test_hashed_chunks_split_every_owner_of_a_hash() -> None:
    owners = hash_owners(4000, 4, 0)
    found = chunks(graph_of(4000, []), 0, owners, 4, seed=0, by="hash")
    assert all(found.sizes_of(rank).min() > 150 for rank in range(4))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: hash_owners(5, 0, 0), "into 0 ranks was asked for: give 1 or more"),
        (lambda: chunks(drawn(1), 3, hash_owners(60, 2, 0), 0, seed=0), "into 0 chunks"),
        (lambda: partition(drawn(1), 9, 2, PartitionSettings()), "before 9 was asked for, but there are 6"),
        (lambda: PartitionSettings(seed=-1), "partition.seed=-1 was asked for"),
    ],
)
def test_what_cannot_be_meant_is_refused(call: Any, sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        call()
