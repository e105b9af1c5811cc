"""What it gives to compute one window's structure beside another one's time (BLAD), against one after the other (PSG).

Both take the same two windows a step, with as many threads in all; nothing is shared between snapshots or epochs, so
that both compute the same. Steps are taken in turn, so that other work on the machine meets both alike.

    .venv/bin/python benchmarks/pipeline.py [--nodes 20000] [--edges 200000] [--rounds 7] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from timeloom.config import build, merge
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.synth import PowerLaw, synth
from timeloom.plan.types import Step, Unit
from timeloom.systems import preset_of
from timeloom.train.goals.goal import Draw
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

MODELS = ("gcn_gru", "wdgcn", "gat_lstm", "evolvegcn_o", "dcrnn")
SYSTEMS = ("psg", "blad")
LENGTH = 4


def trainer_of(system: str, model: str, graph: DynamicGraph, *, threads: int) -> Trainer:
    """Return a run that has yet to take its first step."""
    settings = build(RunSettings, merge(
        {"graph": str(graph.path)}, preset_of(system).settings,
        {"model": {"name": model, "hidden": 64}, "window": {"length": LENGTH, "groups": 2},
         "train": {"threads": threads, "device": "cpu"}, "reuse": {"mode": "full", "cache": "off"}},
    ))  # fmt: skip
    return Trainer(open_session(settings, graph), None)


def measure(trainers: dict[str, Trainer], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of steps of each system, taken in turn."""
    units = tuple(
        Unit(first=first, last=first + LENGTH, targets=tuple(range(first, first + LENGTH)), fresh=True)
        for first in range(2)
    )
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for round_ in range(rounds + 1):
        for name, trainer in trainers.items():
            began = time.perf_counter()
            trainer.step(Step(units={0: units}, ends_epoch=False), Draw(seed=0, epoch=0))
            # The first step compiles and reads.
            if round_:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def row(model: str, layers: str, seconds: dict[str, list[float]]) -> str:
    """Return a row: medians, and the ratio round by round with its spread."""
    ratios = [one / other for one, other in zip(seconds["psg"], seconds["blad"], strict=True)]
    cells = [f"{statistics.median(seconds[name]) * 1e3:.0f} ms" for name in SYSTEMS]
    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    return f"| {model} | {layers} | {' | '.join(cells)} | {spread} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    print(f"{given.nodes:,} nodes, {given.edges:,} edges, {given.threads} threads, {given.rounds} rounds\n")
    print("| model | windows | one after the other | pipeline | times as fast (spread) |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph"
        law = PowerLaw(num_nodes=given.nodes, num_edges=given.edges, num_snapshots=LENGTH + 5, turnover=0.1)
        synth(law, path)
        graph = open_graph(path)
        for model in MODELS:
            trainers = {name: trainer_of(name, model, graph, threads=given.threads) for name in SYSTEMS}
            print(row(model, f"2 x {LENGTH} snapshots", measure(trainers, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
