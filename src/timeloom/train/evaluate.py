"""How good a model is on a part of the split, beside baselines that learn nothing."""

from __future__ import annotations

import json
import math

import torch

from timeloom.graph.tasks import Part
from timeloom.train.goals.goal import Marks
from timeloom.train.session import Session, Stopped
from timeloom.train.worker import Worker


def evaluate(worker: Worker, part: Part) -> dict[str, float]:
    """Collective. Return the model's scores on a part; its baselines were asked for before."""
    session, marks = worker.session, Marks()
    session.predictor.eval()
    for seen in worker.see(*session.split.of(part)):
        with torch.no_grad(), session.computing():
            session.goal.score(session.head, seen, part, marks)
    return by_metric(session, _of_all_ranks(session, marks))


def _of_all_ranks(session: Session, marks: Marks) -> Marks:
    """Collective. Return the marks of all ranks together; all leave here where one of them was asked to stop."""
    whole, stop = of_all_ranks(session, marks)
    if session.world.size > 1 and stop:
        raise Stopped
    return whole


def of_all_ranks(session: Session, marks: Marks) -> tuple[Marks, bool]:
    """Collective. Return the marks of all ranks together, and whether one of them was asked to stop."""
    told = {"marks": marks.as_json(), "stop": session.should_stop()}
    found = [json.loads(one) for one in session.world.gather_bytes(json.dumps(told).encode(), "control/marks")]
    whole = Marks()
    for one in found:
        whole.take_in(one["marks"])
    return whole, any(one["stop"] for one in found)


def evaluate_baselines(session: Session, part: Part) -> dict[str, dict[str, float]]:
    """Collective. Return the scores of the baselines on a part; this readies `evaluate` for it."""
    marks = session.goal.baselines(part, *session.split.of(part))
    if not session.feed.holding.holds_all:
        marks = {name: _of_all_ranks(session, marked) for name, marked in marks.items()}
    return {name: by_metric(session, marked) for name, marked in marks.items()}


def by_metric(session: Session, marks: Marks) -> dict[str, float]:
    """Return scores in the order of the task's metrics, the one that validation goes by first."""
    told = marks.means()
    return {name: told.get(name, math.nan) for name in (session.metric, *session.goal.metrics)}
