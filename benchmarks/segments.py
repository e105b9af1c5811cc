"""How much memory additive storage saves, against whole copies of every snapshot of a window (DistDy Figs. 7 to 9).

Synthetic graphs as in DistDy 5.1: 128 features, and edges 3 to 20 times the nodes; a share of the segments of features,
or of the edges, changes from snapshot to snapshot. A graph on disk is measured as it is, on one server. Saved: by what
runs say, and by all that the arrays hold, with what finds them. Reading: rows of the newest snapshot by a thousand
random nodes, against taking them from one matrix, in turn.

    .venv/bin/python benchmarks/segments.py [--nodes 20000] [--rounds 9] [--graph PATH ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from timeloom.graph.delta import NO_KEYS, Delta, diff
from timeloom.graph.dynamic import open_graph
from timeloom.graph.features import Float32s
from timeloom.graph.keys import layout_for
from timeloom.graph.segment_edges import EdgeWindow
from timeloom.graph.segment_parts import edge_change, feature_change
from timeloom.graph.segments import FeatureWindow, SegmentLayout, changed_segments
from timeloom.graph.snapshot import Snapshot

FEATURES, WINDOW, SNAPSHOTS, SEGMENTS, READ = 128, 4, 6, 4, 1000


@dataclass(frozen=True)
class Step:
    """One snapshot, its features, and what led to it."""

    snapshot: Snapshot
    delta: Delta
    rows: Float32s


def synthetic(num_nodes: int, degree: int, features_change: float, edges_change: float) -> Iterator[Step]:
    """Yield snapshots in which so many segments and edges are new."""
    rng, layout, cut = np.random.default_rng(0), layout_for(num_nodes, 0), SegmentLayout(FEATURES, SEGMENTS)
    keys, rows = NO_KEYS, rng.integers(0, 2, (num_nodes, FEATURES)).astype(np.float32)
    for t in range(SNAPSHOTS):
        before = keys
        kept = keys[rng.random(len(keys)) >= edges_change]
        wanted = num_nodes * degree
        more = layout.pack(*rng.integers(0, num_nodes, (2, wanted - len(kept))))
        keys = np.unique(np.concatenate([kept, more]))
        if t:
            rows = rows.copy()
            for a, b in zip(cut.bounds[:-1], cut.bounds[1:], strict=True):
                changed = rng.random(num_nodes) < features_change
                rows[changed, a:b] = rng.random((int(changed.sum()), int(b - a)), np.float32)
        snapshot = Snapshot(t, num_nodes, layout, keys, None, np.ones(num_nodes, np.bool_))
        yield Step(snapshot, diff(before, None, keys, None, layout), rows)


def stored(path: Path) -> Iterator[Step]:
    """Yield the snapshots of a graph on disk."""
    graph = open_graph(path)
    for t, snapshot in enumerate(graph.snapshots()):
        yield Step(snapshot, graph.delta(t), graph.features.at(t))


def measure(name: str, steps: Iterator[Step], rounds: int) -> None:
    """Print a Markdown row: saved in the last full window, and how fast rows are read."""
    windows: tuple[FeatureWindow, EdgeWindow] | None = None
    before: Float32s | None = None
    was = np.empty(0, np.int32)
    whole: list[tuple[int, int]] = []
    saved: list[tuple[float, float, float]] = []
    appended_s: list[float] = []
    for step in steps:
        snapshot, n = step.snapshot, step.snapshot.num_nodes
        weighted = snapshot.stored_weights is not None
        if windows is None:
            cut = SegmentLayout(step.rows.shape[1], min(SEGMENTS, max(step.rows.shape[1], 1)))
            edges = EdgeWindow(snapshot.layout, window=WINDOW, weighted=weighted)
            windows = FeatureWindow(cut, window=WINDOW), edges
            was = np.full(n, -1, np.int32)
        features, edges = windows
        now = np.where(snapshot.alive, 0, -1).astype(np.int32)
        began = time.perf_counter()
        masks = changed_segments(step.rows if before is None else before, step.rows, features.layout)
        features.append(snapshot.t, n, feature_change(step.rows, masks, was, now, 0))
        edges.append(snapshot.t, edge_change(step.delta, snapshot, was, now, 0))
        appended_s.append(time.perf_counter() - began)
        was, before = now, step.rows
        alive = int(snapshot.alive.sum())
        whole.append((features.layout.row_bytes * alive, edges.entry_bytes * len(snapshot)))
        full_rows, full_edges = (sum(pair[i] for pair in whole[-WINDOW:]) for i in (0, 1))
        if len(whole) >= WINDOW and full_rows + full_edges:
            runs = features.whole_bytes + features.changed_bytes
            full = full_rows + full_edges
            held = features.held_bytes + edges.held_bytes
            saved.append((1 - (runs + edges.run_bytes) / full, 1 - held / full, 1 - runs / max(full_rows, 1)))
    assert windows is not None
    assert before is not None
    means = [statistics.mean(column) for column in zip(*saved, strict=True)]
    features, t, rows = windows[0], len(whole) - 1, before
    nodes = np.random.default_rng(1).choice(np.flatnonzero(was == 0), READ)
    assert (features.rows(t, nodes) == rows[nodes]).all()
    ratios = []
    for _ in range(rounds):
        began = time.perf_counter()
        features.rows(t, nodes)
        middle = time.perf_counter()
        rows[nodes]
        ratios.append((middle - began) / (time.perf_counter() - middle))
    print(
        f"| {name} | {means[0]:.1%} | {means[1]:.1%} | {means[2]:.1%} | "
        f"{statistics.median(appended_s[1:]) * 1e3:.0f} | "
        f"{statistics.median(ratios):.1f} ({min(ratios):.1f} .. {max(ratios):.1f}) |",
        flush=True,
    )


def main() -> None:
    """Measure synthetic graphs, then those that are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--graph", type=Path, nargs="*", default=[])
    chosen = parser.parse_args()
    print(f"{chosen.nodes:,} nodes, a window of {WINDOW} snapshots, {SEGMENTS} segments")
    print("| graph | saved | saved, index counted | saved of features | append (ms) | read, ratio to one matrix |")
    print("|---|---|---|---|---|---|")
    for percent in (10, 30, 50, 70):
        steps = synthetic(chosen.nodes, 3, percent / 100, 0.3)
        measure(f"3 edges a node, {percent} % of features change", steps, chosen.rounds)
    for percent in (10, 30, 50, 70):
        steps = synthetic(chosen.nodes, 3, 0.3, percent / 100)
        measure(f"3 edges a node, {percent} % of edges change", steps, chosen.rounds)
    for degree in (3, 10, 20):
        measure(f"{degree} edges a node, 30 % of both", synthetic(chosen.nodes, degree, 0.3, 0.3), chosen.rounds)
    for path in chosen.graph:
        measure(path.name, stored(path), chosen.rounds)


if __name__ == "__main__":
    main()
