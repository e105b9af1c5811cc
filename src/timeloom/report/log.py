"""What a run has told so far: its records by kind, the many ones as columns of numbers.

R ranks, S steps, P parts of steps.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timeloom.config import parse_toml
from timeloom.errors import BadConfig, BadRun
from timeloom.records import (
    PHASES,
    RECORDS,
    Averaged,
    Batched,
    Deviated,
    Ended,
    EpochEnded,
    Evaluated,
    GraphFacts,
    Placed,
    Predicted,
    Record,
    Resumed,
    Saved,
    Scheduled,
    Spans,
    Started,
    Stepped,
    Traffic,
    Tuned,
    Warned,
    is_in_use,
    read_config,
    stream,
)  # fmt: skip

_FRESH_S = 60.0
_TAIL_BYTES = 400
_PLACES = {phase: place for place, phase in enumerate(PHASES)}
OTHER = _PLACES["other"]


def _ints() -> array[int]:
    return array("q")


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class Steps:
    """Every `Stepped`, as columns."""

    epoch: array[int] = field(default_factory=_ints)
    step: array[int] = field(default_factory=_ints)
    loss: array[float] = field(default_factory=_floats)
    grad_norm: array[float] = field(default_factory=_floats)
    nodes: array[int] = field(default_factory=_ints)
    edges: array[int] = field(default_factory=_ints)
    seconds: array[float] = field(default_factory=_floats)

    def add(self, record: Stepped) -> None:
        """Add a row."""
        self.epoch.append(record.epoch)
        self.step.append(record.step)
        self.loss.append(record.loss)
        self.grad_norm.append(record.grad_norm)
        self.nodes.append(record.nodes)
        self.edges.append(record.edges)
        self.seconds.append(record.seconds)


@dataclass(slots=True)
class Parts:
    """Every part of every `Spans`, as columns."""

    rank: array[int] = field(default_factory=_ints)
    epoch: array[int] = field(default_factory=_ints)
    step: array[int] = field(default_factory=_ints)
    phase: array[int] = field(default_factory=_ints)
    """A place in `PHASES`; a phase that is none of them is 'other'."""
    began: array[float] = field(default_factory=_floats)
    """Seconds since 1970."""
    seconds: array[float] = field(default_factory=_floats)

    def add(self, record: Spans) -> None:
        """Add a row for each part."""
        count = len(record.parts)
        self.rank.extend([record.rank] * count)
        self.epoch.extend([record.epoch] * count)
        self.step.extend([record.step] * count)
        self.phase.extend([_PLACES.get(part[0], OTHER) for part in record.parts])
        self.began.extend([record.began + part[1] for part in record.parts])
        self.seconds.extend([part[2] for part in record.parts])


@dataclass(slots=True)
class RunLog:
    """The records of a run, by kind, in the order in which they were written."""

    path: Path
    config_text: str
    started: Started | None = None
    ended: Ended | None = None
    epochs: list[EpochEnded] = field(default_factory=list)
    evaluated: list[Evaluated] = field(default_factory=list)
    warned: list[Warned] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    deviated: list[Deviated] = field(default_factory=list)
    tuned: list[Tuned] = field(default_factory=list)
    averaged: list[Averaged] = field(default_factory=list)
    batched: list[Batched] = field(default_factory=list)
    placed: dict[int, Placed] = field(default_factory=dict)
    """By snapshot: after a restart snapshots are placed again."""
    traffic: list[Traffic] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    facts: list[GraphFacts] = field(default_factory=list)
    predicted: list[Predicted] = field(default_factory=list)
    seen_ranks: set[int] = field(default_factory=set)
    steps: Steps = field(default_factory=Steps)
    parts: Parts = field(default_factory=Parts)
    read_bytes: int = 0
    """How much of the file has been read."""
    tail: bytes = b""
    """The last bytes of that."""
    was_in_use: bool = False
    """Whether a process on this machine was seen to train the run."""

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, nested."""
        try:
            return parse_toml(self.config_text, "it")
        except BadConfig as error:
            raise BadRun(f"{self.path / 'config.toml'} cannot be read ({error}): restore it from a copy") from None

    @property
    def ranks(self) -> list[int]:
        """The ranks that told anything; a run of one process is rank 0."""
        return sorted(self.seen_ranks) or [0]

    def add(self, record: Record) -> None:
        """Take a record in."""
        _ADD[type(record)](self, record)


def _start(log: RunLog, record: Any) -> None:
    log.started = record


def _end(log: RunLog, record: Any) -> None:
    log.ended = record


def _resume(log: RunLog, record: Any) -> None:
    log.resumed.append(record)
    # A run that had ended and was given more epochs goes on.
    log.ended = None


def _add_spans(log: RunLog, record: Any) -> None:
    log.seen_ranks.add(record.rank)
    log.parts.add(record)


def _add_traffic(log: RunLog, record: Any) -> None:
    log.seen_ranks.add(record.rank)
    log.traffic.append(record)


_ADD: dict[type[Record], Callable[[RunLog, Any], None]] = {
    Started: _start,
    Ended: _end,
    Resumed: _resume,
    Stepped: lambda log, record: log.steps.add(record),
    Spans: _add_spans,
    EpochEnded: lambda log, record: log.epochs.append(record),
    Evaluated: lambda log, record: log.evaluated.append(record),
    Warned: lambda log, record: log.warned.append(record),
    Deviated: lambda log, record: log.deviated.append(record),
    Tuned: lambda log, record: log.tuned.append(record),
    Averaged: lambda log, record: log.averaged.append(record),
    Batched: lambda log, record: log.batched.append(record),
    Placed: lambda log, record: log.placed.__setitem__(record.t, record),
    Saved: lambda log, record: log.saved.append(record),
    Traffic: _add_traffic,
    Scheduled: lambda log, record: log.scheduled.append(record),
    GraphFacts: lambda log, record: log.facts.append(record),
    Predicted: lambda log, record: log.predicted.append(record),
}


def read_log(path: Path) -> RunLog:
    """Return all that a run has told, also of one that is going on."""
    log = RunLog(path=path, config_text=read_config(path))
    _go_on(log)
    return log


def read_on(log: RunLog) -> RunLog:
    """Return the log with what was told since; all is read anew if the run went back to a checkpoint."""
    if log.read_bytes and _tail(log) != log.tail:
        again = read_log(log.path)
        again.was_in_use = log.was_in_use
        return again
    _go_on(log)
    return log


def _go_on(log: RunLog) -> None:
    for record, stop in stream(log.path, log.read_bytes):
        log.add(record)
        log.read_bytes = stop
    log.tail = _tail(log)


def _tail(log: RunLog) -> bytes:
    """Return the last bytes that were read, as they are now: they differ once the file was cut and written on."""
    with (log.path / RECORDS).open("rb") as file:
        file.seek(max(0, log.read_bytes - _TAIL_BYTES))
        return file.read(min(log.read_bytes, _TAIL_BYTES))


def look(log: RunLog) -> tuple[RunLog, str]:
    """Return the log with what was told since, and the state of the run."""
    # Asked first, read then: else the end of a run could be told between the two, and be missed.
    state = state_of(log)
    log = read_on(log)
    return log, state if log.ended is None and state != "ended" else state_of(log)


def state_of(log: RunLog) -> str:
    """Return 'ended', 'running', or 'stopped': neither ended nor written to by anybody."""
    if log.ended is not None:
        return "ended"
    if is_in_use(log.path):
        log.was_in_use = True
        return "running"
    # On a shared disk the process may be on another machine, and its lock is not seen here.
    written_s = time.time() - (log.path / RECORDS).stat().st_mtime
    return "running" if written_s < _FRESH_S and not log.was_in_use else "stopped"
