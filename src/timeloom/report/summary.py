"""What one run came to, in a dozen numbers."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from statistics import median

import numpy as np

from timeloom.config import flat
from timeloom.records import Evaluated
from timeloom.report.log import RunLog, state_of
from timeloom.report.ranks import imbalance, loads, spent

_LESS_IS_BETTER = ("mse", "mae", "rmse", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run at a glance; nan and None where nothing was told."""

    name: str
    state: str
    graph: str
    model: str
    task: str
    system: str
    metric: str
    """The one that validation goes by."""
    test: Evaluated | None
    best_epoch: int
    epochs: int
    ranks: int
    parameters: int
    epoch_seconds: float
    """The median epoch."""
    edges_per_second: float
    total_seconds: float
    """Of training, without validation."""
    epoch_bytes: float
    """What all ranks sent in the median epoch."""
    waited_share: float
    """The share of the ranks' time that was waited."""
    imbalance: float
    """Of the median step."""
    peak_bytes: float
    """Of the rank that took most."""

    @property
    def score(self) -> float:
        """The test score by the metric of the run."""
        return math.nan if self.test is None else self.test.scores.get(self.metric, math.nan)


def is_less_better(metric: str) -> bool:
    """Say whether a smaller value of a metric is a better one."""
    return metric.rpartition(".")[2].startswith(_LESS_IS_BETTER)


def margin(metric: str, mine: float, other: float) -> float:
    """Return by which share ``mine`` is better than ``other``; less than 0 if it is worse, nan if it cannot be said."""
    if math.isnan(mine) or math.isnan(other) or other == 0:
        return math.nan
    return (other - mine) / abs(other) if is_less_better(metric) else (mine - other) / abs(other)


def best_baseline(test: Evaluated, metric: str) -> tuple[str, float] | None:
    """Return the baseline that is hardest to beat."""
    told = [(who, scores.get(metric, math.nan)) for who, scores in test.baselines.items()]
    known = [entry for entry in told if not math.isnan(entry[1])]
    sign = 1 if is_less_better(metric) else -1
    return min(known, key=lambda entry: sign * entry[1], default=None)


def summarise(log: RunLog) -> Summary:
    """Return a run at a glance."""
    config = flat(log.config)
    tests = [record for record in log.evaluated if record.split == "test"]
    metric, ranks = metric_of(log), log.ranks
    steps = spent(log.parts)
    ratio = imbalance(loads(steps, ranks)[1]) if len(steps) and len(ranks) > 1 else np.empty(0)
    seconds = [epoch.seconds for epoch in log.epochs]
    return Summary(
        name=log.name, state=state_of(log), graph=graph_of(log), model=str(config.get("model.name", "")),
        task=str(config.get("task.name", "")), system=str(config.get("system.name", "")), metric=metric,
        test=tests[-1] if tests else None, best_epoch=best_epoch_of(log, metric), epochs=len(log.epochs),
        ranks=len(ranks), parameters=log.started.num_parameters if log.started else 0,
        epoch_seconds=_median(seconds),
        edges_per_second=_median([epoch.edges / epoch.seconds for epoch in log.epochs if epoch.seconds > 0]),
        total_seconds=sum(seconds), epoch_bytes=_median(list(bytes_by_epoch(log).values())),
        waited_share=_waited_share(log, sum(seconds)), imbalance=_median(ratio.tolist()),
        peak_bytes=max((float(record.peak_bytes) for record in log.traffic), default=math.nan),
    )  # fmt: skip


def graph_of(log: RunLog) -> str:
    """Return the name of the graph."""
    return log.started.graph if log.started else str(log.config.get("graph", ""))


def metric_of(log: RunLog) -> str:
    """Return the metric that validation goes by."""
    told = "" if log.started is None else str(log.started.derived.get("chosen by", ""))
    return told or next((next(iter(record.scores), "") for record in log.evaluated), "")


def best_epoch_of(log: RunLog, metric: str) -> int:
    """Return the epoch whose parameters were the best in validation, so far; -1 if there is none."""
    if log.ended is not None:
        return log.ended.best_epoch
    sign = 1 if is_less_better(metric) else -1
    known = [
        (sign * record.scores[metric], record.epoch)
        for record in log.evaluated
        if record.split == "val" and not math.isnan(record.scores.get(metric, math.nan))
    ]
    return min(known, default=(0.0, -1))[1]


def bytes_by_epoch(log: RunLog) -> dict[int, float]:
    """Return what all ranks sent in each epoch."""
    found: dict[int, float] = {}
    for record in log.traffic:
        found[record.epoch] = found.get(record.epoch, 0.0) + sum(record.sent_bytes.values())
    return found


def _waited_share(log: RunLog, seconds: float) -> float:
    waited = sum(sum(record.waited_s.values()) for record in log.traffic)
    return waited / (seconds * len(log.ranks)) if log.traffic and seconds > 0 else math.nan


def _median(values: list[float]) -> float:
    return median(values) if values else math.nan


def how_to_run_again(log: RunLog) -> list[tuple[str, str]]:
    """Return commands, each with what it does."""
    path = log.path.resolve()
    here, config = shlex.quote(str(path)), shlex.quote(str(path / "config.toml"))
    told = [(f"timeloom train --config {config} --out NEW_RUN", "the same run once more")]
    if log.ended is None:
        told.append((f"timeloom train --resume {here}", "go on with it"))
    told += [
        (f"timeloom evaluate {here}", "measure its best parameters again"),
        (f"timeloom report {here}", "make this page again"),
        (f"timeloom trace {here} --out trace.json", "see every rank in Perfetto"),
    ]
    return told
