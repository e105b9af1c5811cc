"""DyGNeX: every rank has as much to do as the others; snapshots of a window share their rows, windows share nothing.

| paper | here |
|---|---|
| 3, A: workflow, profiling | `plan/stages.py`, `train/control.py`, `train/profile.py` |
| 4.1 the problem | `plan/schedule/instance.py` |
| 4.2, C: DyGNeX-L | `plan/schedule/ilp.py` |
| 4.3, D: DyGNeX-G | `plan/schedule/greedy.py` |
| B partition into groups | `plan/batch/windows.py` |
| G end-to-end time | `scripts/bench dygnex` |

Where we deviate: the integer program has as many steps as one group a device needs (Eq. 11), and gives way to the
greedy one if it has not converged in twice the time of an epoch (REAL 5.4), which the run tells; the zero group is
never used up; gradients are weighed by all groups of a step (SPEC D5.1).
"""

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
