"""What an ingest makes of its events. These rules are kept in the graph, so that appending goes on by the same ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from timeloom.errors import BadConfig
from timeloom.graph.ingest.history import Policy
from timeloom.graph.times import split_duration

_OVERHEAD_BYTES = 400 << 20
_LEAST_BYTES = 512 << 20
_LONGEST_LIFE = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How time is cut into snapshots.

    `every` so much time (`7d`, `1mo`), a number of `snapshots` of equal length, so many `events` each (a window closes
    where the time changes), the times as `given` (each distinct time is a snapshot), or one `single` snapshot.
    """

    kind: str
    amount: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("every", "snapshots", "events", "given", "single"):
            raise BadConfig(f"windows of kind {self.kind!r} are unknown: use every, snapshots, events, given or single")
        whole = self.amount.isdecimal() and len(self.amount) < 19 and int(self.amount) > 0
        if self.kind in ("snapshots", "events") and not whole:
            raise BadConfig(f"--{self.kind} {self.amount} is not a positive whole number")
        if self.kind == "every":
            split_duration(self.amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an ingest makes of its events."""

    windows: Windows
    life: int = 1
    """For how many windows an event counts; 0: for ever (a growing graph)."""
    duplicates: str = "sum"
    """What becomes of several events of one edge that count together: sum | count | last | mean | max."""
    both_directions: bool = False
    """Whether each row u, v also means v -> u."""
    keep_self_loops: bool = False
    operations: bool = False
    """Whether rows say that an edge appears or disappears; life and duplicates then do not apply."""
    bipartite: bool = False
    """Whether sources and targets are numbered apart."""
    typed: bool | None = None
    """Whether rows had a column of types, and of weights; None before they were read."""
    weighted: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.life <= _LONGEST_LIFE:
            raise BadConfig(
                f"--life {self.life} is not a number of windows from 1 to {_LONGEST_LIFE}: use 'forever' (0 in Python)"
            )
        if self.duplicates not in Policy.__members__:
            raise BadConfig(f"--duplicates {self.duplicates} is unknown: use {', '.join(Policy.__members__)}")
        if self.operations and (self.life != 1 or self.duplicates != "sum"):
            given = f"--life {self.life}" if self.life != 1 else f"--duplicates {self.duplicates}"
            raise BadConfig(
                f"{given} does not go with --operation: an edge stays until an operation changes or removes it"
            )

    @property
    def policy(self) -> Policy:
        """The policy on events that count together."""
        return Policy.last if self.operations else Policy[self.duplicates]

    @property
    def follow_life(self) -> int:
        """The life that edges are followed with: what an operation did lasts."""
        return 0 if self.operations else self.life

    def as_json(self) -> dict[str, Any]:
        """Return the rules as plain data."""
        return asdict(self)


def rules_from_json(data: dict[str, Any]) -> Rules:
    """Return the rules that `as_json` wrote."""
    return Rules(**{**data, "windows": Windows(**data["windows"])})


@dataclass(frozen=True, slots=True)
class Budget:
    """How the memory an ingest may take is shared out among its stages."""

    total_bytes: int
    work_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.total_bytes < _LEAST_BYTES:
            raise BadConfig(
                f"--memory {self.total_bytes >> 20} MiB is too little: an ingest needs {_LEAST_BYTES >> 20} MiB"
            )
        object.__setattr__(self, "work_bytes", self.total_bytes - _OVERHEAD_BYTES)

    def share(self, part: float) -> int:
        """Return this part of the memory there is to work with, in bytes."""
        return int(self.work_bytes * part)


def default_budget() -> Budget:
    """Return the budget where none was asked for: half of what is free now."""
    return Budget(max(psutil.virtual_memory().available // 2, _LEAST_BYTES))
