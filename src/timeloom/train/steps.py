"""What turns the sums of one snapshot into the next one's, kept from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from timeloom.kernels.drift import sym_approx_chain, sym_approx_step
from timeloom.kernels.incremental import ChainStep, aggregate_chain, step_between
from timeloom.kernels.incremental_attention import attend_chain, attention_start, attention_step
from timeloom.kernels.norms import WITH_SOURCE_SCALES, Norm
from timeloom.train.feed import Feed
from timeloom.train.kept import Kept
from timeloom.train.localise import WholeView


class Steps:
    """The steps between the snapshots of a graph, for every norm that is asked for, and for attention."""

    def __init__(self, feed: Feed, *, eq_4: bool = False) -> None:
        """With ``eq_4`` sums of norms with source scales take the approximate steps of REAL's Eq. 4."""
        self._feed, self._eq_4 = feed, eq_4
        self._made = Kept[Any, ChainStep](feed.room)

    def sums(self, t: int, norm: Norm) -> ChainStep:
        """Return what leads from the sums of snapshot ``t - 1`` to those of t."""
        before, after = self._feed.whole_view(t - 1), self._feed.whole_view(t)

        def make() -> ChainStep:
            sides, scales = (before.directed(norm), after.directed(norm)), (before.scales(norm), after.scales(norm))
            if self.is_approximate(norm):
                return sym_approx_step(*sides, *scales, dtype=self._feed.dtype)
            return step_between(*sides, *scales, dtype=self._feed.dtype)

        return self._kept((t, norm), make)

    def is_approximate(self, norm: Norm) -> bool:
        """Say whether the steps of a norm are those of Eq. 4."""
        return self._eq_4 and norm.kind in WITH_SOURCE_SCALES

    def begun(self, t: int, *, self_loops: bool) -> ChainStep:
        """Return what leads attention from nothing to snapshot t."""
        view = self._feed.whole_view(t)
        return self._kept((t, self_loops, "begun"), lambda: attention_start(view.edges, loops_of(view, self_loops)))

    def attention(self, t: int, *, self_loops: bool) -> ChainStep:
        """Return what leads attention from snapshot ``t - 1`` to t."""
        before, after = self._feed.whole_view(t - 1), self._feed.whole_view(t)
        loops = (loops_of(before, self_loops), loops_of(after, self_loops))
        return self._kept((t, self_loops), lambda: attention_step(before.edges, after.edges, *loops))

    def _kept(self, key: Any, make: Callable[[], ChainStep]) -> ChainStep:
        if (kept := self._made.get(key)) is not None:
            return kept
        made = make()
        # An entry is kept twice, by target and by source: an index, a weight and an order.
        return self._made.offer(key, made, 2 * made.num_entries * (8 + self._feed.dtype.itemsize))

    def chain(self, first: int, last: int) -> FeedChain:
        """Return the chain over some snapshots."""
        return FeedChain(self._feed, self, first, last)


def loops_of(view: WholeView, self_loops: bool) -> Tensor | None:
    """Return 1 for every node that also attends to itself."""
    return view.alive_N.to(view.dtype) if self_loops else None


@dataclass(frozen=True, slots=True)
class FeedChain:
    """Sums over neighbours in the snapshots from `first` to `last`, each made of the one before."""

    feed: Feed
    steps: Steps
    first: int
    last: int

    def _views(self) -> list[WholeView]:
        return [self.feed.whole_view(t) for t in range(self.first, self.last)]

    def aggregate(self, x_NF: Tensor, norm: Norm) -> list[Tensor]:
        """Return ``P_t x`` for every snapshot."""
        views = self._views()
        steps = [self.steps.sums(t, norm) for t in range(self.first + 1, self.last)]
        if self.steps.is_approximate(norm):
            return sym_approx_chain(views[0].directed(norm), steps, views[0].scales(norm), x_NF)
        return aggregate_chain(views[0].directed(norm), steps, [view.scales(norm) for view in views], x_NF)

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> list[Tensor]:
        """Return every snapshot's attended values."""
        views = self._views()
        steps = [self.steps.begun(self.first, self_loops=self_loops)]
        steps += [self.steps.attention(t, self_loops=self_loops) for t in range(self.first + 1, self.last)]
        loops = [view.alive_N.to(view.dtype) for view in views] if self_loops else None
        edges = [view.edges for view in views]
        return attend_chain(edges, value_NHD, sent_NH, received_NH, steps=steps, loops=loops, slope=slope)
