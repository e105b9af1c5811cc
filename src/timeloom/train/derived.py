"""Every number that follows from the settings and the graph: told once, when a run begins."""

from __future__ import annotations

import numpy as np
import torch

from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.tasks import Split
from timeloom.plan.batch.reservoir import full_rings
from timeloom.records import GraphFacts
from timeloom.train.deviate import exactness_of
from timeloom.train.goals.values import ValueGoal
from timeloom.train.hybrid.cache import budget_bytes
from timeloom.train.planning import updates_of
from timeloom.train.session import Session


def facts_of(graph: DynamicGraph, split: Split) -> GraphFacts:
    """Return what a run's graph is like."""
    told = graph.statistics
    edges, added = told["edges"], told["added"]
    before = np.concatenate([[0], edges[:-1]])
    overlap = (edges - added) / np.maximum(before + added, 1)
    # A snapshot without edges is all of one without edges.
    overlap[(before + added == 0) | (np.arange(len(edges)) == 0)] = 1.0
    return GraphFacts(
        graph=graph.name, nodes=graph.num_nodes, edges=tuple(edges.tolist()), active=tuple(told["active"].tolist()),
        overlap=tuple(overlap.round(6).tolist()), train_stop=split.train_stop, val_stop=split.val_stop,
        test_stop=split.test_stop,
    )  # fmt: skip


def _of_batches(session: Session) -> dict[str, str | int | float | bool]:
    """Return what follows from the settings where ranks learn from batches of their own nodes."""
    settings, num_nodes = session.settings, session.feed.num_nodes
    if settings.system.divide != "batches":
        return {}
    sizes = settings.hybrid.sizes(session.split.train_stop, num_nodes)
    return {
        "nodes of this rank": num_nodes,
        "batch sizes": ", ".join(f"{size.snapshots} x {size.nodes}" for size in sizes),
        "batches of the first size, kept": full_rings(
            sizes, num_snapshots=session.split.train_stop, num_nodes=num_nodes
        )[settings.hybrid.start] if settings.hybrid.reservoir else 0,
        "room for caches": budget_bytes(session),
    }  # fmt: skip


def _of_windows(session: Session) -> dict[str, str | int | float | bool]:
    """Return what follows from the settings about windows."""
    settings, flare = session.settings, session.settings.flare
    if settings.system.unit != "trapezoid":
        return {"window stride": settings.window.step}
    decayed = flare.length - flare.full
    return {
        "snapshots of a window": f"{flare.full} full, {decayed} {'whole' if flare.history == 'full' else 'decayed'}",
        "chunks of a rank": f"{flare.chunks} by {flare.chunks_by}",
        "chunks kept, the newest snapshot first": ", ".join(map(str, flare.counts)),
    }


def _updates(session: Session) -> int:
    """Return how many updates an epoch has; of batches a rank's, while they have the size that they start with."""
    settings, stop = session.settings, session.split.train_stop
    if settings.system.divide != "batches":
        return updates_of(settings, stop, ranks=session.world.size)
    hybrid = settings.hybrid
    return max(1, round(hybrid.epoch_share / (hybrid.start_snapshots * hybrid.start_nodes)))


def derived_of(session: Session, step_bytes: int | None) -> dict[str, str | int | float | bool]:
    """Return every number that follows from the settings and the graph, to be told once.

    ``step_bytes`` is what a step is predicted to hold (None: it was not predicted).
    """
    settings, split, feed = session.settings, session.split, session.feed
    live = settings.train.protocol == "live"
    updates = settings.live.steps if live else _updates(session)
    goal = (
        {"predicts": "the change" if session.goal.is_residual else "the value"}
        if isinstance(session.goal, ValueGoal)
        else {}
    )
    return {
        **goal,
        **({"system": settings.system.name, "ranks": session.world.size} if session.world.size > 1 else {}),
        "nodes": session.graph.num_nodes,
        "snapshots for training": split.train_stop,
        "snapshots for validation": split.val_stop - split.train_stop,
        "snapshots for test": split.test_stop - split.val_stop,
        "horizon": split.horizon,
        "inputs": f"{feed.features}, {feed.num_features} numbers a node"
        + (f" ({feed.lags} lags)" if feed.lags else ""),
        "updates an epoch": updates,
        "epochs at most": split.test_stop if live else settings.train.epochs,
        **_of_batches(session),
        **_of_windows(session),
        "outputs of the model": session.model.out_size,
        "hops": session.model.hops,
        "sums of inputs": "kept, and made first"
        if session.decided.sums_first
        else "kept"
        if session.decided.keeps
        else "made",
        "rows": exactness_of(settings.reuse),
        "chosen by": session.metric,
        **({} if step_bytes is None else {"memory of a step": f"{step_bytes / 2**20:,.0f} MiB (predicted)"}),
        "device": str(session.device),
        "threads": torch.get_num_threads(),
    }
