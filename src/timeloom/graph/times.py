"""What a clock is to a graph: how times are kept as integers, how durations are read and how windows are cut.

Times are int64 ticks of one unit and never rounded on the way: whole numbers stay as they came, dates and fractional
seconds become nanoseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
            return f"{ticks / 10**9:.9g}"
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
        try:
            if self.unit == "nano":
                return round(float(text) * 10**9)
            if re.fullmatch(r"[+-]?\d+", text) and not (self.is_real and re.fullmatch(r"\d{4}", text)):
                return int(text)
            # NumPy also takes words such as "now", which mean another time whenever they are read.
            if self.is_real and text[:4].isdigit():
                return int(np.datetime64(text, self.unit).astype(np.int64))  # type: ignore[call-overload]
        except (ValueError, TypeError):
            pass
        kind = f"a date such as 2020-01-31, or a number ({self.unit})" if self.is_real else "a number"
        raise BadConfig(f"{text!r} is no time of this graph: give {kind}")


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


def read_duration(text: str, clock: Clock) -> Duration:
    """Return the duration that ``text`` (`7d`, `1mo`, `12h`, `250`) means on this clock."""
    found = _DURATION.fullmatch(text.strip().lower())
    if not found:
        raise BadConfig(f"--every {text} is no duration: write a number and a unit, such as 7d, 12h, 30min, 1mo or 1y")
    number, unit = found.groups()
    if unit and not clock.is_real:
        raise BadConfig(
            f"--every {text} needs clock times, but these are {clock.unit} numbers: "
            "say what they count with --time-unit s (or ms, us, ns), or give --every without a unit"
        )
    if unit in _MONTHS and "." not in number and int(number) > 0:
        return Duration(0, months=int(number) * _MONTHS[unit])
    per_unit = 10**9 if clock.unit == "nano" else 1
    if unit:
        if unit not in _NANOSECONDS:
            raise BadConfig(f"--every {text} has the unknown unit {unit!r}: use y, mo, w, d, h, min, s, ms, us or ns")
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
    unit = f"datetime64[{clock.unit}]"
    begin = int(np.int64(first).view(unit).astype("datetime64[M]").astype(np.int64))
    until = int(np.int64(last).view(unit).astype("datetime64[M]").astype(np.int64))
    # Years start in January and quarters in their first month; 1970-01 is month 0.
    begin -= begin % months
    count = (until - begin) // months + 1
    _refuse_many(count)
    bounds = (begin + months * np.arange(count + 1)).astype("datetime64[M]").astype(unit).astype(np.int64)
    return bounds[:-1], int(bounds[-1])


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
    if end > _MOST_TICKS:
        raise BadConfig(f"windows of {duration.ticks} ticks from {begin} on end beyond 2^63: use a shorter --every")
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
