"""Where the encoded rows of a window come from: a pass a snapshot, what changed, or a table of all versions of rows.

Shape letters: T snapshots of a window, N nodes, M nodes whose rows are read, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from timeloom.kernels.drift import deviation
from timeloom.kernels.front import Affine, mapped
from timeloom.kernels.norms import Norm
from timeloom.kernels.versions import Bools
from timeloom.nn.model import Model, RowModel, Rows, View
from timeloom.nn.watch import Asked, Opening, watch
from timeloom.train.aggregates import Aggregates
from timeloom.train.choose import Decided, Mode, Sizes, least, predicted
from timeloom.train.demand import Wanted
from timeloom.train.feed import Feed
from timeloom.train.kept import Kept, Room
from timeloom.train.steps import Steps
from timeloom.train.table_view import TableView, make_table
from timeloom.train.window_view import Shared, SilentView, WindowView

Maps = tuple[Affine, ...]
Make = Callable[[View, Tensor], tuple[Rows, Maps]]
"""What is made of a view and its input rows, and the maps that each of these rows has yet to go through."""
# A table of fewer rows than this share of all rows of the window goes through the maps as a table.
_FEW = 0.7


def make_of(layer: Model) -> Make:
    """Return what a layer makes of a snapshot; maps are left over where the engine can take rows through them."""
    if not isinstance(layer, RowModel):
        return lambda view, x_NF: (layer.encode(view, x_NF), ())

    def make(view: View, x_NF: Tensor) -> tuple[Rows, Maps]:
        rows, maps = layer.spatial(view, x_NF)
        return (rows,), maps

    return make


@dataclass(frozen=True, slots=True)
class Encoded:
    """What was made of the snapshots of a window."""

    parts: tuple[Rows, ...]
    """For each snapshot, or of one table for all of them."""
    maps: Maps
    """What rows have yet to go through."""
    place_TN: Tensor | None
    """Where there is a table: which of its rows a node is in a snapshot."""
    nodes_T: tuple[Tensor | None, ...]
    """For each snapshot, the nodes that have a row, in order (None: all)."""

    def part(self, place: int) -> Rows:
        """Return what holds the rows of a snapshot."""
        return self.parts[place if self.place_TN is None else 0]

    def places(self, place: int) -> Tensor | None:
        """Return the row of each node of a snapshot; None: in order."""
        if self.place_TN is None:
            return None
        nodes = self.nodes_T[place]
        return self.place_TN[place] if nodes is None else self.place_TN[place].index_select(0, nodes)

    def rows(self, place: int) -> Rows:
        """Return a snapshot's rows."""
        assert not self.maps, "rows that have yet to go through maps are read in blocks"
        places = self.places(place)
        return self.part(place) if places is None else tuple(part.index_select(0, places) for part in self.part(place))


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that was made for a window, ready to be used again."""

    view: TableView
    inputs_RF: Tensor
    place_TN: Tensor
    nodes_T: tuple[Tensor | None, ...]

    @property
    def num_bytes(self) -> int:
        inputs = self.inputs_RF.numel() * self.inputs_RF.element_size()
        return self.view.num_bytes + inputs + 4 * self.place_TN.numel()


class Encoder:
    """Makes the rows of a first layer, whose inputs are the graph's own, and remembers what does not change.

    Snapshots are given by their indices, in ascending order; they need not follow each other.
    """

    def __init__(
        self, layer: Model, feed: Feed, aggregates: Aggregates, *, decided: Decided, forced: Mode | None,
        approximate: str = "none",
    ) -> None:  # fmt: skip
        self._feed, self.aggregates, self._decided, self._forced = feed, aggregates, decided, forced
        self._make = make_of(layer)
        self.asked: Asked = watch(layer, feed.num_features, keeps_sums=decided.sums_first)
        self._tables = Kept[Any, _Table](feed.room)
        self._approximate = approximate
        self._steps = Steps(feed, eq_4=approximate == "sym-approx")
        self._opening = self.asked.opening if feed.holding.overlaps else None
        self.chosen: dict[tuple[int, ...], Mode] = {}
        """How the rows of each window are made."""

    def encode(self, times: tuple[int, ...], wanted: Wanted, *, folds: bool = True) -> Encoded:
        """Return what is made of some snapshots for the nodes that are wanted.

        Without ``folds`` maps are left over whatever the window: the same ones on all ranks.
        """
        if not (self.asked.by_node and self._feed.holding.holds_all):
            return self._each(times, wanted, chain=False)
        mode = self.mode(times) if all(mask is None for mask in wanted) else "versions"
        return (
            self._by_table(times, wanted, folds=folds)
            if mode == "versions"
            else self._each(times, wanted, chain=mode == "delta")
        )

    def mode(self, times: tuple[int, ...]) -> Mode:
        """Return how the rows of a window are made; the first time it is decided."""
        # One snapshot shares nothing. What is scored must not depend on how it was cut, nor on what comes after.
        if len(times) == 1 or not (torch.is_grad_enabled() and self._feed.holding.holds_all):
            return "full"
        if (known := self.chosen.get(times)) is not None:
            return known
        mode = self._forced
        if mode is None:
            mode = least(predicted(self.sizes(times), self.asked, self._decided))
        self.chosen[times] = mode
        return mode

    def deviation(self, times: tuple[int, ...]) -> tuple[str, float] | None:
        """Return what makes a window's rows approximate, and how far they are from exact ones (None: they are exact).

        It is ``||approximate - exact|| / ||exact||`` over all rows that the first layer makes of its inputs before
        they go through maps. Attention from snapshot to snapshot is exact but for rounding, of which refreshes see to
        it that it stays small; so that one can see that they do, it is measured, too.
        """
        chain = self.mode(times) == "delta"
        attends = chain and bool(self.asked.attended)
        if self._approximate == "none" and not attends:
            return None
        everybody = (None,) * len(times)
        with torch.no_grad():
            made, exact = (
                self._each(times, everybody, chain=chain and not exactly, exactly=exactly) for exactly in (False, True)
            )
            pairs = [
                pair
                for mine, other in zip(made.parts, exact.parts, strict=True)
                for pair in zip(mine, other, strict=True)
            ]
            off = deviation(*(torch.cat([part.flatten() for part in side]) for side in zip(*pairs, strict=True)))
        return self._approximate if self._approximate != "none" else "attention in steps", off

    def sizes(self, times: tuple[int, ...]) -> Sizes:
        """Return how large a window is by each way to its rows."""
        feed, asked = self._feed, self.asked
        views, rows = [feed.whole_view(t) for t in times], [feed.rows(t) for t in times]
        table = make_table(views, rows, asked, (None,) * len(views), shares=True)
        # Every row of a whole table hears whom its node hears where it was first.
        degrees = [np.diff(view.edges.into.starts_M.cpu().numpy()) for view in views]
        heard = sum(int(one[table.node_R[table.at_R == t]].sum()) for t, one in enumerate(degrees))
        entries: dict[Norm | None, int] | None = None
        if feed.unchanging and _follow_each_other(times):
            later = times[1:]
            entries = {norm: sum(self._steps.sums(t, norm).num_entries for t in later) for norm in asked.norms}
            if asked.attended:
                entries[None] = sum(self._steps.attention(t, self_loops=True).num_entries for t in later)
        edges = tuple(len(view.edges) for view in views)
        return Sizes(feed.num_nodes, edges, len(table), heard, entries)

    def _each(self, times: tuple[int, ...], wanted: Wanted, *, chain: bool, exactly: bool = False) -> Encoded:
        """Return what is made of each snapshot; ``exactly``: with exact scales, and of nothing that is kept."""
        feed = self._feed
        chain = chain and _follow_each_other(times)
        aggregates = self.aggregates.nothing_kept() if exactly else self.aggregates
        shared = Shared(self._steps.chain(times[0], times[-1] + 1) if chain else None)
        inputs = [feed.rows(t) for t in times]
        views = (
            WindowView(
                feed.whole_view(t).exactly() if exactly else feed.view(t), inputs[place], shared,
                aggregates=aggregates, key=(t,), place=place,
            )
            for place, t in enumerate(times)
        )  # fmt: skip
        return _one_by_one(self._make, views, inputs, wanted, opening=self._opening)

    def _by_table(self, times: tuple[int, ...], wanted: Wanted, *, folds: bool) -> Encoded:
        key = (*times, *(None if mask is None else xxhash.xxh3_128_digest(mask.tobytes()) for mask in wanted))
        table = self._tables.get(key)
        if table is None:
            table = self._tables.offer(key, made := self._make_table(times, wanted), made.num_bytes)
        view = WindowView(
            table.view, table.inputs_RF, Shared(None), aggregates=self.aggregates, key=key, place=0
        )  # fmt: skip
        rows, maps = self._make(view, table.inputs_RF)
        num_read = sum(table.place_TN.shape[1] if nodes is None else len(nodes) for nodes in table.nodes_T)
        if folds and table.view.num_nodes < _FEW * num_read:
            rows, maps = tuple(mapped(part, maps) for part in rows), ()
        return Encoded((rows,), maps, table.place_TN, table.nodes_T)

    def _make_table(self, times: tuple[int, ...], wanted: Wanted) -> _Table:
        feed, shares = self._feed, self._forced != "full"
        views, inputs = [feed.whole_view(t) for t in times], [feed.rows(t) for t in times]
        rows = make_table(views, inputs, self.asked, wanted, shares=shares)
        view = TableView(rows, views, self.asked)
        place_TN = torch.from_numpy(rows.place_TN).to(feed.device)
        return _Table(view, view.inputs(inputs), place_TN, tuple(nodes_of(mask, feed.device) for mask in wanted))


def _follow_each_other(times: tuple[int, ...]) -> bool:
    return times[-1] - times[0] == len(times) - 1


def is_nobody(mask_N: Bools | None) -> bool:
    """Say whether a mask holds no node."""
    return mask_N is not None and not mask_N.any()


def nobody_of(mask_N: Bools | None, device: torch.device) -> Tensor | None:
    """Return no nodes where a mask holds none, else None: all."""
    return torch.empty(0, dtype=torch.int64, device=device) if is_nobody(mask_N) else None


def nodes_of(mask_N: Bools | None, device: torch.device) -> Tensor | None:
    """Return the nodes of a mask, in order (None: all)."""
    return None if mask_N is None else torch.from_numpy(np.flatnonzero(mask_N)).to(device)


def encode_above(
    layer: Model, views: Sequence[View], inputs: Sequence[Tensor], wanted: Wanted, *, opening: Opening | None
) -> Encoded:  # fmt: skip
    """Return what a layer above the first makes of what the layer below gave."""
    nothing = Aggregates(room=Room(0), disk_bytes=0, keeps=False, comes_first=False)
    windowed = (
        WindowView(view, x_NF, Shared(None), aggregates=nothing, key=(), place=place)
        for place, (view, x_NF) in enumerate(zip(views, inputs, strict=True))
    )
    return _one_by_one(make_of(layer), windowed, inputs, wanted, opening=opening)


def _one_by_one(
    make: Make, views: Iterable[WindowView], inputs: Sequence[Tensor], wanted: Wanted, *, opening: Opening | None
) -> Encoded:  # fmt: skip
    """Return what is made of snapshots, each by itself."""
    parts, maps = list[Rows](), list[Maps]()
    for view, x_NF, mask in zip(_begun(views, wanted, opening), inputs, wanted, strict=True):
        rows, left = make(SilentView(view) if is_nobody(mask) else view, x_NF)
        parts.append(rows)
        maps.append(left)
    device = inputs[0].device
    return Encoded(tuple(parts), maps[0], None, tuple(nobody_of(mask, device) for mask in wanted))


def _begun(views: Iterable[WindowView], wanted: Wanted, opening: Opening | None) -> Iterator[WindowView]:
    """Yield views; with an opening, what a snapshot asks of other ranks travels while the one before is computed."""
    if opening is None:
        yield from views
        return
    before: list[WindowView] = []
    for view, mask in zip(views, wanted, strict=True):
        if not is_nobody(mask):
            view.begin(opening)
        yield from before
        before = [view]
    yield from before
