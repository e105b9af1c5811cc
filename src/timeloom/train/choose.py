"""How each window's rows are made: by the least predicted time, or as asked for (SPEC section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from timeloom.kernels.norms import Norm
from timeloom.nn.watch import Asked
from timeloom.plan.cost import Costs, as_json, from_json

Mode = Literal["full", "delta", "versions"]
_THOUSAND = 1000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a window is, by each way to its rows."""

    num_nodes: int
    edges_T: tuple[int, ...]
    table_rows: int
    table_edges: int
    entries: Mapping[Norm | None, int] | None
    """What changes from snapshot to snapshot, for each norm and for attention (None); None: rows of features change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What is decided when a run begins; it is saved, so that a resumed run computes in the same way."""

    costs: Costs
    keeps: bool
    """Sums of input rows are kept from epoch to epoch."""
    free: bool
    """All of them fit, so that from the second epoch on they cost nothing."""
    sums_first: bool
    """Layers sum their input rows before they multiply them, also where that makes longer rows to sum."""

    def as_json(self) -> dict[str, Any]:
        """Return all of it, for a checkpoint."""
        return {
            "costs": as_json(self.costs), "keeps": self.keeps, "free": self.free, "sums_first": self.sums_first
        }  # fmt: skip


def decided_of(told: Mapping[str, Any]) -> Decided:
    """Return what was saved."""
    return Decided(
        costs=from_json(told["costs"]), keeps=told["keeps"], free=told["free"], sums_first=told["sums_first"]
    )


def predicted(sizes: Sizes, asked: Asked, decided: Decided) -> dict[Mode, float]:
    """Return the seconds that a window's rows are predicted to take, forward and backward, by each way to them."""
    costs, rows, count = decided.costs, sizes.num_nodes, len(sizes.edges_T)

    def sums(rows: int, edges: int) -> float:
        return sum(
            (1 if one.of_inputs else 2) * costs.seconds("sum", rows=rows, edges=edges, width=one.width)
            for one in asked.sums
            if not (one.of_inputs and decided.free)
        )

    def passes(rows: int, edges: int) -> float:
        return sums(rows, edges) + sum(
            costs.seconds("attend", rows=rows, edges=edges, width=width) for width in asked.attended
        )  # fmt: skip

    def products(rows: int) -> float:
        return costs.seconds("multiply", rows=rows, edges=rows * asked.flops // _THOUSAND, width=1)

    found: dict[Mode, float] = {
        "full": sum(passes(rows, edges) for edges in sizes.edges_T) + count * products(rows),
        "versions": passes(sizes.table_rows, sizes.table_edges) + products(sizes.table_rows)
        + costs.seconds("gather", rows=sizes.table_rows, edges=count * rows, width=asked.width),
    }  # fmt: skip
    if sizes.entries is not None:
        steps = sum(
            (1 if one.of_inputs else 2)
            * costs.seconds("step", rows=(count - 1) * rows, edges=sizes.entries[one.norm], width=one.width)
            for one in asked.sums
            if not (one.of_inputs and decided.free)
        )
        heard = sizes.edges_T[0] + rows + sizes.entries[None] if asked.attended else 0
        amended = sum(costs.seconds("amend", rows=count * rows, edges=heard, width=width) for width in asked.attended)
        found["delta"] = sums(rows, sizes.edges_T[0]) + steps + amended + count * products(rows)
    return found


def least(times: Mapping[Mode, float]) -> Mode:
    """Return the way that takes the least time; of equal ones, the simplest."""
    order: tuple[Mode, ...] = ("full", "versions", "delta")
    return min((mode for mode in order if mode in times), key=lambda mode: times[mode])
