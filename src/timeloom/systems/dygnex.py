"""DyGNeX: every rank has as much to do as the others; snapshots of a window share their rows, windows share nothing."""

from __future__ import annotations

from timeloom.plan.schedule.choose import SchedulerName
from timeloom.systems.preset import Preset


def dygnex(name: str, scheduler: SchedulerName, about: str) -> Preset:
    """Return the preset, by one of its schedulers."""
    return Preset(
        name=name,
        about=f"DyGNeX: balanced ranks, windows that share nothing; scheduled by {about}",
        settings={
            "system": {"name": name, "divide": "windows"},
            "window": {"state": "zero", "stride": 1},
            "schedule": {"scheduler": scheduler, "limit": 2},
            "reuse": {"between_windows": False},
        },
    )
