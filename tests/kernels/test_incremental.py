"""The sums along a chain of snapshots equal those of a full pass over each, forward and backward."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.chains import drawn_chain, graph_of, power_law_chain
from tests.kernels.graphs import drawn, edge_list, edges_of
from tests.kernels.test_aggregate import NORMS
from timeloom.kernels import reference
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.edges import Edges
from timeloom.kernels.incremental import ChainStep, aggregate_chain, step_between
from timeloom.kernels.norms import Norm, Scales, scales_of
from timeloom.kernels.reference import EdgeList

SUM = Norm("sum", self_loops=False)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def prepared(
    chain: list[EdgeList], norm: Norm, dtype: torch.dtype = torch.float64
) -> tuple[list[Edges], list[Scales], list[ChainStep]]:  # fmt: skip
    edges = [edges_of(graph, dtype) for graph in chain]
    edges = [each.reversed for each in edges] if norm.reverse else edges
    scales = [scales_of(norm, each, graph.alive_N, dtype) for each, graph in zip(edges, chain, strict=True)]
    return edges, scales, steps_of(edges, scales, dtype)


def steps_of(edges: list[Edges], scales: list[Scales], dtype: torch.dtype = torch.float64) -> list[ChainStep]:
    sides = pairwise(zip(edges, scales, strict=True))
    return [step_between(old, new, was, now, dtype=dtype) for (old, was), (new, now) in sides]


def run(chain: list[EdgeList], norm: Norm, x_NF: Tensor) -> list[Tensor]:
    edges, scales, steps = prepared(chain, norm, x_NF.dtype if x_NF.dtype.itemsize > 2 else torch.float32)
    return aggregate_chain(edges[0], steps, scales, x_NF)


def in_full(chain: list[EdgeList], norm: Norm, x_NF: Tensor) -> list[Tensor]:
    edges, scales, _ = prepared(chain, norm, x_NF.dtype)
    return [aggregate(each, scale, x_NF) for each, scale in zip(edges, scales, strict=True)]


def gradient(made: list[Tensor], x_NF: Tensor) -> Tensor:
    loss = torch.stack([(out * drawn(*out.shape, seed=t).to(out.dtype)).sum() for t, out in enumerate(made)]).sum()
    (d_x_NF,) = torch.autograd.grad(loss, x_NF)
    return d_x_NF


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-10) -> None:
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("part", range(5))
def test_a_chain_equals_full_passes_on_500_random_chains(part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        chain, norm = drawn_chain(seed), NORMS[seed % len(NORMS)]
        x_NF = drawn(chain[0].num_nodes, seed % 4, seed=seed).requires_grad_()
        ours, theirs = run(chain, norm, x_NF), in_full(chain, norm, x_NF)
        agree([*ours, gradient(ours, x_NF)], [*theirs, gradient(theirs, x_NF)])


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_chain_equals_the_dense_products(norm: Norm) -> None:
    for seed in range(5):
        chain = drawn_chain(1000 + seed)
        x_NF = drawn(chain[0].num_nodes, 3, seed=seed).requires_grad_()
        ours, theirs = run(chain, norm, x_NF), [reference.aggregate(graph, norm, x_NF) for graph in chain]
        agree([*ours, gradient(ours, x_NF)], [*theirs, gradient(theirs, x_NF)])


@pytest.mark.parametrize("part", range(2))
def test_single_precision_is_near_the_dense_products_over_8_snapshots(part: int) -> None:
    for seed in range(2000 + 30 * part, 2030 + 30 * part):
        chain, norm = drawn_chain(seed, 8), NORMS[seed % len(NORMS)]
        x_NF = drawn(chain[0].num_nodes, 3, seed=seed, dtype=torch.float32)
        theirs = [reference.aggregate(graph, norm, x_NF.double()) for graph in chain]
        agree([out.double() for out in run(chain, norm, x_NF)], theirs, 1e-5)


@pytest.mark.parametrize("kind", ["sym", "sum"])
def test_half_precision_is_summed_in_single(kind: Any) -> None:
    """Sums that were kept in half would lose a twentieth of a percent or more at every step."""
    chain, norm = drawn_chain(13, 60), Norm(kind)
    x_NF = drawn(chain[0].num_nodes, 3, seed=1).bfloat16().requires_grad_()
    ours, theirs = run(chain, norm, x_NF), in_full(chain, norm, x_NF.double())
    assert all(out.dtype == torch.bfloat16 for out in ours)
    assert gradient(ours, x_NF).dtype == torch.bfloat16
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left.double(), right, rtol=2**-8, atol=1e-5)


def test_a_row_whose_edges_have_all_gone_is_exactly_0() -> None:
    for seed in range(100):
        chain = drawn_chain(3000 + seed, 12)
        x_NF = drawn(chain[0].num_nodes, 2, seed=seed, dtype=torch.float32) * 1e6
        for norm in (SUM, Norm("sym", self_loops=False), Norm("both", self_loops=False, reverse=True)):
            for graph, out_NF in zip(chain, run(chain, norm, x_NF), strict=True):
                unreached = torch.ones(graph.num_nodes, dtype=torch.bool)
                unreached[graph.source_E if norm.reverse else graph.target_E] = False
                assert (out_NF[unreached] == 0).all()


def test_a_step_worked_out_by_hand() -> None:
    """Rows 0 and 3 do not change, row 1 loses one of three sources and one weight changes, row 2 is emptied."""
    before = {
        (0, 1, 0): 3.0,
        (1, 0, 0): 1.0,
        (1, 2, 0): 2.0,
        (1, 2, 1): 0.5,
        (1, 3, 0): 4.0,
        (1, 1, 0): 9.0,
        (2, 0, 0): 1.0,
    }
    after = {(0, 1, 0): 3.0, (1, 0, 0): 1.0, (1, 2, 0): 2.0, (1, 2, 1): 7.0, (1, 1, 0): 9.0}
    chain = [graph_of(book, [True] * 4, weighted=True) for book in (before, after)]
    _, _, (step,) = prepared(chain, SUM)
    assert step.rewritten_R.tolist() == [2]
    assert step.whole.starts_M.tolist() == [0, 0]
    assert step.amended_A.tolist() == [1]
    assert step.signed.neighbours_E.tolist() == [2, 3]
    assert step.signed.weights_E is not None
    assert step.signed.weights_E.tolist() == [6.5, -4.0]
    assert step.num_entries == 2
    _, _, (back,) = prepared(chain[::-1], SUM)
    assert (back.rewritten_R.tolist(), back.whole.neighbours_E.tolist()) == ([2], [0])
    assert back.num_entries == 3


def test_a_row_is_summed_anew_where_that_reads_no_more_than_its_changes() -> None:
    """Of two sources one goes: one entry either way, and summing anew leaves no rounding behind."""
    chain = [edge_list(rows, None, [True] * 3) for rows in ([(0, 2), (1, 2)], [(1, 2)])]
    _, _, (step,) = prepared(chain, SUM)
    assert (step.rewritten_R.tolist(), step.whole.neighbours_E.tolist()) == ([2], [1])
    tiny = torch.tensor([[1e8], [1.0], [0.0]])
    assert run(chain, SUM, tiny)[1][2].item() == 1.0


def test_a_row_of_which_every_source_changes_a_little_is_summed_anew() -> None:
    sources = [0, 0, 1, 2]
    chain = [edge_list([(u, 3) for u in sources], [weight] * 4, [True] * 4) for weight in (1.0, 1.1)]
    _, _, (step,) = prepared(chain, SUM)
    assert (step.rewritten_R.tolist(), step.whole.neighbours_E.tolist()) == ([3], sources)
    assert len(step.amended_A) == 0


def test_a_row_that_loses_more_sources_than_it_keeps_is_summed_anew() -> None:
    light = {(3, 1, 0): 1.0, (3, 2, 0): 1.0}
    chain = [graph_of(book, [True] * 4, weighted=True) for book in ({(3, 0, 0): 9.0, **light}, {(3, 0, 0): 9.0})]
    _, _, (step,) = prepared(chain, SUM)
    assert (step.rewritten_R.tolist(), step.whole.neighbours_E.tolist()) == ([3], [0])


def test_what_a_heavy_edge_leaves_behind_is_dropped() -> None:
    """Eight light edges stay: subtracting the heavy one would leave its rounding, several times their sum."""
    light = {(9, source, 0): 1.0 for source in range(1, 9)}
    chain = [graph_of(book, [True] * 10, weighted=True) for book in ({**light, (9, 0, 0): 1e9}, light)]
    x_NF = drawn(10, 3, seed=1, dtype=torch.float32)
    for norm in (SUM, Norm("mean")):
        agree(run(chain, norm, x_NF), in_full(chain, norm, x_NF), 1e-6)


def test_a_step_costs_its_changes_and_never_more_than_a_full_pass() -> None:
    edges = power_law_chain(300, 3000, 0.1, 3)
    alive_N = torch.ones(300, dtype=torch.bool)
    for norm, share in ((Norm("mean"), 0.2), (Norm("sym"), 1.0)):
        scales = [scales_of(norm, each, alive_N, torch.float64) for each in edges]
        for step, each in zip(steps_of(edges, scales), edges[1:], strict=True):
            assert 0 < step.num_entries <= share * len(each)
    unchanged = step_between(edges[0], edges[0], scales[0], scales[0])
    assert (unchanged.num_entries, len(unchanged.rewritten_R), len(unchanged.amended_A)) == (0, 0, 0)
    reduced = steps_of(edges, [Scales(None, None, None)] * 3, torch.float32)[0]
    assert reduced.signed.weights_E is not None
    assert reduced.signed.weights_E.dtype == torch.float32


@pytest.mark.parametrize("norm", [Norm("sym"), Norm("both", self_loops=False), Norm("mean"), SUM], ids=str)
def test_the_gradient_is_that_of_small_differences(norm: Norm) -> None:
    kinds = set()
    for seed in (0, 3, 8, 14):
        chain = drawn_chain(4000 + seed, 5)
        x_NF = drawn(chain[0].num_nodes, 2, seed=seed).requires_grad_()
        assert torch.autograd.gradcheck(lambda x_NF, chain=chain: tuple(run(chain, norm, x_NF)), (x_NF,))
        kinds |= {(len(step.rewritten_R) > 0, len(step.amended_A) > 0) for step in prepared(chain, norm)[2]}
    assert {(True, True), (False, False)} <= kinds


def test_steps_serve_again_and_give_the_same_gradient() -> None:
    edges, scales, steps = prepared(drawn_chain(5000), Norm("sym"))
    x_NF = drawn(edges[0].num_nodes, 3, seed=1).requires_grad_()
    gradients = [gradient(aggregate_chain(edges[0], steps, scales, x_NF), x_NF) for _ in range(2)]
    assert torch.equal(*gradients)
    # A gradient of one snapshot alone.
    made = aggregate_chain(edges[0], steps, scales, x_NF)
    alone = gradient(made[2:3], x_NF)
    agree([alone], [gradient(in_full(drawn_chain(5000), Norm("sym"), x_NF)[2:3], x_NF)])


def test_a_chain_of_one_snapshot_is_a_full_pass() -> None:
    chain, x_NF = drawn_chain(6000, 1), drawn(drawn_chain(6000, 1)[0].num_nodes, 3, seed=1)
    agree(run(chain, Norm("sym"), x_NF), in_full(chain, Norm("sym"), x_NF))


def test_nothing_of_the_size_of_the_rows_is_kept_for_the_backward() -> None:
    kept: list[Tensor] = []
    edges, scales, steps = prepared(drawn_chain(7000), Norm("sym"))
    x_NF = drawn(edges[0].num_nodes, 3, seed=1).requires_grad_()

    def keep(part: Tensor) -> Tensor:
        kept.append(part)
        return part

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
        made = aggregate_chain(edges[0], steps, scales, x_NF)
    assert made[0].requires_grad
    assert kept == []


def test_another_number_of_nodes_is_refused() -> None:
    three, four = (edge_list([(0, 1)], None, [True] * size) for size in (3, 4))
    with pytest.raises(ValueError, match="same nodes, not 3 and then 4"):
        prepared([three, four], SUM)
    with pytest.raises(ValueError, match="rows of 3 nodes are to be aggregated, but 4"):
        run([three, three], SUM, drawn(4, 2, seed=1))


def test_a_gradient_of_the_gradient_is_refused() -> None:
    x_NF = drawn(drawn_chain(8000)[0].num_nodes, 2, seed=1).requires_grad_()
    out_NF = run(drawn_chain(8000), Norm("sym"), x_NF)[-1]
    (d_x_NF,) = torch.autograd.grad(out_NF.square().sum(), x_NF, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d_x_NF.sum().backward()  # type: ignore[no-untyped-call]


def test_two_runs_with_two_threads_give_the_same_bits() -> None:
    edges = power_law_chain(3000, 40000, 0.05, 3)
    scales = [scales_of(Norm("sym"), each, torch.ones(3000, dtype=torch.bool), torch.float32) for each in edges]
    steps = steps_of(edges, scales, torch.float32)
    x_NF = drawn(3000, 16, seed=1, dtype=torch.float32).requires_grad_()

    def once() -> list[Tensor]:
        made = aggregate_chain(edges[0], steps, scales, x_NF)
        return [*made, gradient(made, x_NF)]

    alone = once()
    torch.set_num_threads(2)
    try:
        runs = [once() for _ in range(3)]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(left, right) for parts in runs for left, right in zip(parts, alone, strict=True))
