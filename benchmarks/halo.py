"""What dividing nodes costs and saves: memory a rank, bytes moved, and what sending for halos early gains.

Processes over gloo train on a synthetic graph of communities. For each number of ranks, partition and model: seconds a
step with and without overlap, step by step in turn in the same processes (all ranks agree on the slowest), bytes that
a rank sends a step, its waiting, and the memory of what it holds of the graph beside one process's.

    .venv/bin/python benchmarks/halo.py [--nodes 30000] [--edges 300000] [--ranks 2,4] [--rounds 15]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timeloom.config import build, merge
from timeloom.dist.collectives import World
from timeloom.dist.launch import Launch, supervise
from timeloom.graph.dynamic import open_graph
from timeloom.graph.synth import Drift, synth
from timeloom.plan.types import Step
from timeloom.systems import preset_of
from timeloom.train.goals.goal import Draw
from timeloom.train.planning import plan_epoch
from timeloom.train.ranks import here, joined
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

MODELS = ("gcn_gru", "gat_lstm", "tgcn_integrated")
SNAPSHOTS, LENGTH, WARM = 8, 4, 3
SETTINGS: dict[str, Any] = {
    "model": {"hidden": 32, "layers": 2},
    "window": {"length": LENGTH, "state": "zero"},
    # What is measured are exchanges: none are saved from epoch to epoch.
    "reuse": {"cache": "off"},
    "train": {"threads": 1, "device": "cpu", "cache_bytes": 1 << 30},
}


def settings_of(graph: str, model: str, by: str, *, overlap: bool) -> RunSettings:
    """Return the settings of one case."""
    system = {"partition": {"by": by}, "overlap": overlap}
    return build(
        RunSettings,
        merge({"graph": graph}, preset_of("vertex").settings, SETTINGS, {"model": {"name": model}, "system": system}),
    )


def bytes_held(trainer: Trainer) -> int:
    """Return the memory of what of the graph a rank keeps for the snapshots of a window."""
    feed = trainer.session.feed
    found = 0
    for t in range(LENGTH):
        rows, view = feed.rows(t), feed.view(t)
        found += rows.numel() * rows.element_size() + view.num_bytes + feed.facts(t).alive.nbytes
    return found


def first_step(trainer: Trainer) -> Step:
    """Return the first step of training."""
    session = trainer.session
    return next(plan_epoch(session.settings, session.split.train_stop, epoch=0, ranks=session.world.size))


def halo_bytes(world: World) -> tuple[int, float]:
    """Return the bytes sent and the seconds waited for halos since this was asked last."""
    told: Counter[str] = Counter()
    waited = 0.0
    for name, tally in world.take_tallies().items():
        if name.startswith("halo"):
            told["sent"] += tally.sent_bytes
            waited += tally.waited_s
    return told["sent"], waited


def measured(world: World, graph: str, model: str, by: str, rounds: int) -> dict[str, Any]:
    """Collective. Return what one case came to on the slowest rank."""
    whole, took = open_graph(graph), dict[bool, list[float]]({True: [], False: []})
    waits, sent = dict[bool, list[float]]({True: [], False: []}), 0
    trainers = {
        overlap: Trainer(open_session(settings_of(graph, model, by, overlap=overlap), whole, world=world), None)
        for overlap in (True, False)
    }
    for round_ in range(WARM + rounds):
        for overlap in (True, False) if round_ % 2 else (False, True):
            trainer = trainers[overlap]
            step = first_step(trainer)
            world.take_tallies()
            world.barrier("control/ready")
            began = time.perf_counter()
            trainer.step(step, Draw(seed=0, epoch=0))
            seconds = torch.tensor([time.perf_counter() - began])
            slowest = float(world.all_reduce(seconds, "control/seconds", "max"))
            moved, waited = halo_bytes(world)
            if round_ >= WARM:
                took[overlap].append(slowest)
                waits[overlap].append(waited)
                sent = moved
    numbers = torch.tensor(
        [bytes_held(trainers[True]), sent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]
    )
    held, most_sent, peak = world.all_reduce(numbers, "control/most", "max").tolist()
    return {
        "model": model, "by": by, "ranks": world.size, "took": [took[True], took[False]],
        "waits": [waits[True], waits[False]], "held": held, "sent": most_sent, "peak": peak,
    }  # fmt: skip


def rank_main(graph: str, out: Path, rounds: int) -> None:
    """Measure all cases as one rank; the first one writes down what they came to."""
    seat = here()
    with joined(settings_of(graph, "gcn_gru", "hash", overlap=True), seat) as world:
        parts = ("hash", "metis") if world.size > 1 else ("hash",)
        found = [measured(world, graph, model, by, rounds) for by in parts for model in MODELS]
        if world.rank == 0:
            out.write_text(json.dumps(found))


def row_of(case: dict[str, Any], alone: dict[str, Any]) -> str:
    """Return one case as a row of a table."""
    early, late = (np.array(one) for one in case["took"])
    ratios = np.sort(late / early)
    waits = [statistics.median(one) for one in case["waits"]]
    cells = [
        case["model"], case["by"], str(case["ranks"]), f"{case['held'] / alone['held']:.2f}",
        f"{case['peak'] / 2**20:.0f}", f"{case['sent'] / 2**20:.2f}", f"{statistics.median(early) * 1e3:.0f}",
        f"{waits[0] * 1e3:.0f} / {waits[1] * 1e3:.0f}",
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} .. {ratios[-1]:.2f})",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Make the graph, start the ranks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=30_000)
    parser.add_argument("--edges", type=int, default=300_000)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--as-rank", nargs=2, metavar=("GRAPH", "OUT"), help="used by the program itself")
    chosen = parser.parse_args()
    if chosen.as_rank:
        rank_main(chosen.as_rank[0], Path(chosen.as_rank[1]), chosen.rounds)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        graph, out = Path(folder) / "graph", Path(folder) / "found.json"
        synth(
            Drift(
                num_nodes=chosen.nodes, num_edges=chosen.edges, num_snapshots=SNAPSHOTS, num_communities=8, name="halo"
            ),
            graph,
        )
        print(
            "| model | owners | ranks | held of the graph (1 process = 1) | peak MiB | sent a step, MiB | ms a step | "
            "ms waited, early / late | late : early (spread) |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        alone: dict[str, dict[str, Any]] = {}
        for ranks in (1, *map(int, chosen.ranks.split(","))):
            again = [sys.executable, __file__, "--as-rank", str(graph), str(out), "--rounds", str(chosen.rounds)]
            outcome = supervise(Launch(command=tuple(again), workers=ranks, max_restarts=0))
            if outcome.code:
                sys.exit(outcome.told)
            for case in json.loads(out.read_text()):
                alone = {case["model"]: case, **alone} if ranks == 1 else alone
                print(row_of(case, alone[case["model"]]))


if __name__ == "__main__":
    main()
