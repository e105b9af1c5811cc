"""ESDG: the snapshots of every window dealt out over ranks (Chakaravarthy et al.), in the two ways it is described.

REAL lets hidden states go from rank to rank (`relay`); ESDG itself, as FlareDTDG says, deals rows out anew between what
is computed by snapshot and what is computed by node (`alltoall`).
"""

from __future__ import annotations

from timeloom.systems.preset import Preset


def esdg() -> Preset:
    """Return the preset."""
    return Preset(
        name="esdg",
        about="every rank takes some snapshots of each window; states go from rank to rank (system.time=relay), or "
        "rows are dealt out anew by nodes (alltoall)",
        settings={
            "system": {"name": "esdg", "divide": "time", "time": "relay"},
            "window": {"state": "zero", "stride": 1},
        },
        also=("system.time=alltoall",),
    )
