"""Whether the graph that a run reads, and the run itself, are what was written: every byte."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from timeloom.dist.collectives import World
from timeloom.errors import BadStore, TimeloomError
from timeloom.graph.dynamic import DynamicGraph
from timeloom.records import CHECKPOINTS, read
from timeloom.train import checkpoint
from timeloom.train.reopen import settings_of_run


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


def problems_of_run(run: Path) -> Iterator[str]:
    """Yield a sentence for each of a run's settings, records and checkpoints that is not what was written."""
    folder = run / CHECKPOINTS
    parts: list[Callable[[], object]] = [lambda: settings_of_run(run), lambda: read(run)]
    parts += [partial(checkpoint.load, folder, name) for name in checkpoint.names(folder)]
    for part in parts:
        try:
            part()
        except TimeloomError as error:
            yield str(error)
