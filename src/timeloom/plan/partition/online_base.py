"""A first placement of a snapshot that keeps to the memory there is, or says where it does not (DistDy Algorithm 1).

Algorithm 1 as printed puts a new node where most room is, and takes the room below zero where that is too little: its
Theorem 4.1, that memory is never exceeded, is false. Enough memory in all is not enough anyway: nodes are not cut, so
that this is bin packing. Here a node that fits nowhere goes where most room is and is recorded (SPEC D9.2).

Shape letters: N nodes, K servers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.jit import kernel
from timeloom.plan.partition.online_moves import State
from timeloom.plan.partition.ties import Ties

SLACK = 1.1  # newcomers follow their neighbours while a server has at most a tenth more than its share
_PASSES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """A node that fitted on no server, and was put where most room was."""

    t: int
    node: int
    """-1: what is left of earlier snapshots is itself more than there is room for."""
    server: int
    needed_bytes: int
    free_bytes: int


def base(state: State, ties: Ties, snapshot: Snapshot) -> list[Overflow]:
    """Place all nodes that are there: old ones where they were, new ones with neighbours; return what did not fit."""
    alive = snapshot.alive
    state.server_N[:] = np.where(alive, state.before_N, -1)
    stays = np.flatnonzero(state.server_N >= 0)
    np.add.at(state.used_K, state.server_N[stays], state.stay_N[stays])
    for server in np.flatnonzero(state.used_K > state.capacity_K).tolist():
        _evict(state, server)
    new = np.flatnonzero(alive & (state.server_N < 0))
    # Large nodes first: small ones fill what is left.
    new = new[np.argsort(-state.full_N[new], kind="stable")]
    share = SLACK * (state.used_K.sum() + state.full_N[new].sum()) / state.capacity_K.sum()
    soft_K = np.minimum(state.capacity_K, share * state.capacity_K)
    rows = (
        ties.starts, ties.neighbours_D, ties.weights_D, state.server_N, state.before_N, state.stay_N, state.full_N,
        state.used_K, state.capacity_K, soft_K,
    )  # fmt: skip
    spilled = np.empty((len(new), 4), np.int64)
    for _ in range(_PASSES):
        if not len(new) or not _settle(new, False, *rows, spilled)[0]:
            break
        new = new[state.server_N[new] < 0]
    _, count = _settle(new, True, *rows, spilled)
    held = [
        Overflow(t=snapshot.t, node=-1, server=k, needed_bytes=0, free_bytes=free)
        for k, free in enumerate((state.capacity_K - state.earlier_K).tolist())
        if free < 0
    ]
    return held + [
        Overflow(t=snapshot.t, node=node, server=server, needed_bytes=needed, free_bytes=free)
        for node, server, needed, free in spilled[:count].tolist()
    ]


def _evict(state: State, server: int) -> None:
    """Take nodes away from a server that has no room for what changed in them, the largest changes first."""
    here = np.flatnonzero(state.server_N == server)
    order = here[np.argsort(-state.stay_N[here], kind="stable")]
    freed = np.cumsum(state.stay_N[order])
    excess = int(state.used_K[server] - state.capacity_K[server])
    count = min(int(np.searchsorted(freed, excess)) + 1, int(np.count_nonzero(state.stay_N[order])))
    if count:
        state.server_N[order[:count]] = -1
        state.used_K[server] -= freed[count - 1]


@kernel(
    "UniTuple(int64, 2)(int64[::1], boolean, int64[::1], int32[::1], float64[::1], int32[::1], int32[::1], int64[::1], "
    "int64[::1], int64[::1], int64[::1], float64[::1], int64[:, ::1])"
)
def _settle(
    nodes: Int64s, everywhere: bool, starts: Int64s, neighbours: Int32s, weights: Float64s, server_N: Int32s,
    before_N: Int32s, stay_N: Int64s, full_N: Int64s, used_K: Int64s, capacity_K: Int64s, soft_K: Float64s,
    spilled: Int64s,
) -> tuple[int, int]:  # fmt: skip
    """Place nodes by the weight to their neighbours times the room left; ``everywhere``: also those without any.

    Returns how many were placed, and how many of them did not fit, in ``spilled``: node, server, bytes, room.
    """
    tied_K = np.zeros(len(used_K))
    placed, count = 0, 0
    for j in range(len(nodes)):
        v = nodes[j]
        tied_K[:] = 0.0
        for i in range(starts[v], starts[v + 1]):
            if server_N[neighbours[i]] >= 0:
                tied_K[server_N[neighbours[i]]] += weights[i]
        best, best_score = -1, 0.0
        most, roomiest = np.int64(-(1 << 62)), -1
        for k in range(len(used_K)):
            cost = stay_N[v] if before_N[v] == k else full_N[v]
            room = capacity_K[k] - used_K[k]
            score = tied_K[k] * (1.0 - used_K[k] / soft_K[k])
            if cost <= room and score > best_score:
                best, best_score = k, score
            if room - cost > most:
                most, roomiest = room - cost, k
        if best < 0:
            if not everywhere:
                continue
            best = roomiest
        cost = stay_N[v] if before_N[v] == best else full_N[v]
        if cost > capacity_K[best] - used_K[best]:
            spilled[count, 0], spilled[count, 1] = v, best
            spilled[count, 2], spilled[count, 3] = cost, capacity_K[best] - used_K[best]
            count += 1
        server_N[v] = best
        used_K[best] += cost
        placed += 1
    return placed, count
