"""How many bytes each server holds for the snapshots of a window, counted by runs (SPEC D9.1).

A run is a node's stay on one server over consecutive snapshots. Of each run that meets the window a server holds the
whole node as it was at the run's first snapshot inside the window, and what changed in every later one. DistDy's
constraint (3a) forgets that first whole copy once the snapshot that brought it has left the window.

Shape letters: N nodes, K servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s


@dataclass(frozen=True, slots=True)
class _Row:
    """One snapshot of the window."""

    server_N: Int32s
    full_N: Int64s
    changed_N: Int64s


class Ledger:
    """The bytes that every server holds, snapshot after snapshot."""

    def __init__(self, *, servers: int, window: int) -> None:
        if window < 1:
            raise BadConfig(f"a window of {window} snapshots was asked for: give 1 or more")
        self.servers, self.window = servers, window
        self._rows: deque[_Row] = deque()
        self._held_K = np.zeros(servers, np.int64)

    @property
    def held_K(self) -> Int64s:  # noqa: N802
        """The bytes that each server holds for the snapshots appended so far."""
        return self._held_K.copy()

    @property
    def last_N(self) -> Int32s:  # noqa: N802
        """The server of each node in the last snapshot (-1: it is not there)."""
        return self._rows[-1].server_N if self._rows else np.empty(0, np.int32)

    def left_after_slide(self) -> Int64s:
        """Return the bytes that remain of earlier snapshots when the next one has joined the window."""
        left_K = self._held_K.copy()
        if len(self._rows) < self.window:
            return left_K
        if self.window == 1:
            return np.zeros(self.servers, np.int64)
        old, new = self._rows[0], self._rows[1]
        num = len(old.server_N)
        here = old.server_N >= 0
        stays = here & (new.server_N[:num] == old.server_N)
        ends = here & ~stays
        # The copy of a node that goes on becomes a copy of the next snapshot, into which the change is folded.
        folded = new.full_N[:num] - old.full_N - new.changed_N[:num]
        left_K += _summed(old.server_N[stays], folded[stays], self.servers)
        left_K -= _summed(old.server_N[ends], old.full_N[ends], self.servers)
        return left_K

    def stay_cost(self, full_N: Int64s, changed_N: Int64s) -> Int64s:
        """Return what a node costs in the next snapshot where it stays; elsewhere it costs ``full_N``."""
        return changed_N if self.window > 1 else full_N

    def append(self, server_N: Int32s, full_N: Int64s, changed_N: Int64s) -> None:
        """Add a snapshot: where nodes are (-1: absent), the bytes of each whole and of what changed in each.

        There may be more nodes than before, but not fewer.
        """
        assert len(server_N) >= len(self.last_N), "nodes do not become fewer"
        left_K, last_N = self.left_after_slide(), padded(self.last_N, len(server_N))
        here, stays = server_N >= 0, (server_N >= 0) & (server_N == last_N)
        cost_N = np.where(stays, self.stay_cost(full_N, changed_N), full_N)
        self._held_K = left_K + _summed(server_N[here], cost_N[here], self.servers)
        if len(self._rows) == self.window:
            self._rows.popleft()
        self._rows.append(_Row(server_N.copy(), full_N.copy(), changed_N.copy()))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what a checkpoint keeps, by name; `restore` goes on from it."""
        rows = {
            f"{name}.{place}": getattr(row, name) for place, row in enumerate(self._rows) for name in _Row.__slots__
        }
        return {"held_K": self._held_K, **rows}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` returned; the window and the servers are as they were."""
        count = sum(name.startswith("server_N.") for name in arrays)
        if len(arrays["held_K"]) != self.servers or count > self.window:
            raise BadConfig(
                f"a placement on {len(arrays['held_K'])} servers with {count} snapshots cannot go on with "
                f"{self.servers} servers and a window of {self.window}: keep both as they were, or start anew"
            )
        self._held_K = arrays["held_K"].astype(np.int64)
        self._rows = deque(_Row(*(arrays[f"{name}.{place}"] for name in _Row.__slots__)) for place in range(count))


def padded(server_N: Int32s, num_nodes: int) -> Int32s:
    """Return the servers with nodes appended that are nowhere."""
    return np.concatenate([server_N, np.full(num_nodes - len(server_N), -1, np.int32)])


def _summed(server: Int32s, costs: Int64s, servers: int) -> Int64s:
    """Return the sums by server, exactly: floats would round beyond 2**53 bytes."""
    sums = np.zeros(servers, np.int64)
    np.add.at(sums, server, costs)
    return sums
