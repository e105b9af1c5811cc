"""How many bytes a batch would move between servers: the measure of a placement, found by sampling as training does.

Of each snapshot of the window every worker embeds the targets that its own server holds there: it samples their
neighbours and fetches each row that another server holds, once. A target's embeddings then go to the server that holds
it in the newest snapshot (DistDy 3.1). Draws are keyed by (seed, step, snapshot, layer, node), so that every placement
is measured on the same samples.

Shape letters: N nodes, K servers, W words of K bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import inlined, kernel


@dataclass(frozen=True, slots=True)
class Fetches:
    """What moves from server to server in one batch."""

    rows_KK: Int64s
    """Rows of features that the worker (column) fetches from the store (row); on the diagonal, those of its own."""
    embeddings_KK: Int64s
    """Embeddings of targets that go from the worker (row) to the one that holds the target now (column)."""

    def num_bytes(self, *, row_bytes: int, embedding_bytes: int) -> int:
        """Return the bytes that cross between servers."""
        crossing = [int(table.sum() - np.trace(table)) for table in (self.rows_KK, self.embeddings_KK)]
        return crossing[0] * row_bytes + crossing[1] * embedding_bytes


def simulate_fetches(
    window: list[tuple[Snapshot, Int32s]], targets: Int64s, *, servers: int, fanouts: tuple[int, ...], seed: int,
    step: int,
) -> Fetches:  # fmt: skip
    """Return what a batch moves; ``window`` has each snapshot with the server of each node, the newest last."""
    rows_KK, embeddings_KK = np.zeros((servers, servers), np.int64), np.zeros((servers, servers), np.int64)
    now_N = window[-1][1]
    for snapshot, server_N in window:
        here = targets[targets < snapshot.num_nodes]
        here = here[server_N[here] >= 0]
        moved = here[now_N[here] >= 0]
        np.add.at(embeddings_KK, (server_N[moved], now_N[moved]), 1)
        seen_NW = np.zeros((snapshot.num_nodes, -(-servers // 64)), np.uint64)
        nodes, workers = here.astype(np.int32), server_N[here]
        _mark(nodes, workers, seen_NW)
        rows = snapshot.incoming()
        for layer, fanout in enumerate(fanouts):
            more = _widen(
                nodes, workers, rows.starts, rows.neighbours, fanout, key_of(seed, step, snapshot.t, layer), seen_NW
            )  # fmt: skip
            nodes, workers = np.concatenate([nodes, more[0]]), np.concatenate([workers, more[1]])
        held = server_N[nodes] >= 0
        np.add.at(rows_KK, (server_N[nodes[held]], workers[held]), 1)
    return Fetches(rows_KK, embeddings_KK)


def key_of(*parts: int) -> int:
    """Return a number below 2**63 that every part reaches."""
    words = np.random.SeedSequence(parts).generate_state(2, np.uint32)
    return int(words[0]) << 31 | int(words[1]) >> 1


@inlined
def mixed(key: int, node: int, draw: int) -> np.uint64:
    """Return 64 bits that depend on all three."""
    x = np.uint64(key) + np.uint64(0x9E3779B97F4A7C15) * (np.uint64(node) + np.uint64(1))
    x += np.uint64(0xD1342543DE82EF95) * (np.uint64(draw) + np.uint64(1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inlined
def draw_some(key: int, node: int, degree: int, kept: int, chosen: Int64s) -> None:
    """Write to ``chosen`` which of so many neighbours a node keeps: Floyd's draw without replacement."""
    for j in range(kept):
        if degree <= kept:
            chosen[j] = j
            continue
        last = degree - kept + j
        drawn = np.int64(mixed(key, node, j) % np.uint64(last + 1))
        for other in range(j):
            if chosen[other] == drawn:
                drawn = np.int64(last)
                break
        chosen[j] = drawn


@kernel("void(int32[::1], int32[::1], uint64[:, ::1])")
def _mark(nodes: Int32s, workers: Int32s, seen_NW: NDArray[np.uint64]) -> None:
    for i in range(len(nodes)):
        seen_NW[nodes[i], workers[i] // 64] |= np.uint64(1) << np.uint64(workers[i] % 64)


@kernel("UniTuple(int32[::1], 2)(int32[::1], int32[::1], int64[::1], int32[::1], int64, int64, uint64[:, ::1])")
def _widen(
    nodes: Int32s, workers: Int32s, starts: Int64s, neighbours: Int32s, fanout: int, key: int,
    seen_NW: NDArray[np.uint64],
) -> tuple[Int32s, Int32s]:  # fmt: skip
    """Return the (node, worker) pairs that are kept for the first time."""
    room = 0
    for i in range(len(nodes)):
        room += min(fanout, starts[nodes[i] + 1] - starts[nodes[i]])
    more, its = np.empty(room, np.int32), np.empty(room, np.int32)
    chosen = np.empty(fanout, np.int64)
    count = 0
    for i in range(len(nodes)):
        v, first = nodes[i], starts[nodes[i]]
        degree = starts[v + 1] - first
        kept = min(fanout, degree)
        draw_some(key, v, degree, kept, chosen)
        bit = np.uint64(1) << np.uint64(workers[i] % 64)
        for j in range(kept):
            u = neighbours[first + chosen[j]]
            if not seen_NW[u, workers[i] // 64] & bit:
                seen_NW[u, workers[i] // 64] |= bit
                more[count], its[count] = u, workers[i]
                count += 1
    return more[:count], its[:count]
