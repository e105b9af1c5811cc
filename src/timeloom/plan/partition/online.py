"""Where each node of a new snapshot is stored, decided as snapshots arrive (DistDy 4, mended as SPEC section 9 says).

`OnlinePartitioner.place` does for one snapshot what Algorithms 1 to 3 do:

1. the base (Algorithm 1, `online_base.py`): nodes stay where they are; new ones join neighbours where they fit.
   Room for what stays is taken first, and what fits nowhere is recorded (D9.2);
2. moves and swaps (Algorithm 2, `online_moves.py`) while they raise the payoff;
3. prices (Algorithm 3).

The payoff is ``convex`` (D9.3): utility less the price of memory, which for a server of load ``z`` (the share of its
capacity that it holds, of this snapshot and earlier ones) is ``F D / ln(2 eta) (2 eta)^z``. Every accepted move raises
it, so that moves end. ``paper`` is Algorithm 2 as printed, with line 13 charging what a move costs. Neither has a
guarantee: DistDy's Theorems 4.1 and 4.2 are false, and tests keep the examples.

Deviations: memory is counted by runs (`ledger.py`); U_m of line 6 is read as the weight to neighbours on m; F is the
mean utility per byte of this snapshot and not of the past, which it need not resemble; pair swaps are added.

Shape letters: N nodes, K servers, E edges, W snapshots of a window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.partition.ledger import Ledger, padded
from timeloom.plan.partition.online_base import Overflow, base
from timeloom.plan.partition.online_moves import Prices, State, improve, improve_as_printed, kept_weight
from timeloom.plan.partition.ties import Ties, ties_of
from timeloom.plan.partition.weights import SamplingSettings, fetch_probabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineSettings:
    """How nodes are placed as snapshots arrive."""

    window: int = 4  # DistDy 5.1
    """Snapshots that are held in memory."""
    payoff: Literal["convex", "paper"] = "convex"
    """What is made as large as possible: see SPEC D9.3, or Algorithm 2 as printed."""
    rounds: int = 300  # DistDy 5.1: the execution budget M
    """The most passes over all nodes of a snapshot."""
    eta: float = 6.0  # DistDy 5.1
    """How steep prices are: a full server is 2 eta times as dear as an empty one."""
    price: float = 3.0
    """What a byte costs on a full server, in the mean utility per byte that is held (only payoff=convex). With less,
    nodes move for little, and every move leaves a copy behind that fills memory for a window."""
    swaps: bool = True
    """Nodes of two servers may change places where neither could move alone (only payoff=convex)."""
    overflow: Literal["record", "raise"] = "record"
    """What happens to a node that fits nowhere: it goes to the server with most room and is recorded, or an error."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise BadConfig(f"system.partition.online.rounds={self.rounds}: give 0 or more")
        if not (self.eta > 0.5 and math.isfinite(self.eta)):
            raise BadConfig(
                f"system.partition.online.eta={self.eta}: give a number above 0.5, so that prices rise with load"
            )
        if not (self.price >= 0.0 and math.isfinite(self.price)):
            raise BadConfig(f"system.partition.online.price={self.price}: give 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A snapshot that is to be placed, and how many bytes it takes to store each node."""

    snapshot: Snapshot
    full_N: Int64s
    """The bytes of each node, stored whole."""
    changed_N: Int64s
    """The bytes of what changed in each node since the snapshot before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the nodes of one snapshot are."""

    t: int
    server_N: Int32s
    """The server of each node; -1 where it is not there."""
    held_K: Int64s
    """The bytes that each server holds now, of all snapshots of the window."""
    kept_weight: float
    """The weight of edges whose ends are on one server, in expected fetches of a batch: the utility."""
    total_weight: float
    moved: int
    """Nodes that were there before and are now on another server."""
    rounds: int = 0
    swaps: int = 0
    overflows: tuple[Overflow, ...] = ()


class OnlinePartitioner:
    """Places one snapshot after the other."""

    def __init__(self, capacity_K: Int64s, settings: OnlineSettings) -> None:
        refuse_capacities(capacity_K)
        self.settings, self.capacity_K = settings, capacity_K.astype(np.int64)
        self.ledger = Ledger(servers=len(capacity_K), window=settings.window)
        self._prices = PaperPrices(len(capacity_K), settings)

    def place(self, arrival: Arrival) -> Placement:
        """Return where the nodes of the next snapshot go; this cannot be taken back."""
        snapshot, settings = arrival.snapshot, self.settings
        before_N = padded(self.ledger.last_N, snapshot.num_nodes)
        ties = ties_of(snapshot, fetch_probabilities(snapshot, settings.sampling).edge_E)
        state = State(
            server_N=np.full(snapshot.num_nodes, -1, np.int32), before_N=before_N,
            stay_N=self.ledger.stay_cost(arrival.full_N, arrival.changed_N), full_N=arrival.full_N,
            earlier_K=self.ledger.left_after_slide(), used_K=self.ledger.left_after_slide(), capacity_K=self.capacity_K,
        )  # fmt: skip
        overflows = base(state, ties, snapshot)
        if overflows and settings.overflow == "raise":
            raise TooLarge(_too_full(overflows[0], int(self.capacity_K[overflows[0].server])))
        rounds, swaps = self._improve(state, ties)
        self.ledger.append(state.server_N, arrival.full_N, arrival.changed_N)
        assert (self.ledger.held_K == state.used_K).all(), "the ledger and the moves count alike"
        kept = kept_weight(state.server_N, ties)
        if settings.payoff == "paper":
            self._prices.update(state, kept)
        return Placement(
            t=snapshot.t, server_N=state.server_N, held_K=self.ledger.held_K, kept_weight=kept,
            total_weight=ties.total_weight, rounds=rounds, swaps=swaps, overflows=tuple(overflows),
            moved=int(((before_N >= 0) & (state.server_N >= 0) & (before_N != state.server_N)).sum()),
        )  # fmt: skip

    def resize(self, capacity_K: Int64s) -> None:
        """Go on with servers that hold so much."""
        refuse_capacities(capacity_K)
        assert len(capacity_K) == len(self.capacity_K), "as many servers as before"
        self.capacity_K = capacity_K.astype(np.int64)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what a checkpoint keeps; a partitioner of the same settings goes on from it by `restore`."""
        return {**self.ledger.arrays(), **self._prices.arrays()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on as if all snapshots up to the checkpoint had been placed here."""
        self.ledger.restore(arrays)
        self._prices.restore(arrays)

    def _improve(self, state: State, ties: Ties) -> tuple[int, int]:
        settings = self.settings
        if settings.payoff == "paper":
            return improve_as_printed(state, ties, self._prices.now(state, ties), settings.rounds), 0
        # F such that a byte on a full server costs the mean utility per byte of what is stored (D9.3).
        mean = settings.price * ties.total_weight / max(int(state.used_K.sum()), 1)
        prices = Prices(start=mean / (2 * settings.eta), steepness=2 * settings.eta)
        return improve(state, ties, prices, rounds=settings.rounds, swaps=settings.swaps)


def _too_full(first: Overflow, capacity_bytes: int) -> str:
    found = (
        f"node {first.node} takes {first.needed_bytes} bytes, and server {first.server}, which has most room, has "
        f"{max(first.free_bytes, 0)} of {capacity_bytes}"
    )
    if first.node < 0:
        found = (
            f"what server {first.server} holds of earlier snapshots is {-first.free_bytes} bytes more than its "
            f"capacity of {capacity_bytes}"
        )
    return (
        f"snapshot {first.t} does not fit: {found}; raise the capacity (--set distdy.capacity_bytes=...), add servers, "
        "or use --set system.partition.online.overflow=record"
    )


def refuse_capacities(capacity_K: Int64s) -> None:
    """Refuse servers that hold nothing."""
    if not len(capacity_K) or capacity_K.min() < 1:
        raise BadConfig(
            f"servers with capacities of {capacity_K.tolist()} bytes were given: give 1 or more for each of 1 or more"
        )


@dataclass(frozen=True, slots=True)
class PaperTerms:
    """What Algorithm 2 reads of prices: the sum of lambda over a snapshot's stay, and mu of the last snapshot."""

    lambda_K: Float64s
    mu_K: Float64s
    factor: float


class PaperPrices:
    """Prices and rewards of Algorithm 3, as printed; F is known when a first snapshot has any utility."""

    def __init__(self, servers: int, settings: OnlineSettings) -> None:
        self._eta, self._window = settings.eta, settings.window
        self._start = 0.0
        self._lambda_WK = np.zeros((settings.window, servers))
        self._mu_K = np.zeros(servers)

    @property
    def _factor(self) -> float:
        return math.log(2 * self._eta) - 1.0

    def now(self, state: State, ties: Ties) -> PaperTerms:
        """Return the prices for the snapshot whose base is placed."""
        used = int(state.used_K.sum())
        if not self._start and used and (kept := kept_weight(state.server_N, ties)) > 0.0:
            self._start = kept / used / (2 * self._eta)
            self._lambda_WK[:] = self._start
        return PaperTerms(self._lambda_WK.sum(axis=0), self._mu_K, self._factor)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return what a checkpoint keeps."""
        return {"start": np.array([self._start]), "lambda_WK": self._lambda_WK, "mu_K": self._mu_K}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` returned."""
        self._start = float(arrays["start"][0])
        self._lambda_WK, self._mu_K = arrays["lambda_WK"].copy(), arrays["mu_K"].copy()

    def update(self, state: State, kept: float) -> None:
        """Raise prices by what was stored, then set the rewards for what stays, then go on by one snapshot (11)."""
        stored_K = state.used_K - state.earlier_K
        self._lambda_WK *= np.exp(math.log(2 * self._eta) * stored_K / state.capacity_K)
        num_nodes = max(int((state.server_N >= 0).sum()), 1)
        costs_K = self._lambda_WK.sum(axis=0) * stored_K
        self._mu_K = self._factor * (kept / len(stored_K) - costs_K) / num_nodes
        self._lambda_WK = np.concatenate([self._lambda_WK[1:], np.full((1, len(stored_K)), self._start)])
