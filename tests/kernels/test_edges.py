"""Edges lie in memory by target and by source, and both say the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from tests.kernels.graphs import as_rows, edge_list, edges_of, graphs, large, snapshot_of
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.reference import EdgeList
from timeloom.train.localise import edges_of as edges_of_snapshot


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def rows_of(graph: EdgeList) -> list[tuple[int, int, float]]:
    weight_E = torch.ones(len(graph.source_E)) if graph.weight_E is None else graph.weight_E
    return sorted(zip(graph.source_E.tolist(), graph.target_E.tolist(), weight_E.tolist(), strict=True))


def same_rows(left: Rows, right: Rows) -> bool:
    pairs = zip(
        (left.starts_M, left.neighbours_E, left.weights_E),
        (right.starts_M, right.neighbours_E, right.weights_E),
        strict=True,
    )
    return all(a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def same(left: Edges, right: Edges) -> bool:
    return (
        same_rows(left.into, right.into)
        and same_rows(left.out_of, right.out_of)
        and torch.equal(left.order_E, right.order_E)
    )


@given(graphs())
def test_edges_of_a_snapshot_are_its_edges_both_ways(graph: EdgeList) -> None:
    edges = edges_of_snapshot(snapshot_of(graph), torch.float64)
    assert sorted(as_rows(edges)) == rows_of(graph)
    assert sorted(as_rows(edges.reversed)) == rows_of(graph.reversed)
    assert (len(edges), edges.num_nodes) == (len(graph.source_E), graph.num_nodes)
    assert edges.into.neighbours_E.dtype == edges.into.starts_M.dtype == edges.order_E.dtype == torch.int32


@given(graphs())
def test_edges_reversed_twice_are_the_same_edges(graph: EdgeList) -> None:
    edges = edges_of(graph)
    assert same(edges, edges.reversed.reversed)
    assert same_rows(edges.reversed.into, edges.out_of)


@given(graphs())
def test_the_order_says_where_each_edge_lies(graph: EdgeList) -> None:
    for edges in (edges_of(graph), edges_of(graph).reversed, edges_of_snapshot(snapshot_of(graph), torch.float64)):
        order = edges.order_E.long()
        assert torch.equal(edges.into.neighbours_E[order], edges.out_of.row_of_edges)
        assert torch.equal(edges.into.row_of_edges[order], edges.out_of.neighbours_E)
        weights_E, others_E = edges.into.weights_E, edges.out_of.weights_E
        assert (weights_E is None) == (others_E is None)
        if weights_E is not None and others_E is not None:
            assert torch.equal(weights_E[order], others_E)
        assert edges.places.tolist() == list(range(len(edges)))


@given(graphs())
def test_degrees_are_sums_of_absolute_weights(graph: EdgeList) -> None:
    edges = edges_of(graph)
    size_NN = graph.matrix(torch.float64, absolute=True)
    torch.testing.assert_close(edges.into.degrees(torch.float64), size_NN.sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(edges.out_of.degrees(torch.float64), size_NN.sum(0), rtol=0, atol=1e-12)


def test_degrees_in_single_precision_do_not_depend_on_the_order_of_edges() -> None:
    weights = torch.rand(5000, generator=torch.Generator().manual_seed(1), dtype=torch.float64).tolist()
    rows = [(0, 0)] * len(weights)
    forward, backward = (
        edges_of(edge_list(rows, given, [True]), torch.float32).into.degrees(torch.float32)
        for given in (weights, weights[::-1])
    )
    assert torch.equal(forward, backward)


def test_moved_edges_are_the_same_edges() -> None:
    edges = edges_of(large(50, 400))
    moved = edges.to(torch.device("cpu"))
    assert same(edges, moved)
    away = edges.to(torch.device("meta"))
    parts = [part for rows in (away.into, away.out_of) for part in (rows.starts_M, rows.neighbours_E, rows.weights_E)]
    assert all(part is not None and part.is_meta for part in [*parts, away.order_E, away.places])


def test_the_bytes_of_edges_are_those_of_their_tensors() -> None:
    edges = edges_of(large(50, 400), torch.float32)
    # Starts, neighbours and weights, twice, and the order; all of 4 bytes.
    assert edges.num_bytes == 4 * (2 * (51 + 400 + 400) + 400)
    bare = edges_of(edge_list([(0, 1), (1, 1)], None, [True, True]))
    assert bare.num_bytes == 4 * (2 * (3 + 2) + 2)
