"""Few numbers stand for many, and none of the extremes is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from timeloom.report.shrink import kept_places, short

values = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=400)


@given(values, st.integers(4, 60))
def test_ends_and_extremes_are_kept(numbers: list[float], most: int) -> None:
    kept = kept_places(numbers, most)
    assert len(kept) <= max(most, 4)
    assert kept.tolist() == sorted(set(kept.tolist()))
    if numbers:
        assert kept[0] == 0
        assert kept[-1] == len(numbers) - 1
        known = [number for number in numbers if number == number]
        if known:
            told = [numbers[place] for place in kept if numbers[place] == numbers[place]]
            assert min(told) == min(known)
            assert max(told) == max(known)


def test_a_spike_among_a_million_is_kept() -> None:
    numbers = np.zeros(1_000_000)
    numbers[654_321] = 5.0
    kept = kept_places(numbers, 1_000)
    assert 654_321 in kept
    assert len(kept) <= 1_000


def test_few_are_all_kept() -> None:
    assert kept_places([3.0, 1.0, 2.0], 4).tolist() == [0, 1, 2]


def test_numbers_are_short_and_none_is_not_a_number() -> None:
    assert short([1 / 3, float("nan"), float("inf"), 1e9]) == [0.333333, None, None, 1e9]
