"""What DistDy's partitioner costs and is worth beside METIS, hash, greedy and METIS on every snapshot (its Table 3).

Graphs as in DistDy 5.1: uniform edges, a tenth of the nodes hot, and communities that drift (which it has not); 30 %
of the edges and of the features change from snapshot to snapshot. Every snapshot is placed by all partitioners in turn,
and stored in additive form on all servers. Printed: seconds to place and to store, the weight of edges kept on one
server, bytes that simulated batches fetch, nodes moved by a snapshot, and the fullest server over its capacity (above
1: out of memory). The first snapshot is not timed: code is compiled in it.

    .venv/bin/python benchmarks/partition.py [--nodes 100000] [--edges 500000] [--snapshots 6] [--kinds uniform,hot]
    .venv/bin/python benchmarks/partition.py --nodes 500000 --edges 2500000 --snapshots 20 --kinds hot
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from timeloom.graph.csr import Int32s
from timeloom.graph.delta import NO_KEYS, diff
from timeloom.graph.keys import Int64s, layout_for
from timeloom.graph.segment_edges import EdgeWindow
from timeloom.graph.segment_parts import edge_change, feature_change, stored_bytes
from timeloom.graph.segments import FeatureWindow, SegmentLayout, changed_segments
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.partition.baselines import FollowOwners, Greedy, MetisLayer, Placer
from timeloom.plan.partition.fetches import simulate_fetches
from timeloom.plan.partition.hashed import hash_owners
from timeloom.plan.partition.metis import metis_owners
from timeloom.plan.partition.online import Arrival, OnlinePartitioner, OnlineSettings

SERVERS, WINDOW, FEATURES, SLACK = 4, 4, 128, 1.2
BATCH, BATCHES, FANOUTS, HIDDEN = 2048, 4, (5, 10), 128
HOT_SHARE, HOT_FACTOR, COMMUNITIES, DRIFT = 0.1, 10.0, 64, 0.01


class Drawn:
    """A graph in memory; as the baselines want one."""

    def __init__(self, kind: str, *, num_nodes: int, num_edges: int, count: int, change: float) -> None:
        self.num_nodes = num_nodes
        self.rng = np.random.default_rng(0)
        self._kind, self._community = kind, self.rng.integers(0, COMMUNITIES, num_nodes)
        self.snapshots: list[Snapshot] = []
        layout, one_way = layout_for(num_nodes, 0), NO_KEYS
        for t in range(count):
            kept = one_way[self.rng.random(len(one_way)) >= change]
            moves = self.rng.random(num_nodes) < DRIFT
            self._community = np.where(moves, self.rng.integers(0, COMMUNITIES, num_nodes), self._community)
            one_way = np.unique(np.concatenate([kept, self._pairs(num_edges - len(kept))]))
            u, v = one_way // num_nodes, one_way % num_nodes
            keys = np.unique(np.concatenate([layout.pack(u, v), layout.pack(v, u)]))
            self.snapshots.append(Snapshot(t, num_nodes, layout, keys, None, np.ones(num_nodes, np.bool_)))

    def _pairs(self, count: int) -> Int64s:
        n, rng = self.num_nodes, self.rng
        u = rng.integers(0, n, count)
        if self._kind == "hot":
            hot = rng.random(count) < HOT_SHARE * HOT_FACTOR / (HOT_SHARE * HOT_FACTOR + 1 - HOT_SHARE)
            v = np.where(hot, rng.integers(0, int(n * HOT_SHARE), count), rng.integers(int(n * HOT_SHARE), n, count))
        elif self._kind == "drift":
            order = np.argsort(self._community, kind="stable")
            first = np.searchsorted(self._community[order], np.arange(COMMUNITIES + 1))
            mine = self._community[u]
            inside = order[first[mine] + rng.integers(0, 1 << 40, count) % np.diff(first)[mine]]
            v = np.where(rng.random(count) < 0.9, inside, rng.integers(0, n, count))
        else:
            v = rng.integers(0, n, count)
        low, high = np.minimum(u, v), np.maximum(u, v)
        return (low * n + high)[low != high]

    def __len__(self) -> int:
        return len(self.snapshots)

    def snapshot(self, t: int) -> Snapshot:
        return self.snapshots[t]


@dataclass
class Run:
    """One partitioner on one graph."""

    placer: Placer
    begun_s: float = 0.0
    place_s: list[float] = field(default_factory=list)
    store_s: list[float] = field(default_factory=list)
    kept: float = 0.0
    weight: float = 0.0
    moved: int = 0
    fetched: int = 0
    fullest: float = 0.0
    stores: list[tuple[FeatureWindow, EdgeWindow]] = field(default_factory=list)
    window: deque[tuple[Snapshot, Int32s]] = field(default_factory=lambda: deque(maxlen=WINDOW))


def features(graph: Drawn, change: float) -> Iterator[np.ndarray]:
    """Yield the binary features of each snapshot; segments change, not single bits, as nodes' updates do."""
    rng, layout = np.random.default_rng(1), SegmentLayout(FEATURES)
    rows = rng.integers(0, 2, (graph.num_nodes, FEATURES)).astype(np.float32)
    for t in range(len(graph)):
        if t:
            rows = rows.copy()
            for a, b in zip(layout.bounds[:-1], layout.bounds[1:], strict=True):
                changed = rng.random(graph.num_nodes) < change
                rows[changed, a:b] = rng.integers(0, 2, (int(changed.sum()), int(b - a)))
        yield rows


def runs_of(graph: Drawn, capacity_K: Int64s) -> dict[str, Run]:
    """Return what is compared; METIS of the union is told all snapshots, as DistDy 5.1 does."""
    found: dict[str, Run] = {}
    options = OnlineSettings(window=WINDOW)
    for name in ("distdy", "metis", "hash", "greedy", "metis_layer"):
        began = time.perf_counter()
        placer: Placer
        if name == "distdy":
            placer = OnlinePartitioner(capacity_K, options)
        elif name == "metis":
            owners = metis_owners(graph, len(graph), SERVERS, 0, balance="nodes")
            placer = FollowOwners(owners, capacity_K, window=WINDOW)
        elif name == "hash":
            placer = FollowOwners(hash_owners(graph.num_nodes, SERVERS, 0), capacity_K, window=WINDOW)
        else:
            placer = (Greedy if name == "greedy" else MetisLayer)(capacity_K, window=WINDOW)
        found[name] = Run(placer, begun_s=time.perf_counter() - began)
    for run in found.values():
        layout = graph.snapshots[0].layout
        run.stores = [
            (FeatureWindow(SegmentLayout(FEATURES), window=WINDOW), EdgeWindow(layout, window=WINDOW, weighted=False))
            for _ in range(SERVERS)
        ]
    return found


def measure(kind: str, chosen: argparse.Namespace) -> dict[str, Run]:
    """Place and store every snapshot by every partitioner in turn."""
    graph = Drawn(kind, num_nodes=chosen.nodes, num_edges=chosen.edges, count=chosen.snapshots, change=chosen.change)
    layout, n = SegmentLayout(FEATURES), graph.num_nodes
    # What nodes that stay take in a full window, and a fifth more.
    edges = 8 * len(graph.snapshots[0].keys)
    node_bytes = layout.row_bytes * (1 + (WINDOW - 1) * chosen.change) * n + edges * (
        1 + 2 * (WINDOW - 1) * chosen.change
    )
    capacity_K = np.full(SERVERS, int(SLACK * node_bytes / SERVERS))
    runs, before_rows = runs_of(graph, capacity_K), None
    for t, rows in enumerate(features(graph, chosen.change)):
        snapshot = graph.snapshots[t]
        delta = diff(graph.snapshots[t - 1].keys if t else NO_KEYS, None, snapshot.keys, None, snapshot.layout)
        masks = changed_segments(rows if before_rows is None else before_rows, rows, layout)
        before_rows = rows
        full_N, changed_N = stored_bytes(snapshot, delta, masks, layout, weighted=False)
        arrival = Arrival(snapshot=snapshot, full_N=full_N, changed_N=changed_N)
        batches = [np.random.default_rng([t, b]).choice(n, BATCH, replace=False) for b in range(BATCHES)]
        for run in runs.values():
            before_N = run.window[-1][1] if run.window else np.full(n, -1, np.int32)
            began = time.perf_counter()
            placed = run.placer.place(arrival)
            run.place_s.append(time.perf_counter() - began)
            began = time.perf_counter()
            for k, (rows_of, edges_of) in enumerate(run.stores):
                rows_of.append(t, n, feature_change(rows, masks, before_N, placed.server_N, k))
                edges_of.append(t, edge_change(delta, snapshot, before_N, placed.server_N, k))
            run.store_s.append(time.perf_counter() - began)
            held = [a.whole_bytes + a.changed_bytes + b.run_bytes for a, b in run.stores]
            assert placed.held_K.tolist() == held, "the account is what is stored"
            run.window.append((snapshot, placed.server_N))
            run.kept += placed.kept_weight
            run.weight += placed.total_weight
            run.moved += placed.moved
            run.fullest = max(run.fullest, float((placed.held_K / capacity_K).max()))
            for b, targets in enumerate(batches):
                fetched = simulate_fetches(
                    list(run.window), targets, servers=SERVERS, fanouts=FANOUTS, seed=0, step=t * BATCHES + b
                )
                run.fetched += fetched.num_bytes(row_bytes=layout.row_bytes, embedding_bytes=4 * HIDDEN)
    return runs


def main() -> None:
    """Print a Markdown row for each partitioner and graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=500_000)
    parser.add_argument("--snapshots", type=int, default=6)
    parser.add_argument("--change", type=float, default=0.3)
    parser.add_argument("--kinds", default="uniform,hot,drift")
    chosen = parser.parse_args()
    print(f"{chosen.nodes:,} nodes, {chosen.edges:,} edges, {chosen.snapshots} snapshots, {SERVERS} servers")
    print(
        "| graph | partitioner | place + store (s) | ratio to distdy (spread) | kept | MB a batch | moved | fullest |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for kind in chosen.kinds.split(","):
        runs = measure(kind, chosen)
        # The first snapshot compiles; of the others every one gives a ratio.
        ours = np.add(runs["distdy"].place_s, runs["distdy"].store_s)[1:]
        for name, run in runs.items():
            each = np.add(run.place_s, run.store_s)[1:] + run.begun_s / (chosen.snapshots - 1)
            ratios = each / ours
            begun = f" + {run.begun_s:.1f} before" if run.begun_s > 0.05 else ""
            moved = run.moved / chosen.nodes / (chosen.snapshots - 1)
            print(
                f"| {kind} | {name} | {sum(run.place_s[1:]):.1f} + {sum(run.store_s[1:]):.1f}{begun} | "
                f"{np.median(ratios):.2f} ({ratios.min():.2f} .. {ratios.max():.2f}) | {run.kept / run.weight:.3f} | "
                f"{run.fetched / 1e6 / BATCHES / chosen.snapshots:.2f} | {moved:.1%} | {run.fullest:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
