"""What a model sees of a block: a rank's own nodes in some chunks of a snapshot, their edges, and rows of others.

Blocks that exchange rows ask other ranks for their halo in every sum over neighbours; the others wait for nobody.

Shape letters: O own rows of a block, H halo rows, L = O + H, F features, A heads, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from timeloom.dist.halo import Halo
from timeloom.errors import BadConfig
from timeloom.graph.csr import Csr
from timeloom.graph.keys import Float64s, Int64s
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import WITH_SOURCE_SCALES, Norm, Scales, scales_from
from timeloom.nn.model import View, best_of
from timeloom.nn.watch import Opening
from timeloom.plan.batch.blocks import Block
from timeloom.train.best import best_of_all
from timeloom.train.crossing import Ahead, Crossing, attend_packed, packed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Side:
    """The edges of a block that bring messages one way, and where rows of others come from."""

    edges: Edges
    halo: Halo | None
    """None where no rank exchanges rows of this snapshot."""
    into_O: Tensor
    """Degrees of own rows, along the way of the messages."""
    out_of_O: Tensor

    @property
    def num_halo(self) -> int:
        """How many rows come from others."""
        return 0 if self.halo is None else self.halo.num_halo

    def flipped(self) -> Side:
        """Return the same edges the other way round, which is all there is where no rows come from others."""
        assert self.halo is None, "edges from and to the halo are other edges the other way round"
        return Side(self.edges.reversed, None, self.out_of_O, self.into_O)


def side_of(block: Block, *, exchanges: bool, dtype: torch.dtype, device: torch.device) -> Side:
    """Return a block as tensors; degrees are those of the block."""
    exchange = block.exchange
    rows_S = torch.from_numpy(exchange.rows_S).to(device)
    halo = Halo(rows_S, exchange.sent, exchange.received, block.num_own) if exchanges else None
    into_O, out_of_O = (torch.from_numpy(part).to(device) for part in (block.in_degrees_O, block.out_degrees_O))
    return Side(_edges_of(block, dtype).to(device), halo, into_O, out_of_O)


def _edges_of(block: Block, dtype: torch.dtype) -> Edges:
    order_E, weights = block.out_of.edges, block.weights_K
    assert order_E is not None
    return Edges(
        _rows(block.into, weights, dtype), _rows(block.out_of, None if weights is None else weights[order_E], dtype),
        torch.from_numpy(order_E.astype(np.int32)),
    )  # fmt: skip


def _rows(csr: Csr, weights: Float64s | None, dtype: torch.dtype) -> Rows:
    told = None if weights is None else torch.from_numpy(np.ascontiguousarray(weights)).to(dtype)
    return Rows(torch.from_numpy(csr.starts.astype(np.int32)), torch.from_numpy(csr.neighbours), told)


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Which nodes the rows of a block are."""

    nodes: Int64s
    alive_O: Tensor


class BlockView(View):
    """A view of a block."""

    def __init__(
        self, t: int, rows: OwnRows, along: Side, against: Callable[[], Side], *, crossing: Crossing | None,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """``against`` makes the side of messages that go against the edges, for models that send some."""
        self.t, self.num_nodes, self.dtype = t, len(rows.nodes), dtype
        self.alive_N, self.all_alive = rows.alive_O, bool(rows.alive_O.all())
        self._own, self._crossing = rows, crossing
        self._sides, self._against = {False: along}, against
        self._scales: dict[Norm, Scales] = {}
        self._ahead = None if crossing is None else Ahead(crossing)
        self._early: tuple[Callable[[Tensor], object], Tensor, object] | None = None

    @property
    def edges(self) -> Edges:
        """The edges into own rows."""
        return self._sides[False].edges

    @property
    def halo(self) -> Halo | None:
        """What is exchanged along the edges; None: nothing, on any rank."""
        return self._sides[False].halo

    def _side(self, reverse: bool) -> Side:
        if reverse not in self._sides:
            self._sides[reverse] = self._against()
        return self._sides[reverse]

    def scales(self, norm: Norm) -> Scales:
        """Collective where rows are exchanged. Return what messages are multiplied by."""
        if norm not in self._scales:
            side = self._side(norm.reverse)
            degrees_L2 = torch.stack([side.into_O, side.out_of_O], 1)
            # Without source scales nobody asks for degrees of the halo: 0 stands for them.
            come = degrees_L2.new_zeros(side.num_halo, 2)
            if side.halo is not None and norm.kind in WITH_SOURCE_SCALES:
                come = self._degrees_of_others(side.halo, degrees_L2)
            into_L, out_of_L = torch.cat([degrees_L2, come]).unbind(1)
            alive_L = torch.cat([self.alive_N, self.alive_N.new_ones(side.num_halo)])
            self._scales[norm] = scales_from(norm, into_L, out_of_L, alive_L, self.dtype)
        return self._scales[norm]

    def _degrees_of_others(self, halo: Halo, degrees_O2: Tensor) -> Tensor:
        assert self._crossing is not None
        rows_S2 = degrees_O2.index_select(0, halo.rows_S)
        return self._crossing.world.all_to_all(rows_S2, "halo/degrees", sent=halo.sent, received=halo.received)

    def begin(self, opening: Opening, x_NF: Tensor) -> None:
        """Collective. Send for the rows of others that a layer asks for first when it is given these rows."""
        made = x_NF if opening.make is None else opening.make(x_NF)
        if opening.make is not None:
            self._early = (opening.make, x_NF, made)
        if opening.norm is None:
            value_NHD, sent_NH, _ = made
            self._begin(value_NHD, packed(value_NHD, sent_NH), reverse=False)
        else:
            assert isinstance(made, Tensor), "rows are summed one by one"
            self._begin(made, made, reverse=opening.norm.reverse)

    def _begin(self, key: Tensor, rows_NF: Tensor, *, reverse: bool) -> None:
        halo = self._side(reverse).halo
        assert halo is not None, "nothing comes from others"
        assert self._ahead is not None
        self._ahead.begin(halo, key, rows_NF, reverse=reverse)

    def _rows(self, side: Side, key: Tensor, make: Callable[[], Tensor], *, reverse: bool) -> Tensor:
        """Collective where rows are exchanged. Return [L, F]: own rows, then those of the halo."""
        if side.halo is None:
            return make()
        assert self._ahead is not None
        return self._ahead.rows(side.halo, key, make, reverse=reverse)

    def take_waited(self) -> float:
        """Return the seconds that were spent waiting for rows of others since this was asked last."""
        if self._ahead is None:
            return 0.0
        waited_s, self._ahead.waited_s = self._ahead.waited_s, 0.0
        return waited_s

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Collective where rows are exchanged. Return ``P_t x`` of own rows."""
        side = self._side(norm.reverse)
        rows_LF = self._rows(side, x_NF, lambda: x_NF, reverse=norm.reverse)
        return aggregate(side.edges, self.scales(norm), rows_LF)[: self.num_nodes]

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Collective where rows are exchanged. Return the neighbours' values weighed by a softmax."""
        side, loop = self._side(False), self.alive_N if self_loops else None
        if side.halo is None:
            return attend(side.edges, value_NHD, sent_NH, received_NH, loop_N=loop, slope=slope)
        rows = self._rows(side, value_NHD, lambda: packed(value_NHD, sent_NH), reverse=False)
        return attend_packed(side.edges, rows, received_NH, alive_N=loop, slope=slope)

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Collective on several ranks. Return the rows and scores of the nodes of the block that score highest."""
        # Of equal ones the first in the graph comes first, wherever it lies in the epoch's order.
        by_node = np.argsort(self._own.nodes)
        order = torch.from_numpy(by_node).to(x_NF.device)
        alive_N, x_NF, scores_N = (part.index_select(0, order) for part in (self.alive_N, x_NF, scores_N))
        if self._crossing is None:
            return best_of(alive_N, x_NF, scores_N, count)
        rows = OwnRows(self._own.nodes[by_node], alive_N)
        return best_of_all(self._crossing, rows, alive_N, (x_NF, scores_N), count)

    def once(self, x_NF: Tensor, make: Callable[[Tensor], T]) -> T:
        """Return what was made to be sent, or make it: this view knows of no other snapshot."""
        early = self._early
        if early is None or early[1] is not x_NF or early[0] != make:
            return make(x_NF)
        self._early = None
        made: T = early[2]  # type: ignore[assignment]
        return made

    @property
    def edge_index(self) -> Tensor:
        """[2, E] int64: source and target of each edge; refused where rows come from others."""
        rows = self._whole().into
        return torch.stack([rows.neighbours_E.long(), rows.row_of_edges.long()])

    @property
    def edge_weight(self) -> Tensor:
        """[E] the weight of each edge; refused where rows come from others."""
        weights = self._whole().into.weights_E
        return torch.ones(len(self.edges), dtype=self.dtype, device=self.alive_N.device) if weights is None else weights

    def _whole(self) -> Edges:
        if self._crossing is not None:
            raise BadConfig(
                "a layer that reads edge_index needs every node's neighbours, but system.divide=nodes leaves each rank "
                "its own nodes: use one worker, --system psg or esdg, or view.aggregate"
            )
        return self.edges
