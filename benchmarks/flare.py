"""What FlareDTDG saves and what it costs: memory, time and accuracy beside Full-History, Recent-Only and ESDG.

Graphs are cut as PEERS 2.2 cuts those of FlareDTDG (100 windows, an edge lives 31; the first 30, which are not whole,
are left out), the first 40 % train, the next tenth chooses, the rest tests; the task is the next in-degree. Every row is
a process of its own with one thread and one rank. Memory is the most that was resident in all epochs but the first,
above what there was before training (kernels are compiled by then; 128 MiB may be used for caches); METIS, once a run,
is not in it. Time is the CPU time of an epoch, the median of all but the first, because machines that are shared
stretch the clock. Rounds are interleaved.

    .venv/bin/python benchmarks/flare.py [--rounds 1] [--epochs 4] [--only sx-mathoverflow] [--model mpnn_lstm]
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
GRAPHS = {
    "sx-mathoverflow": ("snap:sx-mathoverflow", "medium"),
    "rust": ("local:rust", "large"),
    "retrosheet-2000": ("local:retrosheet-2000", "large"),
}
LIFE, CUTS = 31, 100
ESDG = ("window.length=8", "window.stride=1", "window.targets=last", "window.state=zero", "window.shuffle=false")
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "full-history": ("flare", ("flare.history=full",)),
    "flare, decay of the public code": ("flare", ("flare.decay=public",)),
    "flare, decay of the paper": ("flare", ("flare.decay=paper",)),
    "recent-only": ("flare", ("flare.history=recent",)),
    "flare without shrinking": ("flare", ("flare.decay=public", "flare.shrink=false")),
    "esdg (one rank)": ("esdg", ESDG),
}
COMMON = (
    "model.hidden=16", "split.train=0.4", "split.val=0.1", "train.threads=1", "train.device=cpu",
    "train.patience=0", "inputs.features=log_degree", "train.cache_bytes=134217728",
)  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What one process came to."""

    cpu_s: float
    peak_mib: float
    mse: float
    persistence: float
    steps: int


def main() -> None:
    """Run all ways on all graphs and print rows of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="", help="comma separated; all by default")
    parser.add_argument("--model", default="mpnn_lstm")
    parser.add_argument("--one", nargs=4, metavar=("GRAPH", "WAY", "MODEL", "EPOCHS"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(Path(asked.one[0]), asked.one[1], asked.one[2], int(asked.one[3]))))
        return
    print("| graph | way | CPU s an epoch | of full | memory, MiB | of full | test mse | persistence |")
    print("|---|---|---|---|---|---|---|---|")
    ways = asked.ways.split(",") if asked.ways else list(WAYS)
    for name in [asked.only] if asked.only else GRAPHS:
        with tempfile.TemporaryDirectory() as scratch:
            graph = prepared(name, Path(scratch) / "g")
            print_rows(name, told_of(graph, ways, asked))


def told_of(graph: Path, ways: list[str], asked: argparse.Namespace) -> dict[str, list[Told]]:
    """Return what each way came to in each round; rounds are interleaved."""
    found: dict[str, list[Told]] = {way: [] for way in ways}
    for _ in range(asked.rounds):
        for way in ways:
            command = [sys.executable, __file__, "--one", str(graph), way, asked.model, str(asked.epochs)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[way].append(Told(**json.loads(done.stdout.splitlines()[-1])))
    return found


def print_rows(name: str, found: dict[str, list[Told]]) -> None:
    """Print a row for each way; ratios are to Full-History of the same round."""
    full = found.get("full-history", [])
    for way, rounds in found.items():
        cells = [name, way]
        for what in ("cpu_s", "peak_mib"):
            values = [getattr(one, what) for one in rounds]
            ratios = [value / getattr(one, what) for value, one in zip(values, full, strict=False)]
            cells += [spread(values), spread(ratios) if ratios else ""]
        cells += [f"{statistics.median(one.mse for one in rounds):.4f}", f"{rounds[0].persistence:.4f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


def spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def prepared(name: str, path: Path) -> Path:
    """Ingest a graph."""
    from timeloom.graph.datasets import find_dataset, local_copy
    from timeloom.graph.ingest import Windows, ingest

    dataset, folder = GRAPHS[name]
    copy = local_copy(find_dataset(dataset), DATA / folder)
    ingest(copy.source, path, replace(copy.options, windows=Windows(kind="snapshots", amount=str(CUTS)), life=LIFE))
    return path


class WholeOnes:
    """A graph without its first snapshots, in which edges have not yet lived as long as in the others."""

    def __init__(self, graph: Any, first: int) -> None:
        self._graph, self._first = graph, first
        self.name, self.num_nodes, self.ids = graph.name, graph.num_nodes, graph.ids
        self.num_edge_types, self.features, self.labels = graph.num_edge_types, graph.features, graph.labels

    def __len__(self) -> int:
        return len(self._graph) - self._first

    def num_edges(self, t: int) -> int:
        return int(self._graph.num_edges(t + self._first))

    def snapshot(self, t: int) -> Any:
        return replace(self._graph.snapshot(t + self._first), t=t)


def resident(what: str) -> float:
    """Return VmRSS or VmHWM in MiB."""
    return int(Path("/proc/self/status").read_text().split(f"{what}:")[1].split()[0]) / 1024


def warm_up(system: str, model: str) -> None:
    """Train on a tiny graph, so that what is compiled and imported does not count as memory of windows."""
    from timeloom.config import merge, parse_sets
    from timeloom.graph.synth import Drift, synth
    from timeloom.train.runs import train

    sets = merge(parse_sets([*COMMON, "train.epochs=1", "train.threads=1"]), {"model": {"name": model}})
    with tempfile.TemporaryDirectory() as scratch:
        synth(Drift(num_nodes=30, num_edges=90, num_snapshots=30, num_communities=2), Path(scratch) / "g")
        train(Path(scratch) / "g", Path(scratch) / "run", sets, system=system)


def forget_peak() -> None:
    """Give free memory back, and let the kernel begin anew to look for the most."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def measured(path: Path, way: str, model: str, epochs: int) -> dict[str, float]:
    """Train in this process; return what it took and how good it is."""
    from timeloom.config import build, merge, parse_sets
    from timeloom.graph.dynamic import open_graph
    from timeloom.systems import preset_of
    from timeloom.train.evaluate import evaluate, evaluate_baselines
    from timeloom.train.goals.goal import Draw
    from timeloom.train.planning import plan_epoch
    from timeloom.train.session import open_session
    from timeloom.train.settings import RunSettings
    from timeloom.train.trainer import Trainer

    system, sets = WAYS[way]
    tables = {"graph": str(path), "model": {"name": model}, "train": {"epochs": epochs}}
    settings = build(RunSettings, merge(preset_of(system).settings, tables, parse_sets([*COMMON, *sets])))
    session = open_session(settings, WholeOnes(open_graph(path), LIFE - 1))
    warm_up(system, model)
    trainer, seconds = Trainer(session, None), list[float]()
    forget_peak()
    before = resident("VmRSS")
    for epoch in range(epochs):
        began = time.process_time()
        plan = plan_epoch(settings, session.split.train_stop, epoch=epoch, ranks=1)
        step = next(plan)
        while True:
            trainer.step(step, Draw(seed=settings.train.seed, epoch=epoch))
            if step.ends_epoch:
                break
            step = plan.send(trainer.outcome(len(trainer.progress.losses) - 1))
        steps = len(trainer.progress.losses)
        trainer.progress.epoch, trainer.progress.losses, trainer.carry = epoch + 1, [], None
        seconds.append(time.process_time() - began)
        if not epoch:
            forget_peak()
    peak = resident("VmHWM") - before
    persistence = evaluate_baselines(session, "test")["persistence"]["mse"]
    mse = evaluate(trainer.worker, "test")["mse"]
    trainer.close()
    return {
        "cpu_s": statistics.median(seconds[1:] or seconds), "peak_mib": peak, "mse": mse, "persistence": persistence,
        "steps": steps,
    }  # fmt: skip


if __name__ == "__main__":
    main()
