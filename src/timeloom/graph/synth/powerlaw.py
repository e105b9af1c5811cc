"""What a graph is that grows and turns over under a power law of degrees: its options, and how its edges change.

Shape letters: T snapshots, N nodes, P parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.ingest.rows import RowBlock
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.synth import options
from timeloom.graph.synth.curves import CURVES, growth, whole
from timeloom.graph.synth.draw import Stream, apportion, keyed, pick, power_law_weights
from timeloom.graph.synth.evolve import PART_EDGES, Change, Propose, draw_new


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """A graph that grows: nodes join along a curve, edges appear along the same curve, and some are replaced.

    Node ids are in order of joining. A node that joins brings an edge from itself, while there are new edges to give.
    """

    num_nodes: int = 10_000
    """Nodes that have joined by the last snapshot."""
    num_edges: int = 100_000
    """Edges of the last snapshot."""
    num_snapshots: int = 50
    exponent: float = 2.5
    """Nodes of degree k are about k ** -exponent of all, up to degree sqrt(num_edges)."""
    curve: str = "linear"
    """linear | exponential"""
    first_share: float = 0.1
    """The share of nodes and edges that the first snapshot has."""
    turnover: float = 0.05
    """The share of edges that go with each snapshot, whichever they are; as many others take their place."""
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        options.sizes(self.num_nodes, self.num_edges, self.num_snapshots, self.seed)
        options.share("exponent", self.exponent, options.LEAST_EXPONENT, options.MOST_EXPONENT)
        options.one_of("curve", self.curve, CURVES)
        options.share("first_share", self.first_share, 1e-6)
        options.share("turnover", self.turnover)
        for t, (num_nodes, num_edges) in enumerate(zip(self.nodes_by_snapshot, self.edges_by_snapshot, strict=True)):
            if num_edges > (most := options.room_for(int(num_nodes))):
                raise BadConfig(
                    f"snapshot {t} is to have {num_edges} edges, but the {num_nodes} nodes that have joined leave room "
                    f"for {most} (a quarter of all pairs): raise first_share or num_nodes, or lower num_edges"
                )

    @property
    def _shares(self) -> Float64s:
        return growth(self.curve, self.first_share, 1.0, self.num_snapshots)

    @property
    def nodes_by_snapshot(self) -> Int64s:
        """How many nodes have joined by each snapshot."""
        return whole(self._shares, self.num_nodes, 4)

    @property
    def edges_by_snapshot(self) -> Int64s:
        """How many edges each snapshot has."""
        return whole(self._shares, self.num_edges, 1)


class PowerLawLaw:
    """How the edges of a growing graph change. A part holds the edges from every P-th node."""

    def __init__(self, asked: PowerLaw) -> None:
        self._asked = asked
        self._num_nodes_T = asked.nodes_by_snapshot
        self.num_parts = -(-asked.num_edges // PART_EDGES)
        rng = keyed(asked.seed, Stream.weights)
        weights = power_law_weights(asked.num_nodes, 1.0 / math.sqrt(asked.num_edges), asked.exponent, rng)
        self._weights, self._upto = weights, np.cumsum(weights)
        self._gone_TP, self._new_TP = self._plan()
        self.num_rows = int(self._gone_TP.sum() + self._new_TP.sum())

    def _plan(self) -> tuple[Int64s, Int64s]:
        """Return how many edges go from, and appear in, every part with each snapshot; sums over parts are exact."""
        edges_T = self._asked.edges_by_snapshot
        gone_TP = np.zeros((len(edges_T), self.num_parts), np.int64)
        new_TP = np.zeros_like(gone_TP)
        shares, sizes = np.zeros(self.num_parts), np.zeros(self.num_parts, np.int64)
        known, before = 0, 0
        for t, (upto, num_edges) in enumerate(zip(self._num_nodes_T.tolist(), edges_T.tolist(), strict=True)):
            shares += np.bincount(np.arange(known, upto) % self.num_parts, self._weights[known:upto], self.num_parts)
            num_gone = round(self._asked.turnover * before)
            gone_TP[t] = apportion(num_gone, sizes.astype(np.float64))
            new_TP[t] = apportion(num_edges - before + num_gone, shares)
            sizes += new_TP[t] - gone_TP[t]
            known, before = upto, num_edges
        return gone_TP, new_TP

    def rows(self, edges: Int64s) -> RowBlock:
        """Return the ends of edges."""
        sources, targets = np.divmod(edges, self._asked.num_nodes)
        return RowBlock(source=sources, target=targets)

    def change(self, part: int, t: int, edges: Int64s) -> Change:
        """Let any edges go, and draw new ones between the nodes that have joined."""
        rng = keyed(self._asked.seed, Stream.edges, part=part, t=t)
        gone = edges[np.sort(rng.choice(len(edges), int(self._gone_TP[t, part]), replace=False, shuffle=False))]
        count = int(self._new_TP[t, part])
        brought = self._brought(part, t, rng)[:count]
        return Change(gone, draw_new(count, edges, self._proposals(part, t, rng), brought))

    def _brought(self, part: int, t: int, rng: np.random.Generator) -> Int64s:
        """Return one edge from each node of the part that joins now, sorted."""
        first = int(self._num_nodes_T[t - 1]) if t else 0
        sources = np.arange(first + (part - first) % self.num_parts, self._num_nodes_T[t], self.num_parts)
        targets = self._ends(t, len(sources), rng)
        while len(loops := np.flatnonzero(sources == targets)):
            targets[loops] = self._ends(t, len(loops), rng)
        brought: Int64s = sources * self._asked.num_nodes + targets
        return brought

    def _ends(self, t: int, count: int, rng: np.random.Generator) -> Int64s:
        """Return ends of edges among all nodes that have joined."""
        return pick(self._upto[: self._num_nodes_T[t]], rng.random(count))

    def _proposals(self, part: int, t: int, rng: np.random.Generator) -> Propose:
        own_upto = np.cumsum(self._weights[part : self._num_nodes_T[t] : self.num_parts])

        def propose(count: int) -> Int64s:
            sources = part + self.num_parts * pick(own_upto, rng.random(count))
            targets = self._ends(t, count, rng)
            proposed: Int64s = (sources * self._asked.num_nodes + targets)[sources != targets]
            return proposed

        return propose
