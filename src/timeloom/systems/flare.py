"""FlareDTDG: windows of which older snapshots shrink, states that are kept, chunks of nodes on every rank.

| paper | here |
|---|---|
| 3.2 random split of the sequence | `flare.split`, off by default (SPEC D7.2) |
| 3.3 chunks, their order, blocks of decayed snapshots | `plan/partition/metis.py`, `plan/batch/{order,blocks,cut}.py` |
| 3.4 overlap of snapshots | `plan/schedule/overlap*.py`, `train/flare/turns.py` |
| 3.5 windows, (k, alpha) chosen by trials | `plan/batch/{flare,trapezoid}.py`, `plan/tune/`, `train/flare/tuning.py` |
| Algorithm 1: states kept from window to window | `plan/batch/kept.py`, `train/flare/window.py` |

Ablations are settings: `flare.history=full` (Full-History), `flare.history=recent` (Recent-Only), `flare.shrink=false`,
`flare.overlap=false`. Where we deviate: counts are rounded once (D7.1); the loss is divided by the targets of all
ranks; numbers do not depend on the order of turns.
"""

from __future__ import annotations

from timeloom.systems.preset import Preset


def flare() -> Preset:
    """Return the preset."""
    return Preset(
        name="flare",
        about="windows whose older snapshots shrink, on one rank or several that own chunks of nodes (FlareDTDG)",
        settings={
            "system": {"name": "flare", "divide": "nodes", "unit": "trapezoid", "partition": {"by": "metis"}},
        },
    )
