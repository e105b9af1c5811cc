"""What DistDy's placement and storage are worth in training: fetched bytes and epoch time by partitioner, memory saved.

Ranks are processes on this machine, by gloo over loopback: bytes are those of any network, seconds are those of this
one. Every partitioner trains the same samples of the same graph (T34), one after the other, in several rounds; caches
are off, so that every batch fetches what it needs. Printed: bytes fetched from other ranks a window and seconds a
window (the first pass, in which snapshots are placed and code is compiled, is not timed), each as a ratio to METIS as
well; the nodes that moved; and the bytes that stores hold beside those of whole copies of every snapshot.

    .venv/bin/python benchmarks/distdy.py [--ranks 2,4] [--nodes 20000] [--edges 60000] [--rounds 3]
    .venv/bin/python benchmarks/distdy.py --nodes 500000 --edges 2500000 --ranks 4 --rounds 1
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timeloom.config import build, merge
from timeloom.dist.collectives import World
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.ingest.attributes import AttributeOptions
from timeloom.systems import preset_of
from timeloom.train.goals.goal import Draw
from timeloom.train.planning import plan_epoch
from timeloom.train.ranks import end_process, here, joined, launch
from timeloom.train.sampled.worker import SampledWorker
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

PARTITIONS = ("online", "metis", "hash", "greedy", "metis_layer")
COMMUNITIES, DRIFT, LOCAL = 64, 0.01, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained on."""

    nodes: int
    edges: int
    snapshots: int
    features: int
    change: float
    """The share of the edges, and of the segments of features, that is new in each snapshot."""


def make(case: Case, path: Path) -> Path:
    """Make a graph of communities that drift, with features of which a share changes."""
    rng = np.random.default_rng(0)
    community = rng.integers(0, COMMUNITIES, case.nodes)
    rows = rng.standard_normal((case.nodes, case.features), np.float32)
    features, tables, pairs = [], [], np.empty(0, np.int64)
    for t in range(case.snapshots):
        kept = pairs[rng.random(len(pairs)) >= case.change]
        moves = rng.random(case.nodes) < DRIFT
        community = np.where(moves, rng.integers(0, COMMUNITIES, case.nodes), community)
        order = np.argsort(community, kind="stable")
        first = np.searchsorted(community[order], np.arange(COMMUNITIES + 1))
        count = case.edges - len(kept)
        u = rng.integers(0, case.nodes, count)
        mine = community[u]
        inside = order[first[mine] + rng.integers(0, 1 << 40, count) % np.diff(first)[mine]]
        v = np.where(rng.random(count) < LOCAL, inside, rng.integers(0, case.nodes, count))
        pairs = np.unique(np.concatenate([kept, (np.minimum(u, v) * case.nodes + np.maximum(u, v))[u != v]]))
        a, b = pairs // case.nodes, pairs % case.nodes
        # Every node is there from the beginning.
        ring = np.arange(case.nodes) if t == 0 else np.empty(0, np.int64)
        sources = np.concatenate([a, b, ring])
        tables.append((sources, np.concatenate([b, a, (ring + 1) % case.nodes]), np.full(len(sources), t)))
        widths = np.arange(5) * case.features // 4
        for low, high in pairwise(widths):
            changed = np.flatnonzero(rng.random(case.nodes) < case.change)
            rows[changed, low:high] = rng.standard_normal((len(changed), high - low), np.float32)
        features.append(rows.copy())
    source, target, moment = (np.concatenate(part) for part in zip(*tables, strict=True))
    file = path.with_suffix(".npy")
    np.save(file, np.stack(features))
    ingest(
        {"source": source, "target": target, "time": moment}, path,
        Ingest(windows=Windows(kind="given"), attributes=AttributeOptions(features=f"array:{file}")),
    )  # fmt: skip
    return path


def settings_of(graph: Path, by: str, arguments: argparse.Namespace) -> RunSettings:
    """Return the settings of one run."""
    given: dict[str, Any] = {
        "graph": str(graph), "model": {"hidden": arguments.hidden, "layers": 2}, "inputs": {"features": "graph"},
        "system": {"partition": {"by": by}},
        "distdy": {"fanouts": [5, 10], "updates": arguments.updates, "cache_bytes": arguments.cache_bytes},
        "train": {"threads": 1, "device": "cpu"},
    }  # fmt: skip
    return build(RunSettings, merge(preset_of("distdy").settings, given))


def pass_over(trainer: Trainer, epoch: int) -> int:
    """Go over all windows once; return how many updates that was."""
    session = trainer.session
    plan = plan_epoch(session.settings, session.split.train_stop, epoch=epoch, ranks=session.world.size)
    step, count = next(plan), 0
    while True:
        trainer.step(step, Draw(seed=0, epoch=epoch))
        count += 1
        if step.ends_epoch:
            return count
        step = plan.send(trainer.outcome(count - 1))


def fetched_bytes(world: World) -> int:
    """Return what has come from other ranks to be computed with, and what embeddings were sent."""
    told = world.tallies
    return sum(one.received_bytes for name, one in told.items() if name.startswith(("fetch/", "state/embeddings")))


def whole_bytes(graph: DynamicGraph, first: int, last: int, features: int) -> int:
    """Return what a window takes where every snapshot of it is stored whole."""
    return sum(4 * features * graph.num_nodes + 8 * graph.num_edges(t) for t in range(first, last))


def measure(arguments: argparse.Namespace) -> None:
    """Train as one rank; the first one writes what came of it."""
    graph, settings = open_graph(arguments.graph), settings_of(Path(arguments.graph), arguments.by, arguments)
    with joined(settings, here()) as world:
        trainer = Trainer(open_session(settings, graph, world=world), None)
        pass_over(trainer, 0)
        found = storage(trainer, graph, world)
        before, began = fetched_bytes(world), time.perf_counter()
        count = sum(pass_over(trainer, epoch) for epoch in range(1, arguments.passes + 1))
        found["seconds"] = (time.perf_counter() - began) / count
        told = world.gather_bytes(str(fetched_bytes(world) - before).encode(), "control/bytes")
        found["bytes"] = sum(int(one) for one in told) / count
        trainer.close()
        if world.rank == 0:
            Path(arguments.result).write_text(json.dumps(found))


def storage(trainer: Trainer, graph: DynamicGraph, world: World) -> dict[str, Any]:
    """Return what all stores hold, what they would hold without additive storage, and how many nodes moved."""
    worker = trainer.worker
    assert isinstance(worker, SampledWorker)
    store = worker.stock.store
    told = [int(one) for one in world.gather_bytes(str(store.held_bytes).encode(), "control/held")]
    held = store.snapshots
    placed = worker.stock.coordinator.last
    return {
        "held": sum(told), "whole": whole_bytes(graph, held.start, held.stop, store.features.layout.num_features),
        "moved": 0 if placed is None else placed.moved,
        "uneven": max(told) * len(told) / sum(told),
    }  # fmt: skip


def run_once(arguments: argparse.Namespace, graph: Path, by: str, ranks: int) -> dict[str, Any]:
    """Return what one run of so many processes came to."""
    result = graph.parent / "result.json"
    result.unlink(missing_ok=True)
    passed = [f"--{name}={getattr(arguments, name)}" for name in ("hidden", "updates", "cache_bytes", "passes")]
    command = [sys.executable, __file__, f"--graph={graph}", f"--by={by}", f"--result={result}", *passed]
    outcome = launch(command, workers=ranks, max_restarts=0, min_workers=0)
    assert outcome.code == 0, outcome.told
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def compare(arguments: argparse.Namespace) -> None:
    """Run every partitioner in turn, as often as asked for, and print a table for each number of ranks."""
    case = Case(
        nodes=arguments.nodes, edges=arguments.edges, snapshots=arguments.snapshots, features=arguments.features,
        change=arguments.change,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        graph = make(case, Path(folder) / "graph")
        sys.stdout.write(f"{case}; {arguments.rounds} rounds; ratios are to metis in the same round\n")
        for ranks in (int(one) for one in arguments.ranks.split(",")):
            found: dict[str, list[dict[str, Any]]] = {by: [] for by in PARTITIONS}
            for _ in range(arguments.rounds):
                for by in PARTITIONS:
                    found[by].append(run_once(arguments, graph, by, ranks))
            tell(found, ranks)


def tell(found: dict[str, list[dict[str, Any]]], ranks: int) -> None:
    """Print a table."""
    lines = [
        "", f"{ranks} ranks", "",
        "| partition | fetched MB/update | of metis | ms/update | times as fast | moved | held MB | saved | uneven |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for by, rounds in found.items():
        faster = [theirs["seconds"] / mine["seconds"] for mine, theirs in zip(rounds, found["metis"], strict=True)]
        seconds, one = statistics.median(mine["seconds"] for mine in rounds), rounds[0]
        share = one["bytes"] / found["metis"][0]["bytes"]
        lines.append(
            f"| {by} | {one['bytes'] / 1e6:.2f} | {share:.2f} | {1e3 * seconds:.0f} | {statistics.median(faster):.2f} "
            f"({min(faster):.2f}-{max(faster):.2f}) | {one['moved']} | {one['held'] / 1e6:.1f} | "
            f"{1 - one['held'] / one['whole']:.1%} | {one['uneven']:.2f} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Compare, or be one rank of one run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("nodes", 20_000), ("edges", 60_000), ("snapshots", 10), ("features", 128), ("rounds", 3),
                          ("passes", 1), ("hidden", 64), ("updates", 8), ("cache_bytes", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--change", type=float, default=0.3)
    for name in ("graph", "by", "result"):
        parser.add_argument(f"--{name}")
    arguments = parser.parse_args()
    if arguments.graph is None:
        compare(arguments)
        return
    torch.set_num_threads(1)
    measure(arguments)
    # Threads of a launcher's world end with the process.
    end_process(0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
