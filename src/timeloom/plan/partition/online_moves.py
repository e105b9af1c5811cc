"""Moves and swaps of nodes between servers that raise the payoff (DistDy Algorithm 2; SPEC D9.3).

Shape letters: N nodes, K servers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.jit import inlined, kernel
from timeloom.plan.partition.ties import Ties

if TYPE_CHECKING:
    from timeloom.plan.partition.online import PaperTerms

_CANDIDATES = 2048  # of each server and pair, the nodes that want to change most are tried
_PARTNERS = 16  # ... each with so many of the other side


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A placement that is being made; `server_N` and `used_K` are changed in place, and always agree."""

    server_N: Int32s
    before_N: Int32s
    """Where nodes were in the snapshot before (-1: nowhere)."""
    stay_N: Int64s
    """What each node costs where it was."""
    full_N: Int64s
    """What it costs elsewhere."""
    earlier_K: Int64s
    """Bytes held for earlier snapshots."""
    used_K: Int64s
    """Bytes held in all."""
    capacity_K: Int64s


@dataclass(frozen=True, slots=True)
class Prices:
    """What memory costs: ``start * steepness ** load`` a byte on a server of that load."""

    start: float
    steepness: float

    def of(self, used_K: Int64s, capacity_K: Int64s) -> float:
        """Return what all memory in use costs: the sum of Phi."""
        scale_K = self.start * capacity_K / math.log(self.steepness)
        return float((scale_K * self.steepness ** (used_K / capacity_K)).sum())


def kept_weight(server_N: Int32s, ties: Ties) -> float:
    """Return the weight of edges whose ends are on one server: the utility U."""
    rows = np.repeat(server_N, np.diff(ties.starts))
    return float(ties.weights_D[(rows >= 0) & (rows == server_N[ties.neighbours_D])].sum() / 2)


def payoff(state: State, ties: Ties, prices: Prices) -> float:
    """Return the utility less the price of memory: what every accepted move and swap raises."""
    return kept_weight(state.server_N, ties) - prices.of(state.used_K, state.capacity_K)


def improve(state: State, ties: Ties, prices: Prices, *, rounds: int, swaps: bool) -> tuple[int, int]:
    """Move nodes, and swap them, while that raises the payoff; return how many rounds and swaps there were."""
    done = swapped = 0
    nodes = np.flatnonzero(state.server_N >= 0)
    while done < rounds:
        moves = _moved(nodes, state, ties, prices)
        done += 1
        if moves:
            continue
        found = _swapped(nodes, state, ties, prices) if swaps else 0
        swapped += found
        if not found:
            break
    return done, swapped


def _arrays(state: State, ties: Ties, prices: Prices) -> tuple[object, ...]:
    return (
        ties.starts, ties.neighbours_D, ties.weights_D, state.server_N, state.before_N, state.stay_N, state.full_N,
        state.used_K, state.capacity_K, prices.start, prices.steepness,
    )  # fmt: skip


def _least_gain(state: State, ties: Ties, prices: Prices) -> float:
    """Return the gain that rounding could not have made."""
    return 1e-12 * (ties.total_weight + prices.of(state.capacity_K, state.capacity_K)) + 1e-300


def _moved(nodes: Int64s, state: State, ties: Ties, prices: Prices) -> int:
    """Look at every node once, and move it where that pays most; return how many were moved."""
    return _move(nodes, *_arrays(state, ties, prices), _least_gain(state, ties, prices))


def _swapped(nodes: Int64s, state: State, ties: Ties, prices: Prices) -> int:
    """Let pairs of nodes change places where that pays and no single move did; return how many pairs."""
    servers = len(state.used_K)
    tied_NK = np.zeros((len(nodes), servers))
    _tied(nodes, ties.starts, ties.neighbours_D, ties.weights_D, state.server_N, tied_NK)
    here_N = state.server_N[nodes]
    wants_NK = tied_NK - tied_NK[np.arange(len(nodes)), here_N][:, None]
    best: dict[tuple[int, int], tuple[Int64s, Float64s]] = {}
    for one in range(servers):
        rows = np.flatnonzero(here_N == one)
        for other in range(servers):
            wants = wants_NK[rows, other]
            if len(rows) > _CANDIDATES:
                rows_most = np.argpartition(-wants, _CANDIDATES)[:_CANDIDATES]
                rows_most.sort()
            else:
                rows_most = np.arange(len(rows))
            order = rows_most[np.argsort(-wants[rows_most], kind="stable")]
            best[one, other] = nodes[rows[order]], wants[order]
    least = _least_gain(state, ties, prices)
    count = 0
    for one in range(servers):
        for other in range(one + 1, servers):
            pairs = *best[one, other], *best[other, one]
            count += _swap(*pairs, one, other, *_arrays(state, ties, prices), least, _PARTNERS)
    return count


@inlined
def _price(used: int, capacity: int, start: float, steepness: float) -> float:
    return start * capacity / np.log(steepness) * steepness ** (used / capacity)  # type: ignore[no-any-return]


_STATE = (
    "int64[::1], int32[::1], float64[::1], int32[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], "
    "float64, float64"
)


@kernel(f"int64(int64[::1], {_STATE}, float64)")
def _move(
    nodes: Int64s, starts: Int64s, neighbours: Int32s, weights: Float64s, server_N: Int32s, before_N: Int32s,
    stay_N: Int64s, full_N: Int64s, used_K: Int64s, capacity_K: Int64s, start: float, steepness: float, least: float,
) -> int:  # fmt: skip
    tied_K = np.zeros(len(used_K))
    moves = 0
    for j in range(len(nodes)):
        v = nodes[j]
        here = server_N[v]
        tied_K[:] = 0.0
        for i in range(starts[v], starts[v + 1]):
            if server_N[neighbours[i]] >= 0:
                tied_K[server_N[neighbours[i]]] += weights[i]
        cost = stay_N[v] if before_N[v] == here else full_N[v]
        saved = _price(used_K[here], capacity_K[here], start, steepness)
        saved -= _price(used_K[here] - cost, capacity_K[here], start, steepness)
        best, best_gain, best_cost = here, least, cost
        for k in range(len(used_K)):
            if k == here:
                continue
            there = stay_N[v] if before_N[v] == k else full_N[v]
            gain = tied_K[k] - tied_K[here] + saved
            if gain <= best_gain or there > capacity_K[k] - used_K[k]:
                continue
            gain -= _price(used_K[k] + there, capacity_K[k], start, steepness)
            gain += _price(used_K[k], capacity_K[k], start, steepness)
            if gain > best_gain:
                best, best_gain, best_cost = k, gain, there
        if best != here:
            server_N[v] = best
            used_K[here] -= cost
            used_K[best] += best_cost
            moves += 1
    return moves


@kernel("void(int64[::1], int64[::1], int32[::1], float64[::1], int32[::1], float64[:, ::1])")
def _tied(
    nodes: Int64s, starts: Int64s, neighbours: Int32s, weights: Float64s, server_N: Int32s, tied_NK: Float64s
) -> None:
    for j in range(len(nodes)):
        for i in range(starts[nodes[j]], starts[nodes[j] + 1]):
            if server_N[neighbours[i]] >= 0:
                tied_NK[j, server_N[neighbours[i]]] += weights[i]


@inlined
def _wish(
    v: int, other: int, here: int, there: int, starts: Int64s, neighbours: Int32s, weights: Float64s, server_N: Int32s
) -> float:
    """What v gains of weight when it goes from here to there and ``other`` comes the other way."""
    gain = 0.0
    for i in range(starts[v], starts[v + 1]):
        u = neighbours[i]
        if u == other:
            # They pass each other: the tie is cut before and after.
            continue
        if server_N[u] == there:
            gain += weights[i]
        elif server_N[u] == here:
            gain -= weights[i]
    return gain


@kernel(f"int64(int64[::1], float64[::1], int64[::1], float64[::1], int64, int64, {_STATE}, float64, int64)")
def _swap(
    there: Int64s, there_wants: Float64s, back: Int64s, back_wants: Float64s, one: int, other: int, starts: Int64s,
    neighbours: Int32s, weights: Float64s, server_N: Int32s, before_N: Int32s, stay_N: Int64s, full_N: Int64s,
    used_K: Int64s, capacity_K: Int64s, start: float, steepness: float, least: float, partners: int,
) -> int:  # fmt: skip
    count = 0
    for i in range(len(there)):
        v = there[i]
        if server_N[v] != one:
            continue
        tried = 0
        for j in range(len(back)):
            u = back[j]
            if server_N[u] != other:
                continue
            tried += 1
            if tried > partners:
                break
            used_one = used_K[one] - (stay_N[v] if before_N[v] == one else full_N[v])
            used_one += stay_N[u] if before_N[u] == one else full_N[u]
            used_other = used_K[other] - (stay_N[u] if before_N[u] == other else full_N[u])
            used_other += stay_N[v] if before_N[v] == other else full_N[v]
            # A server that is too full already may become less so.
            if (used_one > capacity_K[one] and used_one > used_K[one]) or (
                used_other > capacity_K[other] and used_other > used_K[other]
            ):
                continue
            gain = _price(used_K[one], capacity_K[one], start, steepness)
            gain -= _price(used_one, capacity_K[one], start, steepness)
            gain += _price(used_K[other], capacity_K[other], start, steepness)
            gain -= _price(used_other, capacity_K[other], start, steepness)
            # What both wanted before the first swap is an estimate from above: a tie between them counts against them.
            if there_wants[i] + back_wants[j] + gain <= least:
                continue
            gain += _wish(v, u, one, other, starts, neighbours, weights, server_N)
            gain += _wish(u, v, other, one, starts, neighbours, weights, server_N)
            if gain > least:
                server_N[v], server_N[u] = other, one
                used_K[one], used_K[other] = used_one, used_other
                count += 1
                break
    return count


def improve_as_printed(state: State, ties: Ties, terms: PaperTerms, rounds: int) -> int:
    """Do as Algorithm 2 is printed, line 13 mended; return how many rounds there were. Nothing says that it ends."""
    nodes = np.flatnonzero(state.server_N >= 0)
    utility = np.array([kept_weight(state.server_N, ties)])
    arrays = _arrays(state, ties, Prices(0.0, math.e))[:-2]
    for done in range(1, rounds + 1):
        if not _move_as_printed(
            nodes, *arrays, state.earlier_K, terms.lambda_K, terms.mu_K, terms.factor, len(nodes), utility
        ):  # fmt: skip
            return done
    return rounds


@kernel(
    "int64(int64[::1], int64[::1], int32[::1], float64[::1], int32[::1], int32[::1], int64[::1], int64[::1], "
    "int64[::1], int64[::1], int64[::1], float64[::1], float64[::1], float64, int64, float64[::1])"
)
def _move_as_printed(
    nodes: Int64s, starts: Int64s, neighbours: Int32s, weights: Float64s, server_N: Int32s, before_N: Int32s,
    stay_N: Int64s, full_N: Int64s, used_K: Int64s, capacity_K: Int64s, earlier_K: Int64s, lambda_K: Float64s,
    mu_K: Float64s, factor: float, num_alive: int, utility: Float64s,
) -> int:  # fmt: skip
    servers = len(used_K)
    tied_K = np.zeros(servers)
    moves = 0
    for j in range(len(nodes)):
        v = nodes[j]
        here = server_N[v]
        tied_K[:] = 0.0
        for i in range(starts[v], starts[v + 1]):
            if server_N[neighbours[i]] >= 0:
                tied_K[server_N[neighbours[i]]] += weights[i]
        best, best_score = here, -np.inf
        for k in range(servers):
            cost = lambda_K[k] * (used_K[k] - earlier_K[k])
            score = tied_K[k] + factor * (utility[0] / servers - cost) / num_alive - cost
            if before_N[v] == k:
                score -= mu_K[k]
            # Of equals the node's own server wins, so that nothing moves for nothing.
            if score > best_score or (score == best_score and k == here):
                best, best_score = k, score
        there = stay_N[v] if before_N[v] == best else full_N[v]
        if best != here and there <= capacity_K[best] - used_K[best]:
            server_N[v] = best
            used_K[here] -= stay_N[v] if before_N[v] == here else full_N[v]
            used_K[best] += there
            utility[0] += tied_K[best] - tied_K[here]
            moves += 1
    return moves
