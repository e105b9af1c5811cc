"""The sampled neighbourhood of some nodes, as tensors: layer by layer, which rows a row is made of.

Nodes of several snapshots lie in one block; those that a layer is asked for come first, then those they hear.

Shape letters: S rows, T rows of a layer's output (the first ones), E edges, F features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from timeloom.graph.keys import Float64s, Int64s
from timeloom.kernels.aggregate import aggregate
from timeloom.kernels.edges import Edges, Rows
from timeloom.kernels.norms import Scales


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer sums over."""

    edges: Edges
    """Among S rows; they lead to the first T alone."""
    scales: Scales
    num_out: int

    def mean(self, x_SF: Tensor) -> Tensor:
        """Return [T, F] the mean of what each of the first rows hears."""
        return aggregate(self.edges, self.scales, x_SF)[: self.num_out]


def layer_of(
    sizes_T: Int64s, source_E: Int64s, weight_E: Float64s | None, *, num_rows: int, dtype: torch.dtype,
    device: torch.device,
) -> Layer:  # fmt: skip
    """Return a layer; edges come row by row, ``sizes[i]`` to row i, each from the row ``source``."""
    starts = np.zeros(num_rows + 1, np.int64)
    starts[1 : len(sizes_T) + 1] = np.cumsum(sizes_T)
    starts[len(sizes_T) + 1 :] = starts[len(sizes_T)]
    target_E = np.repeat(np.arange(len(sizes_T)), sizes_T)
    order = np.argsort(source_E, kind="stable")
    starts_out = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(source_E, minlength=num_rows), out=starts_out[1:])
    into = _rows(starts, source_E, weight_E, dtype)
    out_of = _rows(starts_out, target_E[order], None if weight_E is None else weight_E[order], dtype)
    edges = Edges(into, out_of, torch.from_numpy(order.astype(np.int32))).to(device)
    degrees = edges.into.degrees(torch.float64)
    share = torch.where(degrees > 0, degrees.clamp(min=1e-300) ** -1.0, 0.0).to(dtype)
    return Layer(edges, Scales(None, share, None), len(sizes_T))


def _rows(starts: Int64s, neighbours: Int64s, weights: Float64s | None, dtype: torch.dtype) -> Rows:
    return Rows(
        torch.from_numpy(starts.astype(np.int32)), torch.from_numpy(neighbours.astype(np.int32)),
        None if weights is None else torch.from_numpy(np.ascontiguousarray(weights)).to(dtype),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """What a batch is computed from on one rank, ready to be computed."""

    x_SF: Tensor
    """The input rows."""
    layers: tuple[Layer, ...]
    """The first one is computed first: it reads all rows."""
