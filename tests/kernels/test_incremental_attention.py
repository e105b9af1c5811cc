"""Attention along a chain of snapshots equals attention over each, forward and backward, however large logits are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.chains import Book, drawn_chain, graph_of, power_law_chain
from tests.kernels.graphs import drawn, edges_of
from timeloom.kernels import reference
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges
from timeloom.kernels.incremental import ChainStep
from timeloom.kernels.incremental_attention import attend_chain, attention_start, attention_step
from timeloom.kernels.reference import EdgeList

SLOPE = 0.2
Inputs = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def steps_of(edges: list[Edges], loops: list[Tensor] | None) -> list[ChainStep]:
    own = [None] * len(edges) if loops is None else loops
    later = [attention_step(edges[t - 1], edges[t], own[t - 1], own[t]) for t in range(1, len(edges))]
    return [attention_start(edges[0], own[0]), *later]


def run(chain: list[EdgeList], inputs: Inputs, *, self_loops: bool, tau: float | None = None) -> list[Tensor]:
    edges = [edges_of(graph) for graph in chain]
    loops = [graph.alive_N for graph in chain] if self_loops else None
    return attend_chain(edges, *inputs, steps=steps_of(edges, loops), loops=loops, slope=SLOPE, tau=tau)


def in_full(chain: list[EdgeList], inputs: Inputs, *, self_loops: bool) -> list[Tensor]:
    return [
        attend(edges_of(graph), *inputs, loop_N=graph.alive_N if self_loops else None, slope=SLOPE) for graph in chain
    ]


def dense(chain: list[EdgeList], inputs: Inputs, *, self_loops: bool) -> list[Tensor]:
    return [reference.attend(graph, *inputs, self_loops=self_loops, slope=SLOPE) for graph in chain]


def inputs_of(
    num_nodes: int, *, heads: int = 2, size: int = 3, scale: float = 1.0, dtype: torch.dtype = torch.float64
) -> Inputs:
    return (
        drawn(num_nodes, heads, size, seed=1, dtype=dtype).requires_grad_(),
        (drawn(num_nodes, heads, seed=2, dtype=dtype) * scale).requires_grad_(),
        (drawn(num_nodes, heads, seed=3, dtype=dtype) * scale).requires_grad_(),
    )


def gradients(seen: list[Tensor], inputs: Inputs) -> list[Tensor]:
    loss = torch.stack([(out * drawn(*out.shape, seed=t).to(out.dtype)).sum() for t, out in enumerate(seen)]).sum()
    return list(torch.autograd.grad(loss, inputs))


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the largest difference, in shares of what is compared where that is large; NaN counts as infinite."""
    pairs = zip(ours, theirs, strict=True)
    worst = [((a.double() - b).abs().max() / b.abs().max().clamp(min=1.0)).item() for a, b in pairs if b.numel()]
    return max(far if far == far else torch.inf for far in worst)


@pytest.mark.parametrize("part", range(4))
def test_a_chain_equals_attention_over_each_snapshot(part: int) -> None:
    for seed in range(75 * part, 75 * part + 75):
        chain, self_loops = drawn_chain(seed), bool(seed % 2)
        inputs = inputs_of(chain[0].num_nodes, heads=1 + seed % 3, scale=(0.5, 2.0, 10.0)[seed % 3])
        for tau in (None, 0.6):
            ours = run(chain, inputs, self_loops=self_loops, tau=tau)
            theirs = in_full(chain, inputs, self_loops=self_loops)
            assert distance([*ours, *gradients(ours, inputs)], [*theirs, *gradients(theirs, inputs)]) < 1e-8


def test_a_chain_equals_dense_softmaxes() -> None:
    for seed in range(20):
        chain, self_loops = drawn_chain(100 + seed), bool(seed % 2)
        inputs = inputs_of(chain[0].num_nodes, scale=2.0)
        ours, theirs = run(chain, inputs, self_loops=self_loops), dense(chain, inputs, self_loops=self_loops)
        assert distance([*ours, *gradients(ours, inputs)], [*theirs, *gradients(theirs, inputs)]) < 1e-9


def eventful_chain(inputs: Inputs) -> list[EdgeList]:
    """Row 0 loses its largest logit, then all but its smallest, then everything; all come back, large ones last."""
    num_nodes = len(inputs[0])
    by_logit = inputs[1][:, 0].argsort().tolist()
    others: Book = {(v, u, 0): 1.0 for v in range(1, num_nodes) for u in range(num_nodes) if (u + v) % 3}
    rows: list[list[int]] = [
        by_logit,
        by_logit[:-1],
        by_logit[:-2],
        by_logit[:2],
        [],
        by_logit[:1],
        by_logit[:8],
        by_logit,
    ]
    return [graph_of({**others, **{(0, u, 0): 1.0 for u in row}}, [True] * num_nodes, weighted=False) for row in rows]


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("scale", [0.5, 2.0, 10.0, 40.0, 100.0, 200.0])
def test_single_precision_is_near_dense_softmaxes_for_any_logits(scale: float, heads: int, self_loops: bool) -> None:
    """The bounds of T6: 1e-5 up to a scale of 40, and 5e-5 at 200, where the logits themselves are rounded."""
    bound = 1e-5 if scale <= 40 else 5e-5
    inputs = inputs_of(16, heads=heads, scale=scale, dtype=torch.float32)
    chain = eventful_chain(inputs)
    exact = tuple(part.detach().double().requires_grad_() for part in inputs)
    assert len(exact) == 3
    ours, theirs = run(chain, inputs, self_loops=self_loops), dense(chain, exact, self_loops=self_loops)
    assert all(part.dtype == torch.float32 for part in ours)
    assert distance(ours, theirs) < bound
    assert distance(gradients(ours, inputs), gradients(theirs, exact)) < 10 * bound


@pytest.mark.parametrize("scale", [2.0, 40.0])
def test_random_chains_in_single_precision_are_near_dense_softmaxes(scale: float) -> None:
    for seed in range(60):
        chain, self_loops = drawn_chain(200 + seed, 8), bool(seed % 2)
        inputs = inputs_of(chain[0].num_nodes, scale=scale, dtype=torch.float32)
        exact = tuple(part.detach().double().requires_grad_() for part in inputs)
        assert len(exact) == 3
        ours, theirs = run(chain, inputs, self_loops=self_loops), dense(chain, exact, self_loops=self_loops)
        assert distance(ours, theirs) < 1e-5
        assert distance(gradients(ours, inputs), gradients(theirs, exact)) < 1e-4


def test_without_refreshing_what_a_large_logit_leaves_behind_is_rubbish() -> None:
    """So the chain above does test refreshes."""
    inputs = inputs_of(16, heads=1, scale=40.0, dtype=torch.float32)
    chain = eventful_chain(inputs)
    theirs = in_full(chain, inputs, self_loops=False)
    assert distance(run(chain, inputs, self_loops=False, tau=0.0), theirs) > 1e-2
    assert distance(run(chain, inputs, self_loops=False), theirs) < 1e-5


def test_a_refresh_at_every_step_is_attention_over_each_row_as_it_is() -> None:
    inputs = inputs_of(16, scale=10.0, dtype=torch.float32)
    chain = eventful_chain(inputs)
    ours, theirs = run(chain, inputs, self_loops=True, tau=2.0), in_full(chain, inputs, self_loops=True)
    assert distance(ours, theirs) < 1e-6


@pytest.mark.parametrize("height", [25.0, 35.0, 200.0, 5000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_added_logit_far_above_the_others_takes_all(height: float, dtype: torch.dtype) -> None:
    value, sent, received = inputs_of(8, heads=2, dtype=dtype)
    sent = sent.detach().clone()
    sent[7, 1] = height
    rows = [range(1, 7), range(1, 8), range(1, 7), range(1, 8)]
    chain = [graph_of({(0, u, 0): 1.0 for u in row}, [True] * 8, weighted=False) for row in rows]
    inputs = (value, sent.requires_grad_(), received)
    ours, theirs = run(chain, inputs, self_loops=False), in_full(chain, inputs, self_loops=False)
    bound = 1e-5 if dtype == torch.float32 else 1e-10
    assert distance([*ours, *gradients(ours, inputs)], [*theirs, *gradients(theirs, inputs)]) < bound
    torch.testing.assert_close(ours[1][0, 1], value[7, 1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("self_loops", [False, True])
def test_the_gradient_is_that_of_small_differences(self_loops: bool) -> None:
    for seed, tau in ((0, None), (2, 0.9), (5, 2.0), (9, 0.7)):
        chain = drawn_chain(300 + seed, 5)
        inputs = inputs_of(chain[0].num_nodes, size=2)

        def seen(*parts: Tensor, chain: list[EdgeList] = chain, tau: float | None = tau) -> tuple[Tensor, ...]:
            value, sent, received = parts
            return tuple(run(chain, (value, sent, received), self_loops=self_loops, tau=tau))

        assert torch.autograd.gradcheck(seen, inputs)


def test_steps_serve_again_and_give_the_same_gradient() -> None:
    chain = drawn_chain(400)
    edges, loops = [edges_of(graph) for graph in chain], [graph.alive_N for graph in chain]
    steps, inputs = steps_of(edges, loops), inputs_of(chain[0].num_nodes)
    runs = []
    for _ in range(2):
        seen = attend_chain(edges, *inputs, steps=steps, loops=loops, slope=SLOPE, tau=0.7)
        runs.append(gradients(seen, inputs))
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


def test_a_node_that_attends_to_nobody_gets_exactly_0() -> None:
    for seed in range(60):
        chain, self_loops = drawn_chain(500 + seed, 10), bool(seed % 2)
        inputs = inputs_of(chain[0].num_nodes, dtype=torch.float32)
        for graph, out in zip(chain, run(chain, inputs, self_loops=self_loops), strict=True):
            reached = graph.alive_N & self_loops
            reached[graph.target_E] = True
            assert (out[~reached] == 0).all()
            assert (out[reached] != 0).any(2).all()


def test_weights_are_not_used_and_parallel_edges_count() -> None:
    books: list[Book] = [{(2, 0, 0): 5.0, (2, 1, 0): -1.0}, {(2, 0, 0): 0.0, (2, 0, 1): 1.0, (2, 1, 0): 3.0}]
    books.append({(2, 0, 0): 1.0, (2, 0, 1): 1.0, (2, 0, 2): 1.0, (2, 1, 0): 1.0})
    chain = [graph_of(book, [True] * 3, weighted=True) for book in books]
    value, sent, received = inputs_of(3, heads=1)
    seen = run(chain, (value, 0 * sent, 0 * received), self_loops=False)
    for times, out in zip((1, 2, 3), seen, strict=True):
        torch.testing.assert_close(out[2], (times * value[0] + value[1]) / (times + 1))
    steps = steps_of([edges_of(graph) for graph in chain], None)
    assert [step.num_entries for step in steps] == [2, 1, 1]
    assert [len(step.rewritten_R) for step in steps] == [1, 0, 0]


def test_inputs_that_need_no_gradient_get_none() -> None:
    chain = drawn_chain(600)
    value, sent, received = (part.detach() for part in inputs_of(chain[0].num_nodes))
    assert not any(out.requires_grad for out in run(chain, (value, sent, received), self_loops=True))
    sent.requires_grad_()
    seen = run(chain, (value, sent, received), self_loops=True)
    theirs = in_full(chain, (value, sent, received), self_loops=True)
    for ours, exact in ((seen, theirs), (seen[1:2], theirs[1:2])):
        loss, exact_loss = (torch.cat(parts).square().sum() for parts in (ours, exact))
        pair = (torch.autograd.grad(part, sent, retain_graph=True)[0] for part in (loss, exact_loss))
        torch.testing.assert_close(*pair)


def test_half_precision_is_summed_in_single() -> None:
    chain = drawn_chain(13, 40)
    value, sent, received = (part.detach().bfloat16().requires_grad_() for part in inputs_of(chain[0].num_nodes))
    exact = tuple(part.detach().double().requires_grad_() for part in (value, sent, received))
    assert len(exact) == 3
    ours = run(chain, (value, sent, received), self_loops=True)
    assert all(out.dtype == torch.bfloat16 for out in ours)
    assert all(part.dtype == torch.bfloat16 for part in gradients(ours, (value, sent, received)))
    for left, right in zip(ours, dense(chain, exact, self_loops=True), strict=True):
        torch.testing.assert_close(left.double(), right, rtol=2**-8, atol=1e-4)


def test_inputs_of_other_shapes_are_refused() -> None:
    chain = [graph_of({(0, 1, 0): 1.0}, [True] * 3, weighted=False)] * 2
    value, sent, received = inputs_of(3)
    for wrong in ((value[:2], sent, received), (value, sent[:, :1], received), (value, sent, received[:2])):
        with pytest.raises(ValueError, match="attention of 3 nodes needs"):
            run(chain, wrong, self_loops=False)


def test_a_gradient_of_the_gradient_is_refused() -> None:
    chain, inputs = drawn_chain(700), inputs_of(drawn_chain(700)[0].num_nodes)
    seen = run(chain, inputs, self_loops=True)[-1]
    (d_sent,) = torch.autograd.grad(seen.square().sum(), inputs[1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        d_sent.sum().backward()  # type: ignore[no-untyped-call]


def test_many_entries_give_the_same_bits_with_two_threads_and_equal_attention() -> None:
    edges = power_law_chain(2000, 30000, 0.05, 3)
    inputs, loops = inputs_of(2000, size=8, scale=3.0, dtype=torch.float32), [torch.ones(2000)] * 3
    steps = steps_of(edges, loops)

    def once() -> list[Tensor]:
        seen = attend_chain(edges, *inputs, steps=steps, loops=loops, slope=SLOPE)
        return [*seen, *gradients(seen, inputs)]

    alone = once()
    torch.set_num_threads(2)
    try:
        again = once()
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(left, right) for left, right in zip(again, alone, strict=True))
    theirs = [attend(each, *inputs, loop_N=loops[0], slope=SLOPE) for each in edges]
    assert distance(alone, [part.double() for part in (*theirs, *gradients(theirs, inputs))]) < 1e-4
