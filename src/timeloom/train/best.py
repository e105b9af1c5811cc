"""Which nodes score highest, where each rank knows the scores of its own.

Shape letters: O own nodes, F features, K candidates of a rank, C rows that are chosen.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from timeloom.graph.keys import Int64s
from timeloom.train.crossing import Crossing


class HasNodes(Protocol):
    """Whatever knows which nodes of the graph a rank's rows are."""

    @property
    def nodes(self) -> Int64s:
        """The number of each row's node in the graph."""
        ...


def best_of_all(
    crossing: Crossing, own: HasNodes, alive_O: Tensor, rows_and_scores: tuple[Tensor, Tensor], count: int
) -> tuple[Tensor, Tensor]:
    """Collective. Return rows [C, F] and scores [C] of the ``count`` best nodes of all ranks (fewer if there are).

    Every rank tells its own best ones first; then rows are sent of those only that are among the best of all.
    """
    (x_OF, scores_O), world = rows_and_scores, crossing.world
    mine = torch.sort(scores_O.detach().masked_fill(~alive_O, -torch.inf), descending=True, stable=True).indices
    mine = mine[: min(count, int(alive_O.sum()))]
    nodes = torch.from_numpy(own.nodes).to(mine.device).index_select(0, mine)
    told_K2 = torch.full((count, 2), -torch.inf, dtype=torch.float64, device=mine.device)
    told_K2[: len(mine), 0] = scores_O.detach().index_select(0, mine).double()
    told_K2[: len(mine), 1] = nodes.double()
    each = (count,) * world.size
    all_told = world.all_to_all(told_K2.repeat(world.size, 1), "halo/scores", sent=each, received=each)
    by_node = torch.sort(all_told[:, 1], stable=True).indices
    by_score = torch.sort(all_told[by_node, 0], descending=True, stable=True).indices
    chosen_C = by_node[by_score][: min(count, int((all_told[:, 1] >= 0).sum()))]
    if not len(chosen_C):
        return x_OF[:0], scores_O[:0]
    rank_C = chosen_C // count
    received = tuple(torch.bincount(rank_C, minlength=world.size).tolist())
    sent = mine.index_select(0, chosen_C[rank_C == world.rank] % count)
    rows = torch.cat([x_OF.index_select(0, sent), scores_O.index_select(0, sent)[:, None]], 1)
    came = crossing.swap(
        rows.repeat(world.size, 1), sent=(len(sent),) * world.size, received=received, name="halo/best"
    )  # fmt: skip
    # They came rank by rank, and of each rank in the order of the chosen.
    place_C = torch.empty_like(chosen_C)
    place_C[torch.sort(rank_C, stable=True).indices] = torch.arange(len(chosen_C), device=chosen_C.device)
    best = came.index_select(0, place_C)
    return best[:, :-1], best[:, -1]
