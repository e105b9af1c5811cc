"""The blocks of a rank in one epoch: what a model is given of each snapshot of a window, kept while windows need it.

Shape letters: N nodes of the graph, O own nodes in the order of the epoch, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import GraphLike
from timeloom.plan.batch.blocks import Block
from timeloom.plan.batch.cut import EpochCut, SidesStore
from timeloom.plan.batch.kept import StateRows, state_rows
from timeloom.plan.batch.order import Chunking, ChunkOrder, chunk_order
from timeloom.plan.batch.trapezoid import exchanging
from timeloom.plan.partition.metis import chunks
from timeloom.plan.partition.owners import Owners
from timeloom.plan.types import Unit
from timeloom.train.crossing import Crossing
from timeloom.train.flare.view import BlockView, OwnRows, Side, side_of
from timeloom.train.holding import HoldsOwn
from timeloom.train.session import Session


@dataclass(frozen=True, slots=True)
class Sight:
    """What a model is given of one snapshot of a window."""

    rows: StateRows
    view: BlockView
    x_OF: Tensor


def chunking_of(session: Session) -> Chunking:
    """Collective. Return every node's owner and chunk; the first rank finds the chunks."""
    flare, world, holding = session.settings.flare, session.world, session.feed.holding
    if isinstance(holding, HoldsOwn):
        owners = holding.nodes.owners
    else:
        owners = Owners(owner_N=np.zeros(session.graph.num_nodes, np.int32), num_ranks=1, name="one")
    found = np.empty(0, np.int32)
    if world.rank == 0:
        seed = session.settings.system.partition.seed
        stop = session.split.train_stop
        found = chunks(session.graph, stop, owners, flare.chunks, seed=seed, by=flare.chunks_by).chunk_N
    told = np.frombuffer(world.broadcast_bytes(found.tobytes(), "control/chunks"), np.int32).copy()
    return Chunking(owners.owner_N, told, owners.num_ranks, flare.chunks)


class Stores:
    """The edges of a rank in buckets, along and, for the models that ask, against their direction; for a whole run."""

    def __init__(self, session: Session) -> None:
        """Collective."""
        self.chunking = chunking_of(session)
        self._session = session
        self._against: SidesStore | None = None
        # Half of the memory that may be used: whole snapshots are laid out in it, too, when a model is scored.
        room = session.feed.room
        self._budget_bytes = room.left // 2
        room.take(self._budget_bytes)
        self.along = self._store(session.graph)

    def __enter__(self) -> Stores:
        """Return them."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave their memory to others."""
        self._session.feed.room.give_back(self._budget_bytes)

    def _store(self, graph: GraphLike) -> SidesStore:
        return SidesStore(graph, self.chunking, self._session.world.rank, budget_bytes=self._budget_bytes)

    @property
    def against(self) -> SidesStore:
        """The same of edges that are turned round."""
        if self._against is None:
            self._against = self._store(_Against(self._session.graph))  # type: ignore[arg-type]
        return self._against


class _Against:
    """A graph whose edges lead the other way."""

    def __init__(self, graph: GraphLike) -> None:
        self._graph = graph

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t with its edges turned round."""
        now = self._graph.snapshot(t)
        keys = now.layout.pack(now.targets, now.sources, now.types)
        order = np.argsort(keys)
        weights = None if now.stored_weights is None else now.stored_weights[order]
        return replace(now, keys=keys[order], stored_weights=weights)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is kept of the nodes in the first chunks of a snapshot."""

    x_OF: Tensor
    alive_O: NDArray[np.bool_]
    degrees_O2: NDArray[np.float64] | None

    def first(self, size: int) -> _Facts:
        """Return what is kept of the first so many nodes; the memory of the others is let go."""
        if size == len(self.x_OF):
            return self
        degrees = None if self.degrees_O2 is None else self.degrees_O2[:size].copy()
        return _Facts(self.x_OF[:size].clone(), self.alive_O[:size].copy(), degrees)


class Epoch:
    """The order of nodes in one epoch, and what windows are given in it."""

    def __init__(self, session: Session, stores: Stores, number: int) -> None:
        settings, rank = session.settings, session.world.rank
        self.number, self._flare, self._feed, self._stores = number, settings.flare, session.feed, stores
        self.order: ChunkOrder = chunk_order(stores.chunking, seed=settings.train.seed, epoch=number)
        own = self.order.own(rank)
        self.nodes_O, self.ends = own.nodes, own.ends
        holding = session.feed.holding
        self.crossing: Crossing | None = holding.crossing if isinstance(holding, HoldsOwn) else None
        places = holding.nodes.places[own.nodes] if isinstance(holding, HoldsOwn) else own.nodes
        self.places_O = torch.from_numpy(places.astype(np.int64)).to(session.device)
        """Where the node of each row lies among the nodes here, which are in the order of the graph."""
        self.rows_N = torch.argsort(self.places_O)
        """The row of each node here."""
        self._cut = EpochCut(stores.along, self.order, settings.flare)
        self._cut_against: EpochCut | None = None
        self._views: dict[int, tuple[int, BlockView]] = {}
        self._facts: dict[int, _Facts] = {}

    def sights(self, unit: Unit) -> list[Sight]:
        """Return what there is of each snapshot of a unit; what only earlier units needed is forgotten."""
        within = range(unit.first, unit.last)
        self._facts = {t: known for t, known in self._facts.items() if t in within}
        found = []
        for place, rows in enumerate(state_rows(unit, self.ends)):
            facts = self._facts[rows.t] = self._facts_of(rows.t, rows.size)
            view = self._view(unit, place, rows, facts)
            found.append(Sight(rows, view, facts.x_OF))
        return found

    def let_go(self, unit: Unit) -> None:
        """Forget the views that the next unit has no use for: those of snapshots of which fewer chunks will be left."""
        self._views = {
            t: known for t, known in self._views.items()
            if t in range(unit.first, unit.last) and self._next_chunks(unit, t) == known[0]
        }  # fmt: skip

    def _next_chunks(self, unit: Unit, t: int) -> int:
        older = (*self._flare.counts, 0)
        return older[unit.last - t] if unit.targets else 0

    def _facts_of(self, t: int, size: int) -> _Facts:
        known = self._facts.get(t)
        if known is not None and len(known.x_OF) >= size:
            return known.first(size)
        feed, places = self._feed, self.places_O[:size]
        facts, here = feed.facts(t), places.cpu().numpy()
        degrees = None
        if self._flare.degrees == "snapshot":
            degrees = np.stack([part[here] for part in facts.strengths()], 1)
        return _Facts(feed.rows(t).index_select(0, places), facts.alive[here], degrees)

    def _view(self, unit: Unit, place: int, rows: StateRows, facts: _Facts) -> BlockView:
        t, count, exchanges = rows.t, unit.chunks[place], exchanging(self._flare, unit)[place]
        known = self._views.get(t)
        if known is not None and known[0] == count:
            return known[1]
        exchanges = exchanges and self.crossing is not None
        along = self._side(self._cut.block(unit, t), facts, exchanges=exchanges, reverse=False)

        def against() -> Side:
            return self._turned(unit, t, facts) if exchanges else along.flipped()

        alive_O = torch.from_numpy(facts.alive_O).to(self._feed.device)
        view = BlockView(
            t, OwnRows(self.nodes_O[: rows.size], alive_O), along, against, crossing=self.crossing,
            dtype=self._feed.dtype,
        )  # fmt: skip
        self._views[t] = (count, view)
        return view

    def _turned(self, unit: Unit, t: int, facts: _Facts) -> Side:
        """Return the edges of a block the other way round, and the halo that they need."""
        if self._cut_against is None:
            self._cut_against = EpochCut(self._stores.against, self.order, self._flare)
        return self._side(self._cut_against.block(unit, t), facts, exchanges=True, reverse=True)

    def _side(self, block: Block, facts: _Facts, *, exchanges: bool, reverse: bool) -> Side:
        feed = self._feed
        side = side_of(block, exchanges=exchanges, dtype=feed.dtype, device=feed.device)
        if facts.degrees_O2 is None:
            return side
        into_O, out_of_O = torch.from_numpy(facts.degrees_O2).to(feed.device).unbind(1)
        if reverse:
            into_O, out_of_O = out_of_O, into_O
        return replace(side, into_O=into_O, out_of_O=out_of_O)
