"""Predicted times follow measured ones, never fall below nothing, and come back from a file as they went."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from timeloom.errors import BadInput
from timeloom.plan.cost import CACHED_BYTES, KERNELS, Costs, Law, Work, as_json, errors, fit, from_json, least_squares

TRUE = Law((1e-5, 1e-9, 2e-10, 0.0, 4e-11), (1e-5, 0.0, 5e-10, 3e-9, 1.5e-10))


def drawn(count: int, seed: int = 0) -> list[Work]:
    rng = np.random.default_rng(seed)
    rows = 10 ** rng.uniform(2, 5.5, count)
    return [
        Work(int(one), int(one * rng.uniform(0.5, 30)), int(rng.choice([1, 4, 16, 64, 128]))) for one in rows
    ]  # fmt: skip


def test_a_law_that_holds_is_found() -> None:
    works = drawn(80)
    assert {work.in_cache for work in works} == {True, False}
    found = fit(works, [TRUE.seconds(work) for work in works])
    others = drawn(50, seed=1)
    assert errors(found, others, [TRUE.seconds(work) for work in others]).max() < 1.02


def test_no_coefficient_is_below_zero_and_small_cases_count_as_much_as_large_ones() -> None:
    rng = np.random.default_rng(0)
    works = drawn(120)
    seconds = [TRUE.seconds(work) * float(np.exp(0.3 * rng.normal())) for work in works]
    found = fit(works, seconds)
    assert min(*found.cached, *found.beyond) >= 0.0
    off = errors(found, works, seconds)
    assert np.median(off) < 1.5
    small = np.array([seconds[place] < np.median(seconds) for place in range(len(works))])
    assert np.median(off[small]) < 1.6
    assert np.median(off[~small]) < 1.6


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 5))
def test_the_least_squares_are_scipys(seed: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    terms, wanted = rng.normal(size=(rows, columns)), rng.normal(size=rows)
    found = least_squares(terms, wanted)
    assert (found >= 0.0).all()
    assert np.linalg.norm(terms @ found - wanted) == pytest.approx(nnls(terms, wanted)[1], rel=1e-9, abs=1e-9)


def test_rows_beyond_the_cache_have_a_law_of_their_own() -> None:
    edge = CACHED_BYTES // 4 // 64
    within, beyond = Work(edge, 10 * edge, 64), Work(edge + 1, 10 * edge, 64)
    assert within.in_cache
    assert not beyond.in_cache
    assert TRUE.seconds(beyond) > 2 * TRUE.seconds(within)


def test_where_one_kind_was_not_measured_the_other_stands_in() -> None:
    small = [work for work in drawn(60) if work.in_cache]
    found = fit(small, [TRUE.seconds(work) for work in small])
    assert found.cached == found.beyond
    with pytest.raises(BadInput, match="no measurement"):
        fit([], [])


def test_nothing_costs_nothing() -> None:
    costs = Costs(dict.fromkeys(KERNELS, TRUE), 1)
    assert costs.seconds("sum", rows=0, edges=0, width=4) == 0.0
    assert costs.seconds("sum", rows=1, edges=0, width=4) > 0.0


def test_costs_come_back_from_a_file() -> None:
    costs = Costs(dict.fromkeys(KERNELS, TRUE), 2)
    assert from_json(json.loads(json.dumps(as_json(costs)))) == costs


@pytest.mark.parametrize(
    "told",
    [
        {}, {"threads": 1, "laws": {}}, {"threads": "1", "laws": {}},
        {"threads": 1, "laws": {kernel: {"cached": [1, 2], "beyond": [1, 2]} for kernel in KERNELS}},
        {"threads": 1, "laws": {kernel: {"cached": [-1.0] * 5, "beyond": [1.0] * 5} for kernel in KERNELS}},
        {"threads": 1, "laws": {kernel: {"cached": ["a"] * 5, "beyond": [1.0] * 5} for kernel in KERNELS}},
    ],
)  # fmt: skip
def test_another_file_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="timeloom calibrate"):
        from_json(told)
