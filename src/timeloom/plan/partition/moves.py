"""Where nodes were in every snapshot so far, kept as what changed from one to the next.

Shape letters: N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.plan.partition.ledger import padded


@dataclass(frozen=True, slots=True)
class _Change:
    """What one snapshot changed."""

    num_nodes: int
    nodes: Int32s
    servers: Int32s


class Moves:
    """The servers of all nodes, snapshot after snapshot; going over them in order costs what changed."""

    def __init__(self) -> None:
        self._changes: list[_Change] = []
        self._last_N: Int32s = np.empty(0, np.int32)

    def __len__(self) -> int:
        """How many snapshots were placed."""
        return len(self._changes)

    @property
    def num_bytes(self) -> int:
        """The memory that this takes."""
        return self._last_N.nbytes + sum(one.nodes.nbytes + one.servers.nbytes for one in self._changes)

    def append(self, server_N: Int32s) -> None:
        """Add the servers of the next snapshot (-1: not there); there may be more nodes than before."""
        before_N = padded(self._last_N, len(server_N))
        nodes = np.flatnonzero(before_N != server_N).astype(np.int32)
        self._changes.append(_Change(len(server_N), nodes, server_N[nodes].copy()))
        self._last_N = server_N.copy()

    def at(self, t: int, before_N: Int32s | None = None) -> Int32s:
        """Return the servers of snapshot t; with those of the one before this costs what changed."""
        changes = self._changes[: t + 1] if before_N is None else self._changes[t : t + 1]
        server_N = np.empty(0, np.int32) if before_N is None else before_N
        server_N = padded(server_N, max(changes[-1].num_nodes, len(server_N)))
        for change in changes:
            server_N[change.nodes] = change.servers
        return server_N
