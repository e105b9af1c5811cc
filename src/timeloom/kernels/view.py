"""What a model sees of one snapshot: the nodes that are here, and ways to bring rows along the edges between them.

A model never knows where the rows come from: a full pass over the edges, a delta, a cache, another rank.

Shape letters: A rows (the nodes that are here), E edges, F features, H heads, K picked rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor

Norm = Literal["sym", "both", "mean", "sum"]
NORMS: tuple[Norm, ...] = ("sym", "both", "mean", "sum")


class View(ABC):
    """One snapshot, as a model sees it.

    Note: a row is a node that is here in this snapshot, in ascending order of node number. Nodes that are not here have
    no row: their state waits, unread, until they are back.
    """

    t: int
    """The snapshot's index of time."""
    nodes: Tensor
    """[A] The number of each row's node in the graph (int64, ascending)."""

    @property
    def num_rows(self) -> int:
        """How many nodes are here."""
        return len(self.nodes)

    @property
    @abstractmethod
    def edge_index(self) -> Tensor:
        """[2, E] The source row and the target row of each edge (int64), sorted by target: PyG's convention."""

    @property
    @abstractmethod
    def edge_weight(self) -> Tensor:
        """[E] The weight of each edge."""

    @abstractmethod
    def aggregate(self, x_AF: Tensor, norm: Norm, *, self_loops: bool = True, reverse: bool = False) -> Tensor:
        """Return for each row the weighted sum of its in-neighbours' rows, and of its own where ``self_loops``.

        With d_in and d_out the sums of the absolute weights of a row's in- and out-edges, and its self loop (weight 1)
        counted where there is one, edge u -> v of weight w counts: `sum` w; `mean` w / d_in(v); `sym` (PyG)
        w / sqrt(d_in(u) d_in(v)); `both` (DGL, Flare) w / sqrt(d_out(u) d_in(v)). A degree of 0 gives 0, never a NaN.
        ``reverse`` turns every edge around first.
        """

    @abstractmethod
    def attend(
        self, values_AHF: Tensor, source_logits_AH: Tensor, target_logits_AH: Tensor, *,
        self_loops: bool = True, slope: float = 0.2, dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Return [A, H, F]: each row's in-neighbours' values, weighted by attention.

        The attention of edge u -> v is the softmax over v's in-edges of LeakyReLU(source_logits[u] + target_logits[v]);
        a row without in-edges gives 0. ``dropout`` drops attention weights (the caller passes 0 when not training).
        """

    @abstractmethod
    def walk(self, x_AF: Tensor, *, reverse: bool = False) -> Tensor:
        """Return one step of the random walk on the edges, without self loops: D_out^-1 W x.

        Row v reads from the nodes that its *out*-edges lead to, in proportion to the absolute weights; ``reverse``
        walks against the edges: D_in^-1 W^T x. A row with nowhere to go gives 0.
        """

    @abstractmethod
    def top(self, x_AF: Tensor, scores_A: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the rows with the highest scores, best first (ties: lower node first), and their scores.

        With fewer rows than ``count``, the last one is repeated; with no row at all, both are 0.
        """
