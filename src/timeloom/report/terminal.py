"""What a terminal shows of a run that goes on: how far it is, its loss, its ranks and what they wait for."""

from __future__ import annotations

import math
import time

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from timeloom.records import PHASES, RECORDS, Traffic
from timeloom.report.log import RunLog
from timeloom.report.ranks import phase_seconds, spent
from timeloom.report.show import count_of, seconds_of, share_of, size_of
from timeloom.report.summary import is_less_better, metric_of

_BARS = "▁▂▃▄▅▆▇█"
_NEWEST_PARTS = 4_000
_LATE_S = 60.0
_MOST_RANKS = 32
_COLOURS = {
    "load": "yellow", "encode": "blue", "recur": "cyan", "backward": "green", "communicate": "magenta",
    "wait": "bright_black", "other": "white", "build": "bright_yellow",
}  # fmt: skip


def view_of(log: RunLog, state: str, width: int = 80) -> RenderableType:
    """Return what is to be seen now."""
    lines: list[RenderableType] = [_place(log, state), _speed(log), _loss(log, max(10, width - 44))]
    score = _score(log)
    if score is not None:
        lines.append(score)
    if log.warned:
        lines.append(Text(f"warned: {log.warned[-1].sentence}", style="red", overflow="ellipsis", no_wrap=True))
    table = _ranks(log)
    if table is not None:
        lines += [Text(""), table, _legend(log)]
    colour = {"running": "green", "ended": "blue", "stopped": "red"}[state]
    title = f"[b]{escape(log.name)}[/b] [{colour}]{state}[/]"
    return Panel(Group(*lines), title=title, title_align="left", width=width)


def line_of(log: RunLog, state: str) -> str:
    """Return the same in one line, for a log."""
    loss = _losses(log)
    told = f"loss {loss[-1]:.4g}" if len(loss) else "no loss yet"
    return f"{log.name} {state}: {_epoch(log)}, {told}, {_throughput(log)}"


def ending_of(log: RunLog, state: str) -> str:
    """Return the last sentence about a run that goes on no more."""
    if state == "ended" and log.ended is not None:
        return f"{log.name} ended ({log.ended.reason}) after {log.ended.epochs} epochs: timeloom report {log.path}"
    return f"{log.name} stopped before its end: go on with 'timeloom train --resume {log.path}'"


def _epoch(log: RunLog) -> str:
    most = log.started.derived.get("epochs at most") if log.started else None
    now = log.epochs[-1].epoch + 1 if log.epochs else 0
    return f"epoch {now}" + (f" of {most}" if most is not None else "")


def _place(log: RunLog, state: str) -> Text:
    text = Text(_epoch(log), style="bold")
    if log.steps.step:
        text.append(f"   step {log.steps.step[-1]:,}", style="default")
    if state != "running":
        return text
    told_s = max(0.0, time.time() - (log.path / RECORDS).stat().st_mtime)
    late = told_s > _LATE_S
    text.append(f"   last told {seconds_of(round(told_s, 1))} ago", style="red" if late else "dim")
    return text


def _throughput(log: RunLog) -> str:
    if log.steps.step:
        seconds, edges, nodes = sum(log.steps.seconds[-20:]), sum(log.steps.edges[-20:]), sum(log.steps.nodes[-20:])
    else:
        last = log.epochs[-3:]
        seconds, edges = sum(epoch.seconds for epoch in last), sum(epoch.edges for epoch in last)
        nodes = sum(epoch.nodes for epoch in last)
    if not seconds:
        return "no step yet"
    return f"{count_of(edges / seconds)} edges/s, {count_of(nodes / seconds)} nodes/s"


def _speed(log: RunLog) -> Text:
    text = Text(_throughput(log))
    if log.epochs:
        text.append(f", {seconds_of(log.epochs[-1].seconds)} an epoch")
        most = log.started.derived.get("epochs at most") if log.started else None
        if isinstance(most, int) and log.ended is None:
            left = max(0, most - log.epochs[-1].epoch - 1) * log.epochs[-1].seconds
            text.append(f", at most {seconds_of(left)} left")
    return text


def _losses(log: RunLog) -> np.ndarray:
    values = log.steps.loss if log.steps.step else [epoch.loss for epoch in log.epochs]
    numbers = np.array(values, np.float64)
    return numbers[np.isfinite(numbers)]


def _loss(log: RunLog, width: int) -> Text:
    losses = _losses(log)
    if not len(losses):
        return Text("loss   none yet", style="dim")
    return Text.assemble("loss   ", (spark(losses, width), "cyan"), f"  {losses[-1]:.4g} (least {losses.min():.4g})")


def spark(values: np.ndarray, width: int) -> str:
    """Return a line of bars between the least and the largest value; long series are averaged into ``width`` bars."""
    if len(values) > width:
        bounds = np.linspace(0, len(values), width + 1).astype(int)
        values = np.add.reduceat(values, bounds[:-1]) / np.diff(bounds)
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(int((value - low) / (high - low) * len(_BARS)), len(_BARS) - 1)] for value in values)


def _score(log: RunLog) -> Text | None:
    metric = metric_of(log)
    told = [r for r in log.evaluated if r.split in ("val", "live") and math.isfinite(r.scores.get(metric, math.nan))]
    if not told:
        return None
    values = [record.scores[metric] for record in told]
    best = min(values) if is_less_better(metric) else max(values)
    text = Text(f"{told[-1].split} {metric} {values[-1]:.4g} (best {best:.4g})")
    for who, scores in told[-1].baselines.items():
        text.append(f"  {who} {scores.get(metric, math.nan):.4g}", style="dim")
    return text


def _ranks(log: RunLog) -> Table | None:
    """Return a row for each rank: what its time goes to, what it sends, what it holds."""
    found = spent(log.parts, _NEWEST_PARTS)
    newest: dict[int, Traffic] = {record.rank: record for record in log.traffic}
    if not len(found) and not newest:
        return None
    ranks = log.ranks
    seconds = phase_seconds(found, ranks)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("rank", "time goes to", "waits", "sent/epoch", "peak"):
        table.add_column(name, justify="left" if name == "time goes to" else "right", no_wrap=True)
    for place, rank in enumerate(ranks[:_MOST_RANKS]):
        total, told = float(seconds[place].sum()), newest.get(rank)
        waits = share_of(float(seconds[place][PHASES.index("wait")]) / total) if total else ""
        sent = size_of(float(sum(told.sent_bytes.values()))) if told else ""
        peak = size_of(float(told.peak_bytes)) if told else ""
        table.add_row(str(rank), _shares(seconds[place], 24), waits, sent, peak)
    return table


def _legend(log: RunLog) -> Text:
    """Return what the colours of the ranks mean."""
    text = Text(f"and {len(log.ranks) - _MOST_RANKS} more ranks   " if len(log.ranks) > _MOST_RANKS else "")
    for phase in PHASES:
        text.append("█ ", style=_COLOURS[phase]).append(f"{phase}  ", style="dim")
    return text


def _shares(seconds: np.ndarray, width: int) -> Text:
    """Return a bar of coloured parts."""
    text, total = Text(), float(seconds.sum())
    if not total:
        return text
    ends = np.rint(np.cumsum(seconds) / total * width).astype(int)
    for phase, size in zip(PHASES, np.diff(ends, prepend=0), strict=True):
        text.append("█" * int(size), style=_COLOURS[phase])
    return text
