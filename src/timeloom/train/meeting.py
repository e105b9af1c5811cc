"""How the rows of both ends of a pair come together: a pair belongs to the owner of its source.

Every rank knows all pairs, so that draws are those of one process and nobody has to ask for rows.

Shape letters: N all nodes, O own nodes, L rows that are here, P all pairs, Q the pairs of this rank, H row size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from timeloom.dist.flight import tie
from timeloom.graph.keys import Float64s, Int64s
from timeloom.plan.partition.own import by_rank
from timeloom.train.holding import Holding, HoldsOwn


@dataclass(frozen=True, slots=True)
class Met:
    """The pairs of this rank, and the rows of their ends."""

    rows_LH: Tensor
    source_Q: Tensor
    """Places among the rows."""
    target_Q: Tensor
    mine_Q: Int64s
    """Which of all pairs they are, ascending."""


class Meeting(ABC):
    """Which pairs this rank looks at, and what comes of all."""

    tells: bool
    """This rank speaks where all know the same."""

    @abstractmethod
    def meet(self, out_NH: Tensor, sources_P: Int64s, targets_P: Int64s) -> Met:
        """Collective. Return the pairs of this rank with the rows of both ends."""

    @abstractmethod
    def of_all(self, values_Q: Float64s, met: Met, num_pairs: int) -> Float64s:
        """Collective. Return what all ranks found of their pairs, for every pair."""


class WholeMeeting(Meeting):
    """Where every node is here."""

    tells = True

    def meet(self, out_NH: Tensor, sources_P: Int64s, targets_P: Int64s) -> Met:
        """Return all pairs."""
        source_P, target_P = as_places(sources_P, targets_P, out_NH)
        return Met(out_NH, source_P, target_P, np.arange(len(sources_P)))

    def of_all(self, values_Q: Float64s, met: Met, num_pairs: int) -> Float64s:
        """Return them as they are."""
        return values_Q


class PartMeeting(Meeting):
    """Where nodes are divided: rows of targets that others own are fetched, and their gradients go back."""

    def __init__(self, holding: HoldsOwn) -> None:
        self._holding = holding
        self.tells = holding.world.rank == 0

    def meet(self, out_NH: Tensor, sources_P: Int64s, targets_P: Int64s) -> Met:
        """Collective. Return the pairs whose source is here."""
        own, crossing = self._holding.nodes, self._holding.crossing
        owner_N = own.owners.owner_N
        is_source, is_target = owner_N[sources_P] == own.rank, owner_N[targets_P] == own.rank
        arriving, leaving = targets_P[is_source & ~is_target], is_target & ~is_source
        halo_H, received = by_rank(arriving, owner_N[arriving], own.owners)
        wanted_S, sent = by_rank(targets_P[leaving], owner_N[sources_P[leaving]], own.owners)
        if torch.is_grad_enabled() and not out_NH.requires_grad:
            # A rank without nodes may hold no row that was learnt, but gradients travel on all ranks or on none.
            out_NH = tie(out_NH, (out_NH.new_empty(0, requires_grad=True),))
        wanted = torch.from_numpy(own.places[wanted_S]).to(out_NH.device)
        came = crossing.swap(out_NH.index_select(0, wanted), sent=sent, received=received, name="halo/pairs")
        place_N = np.empty(len(owner_N), np.int64)
        place_N[own.nodes], place_N[halo_H] = np.arange(len(own)), len(own) + np.arange(len(halo_H))
        mine = np.flatnonzero(is_source)
        source_Q, target_Q = as_places(place_N[sources_P[mine]], place_N[targets_P[mine]], out_NH)
        return Met(torch.cat([out_NH, came]), source_Q, target_Q, mine)

    def of_all(self, values_Q: Float64s, met: Met, num_pairs: int) -> Float64s:
        """Collective. Return the values of all ranks: adding zeros changes none of them."""
        values_P = np.zeros(num_pairs)
        values_P[met.mine_Q] = values_Q
        return self._holding.total(values_P, "pairs")


def meeting_of(holding: Holding) -> Meeting:
    """Return how ends of pairs meet on this rank."""
    return PartMeeting(holding) if isinstance(holding, HoldsOwn) else WholeMeeting()


def as_places(sources: Int64s, targets: Int64s, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return places of both ends of pairs as tensors."""
    both = torch.from_numpy(np.stack([sources, targets])).to(like.device)
    return both[0], both[1]
