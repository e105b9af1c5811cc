"""`timeloom synth`: graphs made up with stated properties."""

from __future__ import annotations

from timeloom.errors import BadConfig


def synth(kind: str, /) -> None:
    """Make a graph with a stated degree law, change rate and seed."""
    raise BadConfig(kind)
