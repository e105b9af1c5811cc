"""Compiled loops give what plain sums give, for every width, kind of number and number of threads."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.graphs import drawn, edge_list, edges_of, graphs, large
from timeloom.jit import kernel
from timeloom.kernels import attention_forward, loops
from timeloom.kernels.aggregate import aggregate, bag, sum_rows
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.loops import array_of, fresh, has_loops, in_parts, sum_scaled
from timeloom.kernels.norms import Scales
from timeloom.kernels.vectors import exp, fma, larger, load, some_64, store

# Below, at and above every number of lanes, in both precisions; 300 takes two whole vectors and a rest.
WIDTHS = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 192, 300)
BOTH = (torch.float32, torch.float64)
LONG = edge_list([(1, 0)] * 100 + [(0, 1), (2, 1)], None, [True] * 3)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def slow_sum(rows: Rows, scales: Scales, x_NF: Tensor) -> Tensor:
    """Sum edge by edge in double precision."""
    x_NF, out_NF = x_NF.double(), torch.zeros(len(rows.starts_M) - 1, x_NF.shape[1], dtype=torch.float64)
    ones_N = torch.ones(max(len(x_NF), len(out_NF)), dtype=torch.float64)
    source_N = ones_N if scales.source_N is None else scales.source_N.double()
    target_N = ones_N if scales.target_N is None else scales.target_N.double()
    for v in range(len(out_NF)):
        for e in range(int(rows.starts_M[v]), int(rows.starts_M[v + 1])):
            u = int(rows.neighbours_E[e])
            weight = 1.0 if rows.weights_E is None else float(rows.weights_E[e])
            out_NF[v] += weight * source_N[u] * x_NF[u]
        if scales.loop_N is not None:
            out_NF[v] += float(scales.loop_N[v]) * source_N[v] * x_NF[v]
        out_NF[v] *= target_N[v]
    return out_NF


def tolerance(dtype: torch.dtype) -> float:
    return 1e-12 if dtype == torch.float64 else 1e-5


def near(left: Tensor, right: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(left.double(), right.double(), rtol=tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_every_width_are_those_of_plain_loops(width: int, dtype: torch.dtype) -> None:
    graph = large(40, 300)
    rows, x_NF = edges_of(graph, dtype).into, drawn(40, width, seed=1, dtype=dtype)
    scales = Scales(*(drawn(40, seed=seed, dtype=dtype) for seed in (2, 3, 4)))
    for asked in (
        scales,
        Scales(None, None, None),
        Scales(scales.source_N, None, None),
        Scales(None, None, scales.loop_N),
    ):
        near(sum_scaled(rows, asked, x_NF), slow_sum(rows, asked, x_NF), dtype)


@given(graphs(), st.sampled_from([1, 3, 20]), st.booleans())
def test_rows_may_be_fewer_or_more_than_the_table(graph: Any, width: int, weighted: bool) -> None:
    rows = edges_of(graph).into
    taken = Rows(rows.starts_M[: 1 + graph.num_nodes // 2], rows.neighbours_E, rows.weights_E if weighted else None)
    table_NF = drawn(graph.num_nodes + 3, width, seed=5)
    near(sum_rows(taken, table_NF), slow_sum(taken, Scales(None, None, None), table_NF), torch.float64)


def test_nothing_beside_a_narrow_table_is_read_or_written() -> None:
    """A vector has room for more than three numbers; what lies behind the table are no numbers."""
    block = torch.full((100, 3), math.nan)
    block[40:60] = 1.0
    rows = Rows(torch.arange(0, 42, 2).int(), torch.arange(20).repeat_interleave(2).int(), None)
    assert torch.equal(sum_scaled(rows, Scales(None, None, None), block[40:60]), torch.full((20, 3), 2.0))
    out, wide = np.full(20, 7.0, np.float32), np.arange(20, dtype=np.float32)
    _copy_some(wide, out, 3, 4)
    assert out.tolist() == [7.0] * 3 + [3.0, 4.0, 5.0, 6.0] + [7.0] * 13


@kernel("void(f4[::1], f4[::1], i8, i8)")
def _copy_some(numbers: Any, out: Any, at: int, count: int) -> None:
    store(load(some_64(numbers), numbers, at, count), out, at, count)


@kernel("void(f4[::1], f4[::1])")
def _exp_single(numbers: Any, out: Any) -> None:
    for at in range(0, len(numbers), 16):
        store(exp(load(some_64(numbers), numbers, at, 16)), out, at, 16)


@kernel("void(f8[::1], f8[::1])")
def _exp_double(numbers: Any, out: Any) -> None:
    for at in range(0, len(numbers), 8):
        store(exp(load(some_64(numbers), numbers, at, 8)), out, at, 8)


@pytest.mark.parametrize(
    ("run", "dtype", "lowest"), [(_exp_single, np.float32, -87.0), (_exp_double, np.float64, -708.0)]
)
def test_exp_is_within_two_units_in_the_last_place(run: Any, dtype: Any, lowest: float) -> None:
    spread = np.concatenate([np.linspace(lowest, 0, 40_000), np.linspace(-1, 0, 8_000), -np.geomspace(1e-30, 1, 8_000)])
    numbers = spread.astype(dtype)
    out = np.empty_like(numbers)
    run(numbers, out)
    exact = np.exp(numbers.astype(np.longdouble))
    assert (np.abs(out - exact) / np.spacing(exact.astype(dtype)).astype(np.longdouble)).max() <= 2
    assert out[numbers == 0].tolist() == [1.0] * int((numbers == 0).sum())


@pytest.mark.parametrize(
    ("run", "dtype", "lowest"), [(_exp_single, np.float32, -87.0), (_exp_double, np.float64, -708.0)]
)
def test_exp_of_very_little_is_0_and_of_no_number_none(run: Any, dtype: Any, lowest: float) -> None:
    asked = [lowest, np.nextafter(dtype(lowest), dtype(-np.inf)), -1e30, -np.inf, np.nan, -0.0, 0.0, -1.0]
    numbers = np.array(asked * 2, dtype)
    out = np.empty_like(numbers)
    run(numbers, out)
    assert out[0] > 0
    assert out[1:4].tolist() == [0, 0, 0]
    assert np.isnan(out[4])
    assert out[5:7].tolist() == [1, 1]


@kernel("void(f4[::1], f4[::1], f4[::1])")
def _larger_of(left: Any, right: Any, out: Any) -> None:
    like = some_64(left)
    store(larger(load(like, left, 0, 16), load(like, right, 0, 16)), out, 0, 16)


def test_the_larger_of_a_number_and_none_is_the_second() -> None:
    left, right = (np.tile(np.array(four, np.float32), 4) for four in ([1, 2, np.nan, 5], [2, 1, 3, np.nan]))
    out = np.empty_like(left)
    _larger_of(left, right, out)
    assert out[:3].tolist() == [2, 2, 3]
    assert np.isnan(out[3])


@kernel("void(f8[::1])")
def _fused(numbers: Any) -> None:
    like = some_64(numbers)
    three = load(like, numbers, 0, 8)
    store(fma(three, three, three), numbers, 0, 8)


def test_a_fused_product_multiplies_and_adds() -> None:
    numbers = np.full(8, 3.0)
    _fused(numbers)
    assert numbers.tolist() == [12.0] * 8


@pytest.mark.parametrize("neighbour", [3, -1, 2**31 - 1, -(2**31)])
def test_an_edge_to_a_row_that_is_not_there_is_refused(neighbour: int) -> None:
    rows = Rows(torch.tensor([0, 1, 2, 3]).int(), torch.tensor([0, neighbour, 1]).int(), None)
    with pytest.raises(IndexError, match="a row that is not there"):
        sum_rows(rows, torch.ones(3, 2))
    parts = (torch.ones(3, 2, 4), torch.ones(3, 2), torch.ones(3, 2))
    with pytest.raises(IndexError, match="a row that is not there"):
        attend(Edges(rows, rows, torch.arange(3).int()), *parts, loop_N=None, slope=0.2)


def test_an_error_in_any_part_reaches_the_caller() -> None:
    torch.set_num_threads(2)
    with pytest.raises(KeyError, match="4"):
        in_parts(np.arange(9, dtype=np.int32), 2**30, lambda low, high: {0: None}[low])


def test_rows_that_do_not_fit_are_refused() -> None:
    edges = edges_of(LONG)
    with pytest.raises(ValueError, match="rows of 3 nodes are to be aggregated, but 2 were given"):
        aggregate(edges, Scales(None, None, None), torch.ones(2, 4))
    for bad in ((2, 1, 4), (3, 2, 4)):
        with pytest.raises(ValueError, match=r"attention of 3 nodes needs"):
            attend(edges, torch.ones(bad), torch.ones(3, 1), torch.ones(3, 1), loop_N=None, slope=0.2)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 5))
def test_parts_are_all_rows_once_and_about_even(sizes: list[int], threads: int) -> None:
    torch.set_num_threads(threads)
    starts, seen, lock = np.cumsum([0, *sizes]).astype(np.int32), list[tuple[int, int]](), threading.Lock()

    def run(low: int, high: int) -> None:
        with lock:
            seen.append((low, high))

    in_parts(starts, 2**30, run)
    assert len(seen) == threads
    assert [row for low, high in sorted(seen) for row in range(low, high)] == list(range(len(sizes)))
    work = [int(starts[high] - starts[low]) + high - low for low, high in seen]
    assert max(work) <= sum(work) / threads + max(sizes) + 1


def test_little_work_is_done_by_the_caller_alone() -> None:
    torch.set_num_threads(2)
    callers: list[int] = []
    for num_bytes in (0, loops._PART_BYTES, 2 * loops._PART_BYTES - 1):
        in_parts(np.arange(9, dtype=np.int32), num_bytes, lambda low, high: callers.append(threading.get_ident()))
    assert callers == [threading.get_ident()] * 3
    in_parts(
        np.arange(9, dtype=np.int32), 2 * loops._PART_BYTES, lambda low, high: callers.append(threading.get_ident())
    )
    assert len(callers) == 5


@pytest.mark.parametrize("dtype", BOTH)
def test_any_number_of_threads_gives_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_PART_BYTES", 1)
    graph = large(300, 5000)
    edges, x_NF = edges_of(graph, dtype), drawn(300, 70, seed=6, dtype=dtype)
    scales = Scales(*(drawn(300, seed=seed, dtype=dtype) for seed in (2, 3, 4)))
    parts = [drawn(300, 3, 10, seed=7, dtype=dtype), *(drawn(300, 3, seed=seed, dtype=dtype) for seed in (8, 9))]
    results = []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        inputs = [part.clone().requires_grad_() for part in (x_NF, *parts)]
        summed = aggregate(edges, scales, inputs[0])
        seen = attend(edges, *inputs[1:], loop_N=torch.ones(300), slope=0.2)
        loss = (summed * x_NF).sum() + (seen * parts[0]).sum()
        results.append([summed, seen, *torch.autograd.grad(loss, inputs)])
    for found in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], found, strict=True))


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("heads", "size"), [(1, 64), (4, 16), (2, 40), (17, 3), (20, 1), (3, 130), (9, 300)])
def test_loops_and_torch_attend_alike(
    heads: int, size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several chunks, one of them a row that is longer than a chunk.
    graph = large(60, 6000)
    edges = edges_of(graph, dtype)
    assert int(edges.into.starts_M[1]) > 500
    loop_N = (torch.arange(60) % 3 > 0).to(dtype)
    given_ = [
        drawn(60, heads, size, seed=1, dtype=dtype), *(3 * drawn(60, heads, seed=seed, dtype=dtype) for seed in (2, 3))
    ]  # fmt: skip
    gradient = drawn(60, heads, size, seed=4, dtype=dtype)
    found = []
    for by_loops in (True, False):
        if not by_loops:
            monkeypatch.setattr("timeloom.kernels.attention.has_loops", lambda *_: False)
        inputs = [part.clone().requires_grad_() for part in given_]
        seen = attend(edges, *inputs, loop_N=loop_N, slope=0.2)
        found.append([seen, *torch.autograd.grad(seen, inputs, gradient)])
    for ours, theirs in zip(*found, strict=True):
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours / scale, theirs / scale, rtol=0, atol=10 * tolerance(dtype))


def test_loops_and_torch_aggregate_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    edges, x_NF = edges_of(large(60, 600)), drawn(60, 20, seed=1)
    scales = Scales(*(drawn(60, seed=seed) for seed in (2, 3, 4)))
    found = []
    for by_loops in (True, False):
        if not by_loops:
            monkeypatch.setattr("timeloom.kernels.aggregate.has_loops", lambda *_: False)
        x = x_NF.clone().requires_grad_()
        out = aggregate(edges, scales, x)
        found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("what", [0, 1, 2])
def test_no_number_among_the_inputs_is_seen_where_it_is_used_and_nowhere_else(what: int) -> None:
    graph = edge_list([(0, 1), (2, 1), (2, 3), (3, 2)], None, [True] * 4)
    edges = edges_of(graph, torch.float32)
    parts = [drawn(4, 2, 5, seed=1, dtype=torch.float32), *(drawn(4, 2, seed=s, dtype=torch.float32) for s in (2, 3))]
    parts[what][0] = math.nan
    seen = attend(edges, *parts, loop_N=None, slope=0.2)
    # Node 0 is a source of node 1 alone; what it would be as a target is nobody's.
    assert torch.isnan(seen[1]).any() == (what < 2)
    assert torch.isfinite(seen[2:]).all()
    x_NF = torch.ones(4, 3)
    x_NF[0] = math.nan
    summed = aggregate(edges, Scales(None, None, None), x_NF)
    assert torch.isnan(summed[1]).all()
    assert torch.isfinite(summed[[0, 2, 3]]).all()


def test_what_has_no_loops_goes_through_torch_and_gives_the_same() -> None:
    rows, x_NF = edges_of(LONG).into, drawn(3, 4, seed=2)
    assert has_loops(rows, x_NF, x_NF)
    assert not has_loops(rows, x_NF.bfloat16())
    assert not has_loops(rows, x_NF, x_NF.float())
    assert not has_loops(rows, x_NF.to("meta"))
    long = Rows(rows.starts_M.long(), rows.neighbours_E.long(), None)
    assert not has_loops(long, x_NF)
    near(sum_rows(long, x_NF), sum_rows(rows, x_NF), torch.float64)


def test_a_bag_stays_differentiable() -> None:
    x_NF, rows = drawn(3, 2, seed=3).requires_grad_(), edges_of(LONG).into
    assert not has_loops(rows, x_NF)
    with torch.no_grad():
        assert has_loops(rows, x_NF)
    assert torch.autograd.gradcheck(lambda x: bag(x, rows.neighbours_E, rows.starts_M, None), (x_NF,))


def test_inputs_of_any_layout_give_the_same() -> None:
    edges, x_NF = edges_of(large(30, 200)), drawn(30, 8, seed=4)
    whole = aggregate(edges, Scales(None, None, None), x_NF)
    assert torch.equal(aggregate(edges, Scales(None, None, None), x_NF.T.contiguous().T), whole)
    value, ends = drawn(30, 2, 4, seed=5), drawn(30, 4, seed=6)
    split = (value.transpose(1, 2).contiguous().transpose(1, 2), ends[:, :2], ends[:, 2:])
    seen = attend(edges, *split, loop_N=None, slope=0.2)
    assert torch.equal(seen, attend(edges, *(part.contiguous() for part in split), loop_N=None, slope=0.2))


def test_inputs_are_left_as_they_are() -> None:
    edges = edges_of(large(30, 200))
    parts = [drawn(30, 2, 4, seed=5), drawn(30, 2, seed=6), drawn(30, 2, seed=7), torch.ones(30, dtype=torch.float64)]
    kept = [part.clone() for part in parts]
    inputs = [part.requires_grad_() for part in parts[:3]]
    seen = attend(edges, *inputs, loop_N=parts[3], slope=0.2)
    first = torch.autograd.grad(seen.sum(), inputs, retain_graph=True)
    again = torch.autograd.grad(seen.sum(), inputs)
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(torch.equal(part.detach(), was) for part, was in zip(parts, kept, strict=True))


def test_rows_are_taken_together_up_to_a_number_of_edges() -> None:
    most = attention_forward._CHUNK_EDGES
    starts = np.array([0, most // 2, most, most, most + 1, 9 * most], np.int32)
    ends = [_end_of_chunk(starts, low, 5) for low in range(5)]
    assert ends == [3, 4, 4, 4, 5]


@kernel("i8(i4[::1], i8, i8)")
def _end_of_chunk(starts: Any, low: int, high: int) -> int:
    end: int = attention_forward.chunk_end(starts, low, high)
    return end


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 5), (1000, 33)])
def test_fresh_memory_begins_with_a_cache_line(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    like = torch.empty(0, dtype=dtype)
    kept = [fresh(shape, like).fill_(place) for place in range(5)]
    assert all(made.shape == shape and made.dtype == dtype and made.data_ptr() % 64 == 0 for made in kept)
    assert all((made == place).all() for place, made in enumerate(kept))


def test_nothing_given_is_an_empty_array_of_the_same_numbers() -> None:
    assert array_of(None, torch.ones(1)).dtype == np.float32
    assert len(array_of(None, torch.ones(1, dtype=torch.float64))) == 0
