"""The compiled passes between the products of a recurrent cell, in float32: each reads and writes a block once.

A piece of a row stays in a vector register from the pre-activations to the new state. What is sent where is said in
`pointwise`, which has the same passes in torch operators.

Shape letters: B rows of a block, H hidden size, P = 2 H, G gates x H, K any width, M 0 or B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from timeloom.jit import inlined, kernel
from timeloom.kernels.vectors import exp, filled, fma, lanes_of, load, some_64, store

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

# Numba is not typed.
_intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic


@_intrinsic
def _quotient(context: Any, left: Any, right: Any) -> tuple[Any, Callable[..., Any]]:  # noqa: ARG001
    """Return left / right."""
    return left(left, left), lambda _, builder, __, values: builder.fdiv(*values)


@_intrinsic
def _where(context: Any, sign: Any, above: Any, below: Any) -> tuple[Any, Callable[..., Any]]:  # noqa: ARG001
    """Return `above` where the sign's number is at least 0, `below` where it is less or none."""

    def made(_: Any, builder: Any, __: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">=", values[0], values[0].type([0.0] * sign.lanes)), *values[1:])

    return sign(sign, sign, sign), made


@inlined
def _number(like: Any, number: float) -> Any:
    return filled(like, np.float32(number))


@inlined
def _times(left: Any, right: Any) -> Any:
    return fma(left, right, _number(left, 0.0))


@inlined
def _one_minus(x: Any) -> Any:
    return fma(x, _number(x, -1.0), _number(x, 1.0))


@inlined
def _minus_size(x: Any) -> Any:
    return _where(x, _times(x, _number(x, -1.0)), x)


@inlined
def _sigmoid(x: Any) -> Any:
    small = exp(_minus_size(x))
    share = _quotient(_number(x, 1.0), fma(small, _number(x, 1.0), _number(x, 1.0)))
    return _where(x, share, _times(small, share))


@inlined
def _tanh(x: Any) -> Any:
    # Near 0 the quotient loses digits, and a few terms of the series are enough.
    small = exp(_times(_minus_size(x), _number(x, 2.0)))
    size = _quotient(_one_minus(small), fma(small, _number(x, 1.0), _number(x, 1.0)))
    square = _times(x, x)
    series = fma(square, _number(x, 62.0 / 2835.0), _number(x, -17.0 / 315.0))
    series = fma(square, fma(square, series, _number(x, 2.0 / 15.0)), _number(x, -1.0 / 3.0))
    near = _times(x, fma(square, series, _number(x, 1.0)))
    far = _where(x, size, _times(size, _number(x, -1.0)))
    return _where(fma(_minus_size(x), _number(x, 1.0), _number(x, 0.25)), near, far)


@inlined
def _mixed(u: Any, h: Any, c: Any) -> Any:
    """Return u h + (1 - u) c, which is h to the bit where u is 1."""
    return fma(u, h, _times(_one_minus(u), c))


@kernel(
    "void(float32[:,::1], float32[:,::1], float32[:,::1], boolean[::1], float32[:,::1], int64, float32[:,::1], int64)"
)
def gru(
    pair: Floats, candidate: Floats, was: Floats, held: Flags, before: Floats, start: int, after: Floats, place: int
) -> None:
    """Turn pre-activations into gates, and write the new state."""
    nothing, size = some_64(was), was.shape[1]
    lanes = lanes_of(nothing)
    for i in range(was.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            r = _sigmoid(load(nothing, pair, at + i * size, count))
            u = _sigmoid(load(nothing, pair, at + (i + 1) * size, count))
            if len(held) and held[i]:
                u = _number(u, 1.0)
            c = _tanh(fma(r, load(nothing, was, at, count), load(nothing, candidate, at, count)))
            h = load(nothing, before, i * before.shape[1] + start + j, count)
            store(r, pair, at + i * size, count)
            store(u, pair, at + (i + 1) * size, count)
            store(c, candidate, at, count)
            store(_mixed(u, h, c), after, i * after.shape[1] + place + j, count)


@kernel("void(float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], int64, float32[:,::1])")
def gru_back(
    d_h: Floats, pair: Floats, candidate: Floats, was: Floats, before: Floats, start: int, d_gates: Floats
) -> None:
    """Write the gradients of what was, reset, update and candidate; leave what goes straight to the old state."""
    nothing, size = some_64(d_h), d_h.shape[1]
    lanes = lanes_of(nothing)
    for i in range(d_h.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            g, c = load(nothing, d_h, at, count), load(nothing, candidate, at, count)
            r, u = load(nothing, pair, at + i * size, count), load(nothing, pair, at + (i + 1) * size, count)
            h = load(nothing, before, i * before.shape[1] + start + j, count)
            along = _times(g, _one_minus(u))
            d_c = _times(along, _one_minus(_times(c, c)))
            d_was = _times(d_c, r)
            out = at + 3 * i * size
            store(d_was, d_gates, out, count)
            store(_times(_times(d_was, load(nothing, was, at, count)), _one_minus(r)), d_gates, out + size, count)
            left = fma(c, _number(c, -1.0), h)
            store(_times(_times(along, u), left), d_gates, out + 2 * size, count)
            store(d_c, d_gates, out + 3 * size, count)
            store(_times(g, u), d_h, at, count)


@kernel("void(float32[:,::1], boolean[::1], float32[:,::1], int64, float32[:,::1])")
def tgcn_reset(pair: Floats, held: Flags, before: Floats, start: int, kept: Floats) -> None:
    """Turn the pre-activations of update and reset into gates, and write ``reset * h``."""
    nothing, size = some_64(kept), kept.shape[1]
    lanes = lanes_of(nothing)
    for i in range(kept.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            u = _sigmoid(load(nothing, pair, at + i * size, count))
            r = _sigmoid(load(nothing, pair, at + (i + 1) * size, count))
            if len(held) and held[i]:
                u = _number(u, 1.0)
            store(u, pair, at + i * size, count)
            store(r, pair, at + (i + 1) * size, count)
            store(_times(r, load(nothing, before, i * before.shape[1] + start + j, count)), kept, at, count)


@kernel("void(float32[:,::1], float32[:,::1], float32[:,::1], int64, float32[:,::1], int64)")
def tgcn(pair: Floats, candidate: Floats, before: Floats, start: int, after: Floats, place: int) -> None:
    """Turn the candidate's pre-activation into the candidate, and write the new state."""
    nothing, size = some_64(candidate), candidate.shape[1]
    lanes = lanes_of(nothing)
    for i in range(candidate.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            c = _tanh(load(nothing, candidate, at, count))
            h = load(nothing, before, i * before.shape[1] + start + j, count)
            store(c, candidate, at, count)
            state = _mixed(load(nothing, pair, at + i * size, count), h, c)
            store(state, after, i * after.shape[1] + place + j, count)


@kernel("void(float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], int64, float32[:,::1], float32[:,::1])")
def tgcn_back(
    d_h: Floats, pair: Floats, candidate: Floats, before: Floats, start: int, d_gates: Floats, kept: Floats
) -> None:
    """Write the gradients of update and candidate, and ``reset * h``; leave what goes straight to the old state."""
    nothing, size = some_64(d_h), d_h.shape[1]
    lanes = lanes_of(nothing)
    for i in range(d_h.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            g, c = load(nothing, d_h, at, count), load(nothing, candidate, at, count)
            u, r = load(nothing, pair, at + i * size, count), load(nothing, pair, at + (i + 1) * size, count)
            h = load(nothing, before, i * before.shape[1] + start + j, count)
            along = _times(g, _one_minus(u))
            out = at + 2 * i * size
            store(_times(_times(along, u), fma(c, _number(c, -1.0), h)), d_gates, out, count)
            store(_times(along, _one_minus(_times(c, c))), d_gates, out + 2 * size, count)
            store(_times(r, h), kept, at, count)
            store(_times(g, u), d_h, at, count)


@kernel("void(float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1])")
def tgcn_reset_back(d_kept: Floats, d_h: Floats, pair: Floats, kept: Floats, d_gates: Floats) -> None:
    """Write the gradient of reset, given ``kept = reset * h``, and add to that of the old state."""
    nothing, size = some_64(d_h), d_h.shape[1]
    lanes = lanes_of(nothing)
    for i in range(d_h.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            g, r = load(nothing, d_kept, at, count), load(nothing, pair, at + (i + 1) * size, count)
            back = _times(_times(g, load(nothing, kept, at, count)), _one_minus(r))
            store(back, d_gates, at + 2 * i * size + size, count)
            store(fma(g, r, load(nothing, d_h, at, count)), d_h, at, count)


@kernel(
    "void(float32[:,::1], float32[:,::1], float32[:,::1], boolean[::1], float32[:,::1], float32[:,::1],"
    " float32[:,::1], int64, float32[:,::1], int64)"
)
def lstm(
    pair: Floats, candidate: Floats, leave: Floats, held: Flags, c_before: Floats, c_after: Floats,
    before: Floats, start: int, after: Floats, place: int,
) -> None:  # fmt: skip
    """Turn pre-activations into gates, and write the new memory and output."""
    nothing, size = some_64(leave), leave.shape[1]
    lanes = lanes_of(nothing)
    for i in range(leave.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            e = _sigmoid(load(nothing, pair, at + i * size, count))
            f = _sigmoid(load(nothing, pair, at + (i + 1) * size, count))
            g, o = _tanh(load(nothing, candidate, at, count)), _sigmoid(load(nothing, leave, at, count))
            output = nothing
            if len(held) and held[i]:
                e, f, o = nothing, _number(f, 1.0), nothing
                output = load(nothing, before, i * before.shape[1] + start + j, count)
            memory = fma(f, load(nothing, c_before, at, count), _times(e, g))
            store(e, pair, at + i * size, count)
            store(f, pair, at + (i + 1) * size, count)
            store(g, candidate, at, count)
            store(o, leave, at, count)
            store(memory, c_after, at, count)
            # What is held has an output gate of 0.
            store(fma(o, _tanh(memory), output), after, i * after.shape[1] + place + j, count)


@kernel(
    "void(float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1], float32[:,::1],"
    " float32[:,::1], float32[:,::1])"
)
def lstm_back(
    d_h: Floats, d_c: Floats, pair: Floats, candidate: Floats, leave: Floats, c_before: Floats, c_after: Floats,
    d_gates: Floats,
) -> None:  # fmt: skip
    """Write the gradients of all gates, and make `d_c` that of the old memory."""
    nothing, size = some_64(d_h), d_h.shape[1]
    lanes = lanes_of(nothing)
    for i in range(d_h.shape[0]):
        for j in range(0, size, lanes):
            at, count = i * size + j, min(lanes, size - j)
            e, f = load(nothing, pair, at + i * size, count), load(nothing, pair, at + (i + 1) * size, count)
            g, o = load(nothing, candidate, at, count), load(nothing, leave, at, count)
            bent, along = _tanh(load(nothing, c_after, at, count)), load(nothing, d_h, at, count)
            out = at + 3 * i * size
            store(_times(_times(along, bent), _times(o, _one_minus(o))), d_gates, out + 3 * size, count)
            back = fma(_times(along, o), _one_minus(_times(bent, bent)), load(nothing, d_c, at, count))
            store(_times(_times(back, g), _times(e, _one_minus(e))), d_gates, out, count)
            was = _times(back, load(nothing, c_before, at, count))
            store(_times(was, _times(f, _one_minus(f))), d_gates, out + size, count)
            store(_times(_times(back, e), _one_minus(_times(g, g))), d_gates, out + 2 * size, count)
            store(_times(back, f), d_c, at, count)
