"""Attention equals a dense masked softmax, forward and backward, however large the logits are."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.graphs import drawn, edge_list, edges_of, graphs, large, shuffled
from timeloom.kernels import reference
from timeloom.kernels.attention import attend
from timeloom.kernels.reference import EdgeList

SLOPE = 0.2
CORNERS = {
    "empty": edge_list([], None, [True, False, True]),
    "one": edge_list([], None, [True]),
    "one absent": edge_list([], None, [False]),
    "one loop": edge_list([(0, 0)], None, [True]),
    "parallel": edge_list([(0, 1), (2, 1), (0, 1), (1, 1), (1, 0)], [0.5, 2, 3, -1, 0.25], [True, True, False, True]),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def pyg() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn")


def run(graph: EdgeList, inputs: tuple[Tensor, Tensor, Tensor], *, self_loops: bool, slope: float = SLOPE) -> Tensor:
    edges = edges_of(graph, inputs[0].dtype)
    return attend(edges, *inputs, loop_N=graph.alive_N if self_loops else None, slope=slope)


def inputs_of(
    num_nodes: int, *, heads: int = 2, size: int = 3, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        drawn(num_nodes, heads, size, seed=1, dtype=dtype),
        drawn(num_nodes, heads, seed=2, dtype=dtype) * scale,
        drawn(num_nodes, heads, seed=3, dtype=dtype) * scale,
    )


def with_gradients(
    graph: EdgeList, inputs: tuple[Tensor, ...], *, self_loops: bool, dense: bool
) -> tuple[Tensor, ...]:  # fmt: skip
    value, sent, received = (part.clone().requires_grad_() for part in inputs)
    if dense:
        out = reference.attend(graph, value, sent, received, self_loops=self_loops, slope=SLOPE)
    else:
        out = run(graph, (value, sent, received), self_loops=self_loops)
    loss = (out * drawn(*out.shape, seed=4).to(out.dtype)).sum()
    return out.detach(), *torch.autograd.grad(loss, (value, sent, received))


def close(left: Tensor, right: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


def agree(graph: EdgeList, inputs: tuple[Tensor, ...], *, self_loops: bool, tolerance: float = 1e-10) -> None:
    fast = with_gradients(graph, inputs, self_loops=self_loops, dense=False)
    slow = with_gradients(graph, inputs, self_loops=self_loops, dense=True)
    for ours, theirs in zip(fast, slow, strict=True):
        close(ours, theirs, tolerance)


@given(graphs(), st.sampled_from([1, 2, 3, 8]), st.integers(0, 3), st.booleans())
@settings(max_examples=200)
def test_attention_equals_the_dense_softmax(graph: EdgeList, heads: int, size: int, self_loops: bool) -> None:
    agree(graph, inputs_of(graph.num_nodes, heads=heads, size=size, scale=2.0), self_loops=self_loops)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("corner", CORNERS)
def test_corner_cases_equal_the_dense_softmax(corner: str, self_loops: bool) -> None:
    agree(CORNERS[corner], inputs_of(CORNERS[corner].num_nodes), self_loops=self_loops)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("corner", CORNERS)
def test_the_gradient_is_that_of_small_differences(corner: str, self_loops: bool) -> None:
    graph = CORNERS[corner]
    inputs = tuple(part.requires_grad_() for part in inputs_of(graph.num_nodes, size=2))
    assert torch.autograd.gradcheck(lambda *parts: run(graph, parts, self_loops=self_loops), inputs)


def test_a_gradient_of_the_gradient_is_refused() -> None:
    """A wrong one would be silent: the kernel keeps its shares as if they were constants."""
    inputs = inputs_of(4, size=2)
    inputs[1].requires_grad_()
    seen = run(CORNERS["parallel"], inputs, self_loops=True)
    (gradient,) = torch.autograd.grad(seen.square().sum(), inputs[1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()  # type: ignore[no-untyped-call]


def test_weights_of_edges_are_not_used_and_parallel_edges_count() -> None:
    rows, inputs = [(0, 2), (1, 2), (0, 2)], inputs_of(3, heads=1)
    twice = run(edge_list(rows, None, [True] * 3), inputs, self_loops=False)
    assert torch.equal(twice, run(edge_list(rows, [5.0, -1.0, 0.0], [True] * 3), inputs, self_loops=False))
    even = (inputs[0], torch.zeros(3, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64))
    seen = run(edge_list(rows, None, [True] * 3), even, self_loops=False)
    close(seen[2], (2 * inputs[0][0] + inputs[0][1]) / 3)


@given(graphs(), st.booleans())
def test_a_node_that_attends_to_nobody_gets_exactly_0(graph: EdgeList, self_loops: bool) -> None:
    reached = torch.zeros(graph.num_nodes, dtype=torch.bool)
    reached[graph.target_E] = True
    if self_loops:
        reached |= graph.alive_N
    for part in with_gradients(graph, inputs_of(graph.num_nodes), self_loops=self_loops, dense=False):
        assert torch.isfinite(part).all()
    out = run(graph, inputs_of(graph.num_nodes), self_loops=self_loops)
    assert (out[~reached] == 0).all()
    assert (out[reached] != 0).any(2).all()


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("scale", [0.5, 2.0, 10.0, 40.0, 100.0, 200.0])
@pytest.mark.parametrize("by_loops", [True, False])
def test_single_precision_is_near_a_double_softmax_for_any_logits(
    by_loops: bool, scale: float, heads: int, self_loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds of T6: 1e-5 up to a scale of 40, and 5e-5 at 200, where the logits themselves are rounded."""
    if not by_loops:
        monkeypatch.setattr("timeloom.kernels.attention.has_loops", lambda *_: False)
    bound = 1e-5 if scale <= 40 else 5e-5
    graph = large(60, 300)
    inputs = inputs_of(60, heads=heads, scale=scale, dtype=torch.float32)
    fast = with_gradients(graph, inputs, self_loops=self_loops, dense=False)
    assert all(torch.isfinite(part).all() for part in fast)
    # The sum of two logits is rounded to single precision before anything else sees it.
    assert fast[0].dtype == torch.float32
    doubles = tuple(part.double() for part in inputs)
    slow = with_gradients(graph, doubles, self_loops=self_loops, dense=True)
    assert (fast[0].double() - slow[0]).abs().max() <= bound
    for ours, theirs in zip(fast[1:], slow[1:], strict=True):
        # Some thousand messages end in one node.
        assert (ours.double() - theirs).abs().max() <= 10 * bound * max(1.0, theirs.abs().max().item())


def test_one_huge_logit_takes_all_and_its_absence_is_no_nan() -> None:
    graph = edge_list([(0, 3), (1, 3), (2, 3)], None, [True] * 4)
    value, sent, received = inputs_of(4, heads=1, dtype=torch.float32)
    sent[0] = 5000.0
    seen = run(graph, (value, sent, received), self_loops=True)
    close(seen[3], value[0], 1e-6)
    rest = edge_list([(1, 3), (2, 3)], None, [True] * 4)
    close(
        run(rest, (value, sent, received), self_loops=False)[3].double(),
        reference.attend(
            rest, value.double(), sent.double(), received.double(), self_loops=False, slope=SLOPE
        )[3],
        1e-5,
    )  # fmt: skip


def test_the_loop_of_a_node_is_part_of_the_softmax_even_when_it_is_largest() -> None:
    graph = edge_list([(0, 1)], None, [True, True])
    value, sent, received = inputs_of(2, heads=1)
    sent[1] = 3000.0
    close(run(graph, (value, sent, received), self_loops=True)[1], value[1])
    # Without its loop the large logit of its own is nobody's.
    close(run(graph, (value, sent, received), self_loops=False)[1], value[0])


def test_a_node_with_itself_alone_sees_itself_however_large_its_logit_is() -> None:
    value, sent, received = inputs_of(3, scale=3000.0)
    for graph in (edge_list([], None, [True] * 3), edge_list([(0, 1)], None, [True] * 3)):
        seen = run(graph, (value, sent, received), self_loops=True)
        close(seen[[0, 2]], value[[0, 2]])


@given(graphs(), st.booleans(), st.integers(0, 9))
def test_the_order_of_edges_does_not_matter(graph: EdgeList, self_loops: bool, seed: int) -> None:
    inputs = inputs_of(graph.num_nodes)
    for left, right in zip(
        with_gradients(graph, inputs, self_loops=self_loops, dense=False),
        with_gradients(shuffled(graph, seed), inputs, self_loops=self_loops, dense=False),
        strict=True,
    ):
        close(left, right, 1e-12)


@given(graphs(), st.booleans())
def test_a_slope_of_1_leaves_logits_as_they_are(graph: EdgeList, self_loops: bool) -> None:
    value, sent, received = inputs_of(graph.num_nodes, scale=3.0)
    # What the receiver adds is the same for all of its neighbours, so it cancels.
    close(
        run(graph, (value, sent, received), self_loops=self_loops, slope=1.0),
        run(graph, (value, sent, 0 * received), self_loops=self_loops, slope=1.0),
        1e-9,
    )


@given(graphs(), st.booleans())
def test_half_precision_stays_half_and_near(graph: EdgeList, self_loops: bool) -> None:
    inputs = tuple(part.bfloat16() for part in inputs_of(graph.num_nodes, dtype=torch.float32))
    fast = with_gradients(graph, inputs, self_loops=self_loops, dense=False)
    slow = with_gradients(graph, tuple(part.double() for part in inputs), self_loops=self_loops, dense=True)
    assert all(part.dtype == torch.bfloat16 for part in fast)
    assert (fast[0].double() - slow[0]).abs().max() <= 0.02
    for ours, theirs in zip(fast[1:], slow[1:], strict=True):
        assert (ours.double() - theirs).abs().max() <= 0.02 * (1 + theirs.abs().max())


@pytest.mark.parametrize("heads", [1, 3])
def test_attention_is_that_of_torch_geometric(pyg: Any, heads: int) -> None:
    graph = large(30, 200)
    keep = graph.source_E != graph.target_E
    graph = EdgeList(graph.source_E[keep], graph.target_E[keep], None, graph.alive_N)
    layer = pyg.GATConv(5, 4, heads=heads, bias=False, negative_slope=SLOPE).double()
    x_NF = drawn(30, 5, seed=5)
    value = (x_NF @ layer.lin.weight.T).view(30, heads, 4)
    sent, received = (value * layer.att_src).sum(2), (value * layer.att_dst).sum(2)
    theirs = layer(x_NF, torch.stack([graph.source_E, graph.target_E]))
    close(run(graph, (value, sent, received), self_loops=True).flatten(1), theirs)


def test_two_runs_with_two_threads_give_the_same_bits() -> None:
    graph, inputs = large(4000, 60000), inputs_of(4000, heads=2, size=8, dtype=torch.float32)
    torch.set_num_threads(2)
    try:
        runs = [with_gradients(graph, inputs, self_loops=True, dense=False) for _ in range(4)]
    finally:
        torch.set_num_threads(1)
    alone = with_gradients(graph, inputs, self_loops=True, dense=False)
    for parts in runs:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(parts, alone, strict=True))
