"""Which pairs of nodes have been linked so far?

A pair is one number, ``source * num_nodes + target``; types and weights do not matter. Sorted keys of pairs list the
targets of source 0, then those of source 1, ... (the keys of edges in ``keys.py`` go by target instead).
"""

from __future__ import annotations

from typing import final

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import TooLarge
from timeloom.graph.delta import NO_KEYS
from timeloom.graph.keys import Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import kernel

MOST_NODES = 1 << 31  # the largest pair key is then below 2**62


def pair_keys(snapshot: Snapshot) -> Int64s:
    """Return the keys of the pairs that are linked in a snapshot, each once, by source and then by target."""
    _refuse_too_many(snapshot.num_nodes)
    keys: Int64s = np.sort(snapshot.sources * snapshot.num_nodes + snapshot.targets)
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def find(keys: Int64s, wanted: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return where in the sorted ``keys`` each wanted one stands, and whether it does (its place is else no place)."""
    places: Int64s = np.searchsorted(keys, wanted)
    found = np.zeros(len(wanted), np.bool_)
    inside = places < len(keys)
    found[inside] = keys[places[inside]] == wanted[inside]
    return places, found


def ranges_of(keys: Int64s, sources: Int64s, num_nodes: int) -> tuple[Int64s, Int64s]:
    """Return where the pairs of each source start and end among sorted keys."""
    return np.searchsorted(keys, sources * num_nodes), np.searchsorted(keys, (sources + 1) * num_nodes)


def gathered(keys: Int64s, starts: Int64s, ends: Int64s) -> Int64s:
    """Return the keys of all the given ranges, one range after the other."""
    sizes = ends - starts
    shifts = starts - (np.cumsum(sizes) - sizes)
    found: Int64s = keys[np.arange(sizes.sum()) + np.repeat(shifts, sizes)]
    return found


@kernel("int64(int64[::1], int64[::1], int64[::1])")
def _merge(a: Int64s, b: Int64s, out: Int64s) -> int:
    i, j, n = 0, 0, 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        out[n] = min(x, y)
        i += x <= y
        j += y <= x
        n += 1
    for k in range(i, len(a)):
        out[n] = a[k]
        n += 1
    for k in range(j, len(b)):
        out[n] = b[k]
        n += 1
    return n


def merged(a: Int64s, b: Int64s) -> Int64s:
    """Return the keys that are in either of two sorted arrays without repeats, sorted, each once."""
    out = np.empty(len(a) + len(b), np.int64)
    count = _merge(a, b, out)
    # What two snapshots share may be half of both: a view would hold on to twice the memory.
    return out[:count].copy() if 4 * count < 3 * len(out) else out[:count]


@final
class SeenPairs:
    """The pairs that were linked in any of the snapshots added so far.

    They lie in sorted runs, each more than twice as long as the next, as the digits of a binary counter: a key is
    merged again at most log(total) times, however many snapshots are added.
    """

    __slots__ = ("_runs", "num_nodes")

    def __init__(self, num_nodes: int) -> None:
        _refuse_too_many(num_nodes)
        self.num_nodes = num_nodes
        self._runs: list[Int64s] = []

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def keys(self) -> Int64s:
        """The keys of all pairs, sorted, each once; read only. The first use after an add merges all runs."""
        while len(self._runs) > 1:
            self._merge_last_two()
        return self._runs[0] if self._runs else NO_KEYS

    def add(self, keys: Int64s) -> None:
        """Add the pairs of a snapshot, as :func:`pair_keys` returns them; the array is kept, not copied."""
        if not len(keys):
            return
        assert (keys[1:] > keys[:-1]).all(), "pair keys are sorted, each once"
        assert 0 <= keys[0] <= keys[-1] < self.num_nodes**2, f"pair keys of another graph than {self.num_nodes} nodes"
        self._runs.append(keys)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._merge_last_two()

    def contains(self, keys: Int64s) -> NDArray[np.bool_]:
        """Return for each pair, in any order, whether it was linked so far."""
        # Looked up in order, neighbours lie in the same cache line.
        order = np.argsort(keys)
        ascending = keys[order]
        seen = np.zeros(len(keys), np.bool_)
        for run in self._runs:
            seen[order] |= find(run, ascending)[1]
        return seen

    def of_source(self, sources: Int64s) -> tuple[Int64s, Int64s]:
        """Return where the pairs of each source start and end in ``keys``."""
        return ranges_of(self.keys, sources, self.num_nodes)

    def _merge_last_two(self) -> None:
        last = self._runs.pop()
        self._runs[-1] = merged(self._runs[-1], last)


def _refuse_too_many(num_nodes: int) -> None:
    if num_nodes >= MOST_NODES:
        raise TooLarge(
            f"pairs of {num_nodes} nodes do not fit a 64-bit key, which holds pairs of up to {MOST_NODES - 1}: "
            "split the graph"
        )
