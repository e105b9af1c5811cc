"""Rewards are bounded, never good where the loss rose, and the published ones are what was published (T26)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.plan.tune.rewards import Change, bounded, paper, public, reward

FALL = st.floats(-1e6, 1e6)
SECONDS = st.floats(0.0, 1e6)


@given(FALL, FALL, SECONDS, SECONDS)
def test_the_default_reward_is_from_minus_two_to_two_and_negative_where_the_loss_rises(
    last_fall: float, fall: float, last_seconds: float, seconds: float
) -> None:
    """T26."""
    change = Change(last_fall=last_fall, fall=fall, last_seconds=last_seconds, seconds=seconds)
    found = bounded(change)
    assert -2.0 <= found <= 2.0
    assert fall > 0 or found <= 0.0


def test_the_printed_reward_praises_a_rising_loss_and_the_default_does_not() -> None:
    """SPEC finding 8: it fell by 0.1, then rose by 0.1."""
    change = Change(last_fall=0.1, fall=-0.1, last_seconds=1.0, seconds=1.0)
    assert paper(change) == pytest.approx(2.0)
    assert bounded(change) == -1.0
    assert public(change) == pytest.approx(-2.0)


def test_by_hand_half_the_time_and_twice_the_fall() -> None:
    change = Change(last_fall=0.1, fall=0.2, last_seconds=2.0, seconds=1.0)
    for name in ("bounded", "paper", "public"):
        assert reward(name, change) == pytest.approx(0.5 + 0.5)


def test_a_fall_close_to_nothing_makes_the_printed_reward_huge_and_not_the_default() -> None:
    change = Change(last_fall=1.0, fall=1e-9, last_seconds=1.0, seconds=1.0)
    assert paper(change) < -1e8
    assert bounded(change) == pytest.approx(-1.0)


def test_nothing_fell_and_no_time_passed_is_no_division_by_zero() -> None:
    change = Change(last_fall=0.0, fall=0.0, last_seconds=0.0, seconds=0.0)
    assert (bounded(change), paper(change), public(change)) == (-1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("fall", "seconds", "grew", "shrank", "expected"),
    [
        (0.05, 1.0, True, False, 0.0),  # a smaller fall is forgiven a larger batch
        (0.05, 1.0, False, False, -1.0),
        (0.1, 2.0, False, True, 0.0),  # a longer time is forgiven a smaller batch
        (0.1, 2.0, True, False, -1.0),
        (-0.1, 2.0, False, False, -3.0),  # the loss rose: both terms count against it
    ],
)
def test_the_program_s_reward_leaves_out_what_it_leaves_out(
    fall: float, seconds: float, grew: bool, shrank: bool, expected: float
) -> None:
    change = Change(last_fall=0.1, fall=fall, last_seconds=1.0, seconds=seconds, grew=grew, shrank=shrank)
    assert public(change) == pytest.approx(expected)
