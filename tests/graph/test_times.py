"""Times are read and shown as people write them, and durations mean what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.errors import BadConfig
from timeloom.graph.times import Clock, cut_evenly, cut_every, guess_clock, read_duration


@pytest.mark.parametrize(
    ("unit", "text", "ticks"),
    [
        ("s", "2020-01-01", 1_577_836_800), ("ms", "2020-01-01T00:00:01", 1_577_836_801_000), ("ns", "1970-01-01", 0),
        ("s", "-5", -5), ("plain", "17", 17), ("nano", "0.25", 250_000_000), ("s", "2020", 1_577_836_800),
        ("s", "9999-12-31", 253_402_214_400), ("ms", "1600-01-01T00:00:00.250Z", -11_676_095_999_750),
        ("nano", "1600000000.123456790", 1_600_000_000_123_456_790),
    ],
)  # fmt: skip
def test_times_are_read_as_written(unit: str, text: str, ticks: int) -> None:
    assert Clock(unit).read(text) == ticks


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ("plain", "2020-01-01"),
        ("s", "tomorrow"),
        ("s", "now"),
        ("ns", "1600-01-01"),
        ("s", "2020-01-01T00:00:00.5"),
        ("nano", "inf"),
        ("s", "9" * 25),
        ("s", "NaT"),
        ("s", "2020-13-01"),
        ("s", ""),
        ("plain", "1.5"),
        ("nano", "x"),
    ],
)
def test_a_time_of_another_kind_is_refused(unit: str, text: str) -> None:
    with pytest.raises(BadConfig, match="is no time of this graph"):
        Clock(unit).read(text)


@given(st.sampled_from(["s", "ms", "us", "ns"]), st.integers(-(10**9), 10**10))
def test_what_is_shown_can_be_read_back(unit: str, seconds: int) -> None:
    clock = Clock(unit)
    per_second = clock.read("1970-01-01T00:00:01")
    ticks = seconds * per_second + (per_second > 1)
    if abs(ticks) < 2**62 and unit != "ns":
        assert clock.read(clock.show(ticks)) == ticks


def test_whole_numbers_tell_their_clock_only_where_they_can_be_no_other() -> None:
    assert guess_clock(1_082_040_961, 1_098_777_142).unit == "s"
    assert guess_clock(1_082_040_961_000, 1_098_777_142_000).unit == "ms"
    assert guess_clock(1_082_040_961_000_000_000, 1_098_777_142_000_000_000).unit == "ns"
    assert guess_clock(0, 69_459_254).unit == "plain"
    assert guess_clock(0, 1_098_777_142).unit == "plain"


@pytest.mark.parametrize(
    ("text", "unit", "ticks"),
    [("7d", "s", 604_800), ("12h", "ms", 43_200_000), ("1w", "s", 604_800), ("0.5h", "s", 1800),
     ("500ms", "us", 500_000), ("250", "plain", 250), ("0.1", "nano", 10**8), ("3", "nano", 3 * 10**9),
     ("90", "s", 90)],
)  # fmt: skip
def test_durations_are_exact(text: str, unit: str, ticks: int) -> None:
    assert read_duration(text, Clock(unit)).ticks == ticks


@pytest.mark.parametrize(
    ("text", "unit"),
    [("500ms", "s"), ("7x", "s"), ("0.5", "plain"), ("-3d", "s"), ("", "s"), ("0d", "s"), ("1d", "plain")],
)
def test_a_duration_that_is_no_whole_number_of_ticks_is_refused(text: str, unit: str) -> None:
    with pytest.raises(BadConfig):
        read_duration(text, Clock(unit))


@given(st.integers(-(10**12), 10**12), st.integers(0, 10**6), st.integers(1, 50))
def test_even_windows_cover_everything_once(first: int, span: int, count: int) -> None:
    last = first + span
    if span + 1 < count:
        return
    starts, end = cut_evenly(count, first, last)
    assert (len(starts), int(starts[0]), end) == (count, first, last + 1)
    sizes = np.diff([*starts.tolist(), end])
    assert sizes.max() - sizes.min() <= 1
    more, upto = cut_evenly(count, first, last, more_until=last + span)
    assert more[:count].tolist() == starts.tolist()
    assert upto > last + span


@given(st.integers(-(10**11), 10**11), st.integers(0, 10**7), st.sampled_from(["1d", "7d", "6h", "1mo", "3mo", "1y"]))
def test_windows_of_a_duration_cover_everything(first: int, span: int, text: str) -> None:
    clock = Clock("s")
    starts, end = cut_every(clock, read_duration(text, clock), first, first + span, None)
    assert starts[0] <= first <= first + span < end
    assert (np.diff(starts) > 0).all()
    assert starts[-1] <= first + span
    if text.endswith("d"):
        assert starts[0] % 86_400 == 0


def test_calendar_windows_start_on_the_first_of_a_month() -> None:
    with pytest.raises(BadConfig, match="start on a first of a month"):
        cut_every(Clock("s"), read_duration("1mo", Clock("s")), 10**9, 10**9, 10**9)
