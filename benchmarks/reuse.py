"""What reuse saves: time and operations of each way to a window's rows, and how near the adaptive choice comes.

Windows of 8 snapshots go forward and back through a model's first layer and its recurrence, by a full pass over every
snapshot, by what changed (`delta`), by a table of versions of rows, and with sums of input rows kept from epoch to
epoch (`cache`); and as the engine chooses for itself, with the cache and without. All take turns in one process of one
thread, the cache warm. The graphs are made up with change rates from 0.5 % to 50 %, and real ones with 64 random
features that stay. Operations are counted: two for a number of an edge or a row that is added up, and the products.

    .venv/bin/python benchmarks/reuse.py [--rounds 5] [--only 1,10,as733] [--models gcn_gru,gat_lstm] [--threads 1]
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import Any

import torch
from _ceilings import seconds_of
from _graphs import INGESTED, changing, real

from timeloom.graph.tasks import GraphLike, TaskSettings
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Unit
from timeloom.train.choose import Sizes
from timeloom.train.goals.goal import Draw
from timeloom.train.session import Session, open_session
from timeloom.train.settings import InputSettings, ReuseSettings, RunSettings, TrainSettings
from timeloom.train.whole import WholeWorker

LENGTH, FEATURES, HIDDEN = 8, 64, 64
RATES = ("0.5", "1", "2", "5", "10", "20", "50")
DRAW = Draw(seed=0, epoch=0)


@dataclass(frozen=True)
class Way:
    """A way to a window's rows, as settings."""

    name: str
    mode: Any
    cache: Any


FORCED = tuple(Way(name, name, "off") for name in ("full", "delta", "versions"))
CACHE, FREE, DEFAULT = Way("cache", "full", "auto"), Way("auto, cache off", "auto", "off"), Way("auto", "auto", "auto")


def session_of(graph: GraphLike, model: str, norm: Any, way: Way) -> Session:
    """Return a run that takes a way."""
    settings = RunSettings(
        graph="", model=ModelSettings(name=model, hidden=HIDDEN, norm=norm),
        task=TaskSettings(name="degree", residual=False),
        window=WindowSettings(length=LENGTH, targets="last", state="zero"),
        inputs=InputSettings(features="graph", scale="none"),
        train=TrainSettings(device="cpu", threads=torch.get_num_threads()),
        reuse=ReuseSettings(mode=way.mode, cache=way.cache),
    )  # fmt: skip
    return open_session(settings, graph)


def operations(sizes: Sizes, session: Session, way: str) -> float:
    """Return what the rows of a window take, forward and back."""
    asked, rows, count = session.walker.encoder.asked, sizes.num_nodes, len(sizes.edges_T)
    table = way == "versions"
    products = 3.0 * asked.flops * (sizes.table_rows if table else rows * count)
    summed = 0.0
    for one in asked.sums:
        if way == "cache" and one.of_inputs:
            continue
        times = 1 if one.of_inputs else 2
        if way == "delta":
            assert sizes.entries is not None
            entries = sizes.edges_T[0] + sizes.entries[one.norm]
        else:
            entries = sizes.table_edges if table else sum(sizes.edges_T)
        summed += 2.0 * times * one.width * entries
    for width in asked.attended:
        assert sizes.entries is not None
        if way == "delta":
            entries = sizes.edges_T[0] + 2 * sizes.entries[None]
        else:
            entries = sizes.table_edges if table else sum(sizes.edges_T)
        summed += 6.0 * width * entries
    return products + summed


def compare(name: str, graph: GraphLike, model: str, norm: str, rounds: int) -> float:
    """Print the row of a graph and a model; return by how much the adaptive choice misses the best."""
    last = max(LENGTH, int(0.6 * (len(graph) - 1)))
    unit = Unit(first=last - LENGTH, last=last, targets=(last - 1,), fresh=True)
    cached = (CACHE, DEFAULT) if model != "gat_lstm" else ()
    sessions = {way: session_of(graph, model, norm, way) for way in (*FORCED, FREE, *cached)}
    workers = {way: WholeWorker(session) for way, session in sessions.items()}

    def run(way: Way) -> None:
        sessions[way].predictor.zero_grad(set_to_none=True)
        workers[way].learn((unit,), DRAW, None)

    for way in (*sessions, *sessions):
        run(way)
    took = [{way: seconds_of(lambda way=way: run(way)) for way in sessions} for _ in range(rounds)]  # type: ignore[misc]
    middle = {way: statistics.median(one[way] for one in took) for way in sessions}
    times = tuple(range(unit.first, unit.last))
    free = sessions[FREE].walker.encoder
    sizes = free.sizes(times)
    cells = [
        f"{way.name} {middle[way] * 1e3:.1f} ms, {operations(sizes, sessions[way], way.name) / 1e9:.2f} G"
        for way in (*FORCED, *((CACHE,) if cached else ()))
    ]
    misses = {FREE: _miss(took, FREE, FORCED)}
    if cached:
        misses[DEFAULT] = _miss(took, DEFAULT, (*FORCED, CACHE))
    told = "; ".join(f"{way.name}: {miss:.2f} of the best" for way, miss in misses.items())
    print(f"| {name}, {model}, {norm} | {'; '.join(cells)} | chose {free.chosen[times]}; {told} |", flush=True)
    return max(misses.values())


def _miss(took: list[dict[Way, float]], chosen: Way, others: tuple[Way, ...]) -> float:
    """Return the chosen way's time in shares of that of the best one, both in the middle of the rounds."""
    best = min(others, key=lambda way: statistics.median(one[way] for one in took))
    return statistics.median(one[chosen] / one[best] for one in took)


def main() -> None:
    """Print a row for each graph and model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join((*RATES, *INGESTED)))
    parser.add_argument("--models", default="gcn_gru:sym,gcn_gru:mean,gat_lstm:sym")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print("| graph, model, norm | time and operations (billions) of an iteration | adaptive |")
    worst = 0.0
    for name in asked.only.split(","):
        if name in INGESTED:
            graph: GraphLike | None = real(name, FEATURES)
        else:
            graph = changing(
                20_000, 200_000, LENGTH + 6, change=float(name) / 100, num_features=FEATURES
            )  # fmt: skip
        if graph is None:
            print(f"| {name} | not here | |")
            continue
        label = name if name in INGESTED else f"made up, {name} % change"
        for pair in asked.models.split(","):
            model, _, norm = pair.partition(":")
            worst = max(worst, compare(label, graph, model, norm or "sym", asked.rounds))
    print(f"The adaptive choice takes at most {worst:.2f} times as long as the best way.")


if __name__ == "__main__":
    main()
