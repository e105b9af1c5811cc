"""How fast a training iteration is, forward, backward and update, against loops written with torch_geometric.

The setting of STACK.md: 100,000 nodes, a million edges of which 5 % change with each snapshot, 128 features that stay,
hidden size 64, windows of 4 snapshots with the loss on the last. All take turns, ours in one process and the rivals in
another, whose malloc is as people have it (`--tuned` sets it as our runs do); ratios are of the same round. Ours is the
steady state: sums of input rows are kept from epoch to epoch (`cache off` computes them in every iteration).
The floor counts the operations of all products at the rate of a product in cache, and what must be read or written
once at the rates of a copy and of reading, one after the other, all measured in the same run.

    scripts/bench epoch                     # both numbers of threads, each in a process of its own
    .venv/bin/python benchmarks/epoch.py --threads 1 [--rounds 3] [--models gcn_gru,wdgcn] [--nodes 100000]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import torch
from _ceilings import Ceilings, Work, ceilings, seconds_of
from _graphs import Made, changing
from _pyg import LOOPS, Loop, PygTemporalTgcn, iteration, seen

from timeloom.graph.tasks import TaskSettings
from timeloom.kernels.workspace import keep_memory
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Unit
from timeloom.train import session as session_module
from timeloom.train.goals.goal import Draw
from timeloom.train.optim import make_optimizer
from timeloom.train.session import Session, open_session
from timeloom.train.settings import InputSettings, OptimSettings, ReuseSettings, RunSettings, TrainSettings
from timeloom.train.whole import WholeWorker

FEATURES, HIDDEN, TIMES = 128, 64, 4
UNIT = Unit(first=0, last=TIMES, targets=(TIMES - 1,), fresh=True)
DRAW = Draw(seed=0, epoch=0)
Precision = Literal["float32", "bf16"]
MODELS = ("gcn_gru", "tgcn", "wdgcn", "evolvegcn_o", "gat_lstm")


@dataclass(frozen=True)
class Ours:
    """A way of ours to take an iteration."""

    precision: Precision
    cache: Literal["auto", "off"]

    @property
    def name(self) -> str:
        """What it is called in a row."""
        return ("bf16" if self.precision == "bf16" else "fp32") + (", cache off" if self.cache == "off" else "")


WAYS = (Ours("float32", "auto"), Ours("bf16", "auto"), Ours("float32", "off"))


def session_of(model: str, graph: Made, way: Ours) -> Session:
    """Return a run of ours."""
    settings = RunSettings(
        graph="", model=ModelSettings(name=model, hidden=HIDDEN), task=TaskSettings(name="degree", residual=False),
        window=WindowSettings(length=TIMES, targets="last", state="zero"), inputs=InputSettings(scale="none"),
        train=TrainSettings(device="cpu", threads=torch.get_num_threads(), precision=way.precision),
        reuse=ReuseSettings(cache=way.cache),
    )  # fmt: skip
    return open_session(settings, graph)


def iteration_of(session: Session) -> Work:
    """Return one update of ours."""
    worker = WholeWorker(session)
    optimizer = make_optimizer(session.predictor.parameters(), OptimSettings())

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        worker.learn((UNIT,), DRAW, None)
        optimizer.step()

    return run


def rivals_of(model: str, graph: Made) -> dict[str, Work]:
    """Return the loops of torch_geometric over the same snapshots and targets."""
    feed, nodes = session_of(model, graph, WAYS[0]).feed, graph.num_nodes
    snapshots = [seen(feed.view(t).edge_index, nodes) for t in range(TIMES)]
    assert feed.scales is not None
    wanted = (torch.from_numpy(feed.label(TIMES)) - feed.scales.target_mean) / feed.scales.target_deviation
    loops: list[Loop] = [kind(FEATURES, HIDDEN) for kind in LOOPS[model]]
    return {
        "PyG-Temporal's" if isinstance(loop, PygTemporalTgcn) else "PyG loop": iteration(
            loop, feed.rows(0), snapshots, wanted.float()
        )
        for loop in loops
    }


def floor_of(model: str, session: Session, way: Ours, top: Ceilings) -> float:
    """Return the seconds that an iteration takes at least, by its products and by what it moves."""
    nodes, edges = session.feed.graph.num_nodes, len(session.feed.view(0).edges)
    kind = torch.bfloat16 if way.precision == "bf16" else torch.float32
    short = kind.itemsize
    one = 2.0 * nodes * FEATURES * HIDDEN  # a product of all input rows by [F, H]
    if model == "evolvegcn_o":
        # The last snapshot alone: a product, and one back for the weight; rows twice, what comes out and its gradient.
        flops, moved, summed = 2 * one, nodes * (2 * FEATURES + 2 * HIDDEN) * 4.0, 1
    else:
        gates = 4 if model in ("wdgcn", "gat_lstm") else 3
        kept = {"gcn_gru": 4, "tgcn": 3, "wdgcn": 5, "gat_lstm": 5}[model]  # gates, and the memory of an LSTM
        state = 2.0 * nodes * HIDDEN * gates * HIDDEN
        if model == "tgcn":
            flops, width = TIMES * (2 * gates * one + 3 * state), FEATURES
        elif model == "gat_lstm":
            flops, width = 3 * one + TIMES * 6 * state, HIDDEN
        else:
            flops, width = TIMES * (2 * one + 3 * state + 3 * state), HIDDEN
        factors = 0 if width == FEATURES else width
        rows = FEATURES if model != "gat_lstm" else HIDDEN
        moved = TIMES * nodes * (2.0 * rows * 4 + 2.0 * (factors + HIDDEN) * short + 2.0 * kept * HIDDEN * 4)
        summed = TIMES
    gathered = 0.0
    if model == "gat_lstm":
        # Forward reads a row of values an edge, backward one of values and one of gradients.
        gathered = TIMES * 3.0 * edges * HIDDEN * 4
    elif way.cache == "off":
        gathered = summed * (edges + 2.0 * nodes) * FEATURES * 4
    return flops / top.flops[kind] + moved / top.copied + gathered / top.read


class Rivals:
    """The loops of torch_geometric in a process of their own, one iteration whenever it is asked for."""

    def __init__(self, asked: argparse.Namespace, model: str) -> None:
        told = ["--serve", model, "--threads", asked.threads, "--nodes", str(asked.nodes)]
        self._child = subprocess.Popen(
            [sys.executable, __file__, *told, *(["--tuned"] if asked.tuned else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.names = self._line().split(",")

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def seconds(self, name: str) -> float:
        """Return how long one iteration took."""
        assert self._child.stdin is not None
        self._child.stdin.write(name + "\n")
        self._child.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def serve(model: str, graph: Made, *, tuned: bool) -> None:
    """Take an iteration of a rival for each line that comes in; print the seconds."""
    # Opening a session of ours tunes malloc, so it is not opened by the process that is to be measured untuned.
    session_module.keep_memory = keep_memory if tuned else lambda: False
    works = rivals_of(model, graph)
    for work in works.values():
        work()
    print(",".join(works), flush=True)
    for line in sys.stdin:
        print(seconds_of(works[line.strip()]), flush=True)


def compare(model: str, graph: Made, asked: argparse.Namespace, top: Ceilings) -> None:
    """Print a row for each of our ways: time, floor and ratios."""
    rivals = Rivals(asked, model)
    sessions = {way: session_of(model, graph, way) for way in WAYS}
    ours = {way: iteration_of(session) for way, session in sessions.items()}
    for work in (*ours.values(), *ours.values()):
        work()
    took, theirs = list[dict[Ours, float]](), list[dict[str, float]]()
    for _ in range(asked.rounds):
        took.append({way: seconds_of(work) for way, work in ours.items()})
        theirs.append({name: rivals.seconds(name) for name in rivals.names})
    rivals.close()
    for way in WAYS:
        cells = []
        for name in rivals.names:
            ratios = sorted(other[name] / one[way] for one, other in zip(took, theirs, strict=True))
            cells.append(f"{name} {statistics.median(ratios):.1f}x ({ratios[0]:.1f} .. {ratios[-1]:.1f})")
        own = statistics.median(one[way] for one in took)
        floor = floor_of(model, sessions[way], way, top)
        print(
            f"| {model}, {way.name}, {torch.get_num_threads()} thread(s) | {own:.3f} s | {'; '.join(cells)} "
            f"| {floor:.3f} s, {own / floor:.2f} of it |",
            flush=True,
        )


def main() -> None:
    """Measure one number of threads after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--tuned", action="store_true", help="rivals with malloc set as our runs set it")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if "," in asked.threads:
        for threads in asked.threads.split(","):
            again = ["--rounds", str(asked.rounds), "--models", asked.models, "--nodes", str(asked.nodes)]
            again += ["--tuned"] if asked.tuned else []
            subprocess.run([sys.executable, __file__, "--threads", threads, *again], check=True)
        return
    torch.set_num_threads(int(asked.threads))
    graph = changing(asked.nodes, 10 * asked.nodes, 8, change=0.05, num_features=FEATURES)
    if asked.serve:
        serve(asked.serve, graph, tuned=asked.tuned)
        return
    keep_memory()
    top = ceilings()
    print(f"| {asked.nodes:,} nodes, {10 * asked.nodes:,} edges; {top} | ours | rivals, ours = 1 | floor |", flush=True)
    for model in asked.models.split(","):
        compare(model, graph, asked, top)


if __name__ == "__main__":
    main()
