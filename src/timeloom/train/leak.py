"""Does what is predicted depend on what comes later? The graph's future is replaced, and nothing may change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from timeloom.graph.perturb import Perturbed
from timeloom.graph.tasks import GraphLike
from timeloom.train.evaluate import seen_after
from timeloom.train.goals.goal import Columns, Marks
from timeloom.train.runs import predict_after
from timeloom.train.session import Session, open_session
from timeloom.train.settings import RunSettings

_MOMENTS = 3


def leaks(session: Session) -> Iterator[str]:
    """Yield a sentence for everything that knew the future: inputs, scales, predictions, scores and baselines."""
    graph, settings, split = session.feed.graph, session.settings, session.split
    trained_by = split.train_stop - 1 + split.horizon
    last = split.test_stop - 1
    moments = {trained_by, *np.linspace(min(1, last), last, _MOMENTS).astype(int).tolist()}
    for t in sorted(moment for moment in moments if moment < len(graph) - 1 or split.horizon == 0):
        other = _with_another_future(session, settings, graph, t)
        if t >= trained_by:
            other.feed.measure(split.train_stop)
            yield from _differing_scales(session, other, t)
        yield from _differing_inputs(session, other, t)
        yield from _differing_predictions(session, other, t)
        yield from _differing_scores(session, other, t)
    yield from _told_outright(session)


def _with_another_future(session: Session, settings: RunSettings, graph: GraphLike, t: int) -> Session:
    """Return the same run, same parameters, on a graph that is another after snapshot t."""
    horizon, stop = session.split.horizon, session.split.test_stop
    other = open_session(
        settings,
        Perturbed(graph, t, seed=settings.train.seed),
        num_snapshots=stop + horizon,
        scales=session.feed.scales,
    )
    other.predictor.load_state_dict(session.predictor.state_dict())
    other.predictor.eval()
    session.predictor.eval()
    return other


def _differing_scales(session: Session, other: Session, t: int) -> Iterator[str]:
    mine, theirs = session.feed.scales, other.feed.scales
    assert mine is not None
    assert theirs is not None
    same = np.array_equal(mine.mean_F, theirs.mean_F) and np.array_equal(mine.deviation_F, theirs.deviation_F)
    if not same or mine.target_mean != theirs.target_mean or mine.change_deviation != theirs.change_deviation:
        yield f"the scales of inputs or targets change with what comes after snapshot {t}, which is after training"
    other.feed.scales = mine


def _differing_inputs(session: Session, other: Session, t: int) -> Iterator[str]:
    for s in {0, t // 2, t}:
        if not torch.equal(session.feed.rows(s), other.feed.rows(s)):
            yield f"the inputs of snapshot {s} change with what comes after snapshot {t}"
            return


def _differing_predictions(session: Session, other: Session, t: int) -> Iterator[str]:
    if not _same(predict_after(session, t), predict_after(other, t)):
        yield f"the predictions after snapshot {t} change with what comes after it"


def _differing_scores(session: Session, other: Session, t: int) -> Iterator[str]:
    """Compare the scores of predictions whose labels are of snapshot t or before."""
    last = t - session.split.horizon + 1
    first = max(0, last - 2)
    if last <= first:
        return
    mine, theirs = (_scores(one, first, last) for one in (session, other))
    for who, told in mine.items():
        if not all(np.array_equal(value, theirs[who][name], equal_nan=True) for name, value in told.items()):
            yield f"the scores of {who} up to snapshot {t} change with what comes after it"


def _scores(session: Session, first: int, last: int) -> dict[str, dict[str, float]]:
    told = {name: marks.means() for name, marks in session.goal.baselines("test", first, last).items()}
    marks = Marks()
    for seen in seen_after(session, first, last):
        with torch.no_grad(), session.computing():
            session.goal.score(session.head, seen, "test", marks)
    return {"the model": marks.means(), **told}


def _same(mine: Columns, theirs: Columns) -> bool:
    return all(
        np.array_equal(values, theirs[name], equal_nan=values.dtype.kind == "f") for name, values in mine.items()
    )  # fmt: skip


def _told_outright(session: Session) -> Iterator[str]:
    """Look for an input that is the very value to be predicted, as in data whose labels were made of its features."""
    feed, task = session.feed, session.settings.task
    if task.name not in ("degree", "signal"):
        return
    equal = np.ones(feed.num_features, np.bool_)
    for t in np.linspace(0, session.split.train_stop - 1, _MOMENTS).astype(int).tolist():
        target, known = feed.label(t + task.ahead), feed.label_before(t)
        # Where the last known value stays, equality tells nothing.
        moved = ~np.isnan(target) & (target != known)
        rows = feed.raw(t)[moved]
        equal &= bool(moved.any()) & (
            np.abs(rows - target[moved, None]) <= 1e-6 * (1 + np.abs(target[moved, None]))
        ).all(0)
    for place in np.flatnonzero(equal).tolist():
        yield f"input {place} of a node is the very value that is to be predicted {task.ahead} snapshots ahead"
