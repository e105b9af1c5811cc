"""Vertex-parallel: every node lives on one rank, and halos are exchanged for every sum over neighbours.

What DistDGL does with full neighbourhoods, over snapshots. All ranks go over the same windows, so states may be
inherited as in one process, and what is learnt is what one process learns.
"""

from __future__ import annotations

from timeloom.systems.preset import Preset


def vertex() -> Preset:
    """Return the preset."""
    return Preset(
        name="vertex",
        about="every rank owns some of the nodes, and fetches its neighbours' rows for every layer and snapshot",
        settings={"system": {"name": "vertex", "divide": "nodes"}},
    )
