"""Do ranks get like work, and batches like work of every rank?"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.tiny import TinyGraph
from tests.plan.partition.graphs import drawn, graph_of
from timeloom.errors import BadConfig
from timeloom.plan.partition.load import Deal, balanced_groups, load_owners, walk_loads


def rng_of(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def tree_cost(graph: TinyGraph, t: int, node: int, layers: int) -> int:
    """What a node costs whose unrolled tree is walked: it makes each of its layers, its neighbours one less each."""
    if layers == 0:
        return 0
    sources = [edge.source for edge in graph.edges(t) if edge.target == node]
    return layers * len(sources) + sum(tree_cost(graph, t, u, layers - 1) for u in sources)


@given(seed=st.integers(0, 50), layers=st.integers(1, 4))
def test_walks_count_what_the_unrolled_tree_costs(seed: int, layers: int) -> None:
    """T23: walks == tree cost (SPEC D8.1)."""
    graph = drawn(seed, num_nodes=9, num_edges=14, num_snapshots=4)
    costs = [sum(tree_cost(graph, t, v, layers) for t in range(3)) for v in range(9)]
    assert walk_loads(graph, 3, layers).tolist() == costs


def test_the_second_example_of_dynahb_costs_five_in_each_snapshot() -> None:
    """T23: v2 hears of v1 and v3, and v3 also through v1: 2 + (2 + 1) = 5, and 5 + 5 over two snapshots."""
    edges = [(0, 1), (2, 1), (2, 0)]
    assert walk_loads(graph_of(4, edges), 1, 2)[1] == 5
    assert walk_loads(graph_of(4, edges, edges, edges), 2, 2)[1] == 10


@pytest.mark.parametrize("deal", ["serpentine", "round_robin", "lpt"])
def test_the_third_example_of_dynahb_has_twelve_on_both_workers(deal: Deal) -> None:
    """T23: hash has 4 and 20 there, METIS 14 and 10."""
    load_N = np.array([2.0, 10.0, 2.0, 10.0])
    owner_N = load_owners(load_N, 2, deal).owner_N
    assert np.bincount(owner_N, load_N).tolist() == [12.0, 12.0]


@given(
    loads=st.lists(st.integers(0, 10**6), max_size=60), ranks=st.integers(1, 7), deal=st.sampled_from(get_args(Deal))
)  # fmt: skip
def test_every_node_is_on_one_rank_and_counts_are_even_where_that_is_promised(
    loads: list[int], ranks: int, deal: Deal
) -> None:
    """T23."""
    found = load_owners(np.array(loads, np.float64), ranks, deal)
    assert found.sizes.sum() == len(loads)
    if deal != "lpt":
        assert found.sizes.max() - found.sizes.min() <= 1


def test_the_serpentine_turns_around_at_both_ends() -> None:
    load_N = np.arange(9, 0, -1).astype(np.float64)
    assert load_owners(load_N, 3, "serpentine").owner_N.tolist() == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert load_owners(load_N, 3, "round_robin").owner_N.tolist() == [0, 1, 2] * 3


def test_a_heavy_tail_is_evened_out_by_lpt_best_and_by_round_robin_worst() -> None:
    """SPEC section 8: 1.294, 1.246 and 1.000 for a Pareto tail of 1.2 on 8 ranks."""
    uneven: dict[Deal, list[float]] = {deal: [] for deal in get_args(Deal)}
    for seed in range(20):
        load_N = rng_of(seed).pareto(2.0, 4000) + 1.0
        for deal, found in uneven.items():
            loads = np.bincount(load_owners(load_N, 8, deal).owner_N, load_N)
            found.append(float(loads.max() / loads.mean()))
    means = {deal: np.mean(found) for deal, found in uneven.items()}
    assert means["lpt"] < means["serpentine"] < means["round_robin"]


def test_lpt_spreads_nodes_that_cost_nothing() -> None:
    assert load_owners(np.zeros(90), 3, "lpt").sizes.tolist() == [30, 30, 30]


@given(
    count=st.integers(0, 90), num_nodes=st.integers(0, 90), num_groups=st.integers(1, 13), seed=st.integers(0, 2**62)
)  # fmt: skip
def test_a_batch_has_the_count_that_was_asked_for_from_all_groups_alike(
    count: int, num_nodes: int, num_groups: int, seed: int
) -> None:
    nodes, load_N = np.arange(5, 5 + num_nodes), rng_of(seed).random(100)
    groups = balanced_groups(nodes, load_N, num_groups)
    assert np.ptp(groups.sizes_G) <= 1
    assert sorted(groups.nodes.tolist()) == nodes.tolist()
    assert (np.diff(load_N[groups.nodes]) <= 0).all()
    if count > num_nodes:
        with pytest.raises(BadConfig, match=rf"{count} targets was asked for, but there are {num_nodes} nodes"):
            groups.draw(count, rng_of(seed))
        return
    shares = groups.shares(count, rng_of(seed))
    exact = count * groups.sizes_G / max(num_nodes, 1)
    assert shares.sum() == count
    assert (np.abs(shares - exact) < 1).all()
    drawn_nodes = groups.draw(count, rng_of(seed))
    assert len(set(drawn_nodes.tolist())) == count
    assert (drawn_nodes == groups.draw(count, rng_of(seed))).all()
    group_of = np.searchsorted(groups.ends_G, np.arange(num_nodes), side="right")
    place_of = {node: place for place, node in enumerate(groups.nodes.tolist())}
    counted = np.bincount([group_of[place_of[node]] for node in drawn_nodes.tolist()], minlength=num_groups)
    assert counted.tolist() == shares.tolist()


def test_every_node_is_drawn_as_often_as_any_other_even_in_batches_smaller_than_the_groups() -> None:
    groups = balanced_groups(np.arange(30), rng_of(0).random(30), 10)
    times = np.zeros(30)
    for seed in range(4000):
        np.add.at(times, groups.draw(3, rng_of(seed)), 1)
    assert np.abs(times / 4000 - 0.1).max() < 5 * np.sqrt(0.09 / 4000)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(BadConfig, match="a model of 0 layers"):
        walk_loads(drawn(0), 2, 0)
    with pytest.raises(BadConfig, match="0 balanced groups were asked for"):
        balanced_groups(np.arange(3), np.ones(3), 0)
