"""What decayed windows save, before anything is trained: memory of the largest window, and the time to cut its blocks.

Graphs are cut as PEERS 2.2 cuts those of FlareDTDG (100 windows, an edge lives 31), the first 40 % of the 70 whole ones
are for training, and chunks are METIS parts of their union. The memory is that of rows and edges of the largest window
over Full-History, with 640 bytes a row and 24 an edge (hidden 16, one GCN and one LSTM, float32, both lists of edges).

    .venv/bin/python benchmarks/trapezoid.py [--rounds 5] [--only sx-mathoverflow] [--chunks 128] [--ranks 1]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pymetis
import scipy.sparse

from timeloom.graph.datasets import find_dataset, local_copy
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Windows, ingest
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.blocks import RankedSides, Slicer, ranked_sides, sides_of
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.order import Chunking, chunk_order
from timeloom.plan.batch.trapezoid import trapezoids
from timeloom.plan.tune.memory import MemoryLaw, chunk_sizes, shares_of_full_history

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
GRAPHS = {
    "sx-mathoverflow": ("snap:sx-mathoverflow", "medium"),
    "rust": ("local:rust", "large"),
    "retrosheet-2000": ("local:retrosheet-2000", "large"),
}
LIFE, CUTS, TRAIN = 31, 100, 0.4
LAW = MemoryLaw(fixed=0.0, row=640.0, edge=24.0)


@dataclass(frozen=True)
class Prepared:
    snapshots: list[Snapshot]
    chunking: Chunking
    metis_s: float


def prepared(name: str, *, chunks: int, ranks: int) -> Prepared:
    """Return the training snapshots of a graph, and its chunks."""
    dataset, folder = GRAPHS[name]
    found = find_dataset(dataset)
    copy = local_copy(found, DATA / folder)
    options = replace(copy.options, windows=Windows(kind="snapshots", amount=str(CUTS)), life=LIFE)
    with tempfile.TemporaryDirectory() as scratch:
        ingest(copy.source, Path(scratch) / "g", options)
        graph = open_graph(Path(scratch) / "g")
        whole = len(graph) - (LIFE - 1)
        snapshots = list(graph.snapshots(LIFE - 1, LIFE - 1 + int(TRAIN * whole)))
        # Arrays of a snapshot lie in files that go away.
        weights = [None if one.stored_weights is None else np.array(one.stored_weights) for one in snapshots]
        snapshots = [
            replace(one, keys=np.array(one.keys), stored_weights=own)
            for one, own in zip(snapshots, weights, strict=True)
        ]
    began = time.perf_counter()
    owner_N, chunk_N = metis_chunks(snapshots, chunks=chunks, ranks=ranks)
    return Prepared(snapshots, Chunking(owner_N, chunk_N, ranks, chunks), time.perf_counter() - began)


def metis_chunks(snapshots: list[Snapshot], *, chunks: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return owners, and chunks of each, by METIS on the union of snapshots."""
    size = snapshots[0].num_nodes
    sources = np.concatenate([one.sources for one in snapshots])
    targets = np.concatenate([one.targets for one in snapshots])
    one_way = scipy.sparse.csr_matrix((np.ones(len(sources), np.float32), (sources, targets)), (size, size))
    union = (one_way + one_way.T).tocsr()
    union.setdiag(0)
    union.eliminate_zeros()
    owner_N = parts(union, ranks)
    chunk_N = np.zeros(size, np.int32)
    for rank in range(ranks):
        nodes = np.flatnonzero(owner_N == rank)
        chunk_N[nodes] = parts(union[nodes][:, nodes], chunks)
    return owner_N, chunk_N


def parts(graph: scipy.sparse.csr_matrix, count: int) -> np.ndarray:
    if count == 1:
        return np.zeros(graph.shape[0], np.int32)
    adjacency = pymetis.CSRAdjacency(graph.indptr, graph.indices)
    return np.array(pymetis.part_graph(count, adjacency=adjacency)[1], np.int32)


def seconds(work: Callable[[], object]) -> float:
    """Return the least of three times."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def cutting(told: Prepared, flare: FlareSettings, *, rounds: int) -> tuple[float, float, float, list[float]]:
    """Return seconds of bucketing and of ordering, M edges/s of blocks, and ratios against looking at every edge."""
    began = time.perf_counter()
    sides = [sides_of(one, told.chunking, 0) for one in told.snapshots]
    bucket_s = time.perf_counter() - began
    rates, ratios, order_s = [], [], []
    for epoch in range(rounds):
        began = time.perf_counter()
        order = chunk_order(told.chunking, seed=1, epoch=epoch)
        edges = [ranked_sides(one, order) for one in sides]
        slicers = [Slicer(order, 0, shrink=shrink) for shrink in (True, False)]
        order_s.append(time.perf_counter() - began)
        last = trapezoids(flare, len(told.snapshots))[-1][-1]
        wanted = [
            (t, chunks)
            for t, chunks in zip(range(last.first, last.last), last.chunks, strict=True)
            if chunks < flare.chunks
        ]
        fast, slow = (cutter(slicer, edges, wanted) for slicer in slicers)
        size = fast()
        fast_s, slow_s = seconds(fast), seconds(slow)
        rates.append(size / fast_s / 1e6)
        ratios.append(slow_s / fast_s)
    return bucket_s, statistics.median(order_s), statistics.median(rates), ratios


def cutter(slicer: Slicer, edges: list[RankedSides], wanted: list[tuple[int, int]]) -> Callable[[], int]:
    """Return what cuts all decayed blocks of a window, and tells how many edges they have."""
    return lambda: sum(slicer.block(edges[t], chunks, halo=False).num_edges for t, chunks in wanted)


def main() -> None:
    """Print one row for each graph and decay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(GRAPHS))
    parser.add_argument("--chunks", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=1)
    chosen = parser.parse_args()
    print("| graph | snapshots, nodes, edges of the last | METIS | decay | rows | edges | memory saved |"
          " buckets, order an epoch | blocks | against numbering anew |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in [chosen.only] if chosen.only else GRAPHS:
        told = prepared(name, chunks=chosen.chunks, ranks=chosen.ranks)
        last = told.snapshots[-1]
        for decay in ("paper", "public"):
            flare = FlareSettings(chunks=chosen.chunks, decay=decay)
            orders = [chunk_order(told.chunking, seed=2, epoch=epoch) for epoch in range(chosen.rounds)]
            shares = [
                shares_of_full_history(chunk_sizes(told.snapshots, order, temporal_halo=False), flare, LAW)
                for order in orders
            ]
            bucket_s, order_s, rate, ratios = cutting(told, flare, rounds=chosen.rounds)
            saved = [100 * (1 - one.memory) for one in shares]
            print(
                f"| {name} | {len(told.snapshots)}, {last.num_nodes:,}, {len(last):,} | {told.metis_s:.1f} s | {decay} "
                f"| {spread([one.rows for one in shares])} | {spread([one.edges for one in shares])} "
                f"| {statistics.median(saved):.0f} % ({min(saved):.0f} .. {max(saved):.0f}) "
                f"| {bucket_s:.2f} s, {1000 * order_s:.0f} ms | {rate:.0f} M edges/s | {spread(ratios)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
