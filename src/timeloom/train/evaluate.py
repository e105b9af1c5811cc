"""How good a model is on a part of the split, beside baselines that learn nothing."""

from __future__ import annotations

import json
import math

import torch

from timeloom.graph.tasks import Part
from timeloom.records import Predicted
from timeloom.train.goals.goal import Marks
from timeloom.train.session import Session, Stopped
from timeloom.train.worker import Worker

MOST_SAMPLED = 600
"""Of so many targets of the test it is told what was predicted; a record of them has some 15 kB."""


def evaluate(worker: Worker, part: Part) -> dict[str, float]:
    """Collective. Return the model's scores on a part; its baselines were asked for before."""
    return by_metric(worker.session, marks_of(worker, part))


def marks_of(worker: Worker, part: Part, *, most_sampled: int = 0) -> Marks:
    """Collective. Return what `evaluate` makes its scores of, with a sample of predictions if asked for."""
    session, marks = worker.session, Marks(most_sampled=most_sampled)
    session.predictor.eval()
    for seen in worker.see(*session.split.of(part)):
        with torch.no_grad(), session.computing():
            session.goal.score(session.head, seen, part, marks)
    return _of_all_ranks(session, marks)


def sampled(session: Session, marks: Marks, split: str) -> list[Predicted]:
    """Return the record of what was predicted of a few targets; none where nothing was scored."""
    if not marks.sample.truth:
        return []
    told, shown = session.goal.truth, marks.sample
    return [
        Predicted(
            split=split, what=told.what, form=told.form, classes=told.classes,
            truth=tuple(map(_short, shown.truth)), predicted=tuple(map(_short, shown.predicted)),
        )
    ]  # fmt: skip


def _short(value: float) -> float:
    return float(f"{value:.6g}")


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
    whole = Marks(most_sampled=marks.sample.most)
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
