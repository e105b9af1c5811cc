"""The words that plans are made of: units, steps and their outcomes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The smallest piece of work: consecutive snapshots that are computed together."""

    first: int
    last: int
    """The snapshot after the last one."""
    targets: tuple[int, ...]
    """The snapshots whose outputs are asked for."""
    fresh: bool
    """The state before ``first`` is the start; else it is what an earlier unit kept."""
    keep: int = -1
    """The state after this snapshot is kept for the next unit (-1: none is)."""
    batch: int = 0
    """Which of several batches of its targets is learnt from; there is but one where targets are not sampled."""
    chunks: tuple[int, ...] = ()
    """How many chunks of every owner are computed of each snapshot, the first ones of the epoch's order; (): all."""
    kept_from: tuple[int, ...] = ()
    """After each snapshot, the states of its chunks from this number on are kept for the next unit, which computes the
    ones before it again (`plan/batch/kept.py`); (): see `keep`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens between two updates of the parameters, on all ranks."""

    units: Mapping[int, tuple[Unit, ...]]
    """The units of each rank."""
    ends_epoch: bool
    soon: Mapping[int, tuple[Unit, ...]] = field(default_factory=dict)
    """The units of each rank in the next step, where they are known already: what they need may be read ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step came to."""

    loss: float
    seconds: float


Plan = Generator[Step, Outcome, None]
