"""How good was the last choice of a batch size (DynaHB Eq. 3, SPEC D8.5)?

A *fall* is by how much the loss fell since the decision before: below 0 it rose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RewardName = Literal["bounded", "paper", "public"]
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened in the last two decisions' time."""

    last_fall: float
    fall: float
    last_seconds: float
    """What a step took."""
    seconds: float
    grew: bool = False
    """The batch now has more snapshots and more nodes than the one before."""
    shrank: bool = False
    """The batch now has fewer snapshots and fewer nodes."""


def reward(name: RewardName, change: Change) -> float:
    """Return the reward of the current choice: of the time that a step takes, and of the loss."""
    match name:
        case "bounded":
            return bounded(change)
        case "paper":
            return paper(change)
        case "public":
            return public(change)


def bounded(change: Change) -> float:
    """Return a reward from -2 to 2; -1 where the loss did not fall.

    Eq. 3 grows without bound as a fall approaches 0, and rewards a loss that rises after one that rose less.
    """
    if change.fall <= 0.0:
        return -1.0
    by_time = (change.last_seconds - change.seconds) / max(change.last_seconds, _TINY)
    by_loss = (change.fall - change.last_fall) / max(abs(change.fall), abs(change.last_fall), _TINY)
    return _clipped(by_time) + _clipped(by_loss)


def paper(change: Change) -> float:
    """Return Eq. 3 as printed; a term whose denominator is 0 counts 0."""
    return sum(_terms(change))


def public(change: Change) -> float:
    """Return what the authors' program computes: Eq. 3 with terms that it leaves out, negative where the loss rose."""
    by_time, by_loss = _terms(change)
    if by_loss < 0.0 and change.grew:
        by_loss = 0.0
    if by_time < 0.0 and change.shrank:
        by_time = 0.0
    return by_time + by_loss if change.fall > 0.0 else -(abs(by_time) + abs(by_loss))


def _terms(change: Change) -> tuple[float, float]:
    by_time = _ratio(change.last_seconds - change.seconds, change.last_seconds)
    return by_time, _ratio(change.fall - change.last_fall, change.fall)


def _ratio(value: float, by: float) -> float:
    return value / by if abs(by) > _TINY else 0.0


def _clipped(value: float) -> float:
    return min(max(value, -1.0), 1.0)
