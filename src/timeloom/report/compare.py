"""How do runs compare: one row for each way of training, with its spread over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

from timeloom.config import flat
from timeloom.errors import BadConfig
from timeloom.report.log import RunLog
from timeloom.report.show import count_of, seconds_of, share_of, size_of
from timeloom.report.summary import Summary, is_less_better, summarise

_TELLING = ("system.name", "model.name", "task.name", "graph")
_SEED = "train.seed"
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of training, over its seeds; nan where nothing was told."""

    label: str
    runs: tuple[str, ...]
    ended: int
    """How many of the runs have come to their end."""
    metric: str
    score: float
    """The mean over seeds of the test score."""
    score_spread: float
    """Its standard deviation over seeds; nan with one seed."""
    epoch_seconds: float
    seconds_to_loss: float
    """Of training until an epoch's loss was at or below the target; inf if it never was."""
    epoch_bytes: float
    waited_share: float
    imbalance: float
    peak_bytes: float

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data; None where there is no number."""
        names = [name for name in self.__slots__ if name not in ("label", "runs", "ended", "metric")]
        numbers = {name: getattr(self, name) for name in names}
        told = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"label": self.label, "runs": list(self.runs), "ended": self.ended, "metric": self.metric, **told}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs beside each other."""

    metric: str
    """Empty if the runs go by different ones."""
    target_loss: float
    rows: tuple[Row, ...]
    notes: list[str]

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        arrow = "↓" if is_less_better(self.metric) else "↑"
        score = f"test {self.metric} {arrow}" if self.metric else "test score"
        return [
            "run", "seeds", score, "time per epoch", f"time to loss {self.target_loss:.4g}",
            "sent per epoch", "waited", "imbalance", "peak memory",
        ]  # fmt: skip

    @property
    def cells(self) -> list[list[str]]:
        """The rows, for people."""
        return [_cells(row, "" if self.metric else f" {row.metric}") for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        target = self.target_loss if math.isfinite(self.target_loss) else None
        rows = [row.as_json() for row in self.rows]
        return {"metric": self.metric, "target_loss": target, "rows": rows, "notes": self.notes}

    def as_markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, ["---"] * len(self.header), *self.cells]
        table = "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
        return table + "".join(f"\n{note}\n" for note in self.notes)


def compare(logs: list[RunLog], *, target_loss: float | None = None) -> Comparison:
    """Return runs beside each other; those that differ in their seed alone share a row.

    Without a target the time is told to the lowest loss that every run reached.
    """
    if not logs:
        raise BadConfig("there is no run to compare: give the folders of at least one")
    summaries = [summarise(log) for log in logs]
    labels, keys = labels_of(logs, with_seeds=False), [_key(log) for log in logs]
    target = _common_loss(logs) if target_loss is None else target_loss
    groups: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    rows = [
        _row(labels[places[0]], [logs[at] for at in places], [summaries[at] for at in places], target)
        for places in groups.values()
    ]
    metrics = {one.metric for one in summaries}
    metric = summaries[0].metric if len(metrics) == 1 else ""
    return Comparison(metric=metric, target_loss=target, rows=tuple(rows), notes=_notes(logs, summaries, target_loss))


def _notes(logs: list[RunLog], summaries: list[Summary], target_loss: float | None) -> list[str]:
    notes = []
    if target_loss is None:
        notes.append("time to loss: seconds of training to the lowest epoch loss that every run reached")
    for what, values in (
        ("graphs", {one.graph for one in summaries}), ("tasks", {one.task for one in summaries}),
        ("metrics", {one.metric for one in summaries}),
    ):  # fmt: skip
        if len(values) > 1:
            found = ", ".join(sorted(values))
            notes.append(f"these runs have different {what} ({found}): scores and losses do not compare")
    going_on = [log.name for log, one in zip(logs, summaries, strict=True) if one.state != "ended"]
    if going_on:
        notes.append(f"not at their end: {', '.join(going_on)}")
    return notes


def _row(label: str, logs: list[RunLog], found: list[Summary], target: float) -> Row:
    scores = _known([one.score for one in found])
    return Row(
        label=label, runs=tuple(log.name for log in logs),
        ended=sum(one.state == "ended" for one in found), metric=found[0].metric,
        score=mean(scores) if scores else math.nan, score_spread=stdev(scores) if len(scores) > 1 else math.nan,
        epoch_seconds=_middle([one.epoch_seconds for one in found]),
        seconds_to_loss=_middle([seconds_to_loss(log, target) for log in logs]),
        epoch_bytes=_middle([one.epoch_bytes for one in found]),
        waited_share=_middle([one.waited_share for one in found]),
        imbalance=_middle([one.imbalance for one in found]),
        peak_bytes=max(_known([one.peak_bytes for one in found]), default=math.nan),
    )  # fmt: skip


def seconds_to_loss(log: RunLog, target: float) -> float:
    """Return the seconds of training after which an epoch's loss was at or below the target; inf if it never was."""
    total = 0.0
    for epoch in log.epochs:
        total += epoch.seconds
        if epoch.loss <= target:
            return total
    return math.inf if log.epochs and not math.isnan(target) else math.nan


def _common_loss(logs: list[RunLog]) -> float:
    """Return the lowest loss that every run reached."""
    best = [min(known) for log in logs if (known := _known([epoch.loss for epoch in log.epochs]))]
    return max(best, default=math.nan)


def labels_of(logs: list[RunLog], *, with_seeds: bool = True) -> list[str]:
    """Return a short name for each run: the settings in which it differs from the others, or its folder."""
    configs = [flat(log.config) for log in logs]
    keys = sorted({key for config in configs for key in config}, key=lambda key: (key not in _TELLING, key))
    differing = [key for key in keys if len({str(config.get(key)) for config in configs}) > 1]
    if not with_seeds:
        differing = [key for key in differing if key != _SEED]
    ways = len({str([config.get(key) for key in differing]) for config in configs})
    # A system brings settings of its own: its name says enough where no two runs share one.
    for chosen in ([key for key in differing if key in (*_TELLING, _SEED)], differing):
        labels = [", ".join(_setting(key, config.get(key, "-")) for key in chosen) for config in configs]
        if chosen and len(chosen) <= _MOST_NAMED and len(set(labels)) == ways:
            return labels
    names = [log.name for log in logs]
    return names if len(set(names)) == len(names) else [str(log.path) for log in logs]


def _setting(key: str, value: object) -> str:
    name = key.removesuffix(".name")
    return str(value) if name != key else f"{key.rpartition('.')[2]} {value}"


def _key(log: RunLog) -> str:
    return str(sorted((key, str(value)) for key, value in flat(log.config).items() if key != _SEED))


def _known(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def _middle(values: list[float]) -> float:
    known = _known(values)
    return median(known) if known else math.nan


def _cells(row: Row, unit: str) -> list[str]:
    spread = "" if math.isnan(row.score_spread) else f" ± {row.score_spread:.2g}"
    return [
        row.label, f"{len(row.runs)}" + ("" if row.ended == len(row.runs) else f" ({row.ended} ended)"),
        "" if math.isnan(row.score) else f"{row.score:.4g}{spread}{unit}", seconds_of(row.epoch_seconds),
        "never" if math.isinf(row.seconds_to_loss) else seconds_of(row.seconds_to_loss), size_of(row.epoch_bytes),
        share_of(row.waited_share), count_of(row.imbalance),
        size_of(row.peak_bytes),
    ]  # fmt: skip
