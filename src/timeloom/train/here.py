"""Which nodes' rows are on a rank, where rows are those of a batch's nodes alone, each on one rank.

Shape letters: N all nodes, M nodes whose rows are here, P all pairs, Q the pairs of this rank, H row size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from timeloom.dist.flight import tie
from timeloom.graph.csr import Int32s
from timeloom.graph.keys import Int64s
from timeloom.plan.partition.own import pairs_by_rank
from timeloom.train.crossing import Crossing


@dataclass(frozen=True, slots=True)
class Here:
    """The homes of a batch's nodes."""

    home_N: Int32s
    """The rank that has the row of each node; -1: it is not in the batch."""
    nodes_M: Int64s
    """Those whose rows are here, ascending."""
    crossing: Crossing

    def mine(self, nodes: Int64s) -> Int64s:
        """Return those of some nodes whose rows are here."""
        here: Int64s = nodes[self.home_N[nodes] == self.crossing.world.rank]
        return here

    def places(self, nodes: Int64s) -> Int64s:
        """Return where the rows of nodes lie that are here."""
        return np.searchsorted(self.nodes_M, nodes)

    def meet(self, out_MH: Tensor, sources_P: Int64s, targets_P: Int64s) -> tuple[Tensor, Int64s, Int64s, Int64s]:
        """Collective. Return rows, the places of both ends of this rank's pairs in them, and which pairs they are.

        A pair belongs to the rank that has the row of its source. All ranks know all pairs.
        """
        world, home_N = self.crossing.world, self.home_N
        is_source, is_target = home_N[sources_P] == world.rank, home_N[targets_P] == world.rank
        arriving, leaving = targets_P[is_source & ~is_target], is_target & ~is_source
        size = len(home_N), world.size
        far, received = pairs_by_rank(arriving, home_N[arriving], *size)
        wanted, sent = pairs_by_rank(targets_P[leaving], home_N[sources_P[leaving]], *size)
        if torch.is_grad_enabled() and not out_MH.requires_grad:
            # Gradients travel on all ranks or on none, also from a rank that has no row.
            out_MH = tie(out_MH, (out_MH.new_empty(0, requires_grad=True),))
        told = out_MH.index_select(0, torch.from_numpy(self.places(wanted)).to(out_MH.device))
        came = self.crossing.swap(told, sent=sent, received=received, name="halo/pairs")
        order = np.argsort(far)
        mine = np.flatnonzero(is_source)
        targets = targets_P[mine]
        near = is_target[mine]
        place = np.empty(len(mine), np.int64)
        place[near] = self.places(targets[near])
        place[~near] = len(out_MH) + order[np.searchsorted(far, targets[~near], sorter=order)]
        return torch.cat([out_MH, came]), self.places(sources_P[mine]), place, mine
