"""REAL: windows that share snapshots go to one rank, and every rank has as much to do as the others.

Ranks begin in plain order; their windows are timed; the schedule that is solved from these times then says which
windows are computed together, on which rank, in which step. Rows that snapshots and windows share are made once.
"""

from __future__ import annotations

from timeloom.plan.schedule.choose import SchedulerName
from timeloom.systems.preset import Preset


def real(name: str = "real", scheduler: SchedulerName = "best", about: str = "our search") -> Preset:
    """Return the preset, by one of its schedulers."""
    return Preset(
        name=name,
        about=f"REAL: balanced ranks, and windows that share snapshots together; scheduled by {about}",
        settings={
            "system": {"name": name, "divide": "windows"},
            "window": {"state": "zero", "stride": 1},
            "schedule": {"scheduler": scheduler, "limit": 2},
        },
    )
