"""What DynaHB's caches take, how fast hybrid batches are built, and whether building hides behind training.

Every competitor runs once in each round, in turn; ratios are of the same round. `plain` builds the same batch with
NumPy alone: a mask over all edges of the window for every hop, then numbering anew. Training is a compiled loop of some
milliseconds that releases the GIL as torch does; one thread trains, and builders have one other.

    .venv/bin/python benchmarks/hybrid.py [--rounds 7] [--steps 150] [--only cache,build,overlap] [--graph PATH ...]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from timeloom.cli import run as command
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.jit import kernel
from timeloom.plan.batch.cutout import Cutout, cut, forecast
from timeloom.plan.batch.feed import BatchFeed
from timeloom.plan.batch.hybrid import BatchMaker, evenly
from timeloom.plan.batch.hybrid_settings import HybridSettings
from timeloom.plan.batch.neighbourhood import LayerReach, Sets, find_neighbourhood
from timeloom.plan.batch.rows import StoredRows

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
RANKS = 4
TRAINED = 0.6  # the share of snapshots that is trained on
SETS: tuple[Sets, ...] = ("union", "causal")
INGESTED = {
    "mathoverflow": "snap:sx-mathoverflow --from {shared}/medium --snapshots 100 --life 30",
    "bitcoinotc": "snap:soc-sign-bitcoinotc --from {shared}/small --snapshots 100 --life 20",
    "as733": "snap:as-733 --from {shared}/large --stop 1998-06-01",
}
MADE = {"powerlaw": "powerlaw --num-nodes 200000 --num-edges 1000000 --num-snapshots 30"}
Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A graph, and the part of it that one rank of four trains on."""

    graph: DynamicGraph

    @cached_property
    def owned(self) -> Int64s:
        """A random quarter of the nodes: what rank 0 of a partition without regard to edges has."""
        return np.random.default_rng(0).permutation(self.graph.num_nodes)[: self.graph.num_nodes // RANKS]

    @property
    def num_snapshots(self) -> int:
        """How many snapshots are trained on."""
        return max(2, int(TRAINED * len(self.graph)))

    def cache(self, hops: int, sets: Sets) -> Cutout:
        """Return the rank's cache."""
        source, targets = StoredRows(self.graph), np.sort(self.owned).astype(np.int32)
        layers = (LayerReach(),) * hops
        found = find_neighbourhood(source, targets, layers, first=0, last=self.num_snapshots, sets=sets, both=False)
        return cut(source, found)

    def maker(self, hops: int, sets: Sets, settings: HybridSettings) -> BatchMaker:
        """Return what makes the rank's batches."""
        sizes = settings.sizes(self.num_snapshots, len(self.owned))
        return BatchMaker(self.cache(hops, sets), (LayerReach(),) * hops, sets, sizes, evenly(self.owned), 0, 0)


def caches(case: Case) -> Iterator[str]:
    """Yield a row for each depth: what both kinds of cache take, and how long it is to find that out and to build."""
    source, targets = StoredRows(case.graph), np.sort(case.owned).astype(np.int32)
    for hops in (1, 2, 3):
        counts: dict[str, tuple[int, ...]] = {}
        for sets in SETS:
            began = time.perf_counter()
            layers = (LayerReach(),) * hops
            found = find_neighbourhood(source, targets, layers, first=0, last=case.num_snapshots, sets=sets, both=False)
            told = forecast(source, found)
            told_s = time.perf_counter() - began
            held = cut(source, found)
            built_s = time.perf_counter() - began - told_s
            assert held.num_bytes == told.graph_bytes
            computed = sum(int((held.depth_TN >= depth).sum()) for depth in range(1, hops + 1))
            counts[sets] = held.num_nodes, held.rows_read, computed, held.num_edges, held.num_bytes
            yield (
                f"| {case.graph.name} | {hops} | {sets} | {held.num_nodes:,} of {case.graph.num_nodes:,} | "
                f"{held.rows_read:,} | {computed:,} | {held.num_edges:,} | {held.num_bytes / 2**20:.1f} | "
                f"{told_s:.2f} | {built_s:.2f} |"
            )
        ratios = [mine / theirs for mine, theirs in zip(counts["causal"], counts["union"], strict=True)]
        yield (
            f"| | | causal / union | {ratios[0]:.3f} | {ratios[1]:.3f} | {ratios[2]:.3f} | {ratios[3]:.3f} | "
            f"{ratios[4]:.3f} | | |"
        )


@dataclass(frozen=True)
class Plain:
    """The builder that NumPy alone makes, for a union neighbourhood."""

    maker: BatchMaker

    @cached_property
    def edges(self) -> list[tuple[Int64s, Int64s]]:
        """Source and target of every edge of every snapshot of the cache."""
        return [
            (graph.neighbours_E.astype(np.int64), np.repeat(np.arange(graph.num_nodes), np.diff(graph.starts_M)))
            for graph in self.maker.cache.graphs
        ]

    def hybrid(self, action: int, number: int) -> list[tuple[Int64s, ...]]:
        """Return rows by target and by source, in local numbers."""
        maker, size = self.maker, self.maker.sizes[action]
        rng = np.random.Generator(np.random.Philox([maker.seed, maker.rank, action, number]))
        first, last = maker.window(size.snapshots, rng)
        targets = np.searchsorted(
            maker.cache.nodes_N[: maker.cache.num_targets], np.sort(maker.sample(size.nodes, rng))
        )
        inside = np.zeros(maker.cache.num_nodes, np.bool_)
        inside[targets] = True
        nodes, hearing = targets, inside
        for _ in maker.layers:
            hearing = inside.copy()
            for sources_E, targets_E in self.edges[first:last]:
                inside[sources_E[hearing[targets_E]]] = True
            nodes = np.concatenate([nodes, np.flatnonzero(inside & ~hearing)])
        local = np.zeros(len(inside), np.int64)
        local[nodes] = np.arange(len(nodes))
        found: list[tuple[Int64s, ...]] = []
        for sources_E, targets_E in self.edges[first:last]:
            kept = hearing[targets_E]
            heard, hears = local[sources_E[kept]], local[targets_E[kept]]
            by_target, by_source = np.argsort(hears, kind="stable"), np.argsort(heard, kind="stable")
            starts = np.concatenate([[0], np.cumsum(np.bincount(hears, minlength=len(nodes)))])
            out_starts = np.concatenate([[0], np.cumsum(np.bincount(heard, minlength=len(nodes)))])
            found.append((starts, heard[by_target], out_starts, hears[by_source]))
        return found


def ratios_of(rows: Sequence[dict[str, float]], one: str, other: str) -> str:
    """Return the median and the spread of a ratio within rounds."""
    ratios = sorted(row[one] / row[other] for row in rows)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} .. {ratios[-1]:.2f})"


def builds(case: Case, rounds: int) -> Iterator[str]:
    """Yield a row for each size of a batch: milliseconds, edges a second, and the same against NumPy alone."""
    settings = HybridSettings()
    for hops in (1, 2):
        makers = {sets: case.maker(hops, sets, settings) for sets in SETS}
        plain = Plain(makers["union"])
        for action in (0, 4, 8):
            size = makers["union"].sizes[action]
            rows, edges = [], 0
            for number in range(rounds + 1):
                row: dict[str, float] = {}
                for sets, maker in makers.items():
                    began = time.perf_counter()
                    batch = maker.hybrid(action, number)
                    row[sets] = time.perf_counter() - began
                    edges += batch.cutout.num_edges if sets == "union" and number else 0
                began = time.perf_counter()
                same = plain.hybrid(action, number)
                row["plain"] = time.perf_counter() - began
                theirs, ours = sum(len(part[1]) for part in same), makers["union"].hybrid(action, number).cutout
                assert theirs == ours.num_edges, "both build the same batch"
                rows.append(row)
            rows = rows[1:]
            middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
            rate = edges / sum(row["union"] for row in rows) / 1e6
            yield (
                f"| {case.graph.name} | {hops} | {size.snapshots} x {size.nodes:,} | {edges // rounds:,} | "
                f"{middle['union'] * 1e3:.2f} | {rate:.0f} | {middle['causal'] * 1e3:.2f} | "
                f"{ratios_of(rows, 'plain', 'union')} |"
            )


@kernel("float64(float64[::1], int64)")
def _busy(x: Floats, times: int) -> float:
    total = 0.0
    for _ in range(times):
        for i in range(len(x)):
            x[i] = x[i] * 0.999 + 0.001
            total += x[i]
    return total


class Training:
    """Steps of about so many seconds, without a batch's content."""

    def __init__(self, step_s: float) -> None:
        self.x = np.ones(20_000)
        _busy(self.x, 1)
        began = time.perf_counter()
        _busy(self.x, 200)
        self.times = max(1, round(step_s / (time.perf_counter() - began) * 200))

    def step(self) -> None:
        """Make a step."""
        _busy(self.x, self.times)


@contextmanager
def beside(build: Callable[[int], object] | None) -> Iterator[list[int]]:
    """Build batches in another thread while the block runs; the list holds how many."""
    built, ends = [0], threading.Event()

    def work() -> None:
        while not ends.is_set() and build is not None:
            build(built[0])
            built[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield built
    finally:
        ends.set()
        thread.join()


def overlap(case: Case, rounds: int, steps: int) -> Iterator[str]:
    """Yield rows: how much a builder slows training beside it, and how much training waits for batches.

    Where others work on the machine, too, any second thread slows training; `free` is one that holds no lock ever.
    """
    maker, training = case.maker(2, "causal", HybridSettings()), Training(0.005)
    plain, other = Plain(case.maker(2, "union", HybridSettings())), Training(0.005)
    works: dict[str, Callable[[int], object] | None] = {
        "alone": None,
        "free": lambda _: other.step(),
        "ours": lambda number: maker.hybrid(4, number),
        "plain": lambda number: plain.hybrid(4, number),
    }
    rows, counts = [], dict.fromkeys(works, 0)
    for _ in range(rounds):
        row = {}
        for name, build in works.items():
            with beside(build) as built:
                began = time.perf_counter()
                for _ in range(steps):
                    training.step()
                row[name] = time.perf_counter() - began
            counts[name] += built[0]
        rows.append(row)
    yield (
        f"| {case.graph.name} | a builder that never rests | steps take, beside it / beside work that holds no lock: "
        f"ours {ratios_of(rows, 'ours', 'free')}, NumPy alone {ratios_of(rows, 'plain', 'free')} | that work / "
        f"nothing: {ratios_of(rows, 'free', 'alone')} | built: ours {counts['ours'] // rounds}, NumPy alone "
        f"{counts['plain'] // rounds} |"
    )
    yield from (fed(case, maker, training, name, settings, steps) for name, settings in FEEDS.items())


FEEDS = {
    "no reservoir": HybridSettings(reservoir=False),
    "reservoir, no builder": HybridSettings(builders=0),
    "reservoir, a builder": HybridSettings(),
    "the same, no stand-ins": HybridSettings(snapshot_batch_mib=0.0),
}


def fed(case: Case, maker: BatchMaker, training: Training, name: str, settings: HybridSettings, steps: int) -> str:
    """Return a row: what a feed costs training, and when batches were built."""
    waited, spans, log = 0.0, [], []
    with BatchFeed(replace(maker), settings, time.perf_counter) as feed:
        began = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            feed.next(4)
            got = time.perf_counter()
            training.step()
            waited += got - asked
            spans.append((got, time.perf_counter()))
        took = time.perf_counter() - began
    log = feed.drain_log()
    building = sum(built.ended_s - built.began_s for built in log)
    hidden = sum(max(0.0, min(built.ended_s, end) - max(built.began_s, begin)) for built in log for begin, end in spans)
    counts = feed.counts
    return (
        f"| {case.graph.name} | {name} | waits {100 * waited / took:.1f} % of {took:.2f} s | builds {len(log)} in "
        f"{building:.2f} s, {100 * hidden / max(building, 1e-9):.0f} % during steps | "
        f"{counts.reused} again, {counts.unused} built ahead, {counts.snapshots} of all nodes, "
        f"{counts.built} waited for |"
    )


def graphs_of(paths: Sequence[Path], folder: Path) -> Iterator[Case]:
    """Yield the graphs that are named, else made ones and those of the shared data that this machine has."""
    if paths:
        yield from (Case(open_graph(path)) for path in paths)
        return
    lines = {name: f"synth {line}" for name, line in MADE.items()}
    if SHARED.is_dir():
        lines |= {name: f"ingest {line.format(shared=SHARED)}" for name, line in INGESTED.items()}
    for name, line in lines.items():
        code = command([*line.split(), "--out", str(folder / name), "--quiet"])
        assert code == 0, f"{name} could not be made"
        yield Case(open_graph(folder / name))


PARTS = {
    "cache": "| graph | hops | cache | nodes | rows read | rows computed | edges | MiB | forecast s | build s |",
    "build": "| graph | hops | batch | edges | union ms | M edges/s | causal ms | NumPy alone / ours (spread) |",
    "overlap": "| graph | what | training | building | batches |",
}


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", default="cache,build,overlap")
    parser.add_argument("--graph", type=Path, nargs="*", default=[])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = list(graphs_of(chosen.graph, Path(folder)))
        for part in chosen.only.split(","):
            print(f"\n{PARTS[part]}\n|{'---|' * (PARTS[part].count('|') - 1)}")
            for case in cases:
                made = {
                    "cache": lambda case=case: caches(case),
                    "build": lambda case=case: builds(case, chosen.rounds),
                    "overlap": lambda case=case: overlap(case, chosen.rounds, chosen.steps),
                }[part]()
                for row in made:
                    print(row, flush=True)


if __name__ == "__main__":
    main()
