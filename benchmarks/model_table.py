"""Every model against the baselines on six real data sets, several seeds each: writes docs/results.md.

`python benchmarks/model_table.py [--only chickenpox,ubuntu] [--seeds 3] [--workers 2]`. What came of a run is kept in
runs/table and not trained again, so the script can be stopped and started at will.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import statistics
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from timeloom.cli import run as command
from timeloom.config import parse_sets
from timeloom.nn.models import MODELS
from timeloom.train.runs import train

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
RUNS = ROOT / "runs" / "table"
PAGE = ROOT / "docs" / "results.md"
ABOUT = """Every model beside baselines that learn nothing, on real data sets; made by `benchmarks/model_table.py`,
which holds the exact settings. All models of a table share them: few epochs, one size, nothing tuned for a model, so
the tables say what a first run gives, not what a model can reach. Splits are chronological (70 / 15 / 15 % of the
labels); models are chosen by validation and tested once. Mean and standard deviation of {seeds} seeds; baselines of
links and of held-back nodes vary with the seed, too. **Bold**: better than every baseline by the first metric. Where
nothing is bold, no model has earned its place yet. Seconds are of one thread on a busy machine: they compare models
roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A data set, a task and the settings that all models share."""

    name: str
    about: str
    ingest: str
    """What follows `timeloom ingest`; {shared} is the folder of the data sets."""
    task: str
    settings: str
    metrics: tuple[str, ...]


CASES = (
    Case(
        name="chickenpox", about="weekly cases in 20 counties of Hungary (static graph): next week's value",
        ingest="pygt:chickenpox --from {shared}/signals", task="signal",
        settings="train.epochs=15 train.patience=5 model.hidden=16", metrics=("mse", "mae"),
    ),
    Case(
        name="england-covid", about="daily cases and mobility of 129 regions: the next day's cases",
        ingest="pygt:england-covid --from {shared}/signals", task="signal",
        settings="train.epochs=60 train.patience=15 model.hidden=16 model.norm=mean", metrics=("mse", "mae"),
    ),
    Case(
        name="sx-mathoverflow", about="who answers whom, 30-day snapshots: links of the next one",
        ingest="snap:sx-mathoverflow --from {shared}/medium --every 30d", task="links",
        settings="train.epochs=6 train.patience=3 train.validate_every=1",
        metrics=("random.mrr", "random.auc", "historical.mrr", "random.mrr_new"),
    ),
    Case(
        name="bitcoinotc", about="who trusts whom, 30-day snapshots: the sign of the next one's ratings",
        ingest="snap:soc-sign-bitcoinotc --from {shared}/small --every 30d", task="edge_classes",
        settings="train.epochs=15 train.patience=5 task.class_weights=balanced", metrics=("macro_f1", "accuracy"),
    ),
    Case(
        name="as733", about="internet routers, the first 202 daily snapshots: every node's next degree",
        ingest="snap:as-733 --from {shared}/large --stop 1998-06-01", task="degree",
        settings="train.epochs=10 train.patience=4", metrics=("mse", "mae"),
    ),
    Case(
        name="ubuntu", about="package dependencies of 8 releases, 117,089 packages: the section of packages held back",
        ingest="local:ubuntu --from {shared}/labelled", task="classes",
        settings="train.epochs=12 optim.rate=0.02 window.length=3", metrics=("accuracy", "macro_f1"),
    ),
)  # fmt: skip


def graph_of(case: Case) -> Path:
    """Ingest a case's data set, unless that was done."""
    path = RUNS / "graphs" / case.name
    if not path.exists():
        arguments = shlex.split(case.ingest.format(shared=SHARED))
        code = command(["ingest", *arguments, "--out", str(path), "--quiet"])
        assert code == 0, f"{case.name} could not be ingested"
    return path


def one(name: str, graph: str, settings: str, task: str, model: str, seed: int) -> dict[str, Any]:
    """Train once; return what came of it, also next time."""
    torch.set_num_threads(1)
    home = RUNS / name / f"{model}-{seed}"
    told = home.with_suffix(".json")
    if told.exists():
        found: dict[str, Any] = json.loads(told.read_text())
        return found
    began = time.monotonic()
    sets = [*settings.split(), f"train.seed={seed}", "train.threads=1", "train.save_seconds=1e9"]
    result = train(graph, home, parse_sets(sets), model=model, task=task, overwrite=True)
    made = {
        "case": name, "model": model, "seed": seed, "scores": result.scores, "baselines": result.baselines,
        "seconds": time.monotonic() - began,
    }  # fmt: skip
    told.write_text(json.dumps(made))
    shutil.rmtree(home)
    return made


def main() -> None:
    """Train everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(case.name for case in CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    cases = [case for case in CASES if case.name in asked.only.split(",")]
    made: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(one, case.name, str(graph_of(case)), case.settings, case.task, model, seed)
            for case in cases
            for model in MODELS
            for seed in range(asked.seeds)
        ]
        for job in as_completed(jobs):
            made.append(job.result())
            last = made[-1]
            print(
                f"{len(made)}/{len(jobs)} {last['case']} {last['model']} {last['seed']}: {last['seconds']:.0f} s",
                flush=True,
            )
    PAGE.write_text(page(cases, made, asked.seeds))


def page(cases: list[Case], made: list[dict[str, Any]], seeds: int) -> str:
    """Return the page of results."""
    lines = [
        "# Results",
        "",
        *textwrap.wrap(ABOUT.format(seeds=seeds), 118),
    ]
    for case in cases:
        lines += ["", f"## {case.name}", "", f"{case.about[0].upper()}{case.about[1:]}.", ""]
        lines += ["```", f"timeloom ingest {case.ingest.format(shared='../shared/data')} --out {case.name}"]
        sets = " ".join(f"--set {one}" for one in case.settings.split())
        lines += [f"timeloom train {case.name} --task {case.task} --model MODEL {sets} --out RUN", "```", ""]
        lines += table(case, [run for run in made if run["case"] == case.name])
    return "\n".join(lines) + "\n"


def table(case: Case, runs: list[dict[str, Any]]) -> list[str]:
    """Return the table of one data set."""
    lines = [f"| | {' | '.join(case.metrics)} | s a run |", "|---" * (len(case.metrics) + 2) + "|"]
    first = case.metrics[0]
    less = first.startswith(("mse", "mae"))
    baselines = {name: [run["baselines"][name] for run in runs] for name in runs[0]["baselines"]}
    best = (min if less else max)(spread(told, first)[0] for told in baselines.values())
    for name, told in baselines.items():
        lines.append(f"| *{name}* | {' | '.join(shown(spread(told, metric)) for metric in case.metrics)} | |")
    for model in MODELS:
        mine = [run for run in runs if run["model"] == model]
        scores = [run["scores"] for run in mine]
        mean = spread(scores, first)[0]
        name = f"**{model}**" if (mean < best if less else mean > best) else model
        seconds = statistics.mean(run["seconds"] for run in mine)
        cells = " | ".join(shown(spread(scores, metric)) for metric in case.metrics)
        lines.append(f"| {name} | {cells} | {seconds:.0f} |")
    return lines


def spread(told: list[dict[str, float]], metric: str) -> tuple[float, float]:
    """Return mean and standard deviation over seeds."""
    values = [scores[metric] for scores in told]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def shown(both: tuple[float, float]) -> str:
    """Return mean and deviation as a person reads them."""
    mean, deviation = both
    digits = 2 if abs(mean) >= 10 else 4
    return f"{mean:.{digits}f}" if deviation < 0.5 * 10**-digits else f"{mean:.{digits}f} ± {deviation:.{digits}f}"


if __name__ == "__main__":
    main()
