"""How a snapshot on disk becomes the view that a model is given: all of its edges, on one device.

Shape letters: E edges, N nodes, F features.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from timeloom.graph.csr import Csr
from timeloom.graph.keys import Float64s
from timeloom.graph.snapshot import Snapshot
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import Norm, Scales, scales_of
from timeloom.nn.model import View
from timeloom.train.drifting import Drifting

T = TypeVar("T")


class WholeView(View):
    """A view of a whole snapshot. What a norm needs is made when a model first asks for it."""

    def __init__(
        self, snapshot: Snapshot, *, dtype: torch.dtype, device: torch.device, drifting: Drifting | None = None
    ) -> None:
        """With ``drifting``, source scales are those."""
        self.t, self.num_nodes = snapshot.t, snapshot.num_nodes
        self.edges = edges_of(snapshot, dtype).to(device)
        self.alive_N = torch.from_numpy(snapshot.alive).to(device)
        self.all_alive = bool(snapshot.alive.all())
        self.dtype = dtype
        self._scales: dict[Norm, Scales] = {}
        self._drifting = drifting

    @property
    def num_bytes(self) -> int:
        """The memory that the view takes."""
        scales = sum(
            part.numel() * part.element_size()
            for made in self._scales.values()
            for part in (made.source_N, made.target_N, made.loop_N)
            if part is not None
        )
        return self.edges.num_bytes + self.num_nodes + scales

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Return ``P_t x`` by one full pass over the edges."""
        return aggregate(self.directed(norm), self.scales(norm), x_NF)

    def directed(self, norm: Norm) -> Edges:
        """Return the edges in the direction that messages take."""
        return self.edges.reversed if norm.reverse else self.edges

    def scales(self, norm: Norm) -> Scales:
        """Return what messages are multiplied by."""
        if norm not in self._scales:
            made = self.exact_scales(norm)
            if self._drifting is not None:
                made = Scales(self._drifting.source(self.t, norm), made.target_N, made.loop_N)
            self._scales[norm] = made
        return self._scales[norm]

    def exact_scales(self, norm: Norm) -> Scales:
        """Return what messages are multiplied by where nothing lags behind."""
        return scales_of(norm, self.directed(norm), self.alive_N, self.dtype)

    def exactly(self) -> WholeView:
        """Return the same view with exact scales."""
        view = copy.copy(self)
        view._scales, view._drifting = {}, None
        return view

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Return the neighbours' values weighed by a softmax."""
        loop_N = self.alive_N if self_loops else None
        return attend(self.edges, value_NHD, sent_NH, received_NH, loop_N=loop_N, slope=slope)

    @property
    def edge_index(self) -> Tensor:
        """[2, E] int64: source and target of each edge."""
        rows = self.edges.into
        return torch.stack([rows.neighbours_E.long(), rows.row_of_edges.long()])

    @property
    def edge_weight(self) -> Tensor:
        """[E] the weight of each edge."""
        weights = self.edges.into.weights_E
        if weights is not None:
            return weights
        return torch.ones(len(self.edges), dtype=self.dtype, device=self.alive_N.device)


def edges_of(snapshot: Snapshot, dtype: torch.dtype) -> Edges:
    """Return the edges of a snapshot as tensors; indices take 4 bytes each."""
    into, out_of = snapshot.incoming(), snapshot.outgoing()
    assert out_of.edges is not None
    weights = snapshot.stored_weights
    return Edges(
        _rows(into, weights, dtype),
        _rows(out_of, None if weights is None else weights[out_of.edges], dtype),
        torch.from_numpy(out_of.edges.astype(np.int32)),
    )


def _rows(csr: Csr, weights: Float64s | None, dtype: torch.dtype) -> Rows:
    # An index tensor and its offsets must be of one type; a snapshot of 2^31 edges or more is refused by its readers.
    return Rows(
        torch.from_numpy(csr.starts.astype(np.int32)),
        torch.from_numpy(csr.neighbours),
        None if weights is None else torch.from_numpy(np.ascontiguousarray(weights)).to(dtype),
    )
