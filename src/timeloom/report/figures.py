"""Figures for papers, with matplotlib: one function for each, none where a run has told too little.

This module needs the extra `figures`; others import it when a figure is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import Patch
from matplotlib.text import Text

from timeloom.errors import BadConfig, BadRun, TooLarge, is_disk_full
from timeloom.records import PHASES, Predicted
from timeloom.report.log import RunLog
from timeloom.report.predictions import BINS, by_probability, confusion_of, starts_of_bins
from timeloom.report.ranks import busy_grid, excerpts, imbalance, loads, phase_seconds, spent
from timeloom.report.summary import metric_of

_COLOURS = {
    "load": "#e69f00", "encode": "#1f6fb4", "recur": "#7cc0ea", "backward": "#1a9678", "communicate": "#cc6fa0",
    "wait": "#cfd5dc", "other": "#8b94a1", "build": "#b59a6a",
}  # fmt: skip
_STYLE: Any = {
    "font.size": 9.0, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.alpha": 0.25,
    "legend.frameon": False, "svg.fonttype": "none", "svg.hashsalt": "timeloom", "figure.dpi": 100.0,
    # A name with dollar signs in it is a name, and no formula.
    "text.parse_math": False,
}  # fmt: skip
_LONGEST = 48
_CYCLE = ("#2457c5", "#c2570c", "#14794a", "#8b3fb8", "#b3261e", "#0e7490", "#a1306f", "#6b5a12")


def names(log: RunLog) -> list[str]:
    """Return the figures for which a run has told enough."""
    return [name for name, (_, enough) in _FIGURES.items() if enough(log)]


def draw(log: RunLog, name: str) -> Figure:
    """Return a figure of a run."""
    if name not in _FIGURES:
        raise BadConfig(f"there is no figure {name!r}: there are {', '.join(_FIGURES)}")
    make, enough = _FIGURES[name]
    if not enough(log):
        known = ", ".join(names(log)) or "none"
        raise BadRun(f"{log.path} has not told enough for the figure {name!r}: there is enough for {known}")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.0, 3.2), layout="constrained")
        make(log, figure.add_subplot())
        # A name as long as the figure would leave no room for what it names; those of a legend stand side by side.
        _cut(figure.findobj(Text), _LONGEST)
        for legend in figure.findobj(Legend):
            _cut(legend.get_texts(), _LONGEST // 2)
    return figure


def _cut(texts: Iterable[Text], longest: int) -> None:
    for text in texts:
        if len(text.get_text()) > longest:
            text.set_text(f"{text.get_text()[: longest - 1]}…")


def save_all(logs: list[RunLog], folder: Path) -> list[Path]:
    """Write every figure of every run as PNG and SVG; return the files."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for log in logs:
            for name in names(log):
                figure = draw(log, name)
                stem = name if len(logs) == 1 else f"{log.name}-{name}"
                for kind in ("png", "svg"):
                    path = folder / f"{stem}.{kind}"
                    with matplotlib.rc_context(_STYLE):
                        figure.savefig(path, dpi=200, metadata={"Date": None} if kind == "svg" else None)
                    written.append(path)
    except OSError as error:
        refusal = TooLarge if is_disk_full(error) else BadRun
        raise refusal(f"{folder} cannot be written ({error.strerror}): give another folder with --figures") from None
    return written


def _loss(log: RunLog, axes: Axes) -> None:
    if log.steps.step:
        last = np.searchsorted(np.array(log.steps.epoch), [epoch.epoch for epoch in log.epochs], side="right") - 1
        axes.plot(log.steps.step, log.steps.loss, color="#2457c5", alpha=0.35, linewidth=0.8, label="step")
        axes.plot(np.array(log.steps.step)[last], [epoch.loss for epoch in log.epochs], color="#2457c5", label="epoch")
        axes.set_xlabel("step")
        axes.legend()
    else:
        axes.plot([epoch.epoch for epoch in log.epochs], [epoch.loss for epoch in log.epochs], color="#2457c5")
        axes.set_xlabel("epoch")
    axes.set_ylabel("training loss")


def _metric(log: RunLog, axes: Axes) -> None:
    metric = metric_of(log)
    told = [record for record in log.evaluated if record.split in ("val", "live") and metric in record.scores]
    values = [record.scores[metric] for record in told]
    axes.plot([record.epoch for record in told], values, color="#2457c5", label="model")
    reach = (max(values) - min(values)) or 1.0
    for place, (who, scores) in enumerate(told[-1].baselines.items()):
        level = scores.get(metric, math.nan)
        if min(values) - 1.2 * reach < level < max(values) + 1.2 * reach:
            axes.axhline(level, color="#8b94a1", linestyle=("--", ":", "-.")[place % 3], linewidth=1, label=who)
    axes.set(xlabel="epoch", ylabel=f"{told[-1].split} {metric}")
    axes.legend()


def _timeline(log: RunLog, axes: Axes) -> None:
    shown = excerpts(spent(log.parts), log.ranks)
    middle = shown[len(shown) // 2]
    for place, row in enumerate(middle["rows"]):
        for phase, lane, start, seconds, _step in row["spans"]:
            tall = 0.8 / row["lanes"]
            axes.barh(
                place - 0.4 + tall * (lane + 0.5), seconds, height=tall, left=start, color=_COLOURS[PHASES[phase]]
            )
    axes.set_yticks(range(len(middle["rows"])), [f"rank {row['rank']}" for row in middle["rows"]])
    axes.invert_yaxis()
    axes.set_xlabel(f"seconds, steps {middle['first']} to {middle['last']}")
    _phase_legend(axes)


def _phase_legend(axes: Axes) -> None:
    marks = [Patch(color=_COLOURS[phase], label=phase) for phase in PHASES]
    axes.legend(
        handles=marks, ncols=len(marks), fontsize=7, columnspacing=0.8, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )


def _time(log: RunLog, axes: Axes) -> None:
    seconds = phase_seconds(spent(log.parts), log.ranks)
    left = np.zeros(len(log.ranks))
    for place, phase in enumerate(PHASES):
        axes.barh([str(rank) for rank in log.ranks], seconds[:, place], left=left, color=_COLOURS[phase])
        left += seconds[:, place]
    axes.invert_yaxis()
    axes.set(xlabel="seconds", ylabel="rank")
    _phase_legend(axes)


def _utilisation(log: RunLog, axes: Axes) -> None:
    width, grid = busy_grid(spent(log.parts), log.ranks, 160)
    extent = (0.0, width * grid.shape[1], len(log.ranks) - 0.5, -0.5)
    image = axes.imshow(grid, aspect="auto", cmap="Greens", vmin=0, vmax=1, extent=extent, interpolation="nearest")
    axes.set_yticks(range(len(log.ranks)), [str(rank) for rank in log.ranks])
    axes.set(xlabel="seconds", ylabel="rank")
    axes.grid(visible=False)
    axes.figure.colorbar(image, ax=axes, label="share of time busy")


def _imbalance(log: RunLog, axes: Axes) -> None:
    steps, load = loads(spent(log.parts), log.ranks)
    axes.plot(steps, imbalance(load), color="#2457c5", linewidth=1)
    axes.set(xlabel="step", ylabel="most / least load")


def _bytes(log: RunLog, axes: Axes) -> None:
    kinds = list(dict.fromkeys(kind for record in log.traffic for kind in record.sent_bytes))
    epochs = sorted({record.epoch for record in log.traffic})
    under = np.zeros(len(epochs))
    for kind in kinds:
        sent = np.zeros(len(epochs))
        for record in log.traffic:
            sent[epochs.index(record.epoch)] += record.sent_bytes.get(kind, 0) / 1e6
        axes.bar(epochs, sent, bottom=under, label=kind, color=_CYCLE[kinds.index(kind) % len(_CYCLE)])
        under += sent
    axes.set(xlabel="epoch", ylabel="MB sent by all ranks")
    axes.legend(ncols=len(kinds), loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _memory(log: RunLog, axes: Axes) -> None:
    for rank in log.ranks:
        mine = [record for record in log.traffic if record.rank == rank]
        colour = _CYCLE[rank % len(_CYCLE)]
        axes.plot(
            [one.epoch for one in mine], [one.peak_bytes / 1e6 for one in mine], color=colour, label=f"rank {rank}"
        )
    axes.set(xlabel="epoch", ylabel="peak memory, MB")
    axes.set_ylim(bottom=0)
    if len(log.ranks) <= 8:
        axes.legend()


def _schedule(log: RunLog, axes: Axes) -> None:
    newest = log.scheduled[-1]
    ranks = sorted({unit[1] for unit in newest.units})
    most, now = max((unit[3] for unit in newest.units), default=1), 0.0
    colours = matplotlib.colormaps["viridis"]
    for step in sorted({unit[0] for unit in newest.units}):
        ends = dict.fromkeys(ranks, now)
        for _step, rank, first, _last, seconds in [unit for unit in newest.units if unit[0] == step]:
            size = seconds if math.isfinite(seconds) else 1.0
            axes.barh(ranks.index(rank), size, left=ends[rank], color=colours(first / max(most, 1)), edgecolor="white")
            ends[rank] += size
        now = max(ends.values())
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlabel(f"predicted seconds, found by {newest.by}; colour: first snapshot")


def _graph(log: RunLog, axes: Axes) -> None:
    facts = log.facts[-1]
    axes.plot(facts.edges, color="#2457c5", label="edges")
    axes.set(xlabel="snapshot", ylabel="edges")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.plot(range(1, len(facts.overlap)), facts.overlap[1:], color="#c2570c", linewidth=1, label="overlap")
    other.set_ylabel("overlap with the snapshot before", color="#c2570c")
    other.grid(visible=False)
    for stop in (facts.train_stop, facts.val_stop):
        axes.axvline(stop - 0.5, color="#8b94a1", linestyle=":")


def _predictions(log: RunLog, axes: Axes) -> None:
    found = log.predicted[-1]
    draw = {"class": _classes, "probability": _probabilities}.get(found.form, _values)
    draw(found, axes)


def _values(found: Predicted, axes: Axes) -> None:
    axes.scatter(found.truth, found.predicted, s=6, alpha=0.4, color="#2457c5", linewidths=0)
    ends = [min(*found.truth, *found.predicted), max(*found.truth, *found.predicted)]
    axes.plot(ends, ends, color="#8b94a1", linestyle="--", linewidth=1)
    axes.set(xlabel=f"truth: {found.what}", ylabel="predicted")


def _classes(found: Predicted, axes: Axes) -> None:
    names, counts = confusion_of(found)
    axes.imshow(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    for row, column in zip(*np.nonzero(counts), strict=True):
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    axes.set(xlabel="predicted", ylabel=f"truth: {found.what}")


def _probabilities(found: Predicted, axes: Axes) -> None:
    counts, starts, width = by_probability(found), np.array(starts_of_bins()), 1 / BINS
    for truth, colour in ((0, "#8b94a1"), (1, "#2457c5")):
        under = counts[:truth].sum(axis=0)
        axes.bar(
            starts, counts[truth], width=0.9 * width, bottom=under, align="edge", color=colour,
            label=found.classes[truth],
        )  # fmt: skip
    axes.set(xlabel=f"predicted {found.what}", ylabel="targets")
    axes.legend()


def _many_ranks(log: RunLog) -> bool:
    return bool(log.parts.rank) and len(log.ranks) > 1


_FIGURES: dict[str, tuple[Callable[[RunLog, Axes], None], Callable[[RunLog], bool]]] = {
    "loss": (_loss, lambda log: bool(log.epochs)),
    "metric": (_metric, lambda log: any(record.split in ("val", "live") for record in log.evaluated)),
    "timeline": (_timeline, lambda log: bool(log.parts.rank)),
    "time": (_time, lambda log: bool(log.parts.rank)),
    "utilisation": (_utilisation, lambda log: bool(log.parts.rank)),
    "imbalance": (_imbalance, _many_ranks),
    "bytes": (_bytes, lambda log: bool(log.traffic)),
    "memory": (_memory, lambda log: bool(log.traffic)),
    "schedule": (_schedule, lambda log: bool(log.scheduled)),
    "graph": (_graph, lambda log: bool(log.facts)),
    "predictions": (_predictions, lambda log: bool(log.predicted) and bool(log.predicted[-1].truth)),
}
