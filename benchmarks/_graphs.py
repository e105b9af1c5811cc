"""Graphs that several benchmarks go over: made up with a stated change rate, or real ones that are ingested once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from timeloom.cli import run as command
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.features import DegreeKind, Features, Float32s, Labels
from timeloom.graph.keys import layout_for
from timeloom.graph.names import IntegerIds, NodeIds
from timeloom.graph.snapshot import Snapshot

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
INGESTED = {
    "as733": ("large/as733.tar.xz", "snap:as-733 --from {shared}/large"),
    "julia": ("medium/julia_dep_events.parquet", "local:julia --from {shared}/medium"),
    "flights": ("large/flights-3m.parquet", "local:flights --from {shared}/large"),
    "rust": ("large/rust_author_file.parquet", "local:rust --from {shared}/large"),
}


class FixedRows:
    """Features drawn at random that never change."""

    fixed = True
    degrees: DegreeKind | None = None

    def __init__(self, num_nodes: int, num_features: int) -> None:
        self.num_features = num_features
        self._rows = np.random.default_rng(1).normal(size=(num_nodes, num_features)).astype(np.float32)

    def at(self, t: int) -> Float32s:
        return self._rows


class NoLabels:
    """No labels at all."""

    kind, fixed = "none", True
    classes: tuple[str, ...] = ()

    def __init__(self, num_nodes: int) -> None:
        self._rows = np.full(num_nodes, -1)

    def at(self, t: int) -> NDArray[np.int64]:
        return self._rows


class Made:
    """Snapshots in memory, with features."""

    def __init__(self, name: str, snapshots: Sequence[Snapshot], num_features: int) -> None:
        self.name, self.num_nodes, self.num_edge_types = name, snapshots[0].num_nodes, 0
        self.ids: NodeIds = IntegerIds(np.arange(self.num_nodes))
        self.all = snapshots
        self.features: Features = FixedRows(self.num_nodes, num_features)
        self.labels: Labels = NoLabels(self.num_nodes)  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.all)

    def snapshot(self, t: int) -> Snapshot:
        return self.all[t]

    def num_edges(self, t: int) -> int:
        return len(self.all[t])


def changing(
    num_nodes: int, num_edges: int, num_snapshots: int, *, change: float, num_features: int, skew: float = 0.75
) -> Made:
    """Return a graph of which a share of the edges gives way to others with each snapshot.

    Node k is drawn in proportion to k^-skew at both ends.
    """
    rng, layout = np.random.default_rng(0), layout_for(num_nodes, 0)
    chance = np.arange(1, num_nodes + 1) ** -skew
    names, cumulated = rng.permutation(num_nodes), np.cumsum(chance / chance.sum())

    def more(keys: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        wanted = len(keys) + count
        while len(keys) < wanted:
            ends = [
                names[np.minimum(np.searchsorted(cumulated, rng.random(wanted - len(keys))), num_nodes - 1)]
                for _ in range(2)
            ]
            keys = np.union1d(keys, layout.pack(ends[0], ends[1], np.zeros(len(ends[0]), np.int64)))
        return keys

    keys, snapshots = more(np.empty(0, np.int64), num_edges), list[Snapshot]()
    for t in range(num_snapshots):
        snapshots.append(Snapshot(t, num_nodes, layout, keys, None, np.ones(num_nodes, np.bool_)))
        count = round(change * len(keys))
        keys = more(np.delete(keys, rng.choice(len(keys), count, replace=False)), count)
    return Made(f"made up, {100 * change:g} % change", snapshots, num_features)


def real(name: str, num_features: int) -> DynamicGraph | None:
    """Return a real graph with random features that never change; None where its data are not here."""
    file, arguments = INGESTED[name]
    if not (SHARED / file).exists():
        return None
    path = ROOT / "runs" / "graphs" / f"{name}-{num_features}"
    if not path.exists():
        told = arguments.format(shared=SHARED).split()
        told = ["ingest", *told, "--features", f"random:{num_features}", "--out", str(path), "--quiet"]
        assert command(told) == 0, f"{name} could not be ingested"
    return open_graph(path)
