"""Graphs and runs so small that a test can make dozens of them, and what two runs are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from timeloom.config import merge
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.synth import Drift, synth
from timeloom.records import Resumed, Saved, Spans, Traffic, as_json, read
from timeloom.train import checkpoint

Snapshots = Sequence[Sequence[tuple[int, int]]]
GIVEN = Windows(kind="given")
SMALL: dict[str, Any] = {
    "model": {"name": "gcn_gru", "hidden": 4},
    "window": {"length": 3},
    "train": {"epochs": 2, "threads": 1, "device": "cpu", "save_seconds": 1000.0},
}
DRIFT: dict[str, Any] = {
    "num_nodes": 24, "num_edges": 60, "num_snapshots": 10, "num_communities": 2, "turnover": 0.6, "lag": 2,
}  # fmt: skip


def small(*tables: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a small run, with some of them changed."""
    return merge(SMALL, *tables)


def drift(path: Path, **options: Any) -> Path:
    """Make a small graph of drifting communities."""
    synth(Drift(**{**DRIFT, **options}, name="drift"), path)
    return path


def columns_of(snapshots: Snapshots, first: int = 0) -> dict[str, list[int]]:
    """Return snapshots of edges as a table of events."""
    rows = [(u, v, first + t) for t, edges in enumerate(snapshots) for u, v in edges]
    return {name: [row[place] for row in rows] for place, name in enumerate(("source", "target", "time"))}


def graph_of(path: Path, snapshots: Snapshots) -> Path:
    """Make a graph of exactly these snapshots."""
    ingest(columns_of(snapshots), path, Ingest(windows=GIVEN))
    return path


def random_snapshots(num_nodes: int, num_edges: int, num_snapshots: int, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Return snapshots of random edges; the first one names all nodes in order."""
    rng = np.random.default_rng(seed)
    ring = [(node, (node + 1) % num_nodes) for node in range(num_nodes)]
    drawn = rng.integers(0, num_nodes, (num_snapshots - 1, num_edges, 2)).tolist()
    return [ring, *([(u, v) for u, v in edges if u != v] for edges in drawn)]


def history(run: Path) -> list[dict[str, Any]]:
    """Return what happened in a run: its records but for what the clock or an interruption may change."""
    kept = [as_json(record) for record in read(run) if not isinstance(record, Saved | Resumed | Spans | Traffic)]
    for record in kept:
        record.pop("seconds", None)
        # More of them may be asked for when the run goes on.
        record.get("derived", {}).pop("epochs at most", None)
    return kept


def of_kind(run: Path, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the records of one kind, and with these values."""
    told = [record for record in history(run) if record["kind"] == kind]
    return [record for record in told if all(record[name] == value for name, value in fields.items())]


def saved(run: Path) -> checkpoint.Checkpoint:
    """Return the newest checkpoint of a run."""
    return checkpoint.latest(run / "checkpoints")


def same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Say whether two checkpoints hold the same, to the bit."""

    def plain(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
        return str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().numpy().tobytes()

    return left.keys() == right.keys() and all(plain(left[name]) == plain(right[name]) for name in left)
