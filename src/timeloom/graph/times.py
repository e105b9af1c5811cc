"""What a clock is to a graph: how times are kept as integers, how durations are read and how windows are cut.

Times are int64 ticks of one unit and never rounded on the way: whole numbers stay as they came, dates and fractional
seconds become nanoseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.keys import Int64s

TICKS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""The clock units. `plain` numbers are no clock, and `nano` is a plain number with decimals, in billionths."""

MOST_SNAPSHOTS = 2_000_000
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "s": 1}
_NANOSECONDS = {**{unit: seconds * 10**9 for unit, seconds in _SECONDS.items()}, "ms": 10**6, "us": 10**3, "ns": 1}
_MONTHS = {"mo": 1, "y": 12}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_WHOLE, _NUMBER = re.compile(r"[+-]?[0-9]{1,30}"), re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,9})?")
_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}(-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?Z?)?)?)?")
_MOST_TICKS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Clock:
    """The unit of a graph's times: `s`, `ms`, `us`, `ns`, `plain` or `nano`."""

    unit: str

    @property
    def is_real(self) -> bool:
        """Whether times are points of real time, so that days and months mean something."""
        return self.unit in TICKS_PER_SECOND

    def show(self, ticks: int) -> str:
        """Return a time as a person writes it."""
        if self.unit == "plain":
            return str(ticks)
        if self.unit == "nano":
            return f"{Decimal(ticks) / 10**9:f}"
        per_second = TICKS_PER_SECOND[self.unit]
        try:
            moment = str(np.datetime64(ticks // per_second, "s"))
        except (OverflowError, ValueError):
            return f"{ticks}{self.unit}"
        rest = ticks % per_second
        decimals = f".{rest:0{len(str(per_second)) - 1}d}".rstrip("0") if rest else ""
        return moment.removesuffix("T00:00:00") + decimals if not rest else moment + decimals

    def read(self, text: str) -> int:
        """Return the ticks of a time that a person wrote: a number of the unit, or a date."""
        ticks = None
        if self.unit == "nano" and _NUMBER.fullmatch(text):
            ticks = int((Decimal(text) * 10**9).to_integral_value())
        elif self.is_real and _DATE.fullmatch(text):
            ticks = self._of_date(text)
        elif _WHOLE.fullmatch(text):
            ticks = int(text)
        if ticks is not None and abs(ticks) <= _MOST_TICKS:
            return ticks
        kind = f"a date such as 2020-01-31, or a number ({self.unit})" if self.is_real else "a number"
        raise BadConfig(f"{text!r} is no time of this graph: give {kind}")

    def _of_date(self, text: str) -> int | None:
        """Return the ticks of a date (UTC), or None where there is no such day or the clock has no such tick."""
        moment, _, decimals = text.removesuffix("Z").partition(".")
        try:
            seconds = int(np.datetime64(moment, "s").astype(np.int64))
        except ValueError:
            return None
        per_second = TICKS_PER_SECOND[self.unit]
        part = int(decimals.ljust(9, "0")[:9] or 0) * per_second
        return seconds * per_second + part // 10**9 if part % 10**9 == 0 else None


def guess_clock(earliest: int, latest: int) -> Clock:
    """Return the clock that whole numbers in this range tell: an epoch clock for years 1973 to 5138, else plain."""
    for unit, ticks in TICKS_PER_SECOND.items():
        if 10**8 * ticks <= earliest and latest < 10**11 * ticks:
            return Clock(unit)
    return Clock("plain")


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time: so many ticks, or so many calendar months."""

    ticks: int
    months: int = 0
    grain: int = 1
    """Windows start at a multiple of this many ticks: a `7d` window starts at midnight."""


def split_duration(text: str) -> tuple[str, str]:
    """Return the number and the unit of a duration such as `7d`."""
    found = _DURATION.fullmatch(text.strip().lower())
    if not found or len(found[1]) > 18:
        raise BadConfig(f"--every {text} is no duration: write a number and a unit, such as 7d, 12h, 30min, 1mo or 1y")
    if found[2] and found[2] not in _NANOSECONDS and found[2] not in _MONTHS:
        raise BadConfig(f"--every {text} has the unknown unit {found[2]!r}: use y, mo, w, d, h, min, s, ms, us or ns")
    return found[1], found[2]


def read_duration(text: str, clock: Clock) -> Duration:
    """Return the duration that ``text`` (`7d`, `1mo`, `12h`, `250`) means on this clock."""
    number, unit = split_duration(text)
    if unit and not clock.is_real:
        raise BadConfig(
            f"--every {text} needs clock times, but these are {clock.unit} numbers: "
            "say what they count with --time-unit s (or ms, us, ns), or give --every without a unit"
        )
    if unit in _MONTHS and "." not in number and int(number) > 0:
        return Duration(0, months=int(number) * _MONTHS[unit])
    per_unit = 10**9 if clock.unit == "nano" else 1
    if unit:
        if unit in _MONTHS:
            raise BadConfig(f"--every {text} is no whole number of months: use days, or a positive whole number")
        per_unit = _NANOSECONDS[unit] * TICKS_PER_SECOND[clock.unit]
    whole, _, decimals = number.partition(".")
    ticks = int(whole + decimals) * per_unit
    divisor = 10 ** len(decimals) * (10**9 if unit else 1)
    if ticks % divisor or not 0 < ticks // divisor <= _MOST_TICKS:
        raise BadConfig(f"--every {text} is not a positive whole number of ticks ({clock.unit}): use a longer one")
    grain_unit = "d" if unit == "w" else unit
    grain = max(_NANOSECONDS.get(grain_unit, 0) * TICKS_PER_SECOND.get(clock.unit, 0) // 10**9, 1)
    return Duration(ticks // divisor, grain=grain)


def _month_starts(clock: Clock, first: int, last: int, months: int) -> tuple[Int64s, int]:
    """Return the starts of the calendar windows that cover ``first`` to ``last``, and where the last one ends."""
    per_second = TICKS_PER_SECOND[clock.unit]
    begin, until = (
        int(np.datetime64(ticks // per_second, "s").astype("datetime64[M]").astype(np.int64)) for ticks in (first, last)
    )
    # Years start in January and quarters in their first month; 1970-01 is month 0.
    begin -= begin % months
    count = (until - begin) // months + 1
    _refuse_many(count)
    starts = (begin + months * np.arange(count + 1)).astype("datetime64[M]").astype("datetime64[s]").astype(np.int64)
    _refuse_beyond(int(starts[0]) * per_second, int(starts[-1]) * per_second)
    bounds = starts * per_second
    return bounds[:-1], int(bounds[-1])


def _refuse_beyond(begin: int, end: int) -> None:
    if begin < -_MOST_TICKS or end > _MOST_TICKS:
        raise BadConfig("windows would begin or end beyond 2^63 ticks: use a shorter --every, or a coarser clock")


def cut_every(clock: Clock, duration: Duration, first: int, last: int, origin: int | None) -> tuple[Int64s, int]:
    """Return the starts of windows of one length that cover ``first`` to ``last``, and where the last one ends."""
    if duration.months:
        if origin is not None and _month_starts(clock, origin, origin, duration.months)[0][0] != origin:
            raise BadConfig(f"windows of calendar months start on a first of a month, not at {clock.show(origin)}")
        return _month_starts(clock, first if origin is None else origin, last, duration.months)
    begin = first - first % duration.grain if origin is None else origin
    count = (last - begin) // duration.ticks + 1
    _refuse_many(count)
    end = begin + count * duration.ticks
    _refuse_beyond(begin, end)
    return begin + duration.ticks * np.arange(count, dtype=np.int64), end


def cut_evenly(count: int, first: int, last: int, more_until: int | None = None) -> tuple[Int64s, int]:
    """Return the starts of ``count`` windows that share ``first`` to ``last`` evenly, and where the last one ends.

    With ``more_until``, as many further windows of the same length follow as are needed to cover that time.
    """
    span = last - first + 1
    if span < count:
        raise BadConfig(
            f"--snapshots {count} asks for more windows than there are ticks ({span}): ask for at most {span}"
        )
    upto = count if more_until is None else ((more_until - first + 1) * count + span - 1) // span
    _refuse_many(upto)
    bounds = [first + i * span // count for i in range(upto + 1)]
    return np.array(bounds[:-1], np.int64), bounds[-1]


def _refuse_many(count: int) -> None:
    if count > MOST_SNAPSHOTS:
        raise TooLarge(
            f"this would cut the graph into {count} snapshots, and at most {MOST_SNAPSHOTS} are kept: "
            "use longer windows"
        )
