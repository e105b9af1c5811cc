"""What of a graph is on a rank: all of it, or the nodes that the rank owns and the edges that lead to them.

Shape letters: N all nodes, O nodes whose rows are here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from timeloom.dist.collectives import World
from timeloom.graph.keys import Float64s
from timeloom.graph.snapshot import NodeFacts, Snapshot
from timeloom.graph.tasks import GraphLike
from timeloom.plan.partition.choose import partition
from timeloom.plan.partition.own import OwnNodes, nodes_in
from timeloom.plan.partition.owners import Owners
from timeloom.train.crossing import Crossing
from timeloom.train.drifting import Drifting
from timeloom.train.localise import WholeView
from timeloom.train.part_view import PartView
from timeloom.train.system import SystemSettings

D = TypeVar("D", bound=np.generic)


class Holding(ABC):
    """What is here of snapshots, and of anything that every node has."""

    holds_all: bool
    """Every node is here, so that nothing has to be agreed on with others."""
    overlaps: bool
    """Rows of a halo are sent for before the snapshot before is computed."""

    @abstractmethod
    def count(self, num_nodes: int) -> int:
        """Return how many of a graph's nodes are here."""

    @abstractmethod
    def own(self, rows: NDArray[D]) -> NDArray[D]:
        """Return, of rows [N, ...] of all nodes, those that are here."""

    @abstractmethod
    def facts(self, snapshot: Snapshot) -> NodeFacts:
        """Return what is known of the nodes here in a snapshot."""

    @abstractmethod
    def view(
        self, snapshot: Snapshot, again: Callable[[], Snapshot], *, dtype: torch.dtype, device: torch.device,
        drifting: Drifting | None = None,
    ) -> WholeView | PartView:  # fmt: skip
        """Return what a model sees of a snapshot; ``again`` reads it once more, where that is needed later."""

    @abstractmethod
    def total(self, x: NDArray[Any], name: str) -> Float64s:
        """Collective. Return the sum of what each rank has counted of its nodes."""


class HoldsAll(Holding):
    """A rank that has every node."""

    holds_all, overlaps = True, False

    def count(self, num_nodes: int) -> int:
        """Return the number of all nodes."""
        return num_nodes

    def own(self, rows: NDArray[D]) -> NDArray[D]:
        """Return them as they are."""
        return rows

    def facts(self, snapshot: Snapshot) -> NodeFacts:
        """Return the snapshot itself."""
        return snapshot

    def view(
        self, snapshot: Snapshot, again: Callable[[], Snapshot], *, dtype: torch.dtype, device: torch.device,
        drifting: Drifting | None = None,
    ) -> WholeView:  # fmt: skip
        """Return a view of the whole snapshot."""
        return WholeView(snapshot, dtype=dtype, device=device, drifting=drifting)

    def total(self, x: NDArray[Any], name: str) -> Float64s:
        """Return what was counted here: that is all."""
        return x.astype(np.float64)


HOLDS_ALL = HoldsAll()


class HoldsOwn(Holding):
    """A rank that has the nodes it owns. Nothing here but `total` waits for another rank, so caches may differ."""

    holds_all = False

    def __init__(self, nodes: OwnNodes, world: World, *, overlaps: bool) -> None:
        self.nodes, self.world, self.crossing, self.overlaps = nodes, world, Crossing(world), overlaps

    def count(self, num_nodes: int) -> int:
        """Return how many nodes are owned."""
        return len(self.nodes)

    def own(self, rows: NDArray[D]) -> NDArray[D]:
        """Return the rows of own nodes."""
        return rows[self.nodes.nodes]

    def facts(self, snapshot: Snapshot) -> NodeFacts:
        """Return what is known of own nodes; their degrees count all edges."""
        return nodes_in(self.nodes, snapshot)

    def view(
        self, snapshot: Snapshot, again: Callable[[], Snapshot], *, dtype: torch.dtype, device: torch.device,
        drifting: Drifting | None = None,
    ) -> PartView:  # fmt: skip
        """Return a view of own nodes, their edges and their halo."""
        assert drifting is None, "approximations are refused where nodes are divided"
        return PartView(self.nodes, snapshot, again, crossing=self.crossing, dtype=dtype, device=device)

    def total(self, x: NDArray[Any], name: str) -> Float64s:
        """Collective. Return the sum over all ranks."""
        told = torch.from_numpy(np.ascontiguousarray(x, np.float64).copy())
        return self.world.all_reduce(told, f"control/{name}").numpy()


def divided(graph: GraphLike, train_stop: int, settings: SystemSettings, world: World) -> Holding:
    """Collective. Return the part of a graph that each rank holds; the first rank finds the owners."""
    chosen, owner_N = settings.partition, np.empty(0, np.int32)
    if world.rank == 0:
        owner_N = partition(graph, train_stop, world.size, chosen).owner_N
    told = np.frombuffer(world.broadcast_bytes(owner_N.tobytes(), "control/owners"), np.int32).copy()
    owners = Owners(owner_N=told, num_ranks=world.size, name=chosen.by)
    return HoldsOwn(OwnNodes(owners, world.rank), world, overlaps=settings.overlap)
