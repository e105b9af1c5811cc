"""T36, T37: every metric is what a slow loop says, and does not depend on how the data are cut into batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from timeloom.errors import BadInput
from timeloom.graph.keys import Float64s, Int64s
from timeloom.train.metrics import (
    Bools,
    Tally,
    accuracy,
    auc,
    average_precision,
    confusion,
    hits,
    macro_f1,
    mae,
    mean_ranks,
    mrr,
    mse,
    source_mrr,
    source_ranks,
)

SEEDS = st.integers(0, 2**32 - 1)
NONE: Float64s = np.empty(0)


def tied(rng: np.random.Generator, *shape: int) -> Float64s:
    """Scores of which many are equal."""
    return rng.integers(-2, 3, shape) / 4.0


def loop_average_precision(scores: Float64s, positive: Bools) -> float:
    total, recall_before = 0.0, 0.0
    for threshold in sorted(set(scores.tolist()), reverse=True):
        chosen = [bool(p) for score, p in zip(scores, positive, strict=True) if score >= threshold]
        recall = sum(chosen) / int(positive.sum())
        total += (recall - recall_before) * sum(chosen) / len(chosen)
        recall_before = recall
    return total


def loop_auc(scores: Float64s, positive: Bools) -> float:
    points = [
        1.0 if score > other else 0.5 if score == other else 0.0
        for score in scores[positive]
        for other in scores[~positive]
    ]
    return sum(points) / len(points)


def loop_rank(positive: float, negatives: list[float]) -> float:
    return 1.0 + sum(1.0 if n > positive else 0.5 if n == positive else 0.0 for n in negatives)


@given(SEEDS, st.integers(1, 40))
def test_regression_metrics_are_means_of_errors(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    predicted, true = rng.normal(size=count).astype(np.float32), rng.normal(size=count)
    errors = [float(p) - float(t) for p, t in zip(predicted, true, strict=True)]
    assert mse(predicted, true) == pytest.approx(sum(e * e for e in errors) / count, rel=1e-12)
    assert mae(predicted, true) == pytest.approx(sum(abs(e) for e in errors) / count, rel=1e-12)


def test_errors_of_float32_predictions_are_summed_in_float64() -> None:
    big = np.full(2, 2.0**13, np.float32)
    assert mse(big, np.array([-(2.0**13) + 1.0, 0.0], np.float32)) == ((2.0**14 - 1.0) ** 2 + 2.0**26) / 2


def test_a_nan_among_regression_predictions_stays_visible() -> None:
    assert math.isnan(mse(np.array([0.0, np.nan]), np.zeros(2)))
    assert math.isnan(mae(np.array([0.0, np.nan]), np.zeros(2)))


@given(SEEDS, st.integers(1, 60), st.integers(1, 5))
def test_classification_metrics_equal_loops(seed: int, count: int, num_classes: int) -> None:
    rng = np.random.default_rng(seed)
    predicted, true = rng.integers(0, num_classes, (2, count))
    # Classes at the end occur nowhere, so that leaving them out matters.
    matrix = confusion(predicted, true, num_classes + 2)
    assert matrix.dtype == np.int64
    pairs = list(zip(true.tolist(), predicted.tolist(), strict=True))
    for i in range(num_classes + 2):
        for j in range(num_classes + 2):
            assert matrix[i, j] == pairs.count((i, j))
    assert accuracy(matrix) == sum(t == p for t, p in pairs) / count
    scores = []
    for c in sorted({c for pair in pairs for c in pair}):
        right = pairs.count((c, c))
        false = sum((t == c) != (p == c) for t, p in pairs)
        scores.append(2 * right / (2 * right + false))
    assert macro_f1(matrix) == pytest.approx(sum(scores) / len(scores), rel=1e-12)


@given(SEEDS, st.integers(2, 40))
def test_precision_and_auc_equal_loops_with_many_ties(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    scores, positive = tied(rng, count), rng.random(count) < 0.4
    assume(0 < positive.sum() < count)
    for kind in (np.float64, np.float32):
        precision, chance = average_precision(scores.astype(kind), positive), auc(scores.astype(kind), positive)
        assert precision == pytest.approx(loop_average_precision(scores, positive), rel=1e-12)
        assert chance == pytest.approx(loop_auc(scores, positive), rel=1e-12, abs=1e-15)
    order = rng.permutation(count)
    assert average_precision(scores[order], positive[order]) == average_precision(scores, positive)


def test_known_values() -> None:
    # The example in scikit-learn's documentation of average_precision_score and roc_auc_score.
    scores, positive = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    assert average_precision(scores, positive) == pytest.approx(5 / 6)
    assert auc(scores, positive) == 0.75
    assert auc(np.array([-np.inf, 0.0, np.inf]), np.array([False, False, True])) == 1.0


@given(SEEDS, st.integers(1, 8), st.integers(0, 8))
def test_ranks_equal_loops_with_many_ties(seed: int, num_positive: int, num_negative: int) -> None:
    rng = np.random.default_rng(seed)
    positive, negative = tied(rng, num_positive), tied(rng, num_positive, num_negative)
    valid = rng.random(negative.shape) < 0.7
    expected = [loop_rank(p, row[v].tolist()) for p, row, v in zip(positive, negative, valid, strict=True)]
    ranks = mean_ranks(positive, negative, valid)
    assert ranks.tolist() == expected
    assert mrr(ranks) == pytest.approx(sum(1 / rank for rank in expected) / num_positive, rel=1e-12)
    assert hits(ranks, 2) == sum(rank <= 2 for rank in expected) / num_positive
    everything = np.ones_like(valid)
    assert mean_ranks(positive, negative).tolist() == mean_ranks(positive, negative, everything).tolist()


@given(SEEDS, st.integers(1, 12), st.integers(0, 8))
def test_ranks_of_sources_equal_loops_with_many_ties(seed: int, num_positive: int, num_negative: int) -> None:
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, 4, num_positive) * 3
    positive, negative = tied(rng, num_positive), tied(rng, num_positive, num_negative)
    valid = rng.random(negative.shape) < 0.7
    expected = []
    for source in sorted(set(sources.tolist())):
        best = max(p for p, s in zip(positive.tolist(), sources, strict=True) if s == source)
        first = sources.tolist().index(source)
        expected.append(1 + sum(n >= best for n in negative[first][valid[first]].tolist()))
    assert source_ranks(sources, positive, negative, valid).tolist() == expected
    inverse = [1 / rank for rank in expected]
    assert source_mrr(sources, positive, negative, valid) == pytest.approx(sum(inverse) / len(inverse), rel=1e-12)
    everything = np.ones_like(valid)
    assert source_mrr(sources, positive, negative) == source_mrr(sources, positive, negative, everything)


def test_a_constant_predictor_has_tgbs_and_rolands_mrr() -> None:
    """SPEC 10: of 100 negatives, 0.0196 with mean ranks, and 0.0099 with pessimistic ones."""
    positive, negative = np.zeros(7, np.float32), np.zeros((7, 100), np.float32)
    assert mrr(mean_ranks(positive, negative)) == pytest.approx(1 / 51)
    assert round(mrr(mean_ranks(positive, negative)), 4) == 0.0196
    assert round(source_mrr(np.arange(7), positive, negative), 4) == 0.0099
    assert auc(np.zeros(5), np.arange(5) < 2) == 0.5
    assert average_precision(np.zeros(5), np.arange(5) < 2) == 0.4


@pytest.mark.parametrize("num_negative", [1, 5, 100])
def test_a_random_predictor_has_the_harmonic_mrr(num_negative: int) -> None:
    rng, count = np.random.default_rng(num_negative), 20_000
    ranks = mean_ranks(rng.random(count), rng.random((count, num_negative)))
    expected = sum(1 / rank for rank in range(1, num_negative + 2)) / (num_negative + 1)
    error = float(np.std(1 / ranks)) / math.sqrt(count)
    assert abs(mrr(ranks) - expected) < 3 * error
    assert abs(hits(ranks, 1) - 1 / (num_negative + 1)) < 3 * math.sqrt(1 / (num_negative + 1) / count)


def test_metrics_of_nothing_are_nan() -> None:
    both = np.array([True, True])
    nothing = [
        mse(NONE, NONE), mae(NONE, NONE), accuracy(np.zeros((3, 3), np.int64)), macro_f1(np.zeros((3, 3), np.int64)),
        mrr(NONE), hits(NONE, 10), source_mrr(np.empty(0, np.int64), NONE, np.empty((0, 4))),
        average_precision(NONE, NONE > 0), auc(NONE, NONE > 0),
        average_precision(np.zeros(2), both), average_precision(np.zeros(2), ~both),
        auc(np.zeros(2), both), auc(np.zeros(2), ~both),
    ]  # fmt: skip
    assert all(math.isnan(value) for value in nothing)
    assert confusion(np.empty(0, np.int64), np.empty(0, np.int64), 2).tolist() == [[0, 0], [0, 0]]
    assert mean_ranks(NONE, np.empty((0, 4))).shape == (0,)


BAD = np.array([0.0, np.nan])
BAD_2D = np.array([[0.0, 1.0], [0.0, np.nan]])
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: average_precision(BAD, np.array([True, False])), "1 of 2 scores are nan"),
    (lambda: auc(BAD, np.array([True, False])), "1 of 2 scores are nan"),
    (lambda: mean_ranks(BAD, np.zeros((2, 2))), "1 of 2 scores of positives are nan"),
    (lambda: mean_ranks(np.zeros(2), BAD_2D), "1 of 4 scores of negatives are nan"),
    (lambda: source_mrr(np.arange(2), BAD, np.zeros((2, 2))), "1 of 2 scores of positives are nan"),
    (lambda: source_mrr(np.arange(2), np.zeros(2), BAD_2D), "1 of 4 scores of negatives are nan"),
    (lambda: mse(np.zeros((3, 1)), np.zeros(3)), r"shape \(3, 1\), but true values \(3,\)"),
    (lambda: mae(np.zeros(1), np.zeros(3)), r"shape \(1,\), but true values \(3,\)"),
    (lambda: average_precision(np.zeros(3), np.ones(2, np.bool_)), r"\(3,\), but marks of positives \(2,\)"),
    (lambda: auc(np.zeros(3), np.ones(2, np.bool_)), r"\(3,\), but marks of positives \(2,\)"),
    (lambda: mean_ranks(np.zeros(2), np.zeros((1, 2))), "needs a row of negatives"),
    (lambda: mean_ranks(np.zeros(2), np.zeros(2)), "needs a row of negatives"),
    (lambda: mean_ranks(np.zeros(2), np.zeros((2, 3)), np.ones((2, 1), np.bool_)), "marks of valid ones"),
    (lambda: source_mrr(np.zeros(1, np.int64), np.zeros(2), np.zeros((2, 2))), "source nodes have shape"),
    (lambda: confusion(np.array([3]), np.array([0]), 3), "predicted classes run from 3 to 3"),
    (lambda: confusion(np.array([0]), np.array([-1]), 3), "true classes run from -1 to -1"),
    (lambda: confusion(np.zeros(1, np.int64), np.zeros(2, np.int64), 3), "predicted classes have shape"),
]


@pytest.mark.parametrize(("ask", "answer"), REFUSED, ids=[answer for _, answer in REFUSED])
def test_what_has_no_answer_is_refused_with_what_was_found(ask: Callable[[], object], answer: str) -> None:
    with pytest.raises(BadInput, match=answer):
        ask()


def test_a_nan_where_no_negative_is_valid_does_no_harm() -> None:
    assert mean_ranks(np.zeros(2), BAD_2D, ~np.isnan(BAD_2D)).tolist() == [2.5, 1.5]


def batches(cuts: list[int], count: int) -> list[slice]:
    edges = [0, *sorted(cut % (count + 1) for cut in cuts), count]
    return [slice(low, high) for low, high in pairwise(edges)]


@given(SEEDS, st.integers(1, 50), st.lists(st.integers(0, 1000), max_size=6))
def test_cutting_into_batches_anywhere_changes_no_mean(seed: int, count: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(seed)
    predicted, true = rng.normal(size=count) * 10.0 ** rng.integers(-3, 4, count), rng.normal(size=count)
    classes, truth = rng.integers(0, 4, (2, count))
    negative = rng.normal(size=(count, 5))
    tally, matrix = Tally(), np.zeros((4, 4), np.int64)
    for cut in batches(cuts, count):
        size = cut.stop - cut.start
        tally.add("mse", mse(predicted[cut], true[cut]) * size, size)
        tally.add("mae", mae(predicted[cut], true[cut]) * size, size)
        ranks = mean_ranks(predicted[cut], negative[cut])
        tally.add("mrr", mrr(ranks) * size, size)
        tally.add("hits", hits(ranks, 2) * size, size)
        matrix += confusion(classes[cut], truth[cut], 4)
    ranks = mean_ranks(predicted, negative)
    whole = {"mse": mse(predicted, true), "mae": mae(predicted, true), "mrr": mrr(ranks), "hits": hits(ranks, 2)}
    assert tally.means() == pytest.approx(whole, rel=1e-12)
    assert matrix.tolist() == confusion(classes, truth, 4).tolist()


TOTALS = st.lists(st.tuples(st.sampled_from("ab"), st.floats(-1e200, 1e200), st.integers(1, 9)), max_size=12)


@given(TOTALS, st.integers(0, 12))
def test_a_tally_depends_on_no_order_and_merges(rows: list[tuple[str, float, int]], cut: int) -> None:
    whole, first, second, backward = Tally(), Tally(), Tally(), Tally()
    for place, (name, total, count) in enumerate(rows):
        whole.add(name, total, count)
        (first if place < cut else second).add(name, total, count)
    for name, total, count in reversed(rows):
        backward.add(name, total, count)
    first.merge(second)
    assert whole.sums() == first.sums() == backward.sums()
    for name, (total, count) in whole.sums().items():
        assert total == math.fsum(row[1] for row in rows if row[0] == name)
        assert count == sum(row[2] for row in rows if row[0] == name)
        assert whole.means()[name] == total / count


def test_a_tally_keeps_small_sums_beside_large_ones() -> None:
    tally = Tally()
    for total in (1e16, 1.0, -1e16):
        tally.add("loss", total, 1)
    assert tally.sums() == {"loss": (1.0, 3)}


def test_a_tally_of_nothing_is_nan_and_empty_batches_add_nothing() -> None:
    tally = Tally()
    tally.add("loss", math.nan, 0)
    assert math.isnan(tally.means()["loss"])
    tally.add("loss", 3.0, 2)
    tally.add("loss", math.nan, 0)
    assert tally.means() == {"loss": 1.5}


def test_a_diverged_loss_stays_visible_in_a_tally() -> None:
    tally = Tally()
    for name, total in (("up", math.inf), ("up", 1.0), ("both", math.inf), ("both", -math.inf), ("large", 1e308)):
        tally.add(name, total, 1)
    tally.add("large", 1.5e308, 1)
    means = tally.means()
    assert means["up"] == math.inf
    assert math.isnan(means["both"])
    assert means["large"] == math.inf


def test_ranks_of_sources_come_in_the_order_of_nodes() -> None:
    sources: Int64s = np.array([5, 2, 5])
    ranks = source_ranks(sources, np.array([0.0, 3.0, 2.0]), np.array([[1.0, 2.0], [4.0, 5.0], [9.0, 9.0]]))
    assert ranks.tolist() == [3.0, 2.0]
