"""How the edges of a snapshot lie in memory as tensors: by target, and by source.

Shape letters: E edges, N nodes, M = N + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Edges by row: row v holds ``neighbours_E[starts_M[v]:starts_M[v + 1]]`` and their weights."""

    starts_M: Tensor
    neighbours_E: Tensor
    weights_E: Tensor | None
    """None where every weight is 1."""

    @property
    def row_of_edges(self) -> Tensor:
        """The row of each edge."""
        sizes = (self.starts_M[1:] - self.starts_M[:-1]).long()
        return torch.repeat_interleave(sizes, output_size=len(self.neighbours_E)).to(self.neighbours_E.dtype)

    def degrees(self, dtype: torch.dtype) -> Tensor:
        """Return the sum of the absolute weights of each row (the number of its edges where they have none)."""
        if self.weights_E is None:
            return (self.starts_M[1:] - self.starts_M[:-1]).to(dtype)
        # Degrees are made in double precision: they must not depend on the order of the edges.
        sums = torch.zeros(len(self.starts_M) - 1, dtype=torch.float64, device=self.starts_M.device)
        return sums.index_add_(0, self.row_of_edges.long(), self.weights_E.abs().double()).to(dtype)

    @property
    def num_bytes(self) -> int:
        """The memory that the tensors take."""
        parts = (self.starts_M, self.neighbours_E, self.weights_E)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


@dataclass(frozen=True)
class Edges:
    """The edges of a snapshot twice: by target (which sources a node aggregates from) and by source."""

    into: Rows
    out_of: Rows
    order_E: Tensor
    """Where each edge of ``out_of`` lies in ``into``."""

    @property
    def num_nodes(self) -> int:
        """How many rows there are."""
        return len(self.into.starts_M) - 1

    def __len__(self) -> int:
        return len(self.into.neighbours_E)

    @cached_property
    def reversed(self) -> Edges:
        """The same edges, each the other way round."""
        inverse = torch.empty_like(self.order_E)
        inverse[self.order_E] = torch.arange(len(self), dtype=self.order_E.dtype, device=self.order_E.device)
        return Edges(self.out_of, self.into, inverse)

    @cached_property
    def places(self) -> Tensor:
        """0, 1, 2, ...: the edges of ``into`` in their own order."""
        kind = self.into.neighbours_E
        return torch.arange(len(self), dtype=kind.dtype, device=kind.device)

    @property
    def num_bytes(self) -> int:
        """The memory that the tensors take."""
        return self.into.num_bytes + self.out_of.num_bytes + self.order_E.numel() * self.order_E.element_size()

    def to(self, device: torch.device) -> Edges:
        """Return these edges on a device."""
        return Edges(_moved(self.into, device), _moved(self.out_of, device), self.order_E.to(device))


def _moved(rows: Rows, device: torch.device) -> Rows:
    weights = None if rows.weights_E is None else rows.weights_E.to(device)
    return Rows(rows.starts_M.to(device), rows.neighbours_E.to(device), weights)
