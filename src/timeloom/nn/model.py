"""What a model is: a part that sees one snapshot, a part that remembers, and a description of what is remembered.

Shape letters: N nodes, F features, H the model's output size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from timeloom.kernels.blocked_cells import Cell
from timeloom.kernels.front import Affine, mapped
from timeloom.kernels.norms import Norm

T = TypeVar("T")
State = tuple[Tensor, ...]
"""What a model remembers between snapshots, in the order of its `memory`."""
Rows = tuple[Tensor, ...]
"""What a model makes of a snapshot alone."""


class View(ABC):
    """What a model sees of a snapshot. It never knows where rows come from: a full pass, a cache or another rank."""

    t: int
    num_nodes: int
    alive_N: Tensor
    """bool: which nodes are there."""
    all_alive: bool

    @abstractmethod
    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Return, for each node, what its in-neighbours' rows come to (``P_t x``)."""

    @abstractmethod
    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Return, for each node, its in-neighbours' values weighed by a softmax of their logits."""

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the rows and the scores of the nodes that are there and score highest: ``count``, or all there are.

        The best come first, and of equal ones those that come first in the graph.
        """
        return best_of(self.alive_N, x_NF, scores_N, count)

    def knows(self, x_NF: Tensor, norm: Norm) -> bool:
        """Say whether ``aggregate(x, norm)`` is at hand, so that it costs nothing however long its rows are."""
        return False

    def once(self, x_NF: Tensor, make: Callable[[Tensor], T]) -> T:
        """Return ``make(x)``, made once for all snapshots that are given the very same rows.

        ``make`` is a method of a layer: a function of the rows and the layer's parameters alone. A view that knows of
        no other snapshot makes it.
        """
        return make(x_NF)

    @property
    @abstractmethod
    def edge_index(self) -> Tensor:
        """[2, E] int64: the source and the target of each edge, for layers of other libraries."""

    @property
    @abstractmethod
    def edge_weight(self) -> Tensor:
        """[E] the weight of each edge."""


@dataclass(frozen=True, slots=True)
class PerNode:
    """A part of the state with a row for every node; it starts at 0."""

    name: str
    shape: tuple[int, ...]
    holds: bool = True
    """The engine keeps the row of a node that is absent as it was (SPEC D1.4), unless the model sees to it itself."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A part of the state that belongs to no node; it starts at a learnt value in every window (SPEC D2.1)."""

    name: str
    start: nn.Parameter


Memory = tuple[PerNode | Shared, ...]


class Model(nn.Module, ABC):
    """A model of a graph that changes. The engine owns the state: it starts, carries, detaches and saves it.

    Say in `__init__` what comes out (`out_size`), how far a snapshot's messages travel (`hops`), and whether the
    state of other nodes is read (`mixes_states`: then a node's past depends on ever more nodes, and systems that keep
    only its neighbourhood refuse the model), and whether a snapshot's nodes are read all at once (`sees_all`); and
    then whether through the view alone (`asks_view`), so that nodes may lie on several ranks.
    """

    out_size: int
    hops: int = 1
    mixes_states: bool = False
    sees_all: bool = False
    asks_view: bool = False

    @abstractmethod
    def memory(self) -> Memory:
        """Return what is remembered between snapshots."""

    @abstractmethod
    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return what depends on this snapshot alone: the engine may share it between windows."""

    @abstractmethod
    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the output [N, H] and the new state, from the encoded rows and the state before."""


class RowModel(Model):
    """A model whose memory reads no neighbours: rows of a snapshot, maps of each row, and a recurrent cell.

    The engine may take such a model over a window in blocks of nodes, the maps and the cell together.
    """

    @abstractmethod
    def spatial(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        """Return rows of a snapshot, and the maps that make the input sides of the cell's gates of each of them."""

    @abstractmethod
    def cell(self) -> Cell:
        """Return the cell that `recur` computes, for blocks of nodes; its state is the model's."""

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return the input sides of the gates."""
        rows_NA, maps = self.spatial(view, x_NF)
        return (mapped(rows_NA, maps),)


class LayeredModel(Model):
    """A model whose encoding is layers on top of each other, each of a row and the mean of those of in-neighbours.

    The engine may then take means over some of the neighbours (sampling), for the rows that somebody reads alone. The
    encoding is what the last of `hops` layers gives, and 0 for nodes that are not there.
    """

    @abstractmethod
    def layer(self, depth: int, x_NF: Tensor, mean_NF: Tensor) -> Tensor:
        """Return what a layer makes of rows and of the weighted means of what each of them hears."""


def best_of(alive_N: Tensor, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return what `View.best` does, of nodes that are all at hand."""
    scores_N = scores_N.masked_fill(~alive_N, -torch.inf)
    # Sorting is stable where topk is not: nodes with equal scores come in their own order on every machine.
    order = torch.sort(scores_N.detach(), descending=True, stable=True).indices
    chosen = order[: min(count, int(alive_N.sum()))]
    return x_NF.index_select(0, chosen), scores_N.index_select(0, chosen)


def start(memory: Memory, num_nodes: int, like: Tensor) -> State:
    """Return the state before the first snapshot."""
    return tuple(
        torch.zeros(num_nodes, *slot.shape, dtype=like.dtype, device=like.device)
        if isinstance(slot, PerNode)
        else slot.start
        for slot in memory
    )


def resume(memory: Memory, kept: State) -> State:
    """Return the state a window starts from when it goes on from another: what is shared starts anew (SPEC D2.1)."""
    return tuple(
        old.detach() if isinstance(slot, PerNode) else slot.start for slot, old in zip(memory, kept, strict=True)
    )


def advance(model: Model, view: View, x_NF: Tensor, state: State, *, hold: bool) -> tuple[Tensor, State]:
    """Take a model over one snapshot; with ``hold``, nodes that are absent give 0 and remember what they did."""
    return remember(model, view, model.encode(view, x_NF), state, hold=hold)


def remember(model: Model, view: View, rows: Rows, state: State, *, hold: bool) -> tuple[Tensor, State]:
    """Take a model over a snapshot that is encoded already; see `advance`."""
    out_NH, after = model.recur(view, rows, state)
    if view.all_alive or not hold:
        return out_NH, after
    here_N = view.alive_N
    held = tuple(
        torch.where(here_N.view(-1, *[1] * (new.dim() - 1)), new, old)
        if isinstance(slot, PerNode) and slot.holds
        else new
        for slot, new, old in zip(model.memory(), after, state, strict=True)
    )
    return torch.where(here_N[:, None], out_NH, 0.0), held
