"""What a person sees of long work: a bar on a terminal, a line now and then in a log, and the account at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeloom.graph.ingest.gather import Progress

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress]:
    """Give a function that shows how far work is: a bar on a terminal, else a line every ten seconds on stderr."""
    from timeloom.graph.ingest.gather import silent

    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with _bars() as show:
            yield show
    else:
        yield _Lines()


class _Lines:
    """A line on stderr every ten seconds."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def __call__(self, stage: str, done: int, total: int, rows: int) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            share = f" {done / total:.0%}" if total else ""
            sys.stderr.write(f"{stage}{share}: {rows:,} rows after {now - self._began:.0f} s\n")


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description:16}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    tasks: dict[str, tuple[TaskID, float]] = {}
    told = time.monotonic()

    def show(stage: str, done: int, total: int, rows: int) -> None:
        nonlocal told
        if stage not in tasks:
            # A stage tells of its first piece when that is done; it began when the stage before it told its last.
            tasks[stage] = (bars.add_task(stage, rate=""), told)
        task, began = tasks[stage]
        now = told = time.monotonic()
        rate = f"{rows / max(now - began, 1e-3) / 1e6:6.2f} M rows/s"
        bars.update(task, completed=done, total=total or None, rate=rate)

    with bars:
        yield show


def print_json(data: dict[str, Any]) -> None:
    """Print data as JSON."""
    import json

    sys.stdout.write(json.dumps(data, indent=1) + "\n")


def print_report(report: dict[str, Any], path: object, *, added: bool = False) -> None:
    """Print what an ingest or an append did, row by row accounted for."""
    sizes = f"{report['num_snapshots']:,} snapshots", f"{report['num_edges']:,} edges"
    nodes = f"{report['num_nodes']:,} nodes"
    if added:
        lines = [f"{path}: {sizes[0]} added, with {sizes[1]}; {nodes} now"]
    else:
        lines = [f"{path}: {sizes[0]}, {nodes}, {sizes[1]} in all"]
    lines.append(f"  from {report['first']} to {report['last']} (clock: {report['clock']})")
    lines.append(f"  rows read      {report['rows_read']:>14,}")
    if report["mirrored"]:
        lines.append(f"  mirrored       {report['mirrored']:>14,}  copies in the other direction")
    lines.append(f"  kept           {report['kept']:>14,}")
    if report["merged"]:
        lines.append(
            f"  merged         {report['merged']:>14,}  events of an edge that has another in the same snapshot"
        )
    for reason, count in report["dropped"].items():
        lines.append(f"  dropped        {count:>14,}  {reason}")
    for what, count in report["notes"].items():
        lines.append(f"  note           {count:>14,}  {what}")
    if report["empty_snapshots"]:
        lines.append(f"  note           {report['empty_snapshots']:>14,}  snapshots have no edge")
    lines.extend(f"  bad row: {example}" for example in report["bad_examples"])
    lines.append(f"  {report['seconds']:.1f} s")
    sys.stdout.write("\n".join(lines) + "\n")
