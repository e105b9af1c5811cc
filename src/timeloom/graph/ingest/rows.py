"""What every source of events becomes: blocks of columns, and an exact account of the rows behind them.

Shape letters: R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadRow
from timeloom.graph.ingest.tokens import REASONS, Reason
from timeloom.graph.keys import Float64s, Int64s

Names = Any
"""A `pyarrow.Array` of strings."""


@dataclass(slots=True, kw_only=True)
class RowBlock:
    """Good rows: ids and types as integers or as strings, times as ticks."""

    source: Int64s | Names
    target: Int64s | Names
    time: Int64s | None = None
    weight: Float64s | None = None
    type: Int64s | Names | None = None
    operation: NDArray[np.int8] | None = None

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self.source)


@dataclass(slots=True)
class Account:
    """How many rows went where; every row that was read is kept, merged or dropped, with its reason."""

    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    mirrored: int = 0
    kept: int = 0
    merged: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    """Numbers a careful reader wants, which are no rows lost: comment lines, empty snapshots, ties, ..."""

    def drop(self, reason: str, count: int) -> None:
        """Count rows that were dropped."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + int(count)

    def note(self, what: str, count: int) -> None:
        """Count something worth knowing."""
        if count:
            self.notes[what] = self.notes.get(what, 0) + int(count)

    @property
    def balances(self) -> bool:
        """Whether every row (and every mirrored copy) went exactly one way."""
        return self.read + self.mirrored == self.kept + self.merged + sum(self.dropped.values())

    def as_json(self) -> dict[str, Any]:
        """Return the account as plain data."""
        dropped, notes = dict(self.dropped), dict(self.notes)
        return {
            "rows_read": self.read, "mirrored": self.mirrored, "kept": self.kept, "merged": self.merged,
            "dropped": dropped, "dropped_in_all": sum(dropped.values()), "notes": notes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadPlace:
    """Where a bad row stands and what it says."""

    where: str
    reason: Reason
    text: str
    hint: str = ""

    def __str__(self) -> str:
        found = f" (found {self.text!r})" if self.text else ""
        return f"{self.where}: {REASONS[self.reason]}{found}{self.hint}"


class BadRows:
    """What happens to a bad row: it ends the ingest with its place, or it is counted, as the user asked."""

    def __init__(self, account: Account, *, drop: bool) -> None:
        self._account, self._drop = account, drop
        self.examples: list[BadPlace] = []

    def found(self, places: list[BadPlace], reasons: NDArray[np.int64]) -> None:
        """Take note of bad rows: the first ones with their places, all by their reasons."""
        if not reasons.any():
            return
        if not self._drop:
            more = int(reasons.sum()) - 1
            also = f" ({more} more bad rows follow close by)" if more else ""
            raise BadRow(f"{places[0]}{also}; mend the row, or use --on-bad drop to leave such rows out and count them")
        self.examples.extend(places[: max(5 - len(self.examples), 0)])
        for reason in np.flatnonzero(reasons).tolist():
            self._account.drop(REASONS[Reason(reason)], int(reasons[reason]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column is which, by name or by position (the first is 1); None: find it, or there is none."""

    source: str | None = None
    target: str | None = None
    time: str | None = None
    weight: str | None = None
    type: str | None = None
    operation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the rows of a source are to be read."""

    columns: Columns = field(default_factory=Columns)
    timed: bool = True
    """Whether rows carry a time; without, all rows belong to one moment that the source gives."""
    separator: str = "auto"
    header: str = "auto"
    comment: str = "#%"
    ids: str = "auto"
    time_format: str = "auto"
    time_unit: str = "auto"
    bipartite: bool = False
    """Whether sources and targets are numbered apart: source 5 and target 5 are then two nodes, `s:5` and `t:5`."""

    def __post_init__(self) -> None:
        _one_of("header", self.header, ("auto", "yes", "no"))
        _one_of("ids", self.ids, ("auto", "integers", "names"))
        _one_of("time-format", self.time_format, ("auto", "integer", "decimal", "date", "yyyymmdd"))
        _one_of("time-unit", self.time_unit, ("auto", "s", "ms", "us", "ns", "plain"))


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadConfig(f"--{option} {value} is unknown: use {', '.join(allowed[:-1])} or {allowed[-1]}")


class Source(Protocol):
    """Anything that yields events. It may be read again from the start."""

    @property
    def time_unit(self) -> str:
        """The unit of the times: a clock's, `nano`, or `auto` where whole numbers do not say what they count."""
        ...

    @property
    def size_bytes(self) -> int:
        """About how many bytes will be read, for the progress bar (0: not known)."""
        ...

    def blocks(self, account: Account, bad: BadRows) -> Iterator[tuple[RowBlock, int]]:
        """Yield the good rows with the number of bytes read so far; count rows read and tell of bad ones."""
        ...
