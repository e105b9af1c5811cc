"""BLAD: two windows per rank and step, one's structure beside the other's time (Fu et al.); without load balancing."""

from __future__ import annotations

from timeloom.systems.preset import Preset


def blad() -> Preset:
    """Return the preset."""
    return Preset(
        name="blad",
        about="every rank takes two whole windows at a time: what one is made of is computed beside what the other "
        "remembers",
        settings={
            "system": {"name": "blad", "divide": "windows", "pipeline": True},
            "window": {"state": "zero", "stride": 1, "groups": 2},
        },
    )
