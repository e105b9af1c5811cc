"""How a run that is there is opened again: its settings, its graph, and a session as its checkpoint was."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from timeloom.config import build
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.records import read_config
from timeloom.train import checkpoint
from timeloom.train.choose import decided_of
from timeloom.train.session import Session, open_session, scales_of
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import grouped


def settings_of_run(run: Path) -> RunSettings:
    """Return the settings of a run."""
    return build(RunSettings, tomllib.loads(read_config(run)))


def graph_of(settings: RunSettings, graph: str | PathLike[str] | DynamicGraph | None) -> DynamicGraph:
    """Return the graph of a run, or the one given instead."""
    if isinstance(graph, DynamicGraph):
        return graph
    return open_graph(settings.graph if graph is None else graph)


def session_of(
    settings: RunSettings, saved: checkpoint.Checkpoint, graph: str | PathLike[str] | DynamicGraph | None, *,
    should_stop: Callable[[], bool] = lambda: False, world: World | None = None,
) -> Session:  # fmt: skip
    """Return the session of a checkpoint: the scales and the split of its training, also on a graph that has grown."""
    found, (nodes, snapshots) = graph_of(settings, graph), (saved.state["num_nodes"], saved.state["num_snapshots"])
    if found.num_nodes < nodes or len(found) < snapshots:
        raise BadConfig(
            f"the run was trained on {nodes:,} nodes and {snapshots:,} snapshots, but {found.name!r} has "
            f"{found.num_nodes:,} and {len(found):,}: give the graph of the run, or that graph grown since"
        )
    return open_session(
        settings, found, num_snapshots=snapshots,
        scales=scales_of(grouped(saved.tensors)["scales"]), decided=decided_of(saved.state["decided"]),
        should_stop=should_stop, world=world,
    )  # fmt: skip
