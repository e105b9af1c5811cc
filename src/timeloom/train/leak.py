"""Does what is predicted depend on what comes later? The graph's future is replaced, and nothing may change."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from timeloom.graph.features import Float32s
from timeloom.graph.keys import Float64s
from timeloom.graph.perturb import Perturbed
from timeloom.graph.tasks import GraphLike
from timeloom.train.goals.classes import ClassGoal
from timeloom.train.goals.goal import Columns, Marks
from timeloom.train.inference import predict_after
from timeloom.train.session import Session, open_session
from timeloom.train.workers import make_worker

_MOMENTS = 3


def leaks(session: Session) -> Iterator[str]:
    """Yield a sentence for everything that knew the future: inputs, scales, predictions, scores and baselines."""
    graph, settings, split = session.feed.graph, session.settings, session.split
    session.predictor.eval()
    # Where the label of the snapshot seen is asked for, the last known one is of the snapshot before.
    behind = session.feed.known_behind
    trained_by = split.train_stop - 1 + split.horizon + behind
    last = split.test_stop - 1
    moments = {trained_by, *np.linspace(min(1, last), last, _MOMENTS).astype(int).tolist()}
    for t in sorted(moment for moment in moments if moment < len(graph) - 1 or behind):
        future = Perturbed(graph, t, seed=settings.train.seed, labels_after=t - behind)
        other = _on(future, session)
        if t >= trained_by:
            other.feed.measure(split.train_stop)
            yield from _differing_scales(session, other, t)
        what = f"what comes after snapshot {t}"
        yield from _differing_inputs(session, other, t, what)
        yield from _differing_predictions(session, other, t, what)
        # Baselines know all of training.
        if t >= trained_by:
            yield from _differing_baselines(session, other, t, what)
            yield from _differing_scores(session, other, t)
    yield from _told_of_hidden_nodes(session)
    yield from _told_outright(session)


def _on(graph: GraphLike, session: Session) -> Session:
    """Return the same run, same parameters, on another graph."""
    num_snapshots = session.split.test_stop + session.split.horizon
    other = open_session(
        session.settings, graph, num_snapshots=num_snapshots, scales=session.feed.scales, decided=session.decided
    )  # fmt: skip
    other.predictor.load_state_dict(session.predictor.state_dict())
    other.predictor.eval()
    return other


def _differing_scales(session: Session, other: Session, t: int) -> Iterator[str]:
    mine, theirs = session.feed.scales, other.feed.scales
    assert mine is not None
    assert theirs is not None
    same = np.array_equal(mine.mean_F, theirs.mean_F) and np.array_equal(mine.deviation_F, theirs.deviation_F)
    targets = [(one.target_mean, one.target_deviation, one.change_deviation) for one in (mine, theirs)]
    if not same or targets[0] != targets[1]:
        yield f"the scales of inputs or targets change with what comes after snapshot {t}, which is after training"
    other.feed.scales = mine


def _differing_inputs(session: Session, other: Session, t: int, what: str) -> Iterator[str]:
    for s in sorted({0, t // 2, t}):
        if not torch.equal(session.feed.rows(s), other.feed.rows(s)):
            yield f"the inputs of snapshot {s} change with {what}"
            return


def _differing_predictions(session: Session, other: Session, t: int, what: str) -> Iterator[str]:
    if not _same(predict_after(session, t), predict_after(other, t)):
        yield f"the predictions after snapshot {t} change with {what}"


def _differing_baselines(session: Session, other: Session, t: int, what: str) -> Iterator[str]:
    ((_, mine),), ((_, theirs),) = (list(one.goal.guesses(t, t + 1)) for one in (session, other))
    for name, told in mine.items():
        if not _same({name: told}, theirs):
            yield f"what {name} goes by after snapshot {t} changes with {what}"


def _differing_scores(session: Session, other: Session, t: int) -> Iterator[str]:
    """Compare the scores of predictions whose labels are known when snapshot t is seen."""
    last = t + 1 - session.split.horizon - session.feed.known_behind
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
    for seen in make_worker(session).see(first, last):
        with torch.no_grad(), session.computing():
            session.goal.score(session.head, seen, "test", marks)
    return {"the model": marks.means(), **told}


def _same(mine: Columns, theirs: Columns) -> bool:
    return all(
        np.array_equal(values, theirs[name], equal_nan=values.dtype.kind == "f") for name, values in mine.items()
    )  # fmt: skip


def _told_of_hidden_nodes(session: Session) -> Iterator[str]:
    """Look for what changes with the classes of nodes that are not for training, where nodes are dealt out."""
    if not isinstance(session.goal, ClassGoal) or session.goal.hidden_nodes is None:
        return
    graph, t = session.feed.graph, session.split.test_stop - 1
    seed = session.settings.train.seed
    other = _on(Perturbed(graph, len(graph), seed=seed, hidden_N=session.goal.hidden_nodes), session)
    what = "the classes of nodes that are not for training"
    yield from _differing_inputs(session, other, t, what)
    yield from _differing_predictions(session, other, t, what)
    yield from _differing_baselines(session, other, t, what)


def _told_outright(session: Session) -> Iterator[str]:
    """Look for a feature that is the very value to be predicted, as in data whose labels were made of its features."""
    feed, task = session.feed, session.settings.task
    # Degrees of the snapshot seen are known by then, whatever they equal.
    is_given = feed.features == "graph" and feed.graph.features.degrees is None
    if task.name not in ("degree", "signal") or not is_given:
        return
    found: list[tuple[Float32s, Float64s]] = []
    for t in np.linspace(0, session.split.train_stop - 1, _MOMENTS).astype(int).tolist():
        target, known = feed.label(t + task.ahead), feed.label_before(t)
        # Where the last known value stays, equality tells nothing.
        moved = ~np.isnan(target) & (target != known)
        found.append((feed.raw(t)[moved, : feed.num_features - feed.lags], target[moved]))
    rows_MF, target_M = (np.concatenate(parts) for parts in zip(*found, strict=True))
    # Nor does it where all become the same value, which any constant is.
    if not len(target_M) or target_M.min() == target_M.max():
        return
    equal = (np.abs(rows_MF - target_M[:, None]) <= 1e-6 * (1 + np.abs(target_M[:, None]))).all(0)
    for place in np.flatnonzero(equal).tolist():
        yield f"input {place} of a node is the very value that is to be predicted {task.ahead} snapshots ahead"
