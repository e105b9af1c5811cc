"""What the graph of drifting communities is: its options, and the law by which its edges change.

Every snapshot's edges are a draw from a law of that moment alone: who is in which community and how busy communities
are *now*. Edges stay as often as this allows, but what stays tells nothing of the past, so that a class that depends on
the past cannot be read from one snapshot.

Shape letters: T snapshots, N nodes, C communities, E edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.ingest.rows import RowBlock
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.synth import options
from timeloom.graph.synth.communities import (
    MOST_COMMUNITIES,
    Classes,
    Communities,
    past_classes,
    tides,
    wander,
)
from timeloom.graph.synth.draw import Stream, apportion, keyed, pick, power_law_weights
from timeloom.graph.synth.evolve import PART_EDGES, Change, draw_new

CLASSES = ("calm", "busy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Communities that drift: a node's class is whether the community it was in ``lag`` snapshots ago was busy then.

    Communities grow busy and calm in turn, in waves of four times ``lag`` snapshots, so that how busy one is now says
    nothing of how busy it was ``lag`` snapshots ago. The class is unknown (-1) in the first ``lag`` snapshots.
    """

    num_nodes: int = 2_000
    num_edges: int = 10_000
    """Edges of every snapshot."""
    num_snapshots: int = 60
    num_communities: int = 8
    inside: float = 0.9
    """The share of edges that stay inside a community; the others end anywhere."""
    drift: float = 0.01
    """The share of nodes that move to another community with each snapshot."""
    turnover: float = 0.3
    """The share of edges that are replaced with each snapshot."""
    exponent: float = 2.5
    """Nodes of degree k are about k ** -exponent of all, up to degree sqrt(num_edges / num_communities) or so."""
    wave: float = 1.0
    """The logarithm of how much busier than on average a community gets."""
    lag: int = 3
    seed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        options.sizes(self.num_nodes, self.num_edges, self.num_snapshots, self.seed)
        options.whole_number("num_communities", self.num_communities, 1, min(MOST_COMMUNITIES, self.num_nodes // 4))
        options.share("inside", self.inside)
        options.share("drift", self.drift)
        options.share("turnover", self.turnover)
        options.share("exponent", self.exponent, options.LEAST_EXPONENT, options.MOST_EXPONENT)
        options.share("wave", self.wave, 0.0, 3.0)
        options.whole_number("lag", self.lag, 1, 10_000)
        if self.turnover < self.least_turnover:
            raise BadConfig(
                f"turnover={self.turnover:g} was asked for, but drift={self.drift:g}, wave={self.wave:g} and "
                f"lag={self.lag} alone replace about {self.least_turnover:.2f} of the edges with each snapshot: "
                f"raise turnover, or lower drift or wave"
            )

    @property
    def most_share(self) -> float:
        """The largest share of the edge ends that a node expects.

        Two such nodes of one community expect one edge between them. If they expected more, which is not possible, the
        law of a snapshot would depend on the edges of the one before.
        """
        closeness = self.inside * self.num_communities + 1.0 - self.inside
        return 1.0 / math.sqrt(self.num_edges * closeness)

    @property
    def least_turnover(self) -> float:
        """About the share of edges that moving nodes and changing tides replace by themselves."""
        swing = 2.0 * self.wave * math.sin(math.pi / (4 * self.lag))
        stay = (1.0 - self.drift) ** 2 if self.num_communities > 1 else 1.0
        kept_inside = stay * (1.0 - swing / math.pi)
        kept_outside = 1.0 - swing * 0.405  # half the mean of |cos a + cos b|, for the tides of both ends
        return max(1.0 - self.inside * kept_inside - (1.0 - self.inside) * kept_outside, 0.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """What the edges of one snapshot are drawn from: sources by activity, targets inside the community or anywhere."""

    community: Communities
    activity: Float64s
    """[N] shares that sum to 1."""
    fame: Float64s
    """[N] shares that sum to 1 within each community."""
    inside: float

    def likelihood(self, sources: Int64s, targets: Int64s) -> Float64s:
        """Return the probability of each edge."""
        same = self.community[sources] == self.community[targets]
        ends: Float64s = self.inside * same * self.fame[targets] + (1.0 - self.inside) * self.activity[targets]
        return ends * self.activity[sources]


class DriftLaw:
    """How the edges of a graph of drifting communities change."""

    def __init__(self, drift: Drift) -> None:
        self._drift = drift
        size, seed = drift.num_nodes, drift.seed
        self.num_parts = -(-drift.num_edges // PART_EDGES)
        self.num_rows = int(drift.num_edges * (1.0 + 2.0 * drift.turnover * (drift.num_snapshots - 1)))
        self._weights = power_law_weights(size, drift.most_share, drift.exponent, keyed(seed, Stream.weights))
        self.communities = wander(
            size, drift.num_communities, drift.num_snapshots, drift=drift.drift, seed=seed
        )  # fmt: skip
        self._tides = tides(drift.num_communities, drift.num_snapshots, 4 * drift.lag)
        shares = [self._weights[part :: self.num_parts].sum() for part in range(self.num_parts)]
        self._part_sizes = apportion(drift.num_edges, np.array(shares))

    @property
    def classes(self) -> Classes:
        """The [T, N] classes."""
        return past_classes(self.communities, self._tides, self._drift.lag)

    def moment(self, t: int) -> Moment:
        """Return what the edges of snapshot t are drawn from."""
        community = self.communities[t]
        activity = self._weights * np.exp(self._drift.wave * self._tides[t])[community]
        fame = self._weights / np.bincount(community, self._weights)[community]
        return Moment(community, activity / activity.sum(), fame, self._drift.inside)

    def rows(self, edges: Int64s) -> RowBlock:
        """Return the ends of edges."""
        sources, targets = np.divmod(edges, self._drift.num_nodes)
        return RowBlock(source=sources, target=targets)

    def change(self, part: int, t: int, edges: Int64s) -> Change:
        """Let edges go, sooner the less likely they became, and draw so many new ones that the number stays."""
        rng = keyed(self._drift.seed, Stream.edges, part=part, t=t)
        now = self.moment(t)
        count = int(self._part_sizes[part])
        if t == 0:
            return Change(edges, draw_new(count, edges, _Proposals(now, None, 0.0, part, self.num_parts, rng)))
        before = self.moment(t - 1)
        ends = np.divmod(edges, self._drift.num_nodes)
        lasting = np.minimum(now.likelihood(*ends) / before.likelihood(*ends), 1.0)
        # What the changing law drives out counts towards the turnover; chance takes the rest.
        kept = min((1.0 - self._drift.turnover) / max(lasting.mean(), 1e-9), 1.0)
        gone = edges[rng.random(len(edges)) >= kept * lasting]
        proposals = _Proposals(now, before, kept, part, self.num_parts, rng)
        return Change(gone, draw_new(count - len(edges) + len(gone), edges, proposals))


class _Proposals:
    """Draws the edges that, beside those that stay, make a snapshot a draw from its own law."""

    def __init__(
        self, now: Moment, before: Moment | None, kept: float, part: int, num_parts: int, rng: np.random.Generator
    ) -> None:
        self._now, self._before, self._kept, self._rng = now, before, kept, rng
        self._sources = np.arange(part, len(now.activity), num_parts)
        self._sources_upto = np.cumsum(now.activity[self._sources])
        self._anywhere_upto = np.cumsum(now.activity)
        self._members = np.argsort(now.community, kind="stable")
        self._members_upto = np.cumsum(now.fame[self._members])
        ends = np.cumsum(np.bincount(now.community))
        self._first, self._last = ends - np.bincount(now.community), ends - 1

    def __call__(self, count: int) -> Int64s:
        """Return edges out of ``count`` draws."""
        rng, now = self._rng, self._now
        sources = self._sources[pick(self._sources_upto, rng.random(count))]
        targets = pick(self._anywhere_upto, rng.random(count))
        inside = np.flatnonzero(rng.random(count) < now.inside)
        targets[inside] = self._members_of(now.community[sources[inside]], rng.random(len(inside)))
        accepted = sources != targets
        if self._before is not None:
            ends = sources, targets
            staying = self._kept * np.minimum(self._before.likelihood(*ends) / now.likelihood(*ends), 1.0)
            accepted &= rng.random(count) >= staying
        proposed: Int64s = (sources * len(now.activity) + targets)[accepted]
        return proposed

    def _members_of(self, community: Communities, points: Float64s) -> Int64s:
        """Return one member of each community, by fame."""
        first, last = self._first[community], self._last[community]
        below = np.where(first > 0, self._members_upto[first - 1], 0.0)
        places = np.searchsorted(self._members_upto, below + points * (self._members_upto[last] - below), side="right")
        members: Int64s = self._members[np.clip(places, first, last)]
        return members
