"""What a graph is like, in numbers and in one line of picture each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from timeloom.errors import BadStore
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.keys import Int64s

_BARS = "▁▂▃▄▅▆▇█"
_QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStats:
    """A graph at a glance; lists have one entry for each snapshot."""

    name: str
    path: str
    num_nodes: int
    num_snapshots: int
    num_types: int
    num_edges: int
    """Edges of all snapshots together."""
    stored_bytes: int
    keyframes: int
    weighted: bool
    clock: str
    first: str
    last: str
    end: str
    features: dict[str, Any]
    labels: dict[str, Any]
    rules: dict[str, Any]
    edges: list[int]
    active: list[int]
    density: list[float]
    """Edges over pairs of active nodes."""
    change: list[float]
    """Edges added, removed or reweighted, over the edges of the snapshot, or of the one before where that has more (0
    for the first)."""
    overlap: list[float]
    """Jaccard overlap of the edges with those of the snapshot before (1 for the first)."""
    born: list[int]
    returned: list[int]
    left: list[int]
    empty: int
    degree_quantiles: dict[str, list[int]]
    """In- and out-degrees of the active nodes of the last snapshot at 50 %, 90 %, 99 % and 100 %."""
    reports: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def stats(graph: DynamicGraph) -> GraphStats:
    """Return what was counted while a graph was written; no snapshot is read."""
    counted, manifest = graph.statistics, graph.store.manifest
    edges, active = counted["edges"], counted["active"]
    before = np.concatenate([[0], edges[:-1]])
    union = before + counted["added"]
    moved = counted["added"] + counted["removed"] + counted["reweighted"]
    change, overlap = _ratio(moved, np.maximum(edges, before)), _ratio(before - counted["removed"], union)
    change[:1], overlap[:1] = 0.0, 1.0
    overlap[union == 0] = 1.0
    starts = graph.starts
    if not len(edges) == len(starts) == len(graph):
        raise BadStore(
            f"{graph.path} says it has {len(graph)} snapshots, but {len(edges)} are counted and {len(starts)} begin: "
            "restore it from a copy, or ingest it again"
        )
    return GraphStats(
        name=graph.name, path=str(graph.path), num_nodes=graph.num_nodes, num_snapshots=len(graph),
        num_types=len(graph.type_ids), num_edges=int(edges.sum()), stored_bytes=graph.store.num_bytes,
        keyframes=graph.num_keyframes, weighted=any(entry["weighted"] for entry in manifest["segments"]),
        clock=graph.clock.unit, first=graph.clock.show(int(starts[0])), last=graph.clock.show(int(starts[-1])),
        end=graph.clock.show(graph.end), features=manifest["features"], labels=manifest["labels"],
        rules=manifest["rules"],
        edges=edges.tolist(), active=active.tolist(), density=_ratio(edges, active * active).tolist(),
        change=change.tolist(), overlap=overlap.tolist(), born=counted["born"].tolist(),
        returned=counted["returned"].tolist(), left=counted["left"].tolist(), empty=int((edges == 0).sum()),
        degree_quantiles=_degree_quantiles(graph), reports=manifest["reports"],
    )  # fmt: skip


def _ratio(part: Int64s, whole: Int64s) -> np.ndarray:
    return part / np.maximum(whole, 1)


def _degree_quantiles(graph: DynamicGraph) -> dict[str, list[int]]:
    degrees = graph.store.array("nodes.degrees")
    here = degrees[degrees.sum(axis=1) > 0]
    if not len(here):
        return {"in": [0] * len(_QUANTILES), "out": [0] * len(_QUANTILES)}
    found = np.quantile(here, _QUANTILES, axis=0, method="nearest")
    return {"in": found[:, 0].astype(int).tolist(), "out": found[:, 1].astype(int).tolist()}


def sparkline(values: list[float] | list[int], width: int = 48) -> str:
    """Return one line of bars from 0 to the largest value; long series are averaged into ``width`` bars."""
    numbers = np.array(values, np.float64)
    if len(numbers) > width:
        bounds = np.linspace(0, len(numbers), width + 1).astype(int)
        numbers = np.add.reduceat(numbers, bounds[:-1]) / np.diff(bounds)
    top = numbers.max(initial=0.0)
    if top <= 0:
        return _BARS[0] * len(numbers)
    return "".join(_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] for value in numbers.clip(0))
