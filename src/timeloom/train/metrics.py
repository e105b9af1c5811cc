"""How good are predictions? Each metric by its name.

A metric of nothing is nan, because no number would be true. Sums are of float64, so data cut into batches anywhere give
the same means to 1e-12. Shape letters: N predictions, C classes, P positive edges, K negatives of each, S source nodes.
"""

from __future__ import annotations

import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadInput
from timeloom.graph.keys import Float64s, Int64s

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]


def mse(predicted: Floats, true: Floats) -> float:
    """Return the mean squared error; a nan among the predictions stays visible as nan."""
    _refuse_other_shape("predictions", predicted, "true values", true)
    return _mean(np.square(predicted.astype(np.float64) - true))


def mae(predicted: Floats, true: Floats) -> float:
    """Return the mean absolute error; a nan among the predictions stays visible as nan."""
    _refuse_other_shape("predictions", predicted, "true values", true)
    return _mean(np.abs(predicted.astype(np.float64) - true))


def confusion(
    predicted_classes: NDArray[np.integer], true_classes: NDArray[np.integer], num_classes: int
) -> NDArray[np.int64]:
    """Return the [C, C] counts: entry [i, j] is how often class i was predicted as class j.

    The matrices of batches add up to the matrix of the whole.
    """
    _refuse_other_shape("predicted classes", predicted_classes, "true classes", true_classes)
    for what, classes in (("predicted", predicted_classes), ("true", true_classes)):
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:
            raise BadInput(
                f"{num_classes} classes are numbered 0 to {num_classes - 1}, but {what} classes run from "
                f"{classes.min()} to {classes.max()}: leave out nodes without a label, and count all classes"
            )
    cells = true_classes.astype(np.int64) * num_classes + predicted_classes
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes).astype(np.int64)


def accuracy(confusion: NDArray[np.int64]) -> float:
    """Return the share of predictions that are right, given the [C, C] matrix of :func:`confusion`."""
    count = int(confusion.sum())
    return int(confusion.trace()) / count if count else math.nan


def macro_f1(confusion: NDArray[np.int64]) -> float:
    """Return the mean F1 of the classes that occur among the true or among the predicted ones.

    A class that is never true and never predicted has no F1 and is left out; one that is only predicted has F1 = 0.
    """
    seen = confusion.sum(axis=0) + confusion.sum(axis=1)
    occurs = seen > 0
    return _mean(2.0 * confusion.diagonal()[occurs] / seen[occurs])


def average_precision(scores: Floats, positive: Bools) -> float:
    """Return the area under the precision-recall steps; equal scores are one step. Nan without both kinds."""
    _refuse_other_shape("scores", scores, "marks of positives", positive)
    _refuse_nan("scores", scores)
    num_positive = int(positive.sum())
    if num_positive in (0, len(scores)):
        return math.nan
    order = np.argsort(scores)[::-1]
    falling = scores[order]
    # A threshold can only lie between two different scores, so precision is read at the last of each group of ties.
    ends = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))
    found = np.cumsum(positive[order])[ends]
    gained = np.diff(found, prepend=0)
    return float((gained * (found / (ends + 1))).sum() / num_positive)


def auc(scores: Floats, positive: Bools) -> float:
    """Return the chance that a positive scores above a negative, a tie counting half. Nan without both kinds."""
    _refuse_other_shape("scores", scores, "marks of positives", positive)
    _refuse_nan("scores", scores)
    num_positive = int(positive.sum())
    num_negative = len(scores) - num_positive
    if not num_positive or not num_negative:
        return math.nan
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2.0
    won = (mean_rank[group] * positive).sum() - num_positive * (num_positive + 1) / 2.0
    return float(won / num_positive / num_negative)


def mean_ranks(positive_P: Floats, negative_PK: Floats, valid_PK: Bools | None = None) -> Float64s:
    """Return the [P] ranks of positives among their own valid negatives, the best being 1, as TGB counts ties.

    The rank is the mean of the optimistic and the pessimistic one: (#greater + #greater-or-equal) / 2 + 1. Note: a
    positive without any valid negative has rank 1; leave it out where that would flatter.
    """
    valid_PK = _valid(positive_P, negative_PK, valid_PK)
    greater = ((negative_PK > positive_P[:, None]) & valid_PK).sum(axis=1)
    at_least = ((negative_PK >= positive_P[:, None]) & valid_PK).sum(axis=1)
    ranks: Float64s = (greater + at_least) / 2.0 + 1.0
    return ranks


def mrr(ranks: Floats) -> float:
    """Return the mean of the inverse ranks."""
    return _mean(1.0 / ranks.astype(np.float64))


def hits(ranks: Floats, k: int) -> float:
    """Return the share of ranks that are at most ``k``."""
    return _mean(ranks <= k)


def source_ranks(sources_P: Int64s, positive_P: Floats, negative_PK: Floats, valid_PK: Bools | None = None) -> Float64s:
    """Return one rank for each source node, in ascending order of nodes, as ROLAND ranks (KDD 2022, ``max`` variant).

    The best positive of a source is ranked among the negatives of its first listed positive, behind all of equal score.
    All positives of a source must be in one call: a source that is cut in two counts twice.
    """
    _refuse_other_shape("source nodes", sources_P, "scores of positives", positive_P)
    valid_PK = _valid(positive_P, negative_PK, valid_PK)
    nodes, first, group = np.unique(sources_P, return_index=True, return_inverse=True)
    best = np.full(len(nodes), -np.inf)
    np.maximum.at(best, group, positive_P)
    ranks: Float64s = ((negative_PK[first] >= best[:, None]) & valid_PK[first]).sum(axis=1) + 1.0
    return ranks


def source_mrr(sources_P: Int64s, positive_P: Floats, negative_PK: Floats, valid_PK: Bools | None = None) -> float:
    """Return ROLAND's MRR, the mean of inverse :func:`source_ranks`; it is not comparable with :func:`mrr` of TGB's."""
    return mrr(source_ranks(sources_P, positive_P, negative_PK, valid_PK))


@final
class Tally:
    """Means by name that grow batch by batch and depend on neither the batches' sizes nor their order."""

    __slots__ = ("_counts", "_totals")

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, total: float, count: int) -> None:
        """Take in ``count`` more values that sum to ``total``; a count of 0 adds nothing, whatever the total."""
        assert count >= 0, f"{name}: {count} values"
        totals = self._totals.setdefault(name, [])
        self._counts[name] = self._counts.get(name, 0) + count
        if count:
            totals.append(float(total))

    def merge(self, other: Tally) -> None:
        """Take in everything that another tally took in, such as another rank's."""
        for name, totals in other._totals.items():
            self._totals.setdefault(name, []).extend(totals)
            self._counts[name] = self._counts.get(name, 0) + other._counts[name]

    def sums(self) -> dict[str, tuple[float, int]]:
        """Return the sum and the count of every name: what ranks exchange."""
        return {name: (_sum(totals), self._counts[name]) for name, totals in self._totals.items()}

    def means(self) -> dict[str, float]:
        """Return the mean of every name, in the order in which names came first; nan where nothing was counted."""
        return {name: total / count if count else math.nan for name, (total, count) in self.sums().items()}


def _sum(totals: list[float]) -> float:
    """Return the sum, rounded once, so that no order of the batches matters."""
    try:
        return math.fsum(totals)
    # These are about totals that are infinite, or whose sum is; a diverged loss is no reason to stop.
    except (OverflowError, ValueError):
        return sum(totals)


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean(dtype=np.float64)) if values.size else math.nan


def _valid(positive_P: Floats, negative_PK: Floats, valid_PK: Bools | None) -> Bools:
    """Return which negatives count, after refusing scores that have no rank."""
    if negative_PK.ndim != 2 or positive_P.shape != negative_PK.shape[:1]:
        raise BadInput(
            f"each positive needs a row of negatives, but positives have shape {positive_P.shape} and negatives "
            f"{negative_PK.shape}: give [P] and [P, K]"
        )
    valid_PK = np.ones(negative_PK.shape, np.bool_) if valid_PK is None else valid_PK
    _refuse_other_shape("negatives", negative_PK, "marks of valid ones", valid_PK)
    _refuse_nan("scores of positives", positive_P)
    _refuse_nan("scores of negatives", negative_PK, valid_PK)
    return valid_PK


def _refuse_other_shape(what: str, values: NDArray[Any], other: str, others: NDArray[Any]) -> None:
    # Without this, [N, 1] against [N] is silently every value against every other.
    if values.shape != others.shape:
        raise BadInput(f"{what} have shape {values.shape}, but {other} {others.shape}: give both the same shape")


def _refuse_nan(what: str, scores: Floats, valid: Bools | None = None) -> None:
    # A nan is neither greater nor less, so it would be ranked as the best of all.
    missing = np.isnan(scores) if valid is None else np.isnan(scores) & valid
    if missing.any():
        raise BadInput(
            f"{int(missing.sum())} of {missing.size} {what} are nan, and nan has no rank: look for a loss that diverged"
        )
