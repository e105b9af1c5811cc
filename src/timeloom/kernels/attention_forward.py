"""How attention runs forward on a CPU: a few targets at a time, so that the logits of their edges stay in the cache.

Nothing of the size of the edges is kept: backward makes each share again from three numbers a node and head.

Shape letters: E edges, N nodes, H heads, D features of a head, M = N + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from timeloom.jit import inlined, kernel
from timeloom.kernels.edges import Edges
from timeloom.kernels.loops import AHEAD, Floats, array_of, by_columns, fresh, in_parts
from timeloom.kernels.vectors import exp, filled, fma, lanes_of, larger, leaked, load, prefetch, some_64, store

# Rows are taken together until they have so many edges: the shares of four heads then take 32 KiB.
_CHUNK_EDGES = 2048


@dataclass(frozen=True, slots=True)
class Looked:
    """What forward gives, and what backward needs of it."""

    seen_NHD: Tensor
    most_NH: Tensor
    """The largest logit of each row."""
    inverse_NH: Tensor
    """1 over the sum of the row's exp(logit - most); 0 where a node attends to nobody."""
    own_NH: Tensor
    """What a node itself adds to that sum."""


@inlined
def chunk_end(starts: Any, low: int, high: int) -> int:
    """Return up to where rows from ``low`` on are taken together."""
    end = low + 1
    while end < high and starts[end + 1] - starts[low] <= _CHUNK_EDGES:
        end += 1
    return end


@inlined
def _raise_shares(work: Any, logits: Floats, shares: Floats, low: int, high: int) -> None:
    _, sent, received, loop, starts, neighbours, slope, most, inverse, own, _ = work
    zero, heads, num_nodes = some_64(sent), sent.shape[1], np.uint64(len(sent))
    one, minus_one = filled(zero, 1.0), filled(zero, -1.0)
    for h in range(0, heads, lanes_of(zero)):
        count = min(heads - h, lanes_of(zero))
        at = h
        for v in range(low, high):
            mine = load(zero, received, v * heads + h, count)
            raw = fma(one, load(zero, sent, v * heads + h, count), mine)
            own_logit = leaked(raw, raw, slope)
            top = own_logit if loop[v] > 0 else filled(zero, -np.inf)
            begin = at
            for e in range(np.uint64(starts[v]), np.uint64(starts[v + 1])):
                u = np.uint64(np.uint32(neighbours[e]))
                if u >= num_nodes:
                    raise IndexError("an edge leads to a row that is not there")
                raw = fma(one, load(zero, sent, np.int64(u) * heads + h, count), mine)
                logit = leaked(raw, raw, slope)
                top = larger(logit, top)
                store(logit, logits, at, count)
                at += heads
            summed = zero
            for place in range(begin, at, heads):
                share = exp(fma(minus_one, top, load(zero, logits, place, count)))
                summed = fma(one, share, summed)
                store(share, shares, place, count)
            own_share = exp(fma(minus_one, top, own_logit)) if loop[v] > 0 else zero
            store(top, most, v * heads + h, count)
            store(own_share, own, v * heads + h, count)
            store(fma(one, own_share, summed), inverse, v * heads + h, count)
    for v in range(low, high):
        for h in range(heads):
            inverse[v, h] = 1 / inverse[v, h] if inverse[v, h] > 0 else 0


@inlined
def _look_columns(zero: Any, column: int, size: int, work: Any, low: int, high: int) -> None:
    (value, sent, _, _, starts, neighbours, _, _, inverse, own, seen), shares = work
    heads, left, first, last = sent.shape[1], size - column, np.uint64(starts[low]), np.uint64(starts[high])
    ahead = np.uint64(AHEAD)
    for v in range(low, high):
        begin, end = np.uint64(starts[v]), np.uint64(starts[v + 1])
        for h in range(heads):
            at = (v * heads + h) * size + column
            summed = fma(filled(zero, own[v, h]), load(zero, value, at, left), zero)
            for e in range(begin, end):
                if h == 0 and e + ahead < last:
                    row = np.int64(neighbours[e + ahead]) * heads
                    for k in range(heads):
                        prefetch(zero, value, (row + k) * size + column, left)
                share = shares[(e - first) * np.uint64(heads) + np.uint64(h)]
                row = np.int64(neighbours[e]) * heads + h
                summed = fma(filled(zero, share), load(zero, value, row * size + column, left), summed)
            store(fma(filled(zero, inverse[v, h]), summed, zero), seen, at, left)


_look_heads = by_columns(_look_columns)


@inlined
def _look(work: Any, low: int, high: int) -> None:
    value, sent, starts = work[0], work[1], work[4]
    logits, shares = np.empty(0, value.dtype), np.empty(0, value.dtype)
    while low < high:
        end = chunk_end(starts, low, high)
        needed = (starts[end] - starts[low]) * sent.shape[1]
        if len(shares) < needed:
            logits, shares = np.empty(needed, value.dtype), np.empty(needed, value.dtype)
        _raise_shares(work, logits, shares, low, end)
        _look_heads(value, value.shape[2], (work, shares), low, end)
        low = end


_LOOK = (
    "void(Tuple(({0}[:, :, ::1], {0}[:, ::1], {0}[:, ::1], {0}[::1], i4[::1], i4[::1], {0}, {0}[:, ::1], {0}[:, ::1],"
    " {0}[:, ::1], {0}[:, :, ::1])), i8, i8)"
)


@kernel(_LOOK.format("f4"))
def _look_single(work: Any, low: int, high: int) -> None:
    _look(work, low, high)


@kernel(_LOOK.format("f8"))
def _look_double(work: Any, low: int, high: int) -> None:
    _look(work, low, high)


def row_bytes(value_NHD: Tensor) -> int:
    """Return the size of what one node sends."""
    return value_NHD.shape[1] * value_NHD.shape[2] * value_NHD.element_size()


def look(
    edges: Edges, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, loop_N: Tensor, slope: float
) -> Looked:  # fmt: skip
    """Return what each node sees, for numbers that `has_loops`."""
    seen_NHD, rows = fresh(value_NHD.shape, value_NHD), edges.into
    most_NH, inverse_NH, own_NH = (fresh(sent_NH.shape, sent_NH) for _ in range(3))
    starts = rows.starts_M.numpy()
    inputs = [array_of(part, value_NHD) for part in (value_NHD, sent_NH, received_NH, loop_N)]
    work = (
        *inputs, starts, rows.neighbours_E.numpy(), inputs[0].dtype.type(slope),
        *(part.numpy() for part in (most_NH, inverse_NH, own_NH, seen_NHD)),
    )  # fmt: skip
    run = _look_single if value_NHD.dtype == torch.float32 else _look_double
    num_bytes = (len(edges) + edges.num_nodes) * row_bytes(value_NHD)
    in_parts(starts, num_bytes, lambda low, high: run(work, low, high))
    return Looked(seen_NHD, most_NH, inverse_NH, own_NH)
