"""What a model sees of a snapshot of a cutout: the rows that are held, and the degrees that the whole snapshot gives.

Shape letters: N rows that are held, F features.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import Norm, Scales, scales_from
from timeloom.nn.model import View
from timeloom.plan.batch.rows import SnapshotRows

T = TypeVar("T")


class CutoutView(View):
    """A view of the rows of a cutout; those that must hear do, the others are only read."""

    def __init__(self, rows: SnapshotRows, t: int, *, dtype: torch.dtype, device: torch.device) -> None:
        self.t, self.num_nodes = t, rows.num_nodes
        self.alive_N = torch.from_numpy(rows.alive_N).to(device)
        self.all_alive = bool(rows.alive_N.all())
        self.edges = _edges_of(rows, dtype).to(device)
        self._rows, self._dtype, self._device = rows, dtype, device
        self._scales: dict[Norm, Scales] = {}

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Return ``P_t x``, exact in the rows that must hear."""
        edges = self.edges.reversed if norm.reverse else self.edges
        return aggregate(edges, self.scales(norm), x_NF)

    def scales(self, norm: Norm) -> Scales:
        """Return what messages are multiplied by, by the degrees in the whole snapshot."""
        if norm not in self._scales:
            degrees = (self._rows.into_degree_N, self._rows.out_degree_N)
            into_N, out_of_N = (torch.from_numpy(part).to(self._device) for part in degrees)
            if norm.reverse:
                into_N, out_of_N = out_of_N, into_N
            self._scales[norm] = scales_from(norm, into_N, out_of_N, self.alive_N, self._dtype)
        return self._scales[norm]

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Return the neighbours' values weighed by a softmax."""
        loop_N = self.alive_N if self_loops else None
        return attend(self.edges, value_NHD, sent_NH, received_NH, loop_N=loop_N, slope=slope)

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Not here."""
        raise AssertionError(_REFUSED)

    @property
    def edge_index(self) -> Tensor:
        """Not here."""
        raise AssertionError(_REFUSED)

    @property
    def edge_weight(self) -> Tensor:
        """Not here."""
        raise AssertionError(_REFUSED)


_REFUSED = "models that read all nodes or edges of a snapshot at once are refused before a cache is made"


def _edges_of(rows: SnapshotRows, dtype: torch.dtype) -> Edges:
    weights, order_E = rows.weights_E, rows.out_order_E
    return Edges(
        Rows(
            torch.from_numpy(rows.starts_M), torch.from_numpy(rows.neighbours_E),
            None if weights is None else torch.from_numpy(weights).to(dtype),
        ),
        Rows(
            torch.from_numpy(rows.out_starts_M), torch.from_numpy(rows.out_neighbours_E),
            None if weights is None else torch.from_numpy(weights[order_E]).to(dtype),
        ),
        torch.from_numpy(order_E),
    )  # fmt: skip
