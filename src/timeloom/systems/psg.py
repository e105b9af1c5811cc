"""PSG: whole snapshot groups, one a rank and step, in the order of time. What REAL measures itself against."""

from __future__ import annotations

from timeloom.systems.preset import Preset


def psg() -> Preset:
    """Return the preset."""
    return Preset(
        name="psg",
        about="every rank takes the next whole window, in order; gradients are added up (REAL's and DyGNeX's baseline)",
        settings={
            "system": {"name": "psg", "divide": "windows"},
            "window": {"state": "zero", "stride": 1},
        },
    )
