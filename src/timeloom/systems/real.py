"""REAL: windows that share snapshots go to one rank, and every rank has as much to do as the others.

Ranks begin in plain order; their windows are timed; the schedule that is solved from these times then says which
windows are computed together, on which rank, in which step. Rows that snapshots and windows share are made once.

| paper | here |
|---|---|
| 3.2, 3.3, A: three stages, control beside training | `plan/stages.py`, `plan/schedule/apart.py`, `train/control.py` |
| 3.2, 5.1: profiler | `train/profile.py`, `plan/stages.py` (`typical`, `speeds_of`) |
| 4.1.1 type I, deltas | `kernels/incremental*.py`, `train/steps.py`; `kernels/versions.py`, `train/table_view.py` |
| 4.1.2 transformation | rows of a table of versions are multiplied once: `train/encode.py` |
| 4.1.3 triple stream | `train/prefetch.py` (copies), `train/pipeline.py` (`system.pipeline`); tried on no GPU |
| 4.2 type II | `train/groups.py` (`reuse.between_windows`) |
| 4.3 higher layers | computed anew for every window: `train/walk.py` |
| 5.1 what groups save | `plan/reuse.py` |
| 5.2, 5.3, 5.4 REAL-L, REAL-G, the choice | `plan/schedule/ilp.py`, `greedy.py`, `choose.py` |
| B full or delta | `plan/cost.py`, `train/calibrate.py`, `train/choose.py` |
| G simulation | `plan/simulate.py`, `cli/simulate.py` |

Ablations (7.3) are settings: PSG is `--system psg` with `reuse.mode=full` and `reuse.cache=off`; + type I leaves these
out; + type II adds `schedule.scheduler=pair_consecutive`; then `--system real_g`, `real_l`, and `real`, whose scheduler
`best` is ours.
Where we deviate: sums are exact, where Eq. 3 and 4 are not for the norm sym (SPEC 0.1; `reuse.approximate=sym-approx`
is theirs); attention is refreshed where Eq. 5 to 8 lose digits (SPEC 3.3); savings are those of the union chain, not
Eq. 17; gradients are weighed by all groups of a step (SPEC 5, D5.1); steps come in another order in every epoch; the
cost model counts edges, too (D6.1). Deltas are in the store, so that stage I builds none.
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
