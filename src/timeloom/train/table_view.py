"""What a model sees in place of a window's snapshots where equal rows are computed once (SPEC 3.5).

Shape letters: T snapshots, N nodes, R rows of the table, F features, H heads, D size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import Norm, Scales
from timeloom.kernels.versions import (
    NO_WEIGHTS,
    Bools,
    Heard,
    RowTable,
    TableEdges,
    asked_for,
    changed_rows,
    link_rows,
    name_rows,
    spread,
)
from timeloom.nn.model import View
from timeloom.nn.watch import Asked
from timeloom.train.localise import WholeView

T = TypeVar("T")


class TableView(View):
    """A view of a table of rows. Models that read `t`, or the edges one by one, are never given one."""

    def __init__(self, table: RowTable, views_T: Sequence[WholeView], asked: Asked) -> None:
        first = views_T[0]
        self.t, self.num_nodes = first.t, len(table)
        self.table, self._device = table, first.alive_N.device
        self._edges = {
            reverse: _as_edges(link_rows(table, [heard(view, reverse=reverse) for view in views_T]), first)
            for reverse in asked.directions
        }
        self._at_T = [np.flatnonzero(table.at_R == place) for place in range(len(views_T))]
        # Scales are made now: the views need not outlive this.
        self._scales = {norm: self._picked_scales([view.scales(norm) for view in views_T]) for norm in asked.norms}
        alive_R = self._picked([view.alive_N for view in views_T])
        assert alive_R is not None
        self.alive_N = alive_R
        self.all_alive = bool(alive_R.all())
        self.num_edges = sum(len(edges) for edges in self._edges.values())

    def _picked(self, parts_T: Sequence[Tensor | None]) -> Tensor | None:
        """Return what the rows are, of something that every node of every snapshot has."""
        if parts_T[0] is None:
            return None
        out = torch.empty(self.num_nodes, dtype=parts_T[0].dtype, device=self._device)
        for part, rows in zip(parts_T, self._at_T, strict=True):
            assert part is not None
            nodes = torch.from_numpy(self.table.node_R[rows]).to(self._device)
            out.index_copy_(0, torch.from_numpy(rows).to(self._device), part.index_select(0, nodes))
        return out

    def _picked_scales(self, scales_T: Sequence[Scales]) -> Scales:
        return Scales(
            self._picked([scales.source_N for scales in scales_T]),
            self._picked([scales.target_N for scales in scales_T]),
            self._picked([scales.loop_N for scales in scales_T]),
        )

    def inputs(self, rows_T: Sequence[Tensor]) -> Tensor:
        """Return the [R, F] input rows, given those of every snapshot."""
        if all(rows is rows_T[0] for rows in rows_T):
            return rows_T[0].index_select(0, torch.from_numpy(self.table.node_R).to(self._device))
        out = rows_T[0].new_empty(self.num_nodes, rows_T[0].shape[1])
        for rows, at in zip(rows_T, self._at_T, strict=True):
            nodes = torch.from_numpy(self.table.node_R[at]).to(self._device)
            out.index_copy_(0, torch.from_numpy(at).to(self._device), rows.index_select(0, nodes))
        return out

    @property
    def num_bytes(self) -> int:
        """The memory that the view takes."""
        return sum(edges.num_bytes for edges in self._edges.values()) + self.table.place_TN.nbytes + 9 * self.num_nodes

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Return ``P x``, each row as in the snapshots that it stands for."""
        return aggregate(self._edges[norm.reverse], self._scales[norm], x_NF)

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Return the neighbours' values weighed by a softmax."""
        loop_N = self.alive_N if self_loops else None
        return attend(self._edges[False], value_NHD, sent_NH, received_NH, loop_N=loop_N, slope=slope)

    @property
    def edge_index(self) -> Tensor:
        """Not here: what is made of these edges is not what is made of a snapshot's."""
        raise AssertionError("a model that reads the edges one by one sees snapshots whole")

    @property
    def edge_weight(self) -> Tensor:
        """Not here."""
        raise AssertionError("a model that reads the edges one by one sees snapshots whole")


def make_table(
    views_T: Sequence[WholeView], rows_T: Sequence[Tensor], asked: Asked, wanted_T: Sequence[Bools | None], *,
    shares: bool,
) -> RowTable:  # fmt: skip
    """Return the table of the rows that are wanted (None: all); without ``shares`` every snapshot has its own."""
    size = views_T[0].num_nodes
    heard_T = [[heard(view, reverse=reverse) for reverse in asked.directions] for view in views_T]
    fresh_TN = np.ones((len(views_T), size), np.bool_)
    asked_TN = np.full(fresh_TN.shape, asked.hops + 1, np.uint8)
    for t, wanted in enumerate(wanted_T):
        if wanted is not None:
            asked_TN[t] = asked_for(heard_T[t], wanted, asked.hops)
        if t and shares:
            sends, own = _sends_otherwise(views_T[t - 1 : t + 1], rows_T[t - 1 : t + 1], asked)
            changed = changed_rows(heard_T[t - 1], heard_T[t], sends, own)
            fresh_TN[t] = spread(heard_T[t], changed, asked.hops - 1)
    return name_rows(fresh_TN, asked_TN)


def heard(view: WholeView, *, reverse: bool) -> Heard:
    """Return whom each node of a snapshot hears, in one direction of the messages."""
    rows = view.edges.out_of if reverse else view.edges.into
    weights = NO_WEIGHTS if rows.weights_E is None else rows.weights_E.double().cpu().numpy()
    return Heard(rows.starts_M.cpu().numpy(), rows.neighbours_E.cpu().numpy(), weights)


def _sends_otherwise(
    views: Sequence[WholeView], rows: Sequence[Tensor], asked: Asked
) -> tuple[Bools, Bools]:  # fmt: skip
    """Return which nodes send something else than in the snapshot before, and of which else something changed."""
    before, after = views
    sends = before.alive_N != after.alive_N
    own = torch.zeros_like(sends)
    if rows[0] is not rows[1]:
        sends |= (rows[0] != rows[1]).any(1)
    for norm in asked.norms:
        old, new = before.scales(norm), after.scales(norm)
        for one, other, into in ((old.source_N, new.source_N, sends), (old.target_N, new.target_N, own)):
            if one is not None and other is not None:
                into |= one != other
    return sends.cpu().numpy(), own.cpu().numpy()


def _as_edges(edges: TableEdges, like: WholeView) -> Edges:
    weights = back = None
    if len(edges.weights_Q):
        weights = torch.from_numpy(edges.weights_Q).to(like.dtype)
        back = weights.index_select(0, torch.from_numpy(edges.order_Q))
    order = torch.from_numpy(edges.order_Q)
    into = Rows(torch.from_numpy(edges.starts_M), torch.from_numpy(edges.neighbours_Q), weights)
    out_of = Rows(torch.from_numpy(edges.back_starts_M), torch.from_numpy(edges.back_neighbours_Q), back)
    return Edges(into, out_of, order).to(like.alive_N.device)
