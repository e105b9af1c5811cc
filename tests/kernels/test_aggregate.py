"""The sum over neighbours equals a product with a dense matrix, forward and backward."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.graphs import drawn, edge_list, edges_of, graphs, large, shuffled
from timeloom.kernels import reference
from timeloom.kernels.aggregate import aggregate, neighbour_sum
from timeloom.kernels.norms import Norm, NormKind, scales_of
from timeloom.kernels.reference import EdgeList

KINDS: tuple[NormKind, ...] = ("sym", "both", "mean", "push", "sum")
NORMS = [Norm(kind, self_loops, reverse) for kind, self_loops, reverse in product(KINDS, (True, False), (False, True))]
EMPTY = edge_list([], None, [True, False, True])
EMPTY_WEIGHTED = edge_list([], [], [True, False, True])
ONE = edge_list([], None, [True])
ONE_LOOP = edge_list([(0, 0)], [2.5], [True])
PARALLEL = edge_list([(0, 1), (2, 1), (0, 1), (1, 1), (1, 0)], [0.5, 2.0, 3.0, -1.0, 0.25], [True, True, True, False])
CORNERS = {"empty": EMPTY, "empty weighted": EMPTY_WEIGHTED, "one": ONE, "one loop": ONE_LOOP, "parallel": PARALLEL}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def pyg() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn")


def run(graph: EdgeList, norm: Norm, x_NF: Tensor) -> Tensor:
    """Aggregate as a view does: edges the way messages go, then the norm's diagonals."""
    edges = edges_of(graph, x_NF.dtype)
    edges = edges.reversed if norm.reverse else edges
    return aggregate(edges, scales_of(norm, edges, graph.alive_N, x_NF.dtype), x_NF)


def with_gradient(graph: EdgeList, norm: Norm, x_NF: Tensor, *, dense: bool) -> tuple[Tensor, Tensor]:
    x_NF = x_NF.clone().requires_grad_()
    out_NF = reference.aggregate(graph, norm, x_NF) if dense else run(graph, norm, x_NF)
    (gradient,) = torch.autograd.grad((out_NF * drawn(*out_NF.shape, seed=8)).sum(), x_NF)
    return out_NF.detach(), gradient


def close(left: Tensor, right: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@given(graphs(), st.sampled_from(NORMS), st.integers(0, 3))
@settings(max_examples=300)
def test_aggregation_equals_the_dense_product(graph: EdgeList, norm: Norm, num_features: int) -> None:
    x_NF = drawn(graph.num_nodes, num_features, seed=1)
    for fast, slow in zip(
        with_gradient(graph, norm, x_NF, dense=False), with_gradient(graph, norm, x_NF, dense=True), strict=True
    ):
        close(fast, slow)
    close(run(graph, norm, x_NF), reference.aggregate(graph, norm, x_NF))


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("corner", CORNERS)
def test_corner_cases_equal_the_dense_product(corner: str, norm: Norm) -> None:
    graph = CORNERS[corner]
    for fast, slow in zip(
        with_gradient(graph, norm, drawn(graph.num_nodes, 3, seed=2), dense=False),
        with_gradient(graph, norm, drawn(graph.num_nodes, 3, seed=2), dense=True),
        strict=True,
    ):
        close(fast, slow)


@pytest.mark.parametrize("corner", CORNERS)
def test_the_gradient_is_that_of_small_differences(corner: str) -> None:
    graph = CORNERS[corner]
    for norm in (Norm("sym"), Norm("both", self_loops=False), Norm("push", reverse=True)):
        x_NF = drawn(graph.num_nodes, 2, seed=3).requires_grad_()
        assert torch.autograd.gradcheck(lambda x_NF, norm=norm: run(graph, norm, x_NF), (x_NF,))
    assert torch.autograd.gradcheck(lambda x_NF: neighbour_sum(edges_of(graph), x_NF), (x_NF,))
    assert torch.autograd.gradgradcheck(lambda x_NF: neighbour_sum(edges_of(graph), x_NF), (x_NF,))


def test_no_features_give_no_features() -> None:
    out = run(PARALLEL, Norm("sym"), torch.zeros(4, 0, dtype=torch.float64))
    assert out.shape == (4, 0)
    assert out.dtype == torch.float64


@given(graphs(), st.sampled_from(NORMS))
def test_single_precision_is_near_the_dense_product(graph: EdgeList, norm: Norm) -> None:
    x_NF = drawn(graph.num_nodes, 3, seed=4, dtype=torch.float32)
    out = run(graph, norm, x_NF)
    assert out.dtype == torch.float32
    close(out.double(), reference.aggregate(graph, norm, x_NF.double()), 1e-5)


@given(graphs(), st.sampled_from(NORMS))
def test_half_precision_stays_half_and_near(graph: EdgeList, norm: Norm) -> None:
    edges = edges_of(graph, torch.float32)
    edges = edges.reversed if norm.reverse else edges
    x_NF = drawn(graph.num_nodes, 3, seed=5, dtype=torch.float32)
    scales = scales_of(norm, edges, graph.alive_N, torch.float32)
    exact = aggregate(edges, scales, x_NF)
    x_half = x_NF.bfloat16().requires_grad_()
    half = aggregate(edges, scales, x_half)
    (gradient,) = torch.autograd.grad(half.sum(), x_half)
    assert half.dtype == torch.bfloat16
    assert gradient.dtype == torch.bfloat16
    # What cancels leaves an error of the size of the terms, so the error is held against the sum of their sizes.
    size_NN = torch.diag(graph.alive_N.double()) + graph.matrix(torch.float64, absolute=True)
    terms = ((size_NN + size_NN.T) @ x_NF.abs().double()).sum(0) + 1
    assert ((half.double() - exact.double()).abs() <= 0.05 * terms).all()


@given(graphs(), st.sampled_from(NORMS), st.integers(0, 9))
def test_the_order_of_edges_does_not_matter(graph: EdgeList, norm: Norm, seed: int) -> None:
    x_NF = drawn(graph.num_nodes, 2, seed=6)
    close(run(graph, norm, x_NF), run(shuffled(graph, seed), norm, x_NF), 1e-12)


@given(graphs(), st.sampled_from(NORMS))
def test_a_node_without_neighbours_gets_exactly_0(graph: EdgeList, norm: Norm) -> None:
    reached = torch.zeros(graph.num_nodes, dtype=torch.bool)
    reached[graph.source_E if norm.reverse else graph.target_E] = True
    if norm.self_loops:
        reached |= graph.alive_N
    x_NF = drawn(graph.num_nodes, 2, seed=7) * 1e6
    out_NF = run(graph, norm, x_NF)
    assert torch.isfinite(out_NF).all()
    assert (out_NF[~reached] == 0).all()


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_negative_weights_stay_finite(norm: Norm) -> None:
    graph = edge_list([(0, 1), (2, 1), (1, 0), (0, 0), (1, 2)], [1.0, -1.0, -2.0, -1.0, -1.0], [True] * 3)
    out_NF, gradient_NF = with_gradient(graph, norm, drawn(3, 2, seed=9), dense=False)
    assert torch.isfinite(out_NF).all()
    assert torch.isfinite(gradient_NF).all()
    assert out_NF.abs().max() < 20


def test_weights_of_0_give_0_and_no_nan() -> None:
    graph = edge_list([(0, 1), (1, 0)], [0.0, 0.0], [True, True])
    for norm in NORMS:
        out_NF = run(graph, norm, drawn(2, 2, seed=10))
        assert torch.isfinite(out_NF).all()
        assert norm.self_loops or (out_NF == 0).all()


@given(graphs())
def test_mean_keeps_constants_where_weights_are_positive(graph: EdgeList) -> None:
    graph = EdgeList(graph.source_E, graph.target_E, None, graph.alive_N)
    for norm in (Norm("mean", self_loops=False), Norm("mean"), Norm("mean", self_loops=False, reverse=True)):
        operator_NN = reference.operator(graph, norm, torch.float64)
        reached = operator_NN.abs().sum(1) > 0
        out_NF = run(graph, norm, torch.ones(graph.num_nodes, 1, dtype=torch.float64))
        close(out_NF[:, 0], reached.double(), 1e-12)


@given(graphs())
def test_push_keeps_the_sum_where_every_node_sends(graph: EdgeList) -> None:
    graph = EdgeList(graph.source_E, graph.target_E, None, torch.ones(graph.num_nodes, dtype=torch.bool))
    x_NF = drawn(graph.num_nodes, 2, seed=11)
    close(run(graph, Norm("push"), x_NF).sum(0), x_NF.sum(0), 1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_sym_is_the_convolution_of_torch_geometric(pyg: Any, weighted: bool) -> None:
    graph = large(30, 200)
    off_diagonal = graph.source_E != graph.target_E
    assert graph.weight_E is not None
    graph = EdgeList(
        graph.source_E[off_diagonal],
        graph.target_E[off_diagonal],
        graph.weight_E[off_diagonal] if weighted else None,
        graph.alive_N,
    )
    for self_loops in (True, False):
        convolution = pyg.GCNConv(4, 4, add_self_loops=self_loops, bias=False).double()
        convolution.lin.weight.data = torch.eye(4, dtype=torch.float64)
        x_NF = drawn(30, 4, seed=12)
        theirs = convolution(x_NF, torch.stack([graph.source_E, graph.target_E]), graph.weight_E)
        close(run(graph, Norm("sym", self_loops), x_NF), theirs.detach())


def test_two_runs_with_two_threads_give_the_same_bits() -> None:
    graph, x_NF = large(4000, 60000), drawn(4000, 24, seed=13, dtype=torch.float32)
    torch.set_num_threads(2)
    try:
        runs = [with_gradient(graph, Norm("sym"), x_NF, dense=False) for _ in range(4)]
    finally:
        torch.set_num_threads(1)
    alone = with_gradient(graph, Norm("sym"), x_NF, dense=False)
    for out_NF, gradient_NF in runs:
        assert torch.equal(out_NF, alone[0])
        assert torch.equal(gradient_NF, alone[1])
