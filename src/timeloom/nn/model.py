"""What a model is: a part that sees one snapshot, a part that remembers, and a description of what is remembered.

Shape letters: N nodes, F features, H the model's output size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from timeloom.kernels.norms import Norm

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
    only its neighbourhood refuse the model), and whether a snapshot's nodes are read all at once (`sees_all`).
    """

    out_size: int
    hops: int = 1
    mixes_states: bool = False
    sees_all: bool = False

    @abstractmethod
    def memory(self) -> Memory:
        """Return what is remembered between snapshots."""

    @abstractmethod
    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return what depends on this snapshot alone: the engine may share it between windows."""

    @abstractmethod
    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the output [N, H] and the new state, from the encoded rows and the state before."""


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
    out_NH, after = model.recur(view, model.encode(view, x_NF), state)
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
