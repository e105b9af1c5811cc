"""What changed from one snapshot to the next, found and applied by single passes over sorted keys.

Shape letters: E edges of a snapshot, D changed edges. A weight of 0 means that the edge is absent (SPEC D1.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.graph.keys import Float64s, Int64s, KeyLayout
from timeloom.jit import kernel

NO_KEYS: Int64s = np.empty(0, np.int64)
NO_WEIGHTS: Float64s = np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class Delta:
    """The edges that differ between two snapshots, sorted by key, with their weight before and after."""

    layout: KeyLayout
    keys: Int64s
    old: Float64s
    new: Float64s

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def sources(self) -> Int64s:
        """The node each changed edge comes from."""
        return self.layout.sources(self.keys)

    @property
    def targets(self) -> Int64s:
        """The node each changed edge goes to."""
        return self.layout.targets(self.keys)

    @property
    def types(self) -> Int64s:
        """The type of each changed edge."""
        return self.layout.types(self.keys)


@kernel("int64(int64[::1], int64[::1], int64[::1], float64[::1], float64[::1])")
def _diff_plain(a: Int64s, b: Int64s, keys: Int64s, old: Float64s, new: Float64s) -> int:
    i, j, n = 0, 0, 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        if x == y:
            i += 1
            j += 1
            continue
        if x < y:
            keys[n], old[n], new[n] = x, 1.0, 0.0
            i += 1
        else:
            keys[n], old[n], new[n] = y, 0.0, 1.0
            j += 1
        n += 1
        if n == len(keys):
            return -1
    if n + len(a) - i + len(b) - j > len(keys):
        return -1
    for k in range(i, len(a)):
        keys[n], old[n], new[n] = a[k], 1.0, 0.0
        n += 1
    for k in range(j, len(b)):
        keys[n], old[n], new[n] = b[k], 0.0, 1.0
        n += 1
    return n


@kernel("int64(int64[::1], float64[::1], int64[::1], float64[::1], int64[::1], float64[::1], float64[::1])")
def _diff_weighted(
    a: Int64s, a_weights: Float64s, b: Int64s, b_weights: Float64s, keys: Int64s, old: Float64s, new: Float64s
) -> int:
    i, j, n = 0, 0, 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        if x == y:
            before, after = a_weights[i], b_weights[j]
            i += 1
            j += 1
            if before == after:
                continue
            keys[n], old[n], new[n] = x, before, after
        elif x < y:
            keys[n], old[n], new[n] = x, a_weights[i], 0.0
            i += 1
        else:
            keys[n], old[n], new[n] = y, 0.0, b_weights[j]
            j += 1
        n += 1
        if n == len(keys):
            return -1
    if n + len(a) - i + len(b) - j > len(keys):
        return -1
    for k in range(i, len(a)):
        keys[n], old[n], new[n] = a[k], a_weights[k], 0.0
        n += 1
    for k in range(j, len(b)):
        keys[n], old[n], new[n] = b[k], 0.0, b_weights[k]
        n += 1
    return n


def diff(a: Int64s, a_weights: Float64s | None, b: Int64s, b_weights: Float64s | None, layout: KeyLayout) -> Delta:
    """Return what changes edges ``a`` into edges ``b``; both are sorted, and weights of None are all 1."""
    weighted = a_weights is not None or b_weights is not None
    # Most snapshots differ little from the one before: try with room for a tenth, and again with room for all.
    for room in (max(len(a), len(b)) // 8 + 1024, len(a) + len(b) + 1):
        keys, old, new = np.empty(room, np.int64), np.empty(room), np.empty(room)
        if weighted:
            found = _diff_weighted(a, ones_if_none(a, a_weights), b, ones_if_none(b, b_weights), keys, old, new)
        else:
            found = _diff_plain(a, b, keys, old, new)
        if found >= 0:
            break
    return Delta(layout, keys[:found], old[:found], new[:found])


def ones_if_none(keys: Int64s, weights: Float64s | None) -> Float64s:
    """Return ``weights``, or a 1 for each key where they are None."""
    return np.ones(len(keys)) if weights is None else weights


@kernel("int64(int64[::1], float64[::1], int64[::1], float64[::1], int64[::1], float64[::1])")
def _apply(keys: Int64s, weights: Float64s, changed: Int64s, new: Float64s, out: Int64s, out_weights: Float64s) -> int:
    weighted = len(out_weights) > 0
    i, n = 0, 0
    for j in range(len(changed)):
        key = changed[j]
        while i < len(keys) and keys[i] < key:
            out[n] = keys[i]
            if weighted:
                out_weights[n] = weights[i]
            i += 1
            n += 1
        if i < len(keys) and keys[i] == key:
            i += 1
        if new[j] != 0.0:
            out[n] = key
            if weighted:
                out_weights[n] = new[j]
            n += 1
    while i < len(keys):
        out[n] = keys[i]
        if weighted:
            out_weights[n] = weights[i]
        i += 1
        n += 1
    return n


def apply(keys: Int64s, weights: Float64s | None, delta: Delta) -> tuple[Int64s, Float64s | None]:
    """Return the edges (sorted keys and weights) that ``delta`` makes of the given ones.

    Edges without weights stay without them, so ``delta`` must then hold weights of 0 and 1 only.
    """
    room = len(keys) + len(delta)
    out = np.empty(room, np.int64)
    out_weights = NO_WEIGHTS if weights is None else np.empty(max(room, 1))
    count = _apply(keys, NO_WEIGHTS if weights is None else weights, delta.keys, delta.new, out, out_weights)
    return out[:count], None if weights is None else out_weights[:count]


@kernel(
    "int64(int64[::1], float64[::1], float64[::1], int64[::1], float64[::1], float64[::1], "
    "int64[::1], float64[::1], float64[::1])"
)
def _compose(
    a: Int64s, a_old: Float64s, a_new: Float64s, b: Int64s, b_old: Float64s, b_new: Float64s,
    keys: Int64s, old: Float64s, new: Float64s,
) -> int:  # fmt: skip
    i, j, n = 0, 0, 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] < b[j]):
            keys[n], old[n], new[n] = a[i], a_old[i], a_new[i]
            i += 1
        elif i == len(a) or b[j] < a[i]:
            keys[n], old[n], new[n] = b[j], b_old[j], b_new[j]
            j += 1
        else:
            keys[n], old[n], new[n] = a[i], a_old[i], b_new[j]
            i += 1
            j += 1
        if old[n] != new[n]:
            n += 1
    return n


def compose(first: Delta, second: Delta) -> Delta:
    """Return the one delta that does what ``first`` and then ``second`` do."""
    room = len(first) + len(second) + 1
    keys, old, new = np.empty(room, np.int64), np.empty(room), np.empty(room)
    count = _compose(first.keys, first.old, first.new, second.keys, second.old, second.new, keys, old, new)
    return Delta(first.layout, keys[:count], old[:count], new[:count])


def compose_all(deltas: list[Delta], layout: KeyLayout) -> Delta:
    """Return the one delta that does what all the given ones do in turn; the cost is D log(number of deltas)."""
    while len(deltas) > 1:
        pairs = [deltas[i : i + 2] for i in range(0, len(deltas), 2)]
        deltas = [compose(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return deltas[0] if deltas else Delta(layout, NO_KEYS, NO_WEIGHTS, NO_WEIGHTS)
