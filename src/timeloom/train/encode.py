"""Where the encoded rows of a window come from: a pass a snapshot, what changed, or a table of all versions of rows.

Shape letters: T snapshots of a window, N nodes, M nodes whose rows are read, R rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from timeloom.kernels.front import Affine, mapped
from timeloom.kernels.norms import Norm
from timeloom.kernels.versions import Bools
from timeloom.nn.model import Model, RowModel, Rows, View
from timeloom.nn.watch import Asked, watch
from timeloom.train.aggregates import Aggregates
from timeloom.train.choose import Decided, Mode, Sizes, least, predicted
from timeloom.train.demand import Wanted
from timeloom.train.feed import Feed, Kept
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
        self, layer: Model, feed: Feed, aggregates: Aggregates, *, decided: Decided, forced: Mode | None
    ) -> None:  # fmt: skip
        self._feed, self.aggregates, self._decided, self._forced = feed, aggregates, decided, forced
        self._make = make_of(layer)
        self.asked: Asked = watch(layer, feed.num_features, keeps_sums=decided.sums_first)
        self._tables = Kept[Any, _Table](feed.room)
        self._steps = Steps(feed)
        self.chosen: dict[tuple[int, ...], Mode] = {}
        """How the rows of each window are made."""

    def encode(self, times: tuple[int, ...], wanted: Wanted, *, folds: bool = True) -> Encoded:
        """Return what is made of some snapshots for the nodes that are wanted.

        Without ``folds`` maps are left over whatever the window: the same ones on all ranks.
        """
        if not self.asked.by_node:
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
        if len(times) == 1 or not torch.is_grad_enabled():
            return "full"
        if (known := self.chosen.get(times)) is not None:
            return known
        mode = self._forced
        if mode is None:
            mode = least(predicted(self.sizes(times), self.asked, self._decided))
        self.chosen[times] = mode
        return mode

    def sizes(self, times: tuple[int, ...]) -> Sizes:
        """Return how large a window is by each way to its rows."""
        feed, asked = self._feed, self.asked
        views, rows = [feed.view(t) for t in times], [feed.rows(t) for t in times]
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
        return Sizes(feed.graph.num_nodes, edges, len(table), heard, entries)

    def _each(self, times: tuple[int, ...], wanted: Wanted, *, chain: bool) -> Encoded:
        feed, parts, maps = self._feed, list[Rows](), list[Maps]()
        chain = chain and _follow_each_other(times)
        shared = Shared(self._steps.chain(times[0], times[-1] + 1) if chain else None)
        for place, t in enumerate(times):
            inputs = feed.rows(t)
            view: View = WindowView(
                feed.view(t), inputs, shared, aggregates=self.aggregates, key=(t,), place=place
            )  # fmt: skip
            rows, left = self._make(SilentView(view) if is_nobody(wanted[place]) else view, inputs)
            parts.append(rows)
            maps.append(left)
        return Encoded(tuple(parts), maps[0], None, tuple(nobody_of(mask, feed.device) for mask in wanted))

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
        views, inputs = [feed.view(t) for t in times], [feed.rows(t) for t in times]
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


def encode_above(layer: Model, views: Sequence[View], inputs: Sequence[Tensor], wanted: Wanted) -> Encoded:
    """Return what a layer above the first makes of what the layer below gave."""
    make, parts, maps = make_of(layer), list[Rows](), list[Maps]()
    for view, x_NF, mask in zip(views, inputs, wanted, strict=True):
        rows, left = make(SilentView(view) if is_nobody(mask) else view, x_NF)
        parts.append(rows)
        maps.append(left)
    device = views[0].alive_N.device
    return Encoded(tuple(parts), maps[0], None, tuple(nobody_of(mask, device) for mask in wanted))
