"""How attention runs backward on a CPU: by source, in a fixed order, each gradient of a target read once for both uses.

The gradient of a target that a source was seen by is multiplied by the share and added up (the gradient of the value),
and multiplied by the source's value (what the logit is worth); the shares are made again from what forward kept.

Shape letters: E edges, N nodes, H heads, D features of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from timeloom.jit import inlined, kernel
from timeloom.kernels.attention_forward import Looked, chunk_end, row_bytes
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.loops import AHEAD, Floats, array_of, by_columns, fresh, in_parts, sum_scaled
from timeloom.kernels.norms import Scales
from timeloom.kernels.vectors import exp, filled, fma, lanes_of, leaked, load, prefetch, some_64, store, total


@inlined
def _along_columns(zero: Any, column: int, size: int, work: Any, low: int, high: int) -> None:
    left_NHD, right_NHD, along = work
    for row in range(low, high):
        at = row * size + column
        product = fma(load(zero, left_NHD, at, size - column), load(zero, right_NHD, at, size - column), zero)
        along[row] += total(product)


_along = by_columns(_along_columns)
_ALONG = "void(Tuple(({0}[:, :, ::1], {0}[:, :, ::1], {0}[::1])), i8, i8)"


@kernel(_ALONG.format("f4"))
def _along_single(work: Any, low: int, high: int) -> None:
    _along(work[0], work[0].shape[2], work, low, high)


@kernel(_ALONG.format("f8"))
def _along_double(work: Any, low: int, high: int) -> None:
    _along(work[0], work[0].shape[2], work, low, high)


@inlined
def _shares_again(work: Any, shares: Floats, low: int, high: int) -> None:
    _, sent, known, _, _, starts, neighbours, _, slope, _, _, _, _ = work
    zero, heads, last = some_64(sent), sent.shape[1], np.uint64(starts[high])
    one, minus_one, ahead = filled(zero, 1.0), filled(zero, -1.0), np.uint64(AHEAD)
    for h in range(0, heads, lanes_of(zero)):
        count = min(heads - h, lanes_of(zero))
        at = h
        for u in range(low, high):
            mine = load(zero, sent, u * heads + h, count)
            for e in range(np.uint64(starts[u]), np.uint64(starts[u + 1])):
                if e + ahead < last:
                    there = np.int64(neighbours[e + ahead]) * 4 * heads + h
                    prefetch(zero, known, there, 4 * heads - h)
                there = np.int64(neighbours[e]) * 4 * heads + h
                raw = fma(one, load(zero, known, there, count), mine)
                top, inverse = load(zero, known, there + heads, count), load(zero, known, there + 2 * heads, count)
                share = exp(fma(minus_one, top, leaked(raw, raw, slope)))
                store(fma(share, inverse, zero), shares, at, count)
                at += heads


@inlined
def _back_columns(zero: Any, column: int, size: int, work: Any, low: int, high: int) -> None:
    task, shares, dots, own_dots = work
    value, _, _, own, grad, starts, neighbours, _, _, d_value, _, _, _ = task
    heads, left, first, last = own.shape[1], size - column, np.uint64(starts[low]), np.uint64(starts[high])
    ahead = np.uint64(AHEAD)
    for u in range(low, high):
        begin, end = np.uint64(starts[u]), np.uint64(starts[u + 1])
        for h in range(heads):
            at = (u * heads + h) * size + column
            mine, pulled = load(zero, value, at, left), load(zero, grad, at, left)
            summed = fma(filled(zero, own[u, h]), pulled, zero)
            own_dots[(u - low) * heads + h] += total(fma(pulled, mine, zero))
            for e in range(begin, end):
                if h == 0 and e + ahead < last:
                    row = np.int64(neighbours[e + ahead]) * heads
                    for k in range(heads):
                        prefetch(zero, grad, (row + k) * size + column, left)
                place = (e - first) * np.uint64(heads) + np.uint64(h)
                row = np.int64(neighbours[e]) * heads + h
                pulled = load(zero, grad, row * size + column, left)
                summed = fma(filled(zero, shares[place]), pulled, summed)
                dots[place] += total(fma(pulled, mine, zero))
            store(summed, d_value, at, left)


_back_heads = by_columns(_back_columns)


@inlined
def _logits_back(work: Any, low: int, high: int) -> None:
    task, shares, dots, own_dots = work
    _, sent, known, own, _, starts, neighbours, order, slope, _, d_sent, d_received, d_logit = task
    zero, heads = some_64(sent), sent.shape[1]
    one, minus_one = filled(zero, 1.0), filled(zero, -1.0)
    for h in range(0, heads, lanes_of(zero)):
        count = min(heads - h, lanes_of(zero))
        at = h
        for u in range(low, high):
            mine = load(zero, sent, u * heads + h, count)
            there = u * 4 * heads + h
            raw = fma(one, load(zero, known, there, count), mine)
            own_dot = load(zero, own_dots, (u - low) * heads + h, count)
            pull = fma(minus_one, load(zero, known, there + 3 * heads, count), own_dot)
            summed = leaked(fma(load(zero, own, u * heads + h, count), pull, zero), raw, slope)
            store(summed, d_received, u * heads + h, count)
            for e in range(np.uint64(starts[u]), np.uint64(starts[u + 1])):
                there = np.int64(neighbours[e]) * 4 * heads + h
                raw = fma(one, load(zero, known, there, count), mine)
                pull = fma(minus_one, load(zero, known, there + 3 * heads, count), load(zero, dots, at, count))
                changed = leaked(fma(load(zero, shares, at, count), pull, zero), raw, slope)
                summed = fma(one, changed, summed)
                store(changed, d_logit, np.int64(order[e]) * heads + h, count)
                at += heads
            store(summed, d_sent, u * heads + h, count)


@inlined
def _look_back(work: Any, low: int, high: int) -> None:
    value, starts = work[0], work[5]
    heads = value.shape[1]
    shares, dots = np.empty(0, value.dtype), np.empty(0, value.dtype)
    while low < high:
        end = chunk_end(starts, low, high)
        needed = (starts[end] - starts[low]) * heads
        if len(shares) < needed:
            shares, dots = np.empty(needed, value.dtype), np.empty(needed, value.dtype)
        dots[:needed] = 0
        own_dots = np.zeros((end - low) * heads, value.dtype)
        task = (work, shares, dots, own_dots)
        _shares_again(work, shares, low, end)
        _back_heads(value, value.shape[2], task, low, end)
        _logits_back(task, low, end)
        low = end


_BACK = (
    "void(Tuple(({0}[:, :, ::1], {0}[:, ::1], {0}[:, :, ::1], {0}[:, ::1], {0}[:, :, ::1], i4[::1], i4[::1], i4[::1],"
    " {0}, {0}[:, :, ::1], {0}[:, ::1], {0}[:, ::1], {0}[:, ::1])), i8, i8)"
)


@kernel(_BACK.format("f4"))
def _back_single(work: Any, low: int, high: int) -> None:
    _look_back(work, low, high)


@kernel(_BACK.format("f8"))
def _back_double(work: Any, low: int, high: int) -> None:
    _look_back(work, low, high)


def _along_gradient(looked: Looked, grad: Floats, starts: Any) -> Tensor:
    """Return what each node saw times its gradient, head by head."""
    along_NH = torch.zeros_like(looked.most_NH)
    heads = along_NH.shape[1]
    run = _along_single if along_NH.dtype == torch.float32 else _along_double
    work = (grad, looked.seen_NHD.numpy(), along_NH.numpy().reshape(-1))
    in_parts(starts, grad.nbytes, lambda low, high: run(work, low * heads, high * heads))
    return along_NH


def look_back(
    edges: Edges, looked: Looked, grad_NHD: Tensor, inputs: tuple[Tensor, Tensor, Tensor], *, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of value, sent and received."""
    value_NHD, sent_NH, received_NH = inputs
    rows, starts = edges.out_of, edges.out_of.starts_M.numpy()
    grad = array_of(grad_NHD, value_NHD)
    # What a source must know of each of its targets lies together: one or two lines of memory.
    known_NXH = torch.stack([received_NH, looked.most_NH, looked.inverse_NH, _along_gradient(looked, grad, starts)], 1)
    d_value_NHD = fresh(value_NHD.shape, value_NHD)
    d_sent_NH, d_received_NH = (fresh(sent_NH.shape, sent_NH) for _ in range(2))
    d_logit_EH = fresh((len(edges), sent_NH.shape[1]), sent_NH)
    parts = (value_NHD, sent_NH, known_NXH, looked.own_NH * looked.inverse_NH)
    work = (
        *(array_of(part, value_NHD) for part in parts), grad, starts, rows.neighbours_E.numpy(), edges.order_E.numpy(),
        grad.dtype.type(slope), *(part.numpy() for part in (d_value_NHD, d_sent_NH, d_received_NH, d_logit_EH)),
    )  # fmt: skip
    run = _back_single if value_NHD.dtype == torch.float32 else _back_double
    in_parts(starts, len(edges) * row_bytes(value_NHD), lambda low, high: run(work, low, high))
    d_received_NH += sum_scaled(Rows(edges.into.starts_M, edges.places, None), Scales(None, None, None), d_logit_EH)
    return d_value_NHD, d_sent_NH, d_received_NH
