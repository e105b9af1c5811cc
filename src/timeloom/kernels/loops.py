"""How rows are summed on a CPU: compiled loops that keep the sum of a row in registers.

Every row is summed by one thread in the order of its edges, so the number of threads changes no bit.

Shape letters: E edges, N nodes, F features, M = N + 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.jit import inlined, kernel
from timeloom.kernels.edges import Rows
from timeloom.kernels.norms import Scales
from timeloom.kernels.vectors import (
    filled,
    fma,
    lanes_of,
    load,
    prefetch,
    some_64,
    some_128,
    some_256,
    store,
    zeros_256,
    zeros_512,
)

Int32s = NDArray[np.int32]
Floats = NDArray[Any]
# Rows asked for ahead of their use; memory answers after about as long as 16 rows take.
AHEAD = 16
# A thread costs about 0.1 ms to start; so many bytes take ten times as long.
_PART_BYTES = 8 * 2**20
_LINE_BYTES = 64
_NO_NUMBERS: dict[torch.dtype, Floats] = {
    torch.float32: np.empty(0, np.float32),
    torch.float64: np.empty(0, np.float64),
}


def has_loops(rows: Rows, *tensors: Tensor) -> bool:
    """Return whether there are loops for these rows and numbers.

    They must be on a CPU, the places of 4 bytes, the numbers all of single or all of double precision. What torch is
    to differentiate is not for loops: inside an autograd function nothing is.
    """
    first = tensors[0]
    return (
        first.dtype in _NO_NUMBERS
        and rows.starts_M.dtype == rows.neighbours_E.dtype == torch.int32
        and all(part.is_cpu and part.dtype == first.dtype for part in tensors)
        and not (torch.is_grad_enabled() and any(part.requires_grad for part in tensors))
    )


def is_short(x: Tensor) -> bool:
    """Return whether numbers are on a CPU and of half precision: they are better made single for the loops."""
    return x.is_cpu and x.dtype in (torch.bfloat16, torch.float16)


def array_of(tensor: Tensor | None, like: Tensor) -> Floats:
    """Return a tensor's memory as numbers of the type of ``like``; nothing gives an empty array."""
    if tensor is None:
        return _NO_NUMBERS[like.dtype]
    return tensor.detach().to(like.dtype).contiguous().numpy()


def fresh(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return memory for numbers of the type of ``like``.

    It is numpy's, which asks for large pages: the first write to 50 MB then takes 3 ms and not 17. It begins where a
    cache line does, as torch's own memory: what a product of it comes to, to the last bit, depends on that.
    """
    kind = _NO_NUMBERS[like.dtype].dtype
    memory = np.empty(math.prod(shape) * kind.itemsize + _LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % _LINE_BYTES
    return torch.from_numpy(memory[begin : begin + math.prod(shape) * kind.itemsize].view(kind).reshape(shape))


def in_parts(starts_M: Int32s, num_bytes: int, run: Callable[[int, int], object]) -> None:
    """Run on rows ``low`` to ``high`` until all are done, on as many threads as torch may use and the work is worth."""
    num_rows = len(starts_M) - 1
    parts = max(1, min(torch.get_num_threads(), num_bytes // _PART_BYTES))
    if parts == 1:
        run(0, num_rows)
        return
    # A row costs something even when it is empty: about as much as an edge.
    each = (int(starts_M[-1]) + num_rows) / parts
    cuts = [
        bisect_left(range(num_rows), part * each, key=lambda row: int(starts_M[row]) + row) for part in range(parts)
    ]
    with ThreadPoolExecutor(parts - 1) as threads:
        others = [threads.submit(run, *ends) for ends in zip(cuts[1:], [*cuts[2:], num_rows], strict=True)]
        run(0, cuts[1])
        for other in others:
            other.result()


def by_columns(run: Callable[..., None]) -> Callable[..., None]:
    """Return an inlined loop that runs over columns 0 to ``width``: as many at once as fit registers, then the rest."""

    @inlined
    def run_all(like: Floats, width: int, work: Any, low: int, high: int) -> None:
        at = 0
        while width - at >= lanes_of(zeros_512(like)):
            run(zeros_512(like), at, width, work, low, high)
            at += lanes_of(zeros_512(like))
        if width - at >= lanes_of(zeros_256(like)):
            run(zeros_256(like), at, width, work, low, high)
            at += lanes_of(zeros_256(like))
        left = width - at
        if left > lanes_of(some_128(like)):
            run(some_256(like), at, width, work, low, high)
        elif left > lanes_of(some_64(like)):
            run(some_128(like), at, width, work, low, high)
        elif left:
            run(some_64(like), at, width, work, low, high)

    return run_all


@inlined
def _sum_columns(zero: Any, column: int, width: int, work: Any, low: int, high: int) -> None:
    x, starts, neighbours, weights, source, target, loop, out = work
    at, row, num_rows, left = np.uint64(column), np.uint64(width), np.uint64(len(x)), width - column
    last, ahead = np.uint64(starts[high]), np.uint64(AHEAD)
    for v in range(np.uint64(low), np.uint64(high)):
        summed = zero
        for e in range(np.uint64(starts[v]), np.uint64(starts[v + np.uint64(1)])):
            # A negative number becomes a huge one.
            u = np.uint64(np.uint32(neighbours[e]))
            if u >= num_rows:
                raise IndexError("an edge leads to a row that is not there")
            if e + ahead < last:
                prefetch(zero, x, np.uint64(np.uint32(neighbours[e + ahead])) * row + at, left)
            scale = weights[e] if len(weights) else x.dtype.type(1)
            if len(source):
                scale *= source[u]
            summed = fma(filled(zero, scale), load(zero, x, u * row + at, left), summed)
        if len(loop):
            scale = loop[v] * source[v] if len(source) else loop[v]
            summed = fma(filled(zero, scale), load(zero, x, v * row + at, left), summed)
        if len(target):
            summed = fma(filled(zero, target[v]), summed, zero)
        store(summed, out, v * row + at, left)


_sum_rows = by_columns(_sum_columns)


@kernel("void(Tuple((f4[:, ::1], i4[::1], i4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[:, ::1])), i8, i8)")
def _sum_single(work: Any, low: int, high: int) -> None:
    _sum_rows(work[0], work[0].shape[1], work, low, high)


@kernel("void(Tuple((f8[:, ::1], i4[::1], i4[::1], f8[::1], f8[::1], f8[::1], f8[::1], f8[:, ::1])), i8, i8)")
def _sum_double(work: Any, low: int, high: int) -> None:
    _sum_rows(work[0], work[0].shape[1], work, low, high)


def sum_scaled(rows: Rows, scales: Scales, x_NF: Tensor) -> Tensor:
    """Return ``L (A + I) R X`` for a table that `has_loops`."""
    out_NF = fresh((len(rows.starts_M) - 1, x_NF.shape[1]), x_NF)
    starts, neighbours = rows.starts_M.numpy(), rows.neighbours_E.numpy()
    parts = (rows.weights_E, scales.source_N, scales.target_N, scales.loop_N)
    lengths = (len(neighbours), len(x_NF), len(out_NF), min(len(x_NF), len(out_NF)))
    assert all(part is None or len(part) == length for part, length in zip(parts, lengths, strict=True))
    scaled = (array_of(part, x_NF) for part in parts)
    work = (array_of(x_NF, x_NF), starts, neighbours, *scaled, out_NF.numpy())
    run = _sum_single if x_NF.dtype == torch.float32 else _sum_double
    num_bytes = (len(neighbours) + len(out_NF)) * x_NF.shape[1] * x_NF.element_size()
    in_parts(starts, num_bytes, lambda low, high: run(work, low, high))
    return out_NF
