"""What a model sees of a snapshot on a rank that owns some of its nodes: their rows, and whom they hear.

Rows of the halo come from their owners whenever a model asks for a sum over neighbours, so a model on top of another
needs nothing else. What comes goes behind the own rows, the kernels sum over both, and the own rows are cut off.

Shape letters: O own nodes, H halo nodes, L = O + H, F features, A heads, D size of a head, C rows that are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from timeloom.dist.halo import Halo
from timeloom.errors import BadConfig
from timeloom.graph.snapshot import Snapshot
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.edges import Edges
from timeloom.kernels.norms import Norm, Scales, scales_from
from timeloom.nn.model import View
from timeloom.plan.partition.own import EdgesIn, OwnNodes, edges_in
from timeloom.train.best import best_of_all
from timeloom.train.crossing import Ahead, Crossing, attend_packed, packed
from timeloom.train.localise import edges_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Side:
    """The edges that bring messages one way."""

    edges: Edges
    """Of own and halo nodes; they lead to own nodes only."""
    halo: Halo
    into_L: Tensor
    out_of_L: Tensor
    alive_L: Tensor

    @property
    def num_bytes(self) -> int:
        return self.edges.num_bytes + 17 * len(self.alive_L) + 8 * len(self.halo.rows_S)


class PartView(View):
    """A view of the nodes of one rank. Making it waits for nobody; every sum over neighbours is collective."""

    def __init__(
        self, own: OwnNodes, snapshot: Snapshot, again: Callable[[], Snapshot], *, crossing: Crossing,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        self.t, self.num_nodes = snapshot.t, len(own)
        self.dtype, self.crossing, self.own = dtype, crossing, own
        alive = snapshot.alive[own.nodes]
        self.alive_N = torch.from_numpy(alive).to(device)
        self.all_alive = bool(alive.all())
        self._again, self._device = again, device
        self._sides = {False: self._side_of(edges_in(own, snapshot, reverse=False))}
        self._scales: dict[Norm, Scales] = {}
        self._ahead = Ahead(crossing)

    def _side_of(self, found: EdgesIn) -> _Side:
        halo = Halo(
            torch.from_numpy(found.wanted_S).to(self._device), found.sent, found.received, self.num_nodes
        )  # fmt: skip
        into_L, out_of_L, alive_L = (
            torch.from_numpy(part).to(self._device) for part in (found.into_L, found.out_of_L, found.edges.alive)
        )
        return _Side(edges_of(found.edges, self.dtype).to(self._device), halo, into_L, out_of_L, alive_L)

    def _side(self, reverse: bool) -> _Side:
        if reverse not in self._sides:
            # Few models send messages against the edges: the snapshot is read again for those that do.
            self._sides[reverse] = self._side_of(edges_in(self.own, self._again(), reverse=reverse))
        return self._sides[reverse]

    @property
    def edges(self) -> Edges:
        """The edges that lead to own nodes, in local numbers."""
        return self._sides[False].edges

    @property
    def num_halo(self) -> int:
        """How many rows of others a sum along the edges needs."""
        return self._sides[False].halo.num_halo

    @property
    def num_bytes(self) -> int:
        """The memory that the view takes."""
        return sum(side.num_bytes for side in self._sides.values()) + self.num_nodes

    def scales(self, norm: Norm) -> Scales:
        """Return what messages are multiplied by; degrees are those in the whole snapshot."""
        if norm not in self._scales:
            side = self._side(norm.reverse)
            self._scales[norm] = scales_from(norm, side.into_L, side.out_of_L, side.alive_L, self.dtype)
        return self._scales[norm]

    def begin(self, made: Tensor | tuple[Tensor, ...], norm: Norm | None) -> None:
        """Collective. Send for the halo's rows of what `aggregate` (or `attend`) will be given next."""
        if norm is None:
            value_NHD, sent_NH, _ = made
            self._ahead.begin(self._side(False).halo, value_NHD, packed(value_NHD, sent_NH), reverse=False)
        else:
            assert isinstance(made, Tensor), "rows are summed one by one"
            self._ahead.begin(self._side(norm.reverse).halo, made, made, reverse=norm.reverse)

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Collective. Return ``P_t x`` of own nodes."""
        side = self._side(norm.reverse)
        rows_LF = self._ahead.rows(side.halo, x_NF, lambda: x_NF, reverse=norm.reverse)
        return aggregate(side.edges, self.scales(norm), rows_LF)[: self.num_nodes]

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Collective. Return the neighbours' values weighed by a softmax; they come with how much is made of them."""
        side = self._side(False)
        rows = self._ahead.rows(side.halo, value_NHD, lambda: packed(value_NHD, sent_NH), reverse=False)
        return attend_packed(
            side.edges, rows, received_NH, alive_N=self.alive_N if self_loops else None, slope=slope
        )  # fmt: skip

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Collective. Return the rows and scores of the nodes that score highest on all ranks, on every rank."""
        return best_of_all(self.crossing, self.own, self.alive_N, (x_NF, scores_N), count)

    @property
    def edge_index(self) -> Tensor:
        """Refused: a layer of another library would give rows of the halo, too, made of too few neighbours."""
        raise BadConfig(READS_EDGES)

    @property
    def edge_weight(self) -> Tensor:
        """Refused, as `edge_index`."""
        raise BadConfig(READS_EDGES)


READS_EDGES = (
    "a layer that reads edge_index needs every node's neighbours, but system.divide=nodes leaves each rank its own "
    "nodes: use --system psg or esdg, or view.aggregate"
)
