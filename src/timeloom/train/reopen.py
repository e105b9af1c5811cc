"""How a run that is there is opened again: its settings, its graph, and a session as its checkpoint was."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from timeloom.config import build, parse_toml
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.records import CONFIG, read_config
from timeloom.train import checkpoint
from timeloom.train.choose import decided_of
from timeloom.train.session import Session, open_session, scales_of
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import grouped, whole_number


def settings_of_run(run: Path) -> RunSettings:
    """Return the settings of a run."""
    return build(RunSettings, parse_toml(read_config(run), f"{run / CONFIG}"))


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
    found = graph_of(settings, graph)
    with checkpoint.fitting(saved.name):
        nodes, snapshots = (whole_number(saved.state[name]) for name in ("num_nodes", "num_snapshots"))
        scales, decided = scales_of(grouped(saved.tensors)["scales"]), decided_of(saved.state["decided"])
    if found.num_nodes < nodes or len(found) < snapshots:
        raise BadConfig(
            f"the run was trained on {nodes:,} nodes and {snapshots:,} snapshots, but {found.name!r} has "
            f"{found.num_nodes:,} and {len(found):,}: give the graph of the run, or that graph grown since"
        )
    return open_session(
        settings, found, num_snapshots=snapshots, scales=scales, decided=decided, should_stop=should_stop, world=world,
    )  # fmt: skip
