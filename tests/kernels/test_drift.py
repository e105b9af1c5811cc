"""Approximate source scales are what they say, and no further from the exact norm than they say."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.kernels.chains import drawn_chain, power_law_chain
from tests.kernels.graphs import drawn, edge_list, edges_of
from tests.kernels.test_incremental import agree, gradient, in_full, prepared, steps_of
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.drift import (
    LAZY_EPS,
    deviation,
    lazy_error,
    lazy_source,
    static_source,
    sym_approx_chain,
    sym_approx_step,
)
from timeloom.kernels.edges import Edges
from timeloom.kernels.incremental import aggregate_chain
from timeloom.kernels.norms import Norm, Scales, scales_of
from timeloom.kernels.reference import EdgeList

SYM = Norm("sym")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def power_law() -> tuple[list[Edges], list[Scales]]:
    """Ten snapshots of a power-law graph of which 2 % of the edges change each time."""
    edges = power_law_chain(2000, 20000, 0.02, 10)
    return edges, [scales_of(SYM, each, torch.ones(2000, dtype=torch.bool), torch.float64) for each in edges]


def with_sources(scales: list[Scales], eps: float | None) -> list[Scales]:
    """Return the scales with lazy source scales, or with static ones where ``eps`` is None."""
    made, source_N = [scales[0]], scales[0].source_N
    for exact in scales[1:]:
        assert source_N is not None
        assert exact.source_N is not None
        source_N = (
            static_source(source_N, exact.source_N) if eps is None else lazy_source(source_N, exact.source_N, eps)
        )
        made.append(Scales(source_N, exact.target_N, exact.loop_N))
    return made


def approximate(chain: list[EdgeList], x_NF: Tensor, norm: Norm = SYM) -> list[Tensor]:
    edges, scales, _ = prepared(chain, norm)
    sides = pairwise(zip(edges, scales, strict=True))
    steps = [sym_approx_step(old, new, was, now) for (old, was), (new, now) in sides]
    return sym_approx_chain(edges[0], steps, scales[0], x_NF)


def test_a_lazy_scale_is_kept_while_it_is_near_the_exact_one() -> None:
    before = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0])
    exact = torch.tensor([1.0, 1.25, 0.75, 1.26, 2.0, 0.0, 0.0])
    assert lazy_source(before, exact, 0.25).tolist() == [1.0, 1.0, 1.0, torch.tensor(1.26).item(), 2.0, 0.0, 0.0]
    # However large eps is, a node that stops or starts to send is seen.
    assert lazy_source(before, exact, 9.0).tolist() == [1.0, 1.0, 1.0, 1.0, 2.0, 0.0, 0.0]
    assert torch.equal(lazy_source(before, exact, 0.0), exact)
    assert lazy_source(torch.tensor([1.0]), torch.tensor([1.0 + LAZY_EPS * 0.99])).item() == 1.0
    assert lazy_source(torch.tensor([1.0]), torch.tensor([1.0 + LAZY_EPS * 1.01])).item() != 1.0


@pytest.mark.parametrize("eps", [0.3, 0.05, LAZY_EPS])
def test_lazy_rows_are_no_further_off_than_the_bound(power_law: tuple[list[Edges], list[Scales]], eps: float) -> None:
    edges, exact = power_law
    x_NF = drawn(2000, 4, seed=1)
    for each, scales, lazy in zip(edges, exact, with_sources(exact, eps), strict=True):
        sizes_NF = aggregate(each, scales, x_NF.abs())
        apart_NF = (aggregate(each, lazy, x_NF) - aggregate(each, scales, x_NF)).abs()
        assert (apart_NF <= lazy_error(eps) * sizes_NF + 1e-12).all()
    # The bound is reached: a scale that has fallen by eps is off by eps / (1 - eps) of what it should be.
    kept = lazy_source(torch.ones(1, dtype=torch.float64), torch.tensor([1 - eps + 1e-12], dtype=torch.float64), eps)
    assert kept.item() / (1 - eps) - 1 == pytest.approx(lazy_error(eps))


def test_the_default_stays_within_a_thousandth_of_the_exact_rows(power_law: tuple[list[Edges], list[Scales]]) -> None:
    edges, exact = power_law
    x_NF = drawn(2000, 8, seed=2)
    apart = [
        deviation(aggregate(each, lazy, x_NF), aggregate(each, scales, x_NF))
        for each, scales, lazy in zip(edges, exact, with_sources(exact, LAZY_EPS), strict=True)
    ]
    assert apart[0] == 0
    assert 1e-5 < max(apart) < 1e-3


def test_lazy_and_static_scales_cost_less_and_are_exact_by_their_own_definition(
    power_law: tuple[list[Edges], list[Scales]],
) -> None:
    edges, exact = power_law
    x_NF, cost = drawn(2000, 4, seed=3), []
    for scales in (exact, with_sources(exact, 0.05), with_sources(exact, None)):
        steps = steps_of(edges, scales)
        cost.append(sum(step.num_entries for step in steps) / sum(len(each) for each in edges[1:]))
        made = aggregate_chain(edges[0], steps, scales, x_NF)
        agree(made, [aggregate(each, now, x_NF) for each, now in zip(edges, scales, strict=True)])
    assert cost[0] > 2 * cost[1] > 2 * cost[2]
    # An edge that comes and an edge that goes: 2 % each.
    assert cost[2] <= 0.04


def test_a_static_scale_is_the_reference_or_that_of_the_first_edge() -> None:
    reference = torch.tensor([0.5, 0.0, 0.0])
    first = static_source(reference, torch.tensor([0.7, 0.3, 0.0]))
    torch.testing.assert_close(first, torch.tensor([0.5, 0.3, 0.0]))
    later = static_source(first, torch.tensor([0.0, 0.9, 0.2]))
    torch.testing.assert_close(later, torch.tensor([0.5, 0.3, 0.2]))


def test_eq_4_worked_out_by_hand() -> None:
    """Degrees (in-edges and the loop) are 2, 2, 1 and then 1, 3, 1; the edge 2 -> 1 comes and 1 -> 0 goes."""
    chain = [edge_list(rows, None, [True] * 3) for rows in ([(0, 1), (1, 0)], [(0, 1), (2, 1)])]
    x_NF = torch.tensor([[1.0], [10.0], [100.0]], dtype=torch.float64)
    first, second = approximate(chain, x_NF)
    expected = torch.tensor([[1 / 2 + 10 / 2], [1 / 2 + 10 / 2], [100.0]], dtype=torch.float64)
    agree([first], [expected])
    agree([second], [expected + torch.tensor([[-10 / 2], [100 / 3**0.5], [0.0]], dtype=torch.float64)])
    # By the mean the target alone counts: a half of row 1 goes, a third of row 2 comes.
    by_mean = approximate(chain, x_NF, Norm("mean"))[1]
    agree([by_mean], [expected + torch.tensor([[-10 / 2], [100 / 3], [0.0]], dtype=torch.float64)])
    # By the source alone: what node 1 sent in two halves goes, what node 2 has sent to itself alone comes in halves.
    by_push = approximate(chain, x_NF, Norm("push"))[1]
    agree([by_push], [expected + torch.tensor([[-10 / 2], [100 / 2], [0.0]], dtype=torch.float64)])
    # Row 0 has lost its only edge: it should be its own row, but half of that is what it was with two.
    assert second[0].item() == 0.5
    assert in_full(chain, SYM, x_NF)[1][0].item() == 1.0


def test_eq_4_takes_a_changed_weight_out_and_puts_it_in() -> None:
    chain = [edge_list([(0, 1)], [weight], [True] * 2) for weight in (3.0, 8.0)]
    x_NF = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    agree(approximate(chain, x_NF)[1:], [torch.tensor([[1.0], [8 / 3]], dtype=torch.float64)])


def test_eq_4_is_exact_where_no_degree_changes_and_off_where_one_does() -> None:
    circle = [(node, (node + 1) % 6) for node in range(6)]
    x_NF = drawn(6, 3, seed=4)
    for turned in ([(node, (node + 2) % 6) for node in range(6)], [(node, (node - 1) % 6) for node in range(6)]):
        chain = [edge_list(rows, None, [True] * 6) for rows in (circle, turned, circle)]
        agree(approximate(chain, x_NF), in_full(chain, SYM, x_NF))
    more = [edge_list(rows, None, [True] * 6) for rows in (circle, [*circle, (0, 3)])]
    assert deviation(approximate(more, x_NF)[1], in_full(more, SYM, x_NF)[1]) > 0.01


def test_eq_4_brings_a_loop_at_birth_and_takes_it_at_death() -> None:
    rows = [(0, 1), (0, 1)]
    chain = [edge_list(rows, None, alive) for alive in ([True, True, False], [True] * 3, [True, True, False])]
    x_NF = drawn(3, 2, seed=5)
    agree(approximate(chain, x_NF), in_full(chain, SYM, x_NF))
    assert (approximate(chain, x_NF)[1][2] != 0).all()


def test_norms_that_need_no_source_scale_are_exact_by_eq_4_where_targets_do_not_change() -> None:
    for seed in range(30):
        chain = drawn_chain(seed)
        x_NF = drawn(chain[0].num_nodes, 2, seed=seed).requires_grad_()
        ours, theirs = (make(chain, x_NF, Norm("sum")) for make in (approximate, lambda c, x, n: in_full(c, n, x)))
        agree([*ours, gradient(ours, x_NF)], [*theirs, gradient(theirs, x_NF)])


def test_the_gradient_of_eq_4_is_that_of_small_differences() -> None:
    for seed in (1, 2, 6):
        chain = drawn_chain(seed, 4)
        x_NF = drawn(chain[0].num_nodes, 2, seed=seed).requires_grad_()
        assert torch.autograd.gradcheck(lambda x_NF, chain=chain: tuple(approximate(chain, x_NF)), (x_NF,))


def test_a_gradient_of_the_gradient_is_refused() -> None:
    x_NF = drawn(drawn_chain(1)[0].num_nodes, 2, seed=1).requires_grad_()
    (d_x_NF,) = torch.autograd.grad(approximate(drawn_chain(1), x_NF)[-1].square().sum(), x_NF, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d_x_NF.sum().backward()  # type: ignore[no-untyped-call]


def test_eq_4_in_half_precision_is_summed_in_single() -> None:
    chain = drawn_chain(13, 40)
    x_NF = drawn(chain[0].num_nodes, 3, seed=1).bfloat16()
    for half, double in zip(approximate(chain, x_NF), approximate(chain, x_NF.double()), strict=True):
        assert half.dtype == torch.bfloat16
        torch.testing.assert_close(half.double(), double, rtol=2**-8, atol=1e-4)


def test_the_deviation_is_relative_and_of_nothing_is_0() -> None:
    exact = torch.tensor([[3.0, 4.0]])
    assert deviation(exact * 1.5, exact) == pytest.approx(0.5)
    assert deviation(exact, exact) == 0.0
    assert deviation(0 * exact, 0 * exact) == 0.0
    assert deviation(exact, 0 * exact) == torch.inf
    assert deviation(exact.requires_grad_(), exact) == 0.0


def test_the_deviation_of_eq_4_grows_where_that_of_static_scales_is_smaller(
    power_law: tuple[list[Edges], list[Scales]],
) -> None:
    """SPEC 3.2: about half; and both far from what lazy scales leave."""
    edges, exact = power_law
    x_NF = drawn(2000, 4, seed=6)
    sides = pairwise(zip(edges, exact, strict=True))
    steps = [sym_approx_step(old, new, was, now) for (old, was), (new, now) in sides]
    eq_4 = sym_approx_chain(edges[0], steps, exact[0], x_NF)
    true = [aggregate(each, scales, x_NF) for each, scales in zip(edges, exact, strict=True)]
    static = [aggregate(each, scales, x_NF) for each, scales in zip(edges, with_sources(exact, None), strict=True)]
    far = [deviation(approx, full) for approx, full in zip(eq_4, true, strict=True)]
    assert 0 == far[0] < far[1] < far[-1]
    assert far[-1] > 0.1
    assert deviation(static[-1], true[-1]) < 0.8 * far[-1]


def test_eq_4_reads_the_changed_edges_alone() -> None:
    one, two = (edges_of(edge_list(rows, None, [True] * 3)) for rows in ([(0, 1), (1, 0)], [(0, 1), (2, 1)]))
    scales = [scales_of(SYM, each, torch.ones(3, dtype=torch.bool), torch.float64) for each in (one, two)]
    assert sym_approx_step(one, two, *scales).num_entries == 2
    assert sym_approx_step(one, one, *scales[:1] * 2).num_entries == 0
