"""Time to a validation loss: DynaHB against the five systems that its paper measures it against, and its ablation.

Every run is the command itself, as `--workers` processes of one thread each, stopped (SIGTERM) after so many seconds of
training. Time is what epochs took, validations left out. The loss that is asked for is the one that all systems of a
graph and model reached, so it depends on the slowest; `best` is what each reached in its time. Systems take turns in
every round, and ratios are of the same round. A model that convolves its state (dcrnn) is served by ADT alone.

    .venv/bin/python benchmarks/dynahb.py [--rounds 1] [--seconds 5] [--workers 2] [--only table,ablation]
        [--graphs bitcoinotc,as733] [--models tgcn] [--systems dynahb,pyd] [--full]

Without --full only the first graph is trained on with every model, and the ablation is of the first graph alone.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from timeloom.cli import run as command
from timeloom.records import EpochEnded, Evaluated, is_run, read

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
GRAPHS = {
    "bitcoinotc": "snap:soc-sign-bitcoinotc --from {shared}/small --snapshots 100 --life 20",
    "mathoverflow": "snap:sx-mathoverflow --from {shared}/medium --snapshots 100 --life 30",
    "as733": "snap:as-733 --from {shared}/large --stop 1998-06-01",
}
MODELS = ("tgcn", "evolvegcn_o", "dcrnn")
SYSTEMS = ("dynahb", "pyd", "adt", "dbov", "dbos", "bvr")
EXCHANGES = ("dcrnn",)
"""Models that need rows of others: no cache serves them."""
SETTINGS = (
    "model.hidden=16", "task.residual=false", "train.epochs=100000", "train.patience=0", "train.threads=1",
    "train.device=cpu", "train.save_seconds=1000000", "train.spans=0",
)  # fmt: skip
OFTEN = "hybrid.epoch_share=0.1"
"""Where batches are small, validation comes ten times while the training part is gone over once."""
ONE_SIZE = ("hybrid.reservoir=false", "hybrid.builders=0")
ABLATION = {
    "Base: all nodes and snapshots, gradients added up": ("pyd", ()),
    "+ Lap: parts of like load": ("pyd", ("system.partition.by=load",)),
    "+ Asyn: parameters averaged": ("pyd", ("system.partition.by=load", "hybrid.sync=timed")),
    "+ RL: hybrid batches of learnt sizes": ("dynahb", ONE_SIZE),
    "+ Rsv: batches kept, and built beside training": ("dynahb", ()),
}
STARTS_S = 120.0
"""How long ranks may take until the first epoch has ended."""


@dataclass(frozen=True)
class Curve:
    """How the validation loss of a run fell: (seconds of training, loss), one for each validation."""

    points: tuple[tuple[float, float], ...] = ()
    epochs: int = 0

    @property
    def best(self) -> float:
        """The lowest loss."""
        return min((loss for _, loss in self.points), default=math.inf)

    def time_to(self, loss: float) -> float:
        """Return the seconds after which the loss was that low (inf: it never was)."""
        return next((seconds for seconds, found in self.points if found <= loss), math.inf)


@dataclass(frozen=True)
class Run:
    """What is measured."""

    graph: Path
    model: str
    workers: int
    seconds: float
    seed: int
    folder: Path = field(default_factory=Path)

    def of(self, system: str, more: Sequence[str] = ()) -> Curve:
        """Train until the time is over; return what came of it."""
        out = self.folder / "run"
        sets = (*SETTINGS, *(() if system == "adt" else (OFTEN,)), f"train.seed={self.seed}", *more)
        line = [sys.executable, "-m", "timeloom", "train", str(self.graph), "--system", system, "--model", self.model]
        line += ["--task", "degree", "--workers", str(self.workers), "--quiet", "--overwrite", "--out", str(out)]
        line += [part for one in sets for part in ("--set", one)]
        log = self.folder / "errors.txt"
        with log.open("w") as errors:
            process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=errors)
            self._wait(process, out)
            process.send_signal(signal.SIGTERM)
            code = process.wait(120)
        if code not in (0, 75):
            raise RuntimeError(f"{' '.join(line)} ended with {code}: {log.read_text()[-2000:]}")
        return curve_of(out)

    def _wait(self, process: subprocess.Popen[bytes], out: Path) -> None:
        """Return when the run has trained for so long, or has ended."""
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < STARTS_S + self.seconds:
            time.sleep(0.1)
            if is_run(out) and curve_of(out).points and sum_of(out) >= self.seconds:
                return


def curve_of(path: Path) -> Curve:
    """Return how a run's validation loss fell so far."""
    spent, epochs, points = 0.0, 0, list[tuple[float, float]]()
    for record in read(path):
        if isinstance(record, EpochEnded):
            spent, epochs = spent + record.seconds, epochs + 1
        elif isinstance(record, Evaluated) and record.split == "val":
            points.append((spent, record.scores["mse"]))
    return Curve(tuple(points), epochs)


def sum_of(path: Path) -> float:
    """Return the seconds that a run has trained."""
    return sum(record.seconds for record in read(path) if isinstance(record, EpochEnded))


def compared(curves: dict[str, list[Curve]], reference: str) -> Iterator[str]:
    """Yield for each system its time to the loss that all reached, against that of the reference, and its best loss."""
    rounds = range(len(next(iter(curves.values()))))
    wanted = [max(of_system[place].best for of_system in curves.values()) for place in rounds]
    for name, found in curves.items():
        times = [curve.time_to(wanted[place]) for place, curve in enumerate(found)]
        ratios = sorted(
            seconds / curves[reference][place].time_to(wanted[place]) for place, seconds in enumerate(times)
        )  # fmt: skip
        middle = statistics.median(ratios)
        yield (
            f"{name} | {statistics.median(wanted):.4f} | {statistics.median(times):.2f} | {middle:.2f} "
            f"({ratios[0]:.2f} .. {ratios[-1]:.2f}) | {statistics.median(curve.best for curve in found):.4f} | "
            f"{statistics.median(curve.epochs for curve in found):.0f}"
        )


def table(graphs: dict[str, Path], models: Sequence[str], systems: Sequence[str], asked: argparse.Namespace) -> None:
    """Print a row for each graph, model and system."""
    print("\n| graph | model | system | loss that all reach | s to it | / DynaHB (spread) | best loss | epochs |")
    print("|---|---|---|---|---|---|---|---|")
    for place, (name, path) in enumerate(graphs.items()):
        for model in models if asked.full or not place else models[:1]:
            served = [one for one in systems if model not in EXCHANGES or one == "adt"]
            curves: dict[str, list[Curve]] = {one: [] for one in served}
            for seed in range(asked.rounds):
                # Each round begins with another system.
                for system in [*served[seed % len(served) :], *served[: seed % len(served)]]:
                    curves[system].append(measured(path, model, asked, seed, system))
            for row in compared(curves, served[0]):
                print(f"| {name} | {model} | {row} |", flush=True)
            for one in systems:
                if one not in served:
                    print(f"| {name} | {model} | {one} | refused: the model convolves its state | | | | |", flush=True)


def ablation(graphs: dict[str, Path], asked: argparse.Namespace) -> None:
    """Print a row for each part of DynaHB that is added (its Figure 8), for T-GCN."""
    print("\n| graph | with | loss that all reach | s to it | / Base (spread) | best loss | epochs |")
    print("|---|---|---|---|---|---|---|")
    for name, path in list(graphs.items())[: None if asked.full else 1]:
        curves: dict[str, list[Curve]] = {what: [] for what in ABLATION}
        for seed in range(asked.rounds):
            for what, (system, more) in ABLATION.items():
                curves[what].append(measured(path, "tgcn", asked, seed, system, more))
        for row in compared(curves, next(iter(ABLATION))):
            print(f"| {name} | {row} |", flush=True)


def measured(
    graph: Path, model: str, asked: argparse.Namespace, seed: int, system: str, more: Sequence[str] = ()
) -> Curve:  # fmt: skip
    """Run in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory() as folder:
        return Run(graph, model, asked.workers, asked.seconds, seed, Path(folder)).of(system, more)


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="table,ablation")
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--full", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        graphs = {name: Path(folder) / name for name in asked.graphs.split(",")}
        for name, path in graphs.items():
            line = GRAPHS[name].format(shared=SHARED).split()
            assert command(["ingest", *line, "--out", str(path), "--quiet"]) == 0, f"{name} could not be read"
        if "table" in asked.only:
            table(graphs, asked.models.split(","), asked.systems.split(","), asked)
        if "ablation" in asked.only:
            ablation(graphs, asked)


if __name__ == "__main__":
    main()
