"""Whether the graph that a run reads is what was written: every byte, before the first step."""

from __future__ import annotations

from collections.abc import Collection

from timeloom.dist.collectives import World
from timeloom.errors import BadStore
from timeloom.graph.dynamic import DynamicGraph


def refuse_altered(world: World, graph: DynamicGraph, known: Collection[str] = ()) -> None:
    """Collective. Read all files of a graph but the ``known`` ones, once on each machine, and compare checksums."""
    problem = ""
    if world.rank % world.local_size == 0:
        problem = next(graph.store.verify(known), "")
    told = [one.decode() for one in world.gather_bytes(problem.encode(), "control/graph")]
    if any(told):
        found = next(one for one in told if one)
        raise BadStore(
            f"{graph.path}: {found}; restore it from a copy, or ingest it again ('timeloom check {graph.path}' names "
            "all that is wrong)"
        )
