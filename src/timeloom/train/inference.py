"""What a run that is there can be asked: its scores, and its predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timeloom.config import build, merge
from timeloom.dist.world import alone
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import GraphLike, Part
from timeloom.records import Evaluated, read
from timeloom.train import checkpoint
from timeloom.train.evaluate import evaluate as evaluate_part
from timeloom.train.evaluate import evaluate_baselines
from timeloom.train.goals.goal import Columns
from timeloom.train.reopen import graph_of, session_of, settings_of_run
from timeloom.train.session import Session, open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import grouped, load_parameters
from timeloom.train.verify import refuse_altered
from timeloom.train.workers import make_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    path: Path
    scores: dict[str, float]
    """Of the best parameters, on the test part."""
    baselines: dict[str, dict[str, float]]
    best_epoch: int


def open_run(
    run: str | PathLike[str], *, graph: str | PathLike[str] | DynamicGraph | None = None, name: str | None = None
) -> Session:
    """Return the session of a run with its best parameters, of its last checkpoint or the one named."""
    path = Path(run)
    settings = settings_of_run(path)
    folder = path / "checkpoints"
    saved = checkpoint.latest(folder) if name is None else checkpoint.load(folder, name)
    found = graph_of(settings, graph)
    if settings.train.verify:
        refuse_altered(alone(torch.device("cpu")), found)
    session = session_of(settings, saved, found)
    parts = grouped(saved.tensors)
    load_parameters(session, parts.get("best") or parts["now"], saved.name)
    session.predictor.eval()
    return session


def open_untrained(graph: str | PathLike[str], settings: Mapping[str, Any]) -> Session:
    """Return a session whose parameters were never trained."""
    opened = open_graph(graph)
    session = open_session(build(RunSettings, merge(settings, {"graph": str(opened.path.resolve())})), opened)
    session.predictor.eval()
    return session


def evaluate(
    run: str | PathLike[str], part: Part = "test", *, graph: str | PathLike[str] | DynamicGraph | None = None,
    name: str | None = None,
) -> Evaluated:  # fmt: skip
    """Return how good a run's best parameters are on a part of its split, beside the baselines."""
    session = open_run(run, graph=graph, name=name)
    if session.settings.train.protocol == "live":
        raise BadConfig(
            f"{run} followed the live protocol, which has learnt from every label by now: its honest scores are those "
            "in its records, made before each label was known"
        )
    baselines = evaluate_baselines(session, part)
    return Evaluated(
        epoch=-1, split=part, scores=evaluate_part(make_worker(session), part), baselines=baselines, seconds=0.0
    )  # fmt: skip


def predict(
    run: str | PathLike[str], at: int = -1, *, pairs: tuple[Any, Any] | None = None,
    graph: str | PathLike[str] | DynamicGraph | None = None, name: str | None = None,
) -> Columns:  # fmt: skip
    """Return the predictions after snapshot ``at`` (negative: from the end), with original ids, as columns.

    ``pairs`` are original ids of sources and of targets, for a task about pairs.
    """
    session = open_run(run, graph=graph, name=name)
    source = graph_of(session.settings, graph)
    if not -len(source) <= at < len(source):
        raise BadConfig(f"snapshot {at} of {source.name!r} was asked for, but it has {len(source)}")
    about_pairs = session.settings.task.name in ("links", "edge_classes")
    if pairs is not None and not about_pairs:
        raise BadConfig(f"pairs were given, but task.name={session.settings.task.name} predicts nodes: leave them out")
    numbers: Int64s | None = None
    if pairs is not None:
        numbers = np.stack([source.ids.index_of(side) for side in pairs])
    columns = predict_after(session, at % len(source), numbers)
    return {name: _originals(source, name, values) for name, values in columns.items()}


def predict_after(session: Session, t: int, pairs: Int64s | None = None) -> Columns:
    """Return the predictions after snapshot t, nodes by their numbers."""
    (seen,) = make_worker(session).see(t, t + 1)
    with torch.no_grad(), session.computing():
        return session.goal.table(session.head, seen, pairs)


def _originals(graph: GraphLike, name: str, values: Any) -> Any:
    return np.asarray(graph.ids.of(values)) if name in ("node", "source", "target") else values


def result_of(run: str | PathLike[str]) -> Result:
    """Return what a run that has ended came to, from its records."""
    tested = [record for record in read(Path(run)) if isinstance(record, Evaluated) and record.split == "test"]
    if not tested:
        raise BadConfig(f"{run} has not been tested yet: go on with 'timeloom train --resume {run}'")
    last = tested[-1]
    return Result(path=Path(run), scores=last.scores, baselines=last.baselines, best_epoch=last.epoch)
