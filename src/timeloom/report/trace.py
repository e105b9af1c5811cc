"""A run as a trace of Chrome's format, for Perfetto and other viewers: all ranks on one clock."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timeloom.errors import BadConfig, BadRun, TooLarge, is_disk_full
from timeloom.records import PHASES
from timeloom.report.log import RunLog
from timeloom.report.ranks import lanes_of, spent

_MICRO = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What a trace came to."""

    events: int
    ranks: int
    on_clock: bool
    """Whether the ranks told when they did what; else steps are laid end to end."""


def events_of(log: RunLog) -> Iterator[dict[str, Any]]:
    """Yield the events of a run: a process for each rank, a row in it for what overlaps, and the loss as a counter."""
    for rank in log.ranks:
        yield _named("process_name", rank, 0, f"rank {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    yield from _parts(log) if log.parts.rank else _laid_out(log)


def _named(name: str, rank: int, row: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": row, "args": {"name": text}}


def _parts(log: RunLog) -> Iterator[dict[str, Any]]:
    found, ends = spent(log.parts), dict[int, float]()
    for rank in log.ranks:
        mine = (found.rank_P == rank).nonzero()[0]
        rows = lanes_of(found.start_P[mine], found.seconds_P[mine])
        for row in range(max(rows, default=-1) + 1):
            yield _named("thread_name", rank, row, "work" if row == 0 else f"beside it {row}")
        for place, row in zip(mine.tolist(), rows, strict=True):
            step, start, seconds = (float(column[place]) for column in (found.step_P, found.start_P, found.seconds_P))
            ends[int(step)] = max(ends.get(int(step), 0.0), start + seconds)
            yield {
                "ph": "X", "name": PHASES[found.phase_P[place]], "cat": "phase", "pid": rank, "tid": row,
                "ts": round(start * _MICRO, 3), "dur": round(seconds * _MICRO, 3),
                "args": {"epoch": int(found.epoch_P[place]), "step": int(step)},
            }  # fmt: skip
    for step, loss in zip(log.steps.step, log.steps.loss, strict=True):
        if step in ends:
            yield from _loss(ends[step], loss)


def _laid_out(log: RunLog) -> Iterator[dict[str, Any]]:
    """Yield steps end to end: without spans it is known how long each took, but not when it began."""
    steps, now = log.steps, 0.0
    yield _named("thread_name", 0, 0, "steps, end to end")
    for epoch, step, loss, seconds in zip(steps.epoch, steps.step, steps.loss, steps.seconds, strict=True):
        yield {
            "ph": "X", "name": "step", "cat": "step", "pid": 0, "tid": 0, "ts": round(now * _MICRO, 3),
            "dur": round(seconds * _MICRO, 3), "args": {"epoch": epoch, "step": step},
        }  # fmt: skip
        now += seconds
        yield from _loss(now, loss)


def _loss(at: float, loss: float) -> Iterator[dict[str, Any]]:
    if loss == loss and abs(loss) != float("inf"):
        yield {"ph": "C", "name": "loss", "pid": 0, "tid": 0, "ts": round(at * _MICRO, 3), "args": {"loss": loss}}


def write_trace(log: RunLog, path: Path, *, overwrite: bool = False) -> Traced:
    """Write the trace of a run (compressed, if the name ends in .gz); refuse a run that told nothing of its steps."""
    if not log.parts.rank and not log.steps.step:
        raise BadRun(
            f"{log.path} has no record of a step, so there is nothing to trace: train with --set train.log_steps=true"
        )
    if path.is_dir() or (path.exists() and not overwrite):
        raise BadConfig(f"{path} exists already: give another file, or --overwrite to replace it")
    aside = path.with_name(f".{path.name}.partial")
    try:
        with gzip.open(aside, "wt") if path.suffix == ".gz" else aside.open("w") as file:
            count = _write(log, file)
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        kind = TooLarge if is_disk_full(error) else BadRun
        raise kind(f"{path} cannot be written ({error.strerror}): give another file with --out") from None
    return Traced(events=count, ranks=len(log.ranks), on_clock=bool(log.parts.rank))


def _write(log: RunLog, file: Any) -> int:
    """Write event after event: a trace need not fit in memory as one text."""
    about = {"run": log.name, "began_unix_s": spent(log.parts).origin if log.parts.rank else None}
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
    count = 0
    for count, event in enumerate(events_of(log), start=1):
        file.write(("" if count == 1 else ",\n") + json.dumps(event, allow_nan=False))
    file.write("]}\n")
    return count
