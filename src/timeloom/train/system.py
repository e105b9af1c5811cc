"""What tells one training system from another. No torch here, so that a command can read it in an instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timeloom.errors import BadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSettings:
    """How ranks share the work. A preset (`--system NAME`) fills this in; each decision can be changed alone."""

    name: str = "none"  # what the decisions below are called
    divide: Literal["windows", "time", "nodes"] = "windows"
    """What ranks divide among each other: whole windows, the snapshots of a window (time), or the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """How long ranks wait for each other, and how closely they are watched."""

    first_seconds: float = 300.0
    """Until the second step begins: ranks read, compile and build at their own pace."""
    step_seconds: float = 100.0  # later on; then the missing rank is named, and all end
    check: bool = False
    """Compare what ranks are about to do together before every collective; slow, for finding mistakes."""

    def __post_init__(self) -> None:
        if not (self.first_seconds > 0 and self.step_seconds > 0):
            raise BadConfig(
                f"world.first_seconds={self.first_seconds:g} and world.step_seconds={self.step_seconds:g}: "
                "give more than 0"
            )
