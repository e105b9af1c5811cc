"""How good a model is on a part of the split, beside baselines that learn nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from timeloom.graph.tasks import Part
from timeloom.plan.batch.windows import scoring_windows
from timeloom.train.goals.goal import Marks, Seen
from timeloom.train.session import Session
from timeloom.train.walk import first_carry, goes_on


def seen_after(session: Session, first: int, last: int) -> Iterator[Seen]:
    """Yield what there is to predict from after each snapshot from ``first`` to ``last``, with frozen parameters.

    The state is warmed up over all snapshots before them where windows inherit it.
    """
    units = scoring_windows(session.settings.window, first, last, restarts=session.restarts)
    carry = first_carry(session.model, session.feed)
    for unit in units:
        session.check_stop()
        begin = first_carry(session.model, session.feed) if unit.fresh else goes_on(session.model, carry)
        with torch.no_grad(), session.computing():
            seen, kept = session.walker.walk(unit, begin)
        carry = kept or carry
        yield from seen


def evaluate(session: Session, part: Part) -> dict[str, float]:
    """Return the model's scores on a part; its baselines were asked for before."""
    session.predictor.eval()
    marks = Marks()
    for seen in seen_after(session, *session.split.of(part)):
        with torch.no_grad(), session.computing():
            session.goal.score(session.head, seen, part, marks)
    return by_metric(session, marks)


def evaluate_baselines(session: Session, part: Part) -> dict[str, dict[str, float]]:
    """Return the scores of the baselines on a part; this readies `evaluate` for it."""
    marks = session.goal.baselines(part, *session.split.of(part))
    return {name: by_metric(session, marked) for name, marked in marks.items()}


def by_metric(session: Session, marks: Marks) -> dict[str, float]:
    """Return scores in the order of the task's metrics, the one that validation goes by first."""
    told = marks.means()
    return {name: told.get(name, math.nan) for name in (session.metric, *session.goal.metrics)}
