"""What the message of an edge is multiplied by before it is added up.

Every norm is ``Z = L (A + I) R X`` with diagonal L and R (SPEC 3.1), so that no coefficient per edge is ever stored.
Degrees are sums of absolute weights: for weights that are not negative they are the usual ones, and where a graph of
trust has negative weights the norms stay finite. A degree of 0 gives 0.

Shape letters: N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from timeloom.kernels.edges import Edges

NormKind = Literal["sym", "both", "mean", "sum", "push"]
WITH_SOURCE_SCALES: tuple[NormKind, ...] = ("sym", "both", "push")


@dataclass(frozen=True, slots=True)
class Norm:
    """How messages are weighed (SPEC D1.5).

    `sym`: by the square roots of the in-degrees of both ends (PyG's GCN). `both`: by the square roots of the source's
    out-degree and the target's in-degree (DGL, FlareDTDG). `mean`: by the target's in-degree. `push`: by the source's
    out-degree. `sum`: by nothing but the edge's weight.
    """

    kind: NormKind = "sym"
    self_loops: bool = True
    """Every node that is alive also sends its own row to itself, with weight 1."""
    reverse: bool = False
    """Messages go from targets to sources."""


@dataclass(frozen=True, slots=True)
class Scales:
    """The diagonals of a norm; None stands for the identity, and for no self loops."""

    source_N: Tensor | None
    target_N: Tensor | None
    loop_N: Tensor | None


def scales_of(norm: Norm, edges: Edges, alive_N: Tensor, dtype: torch.dtype) -> Scales:
    """Return the diagonals of a norm on edges that already point the way messages go."""
    into_N, out_of_N = (rows.degrees(torch.float64) for rows in (edges.into, edges.out_of))
    return scales_from(norm, into_N, out_of_N, alive_N, dtype)


def scales_from(norm: Norm, into_N: Tensor, out_of_N: Tensor, alive_N: Tensor, dtype: torch.dtype) -> Scales:
    """Return the diagonals of a norm of nodes with these degrees, which do not count self loops."""
    loop = alive_N.to(dtype) if norm.self_loops else None
    into, out_of = (degrees_N + (0 if loop is None else loop) for degrees_N in (into_N, out_of_N))
    source, target = {
        "sym": (_power(into, -0.5), _power(into, -0.5)),
        "both": (_power(out_of, -0.5), _power(into, -0.5)),
        "mean": (None, _power(into, -1.0)),
        "push": (_power(out_of, -1.0), None),
        "sum": (None, None),
    }[norm.kind]
    return Scales(None if source is None else source.to(dtype), None if target is None else target.to(dtype), loop)


def _power(degrees_N: Tensor, exponent: float) -> Tensor:
    return torch.where(degrees_N > 0, degrees_N.clamp(min=1e-300) ** exponent, 0.0)
