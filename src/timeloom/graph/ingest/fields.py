"""What a field says: its bytes turned into an integer, a time or a float, exactly, or the reason why they are none.

A number that needs more than 64-bit arithmetic to be exact is left to the caller (`SLOW`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.ingest.tokens import MOST_SECONDS, Bytes, Form, Int32s, Reason, Role
from timeloom.graph.keys import Float64s, Int64s
from timeloom.jit import inlined, kernel

Int8s = NDArray[np.int8]
SLOW = -1

_MISSING, _NOT_INTEGER, _NEGATIVE, _OVERFLOW, _LEADING_ZERO = (
    int(r) for r in (Reason.missing, Reason.not_integer, Reason.negative, Reason.overflow, Reason.leading_zero)
)
_NOT_NUMBER, _NOT_FINITE, _NOT_TIME, _DECIMALS, _TIME_RANGE, _BAD_OPERATION, _BAD_BYTES = (
    int(r)
    for r in (
        Reason.not_number, Reason.not_finite, Reason.not_time, Reason.decimals, Reason.time_range, Reason.operation,
        Reason.bytes,
    )
)  # fmt: skip
_PLAIN, _INTEGER, _DECIMAL, _DATE, _YYYYMMDD, _TEXT, _REAL, _SIGN = (int(form) for form in Form)
_TIME = int(Role.time)
_MOST = 2**63 - 1
_NANO = 10**9
_TENS = 10 ** np.arange(19)
_POWERS = 10.0 ** np.arange(23)
_NO_DAY = 1 << 40


@inlined
def _digit(byte: int) -> int:
    """Return the digit that a byte is (below 0 or above 9: it is none)."""
    return np.int64(byte) - 48  # type: ignore[return-value]


@inlined
def _digits(text: Bytes, at: int, end: int, count: int) -> int:
    """Return the number that exactly ``count`` digits make, or -1."""
    if at + count > end:
        return -1
    value = 0
    for i in range(at, at + count):
        digit = _digit(text[i])
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inlined
def _is_decimal(text: Bytes, at: int, end: int) -> bool:
    """Say whether these bytes are a number: a sign perhaps, digits with or without a point, and perhaps an exponent."""
    if at < end and (text[at] == 43 or text[at] == 45):
        at += 1
    digits, points = 0, 0
    while at < end and (text[at] == 46 or (text[at] >= 48 and text[at] <= 57)):
        points += 1 if text[at] == 46 else 0
        digits += 0 if text[at] == 46 else 1
        at += 1
    if digits == 0 or points > 1:
        return False
    if at == end:
        return True
    if text[at] != 69 and text[at] != 101:
        return False
    at += 1
    if at < end and (text[at] == 43 or text[at] == 45):
        at += 1
    first = at
    while at < end and text[at] >= 48 and text[at] <= 57:
        at += 1
    return at == end and at > first


@inlined
def _is_not_finite(text: Bytes, at: int, end: int) -> bool:
    """Say whether these bytes spell NaN or infinity, in any case."""
    if at < end and (text[at] == 43 or text[at] == 45):
        at += 1
    for word in (b"nan", b"inf", b"infinity"):
        same = len(word) == end - at
        for i in range(min(len(word), end - at)):
            same = same and (text[at + i] | 32) == word[i]
        if same:
            return True
    return False


@inlined
def _read_integer(text: Bytes, at: int, end: int, form: int) -> tuple[int, int]:
    """Return a reason (0: fine) and the integer; an id may not be negative, a time may."""
    negative, signed = text[at] == 45, text[at] == 45 or text[at] == 43
    first = at + 1 if signed else at
    if first == end:
        return _NOT_INTEGER, 0
    value, fits = 0, True
    for i in range(first, end):
        digit = _digit(text[i])
        if digit < 0 or digit > 9:
            return _NOT_INTEGER, 0
        fits = fits and value <= (_MOST - digit) // 10
        value = value * 10 + digit if fits else value
    if not fits:
        return _OVERFLOW, 0
    if form == _PLAIN and (text[at] == 43 or (end - first > 1 and text[first] == 48)):
        return _LEADING_ZERO, 0
    return 0, -value if negative else value


@inlined
def _read_decimal(text: Bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Return a reason, the number in billionths, and whether decimals were rounded away."""
    if not _is_decimal(text, at, end):
        return _NOT_TIME, 0, False
    negative = text[at] == 45
    whole, part, decimals, rounded, up = 0, 0, -1, False, False
    for i in range(at, end):
        byte = text[i]
        digit = _digit(byte)
        if byte == 69 or byte == 101:
            return SLOW, 0, False
        if byte == 46:
            decimals = 0
        elif digit >= 0 and decimals < 0:
            whole = min(whole * 10 + digit, MOST_SECONDS + 1)
        elif digit >= 0 and decimals < 9:
            part = part * 10 + digit
            decimals += 1
        elif digit >= 0:
            up = up or (decimals == 9 and digit >= 5)
            rounded = rounded or digit > 0
            decimals += 1
    if whole > MOST_SECONDS:
        return _TIME_RANGE, 0, False
    part *= _TENS[9 - min(max(decimals, 0), 9)]
    value = whole * _NANO + part + (1 if up else 0)
    return 0, -value if negative else value, rounded


@inlined
def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date of the Gregorian calendar, or a huge number where there is none."""
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    longest = 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    if month == 2:
        longest = 29 if leap else 28
    if month < 1 or month > 12 or day < 1 or day > longest:
        return _NO_DAY
    y = year - 1 if month <= 2 else year
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inlined
def _read_clock(text: Bytes, at: int, end: int) -> tuple[bool, int, int, int]:
    """Read ``T12:30``, ``T12:30:59`` or ``T12:30:59.5``; return whether it is one, its seconds, nanoseconds and end."""
    hour, minute, second, part = _digits(text, at + 1, end, 2), _digits(text, at + 4, end, 2), 0, 0
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or text[at + 3] != 58 or (text[at] != 84 and text[at] != 32):
        return False, 0, part, at
    at += 6
    if at < end and text[at] == 58:
        second = _digits(text, at + 1, end, 2)
        if second < 0 or second > 59:
            return False, 0, part, at
        at += 3
        if at < end and text[at] == 46:
            first = at + 1
            at = first
            while at < end and text[at] >= 48 and text[at] <= 57 and at - first < 9:
                part = part * 10 + _digit(text[at])
                at += 1
            if at == first:
                return False, 0, part, at
            part *= _TENS[9 - (at - first)]
    return True, hour * 3600 + minute * 60 + second, part, at


@inlined
def _read_offset(text: Bytes, at: int, end: int) -> tuple[bool, int]:
    """Read what ends a time: ``Z``, ``+01``, ``+0100`` or ``-01:00``; return whether it is one, and its seconds."""
    if text[at] == 90:
        return at + 1 == end, 0
    hours = _digits(text, at + 1, end, 2)
    minutes_at = at + 4 if at + 3 < end and text[at + 3] == 58 else at + 3
    minutes = 0 if at + 3 == end else _digits(text, minutes_at, end, 2)
    fits = hours >= 0 and hours <= 23 and minutes >= 0 and minutes <= 59 and (text[at] == 43 or text[at] == 45)
    ends = at + 3 if at + 3 == end else minutes_at + 2
    offset = hours * 3600 + minutes * 60
    return fits and ends == end, -offset if text[at] == 45 else offset


@inlined
def _read_date(text: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return a reason and the nanoseconds since 1970 of an ISO 8601 date and time (UTC where no offset is given)."""
    year, month, day = _digits(text, at, end, 4), _digits(text, at + 5, end, 2), _digits(text, at + 8, end, 2)
    if year < 0 or month < 0 or day < 0 or text[at + 4] != 45 or text[at + 7] != 45:
        return _NOT_TIME, 0
    days = _days(year, month, day)
    at += 10
    fits, seconds, part = True, 0, 0
    if at < end:
        fits, seconds, part, at = _read_clock(text, at, end)
    if days == _NO_DAY or not fits:
        return _NOT_TIME, 0
    if at < end:
        fits, offset = _read_offset(text, at, end)
        seconds -= offset
    if not fits:
        return _NOT_TIME, 0
    total = days * 86400 + seconds
    if total > MOST_SECONDS or total < -MOST_SECONDS:
        return _TIME_RANGE, 0
    return 0, total * _NANO + part


@inlined
def _read_real(text: Bytes, at: int, end: int) -> tuple[int, float]:
    """Return a reason and a float, where one correctly rounded operation gives it; else it is left to the caller."""
    if not _is_decimal(text, at, end):
        return (_NOT_FINITE if _is_not_finite(text, at, end) else _NOT_NUMBER), 0.0
    negative = text[at] == 45
    value, decimals = 0, -1
    for i in range(at, end):
        byte = text[i]
        if byte == 69 or byte == 101 or value > 900_719_925_474_098:
            return SLOW, 0.0
        if byte == 46:
            decimals = 0
        elif byte >= 48:
            value = value * 10 + _digit(byte)
            decimals += 1 if decimals >= 0 else 0
    if decimals > 22:
        return SLOW, 0.0
    real = float(value) / _POWERS[max(decimals, 0)]
    return 0, -real if negative else real


@inlined
def _is_text(text: Bytes, at: int, end: int) -> bool:
    """Say whether these bytes are UTF-8 without control characters."""
    i = at
    while i < end:
        byte = text[i]
        more = 0
        if byte < 0x80:
            if byte < 32 or byte == 127:
                return False
        elif byte >= 0xC2 and byte < 0xE0:
            more = 1
        elif byte >= 0xE0 and byte < 0xF0:
            more = 2
        elif byte >= 0xF0 and byte < 0xF5:
            more = 3
        else:
            return False
        if i + more >= end:
            return False
        for k in range(1, more + 1):
            if text[i + k] & 0xC0 != 0x80:
                return False
        if more == 2 and ((byte == 0xE0 and text[i + 1] < 0xA0) or (byte == 0xED and text[i + 1] >= 0xA0)):
            return False
        if more == 3 and ((byte == 0xF0 and text[i + 1] < 0x90) or (byte == 0xF4 and text[i + 1] >= 0x90)):
            return False
        i += more + 1
    return True


@inlined
def _read_time(text: Bytes, at: int, end: int, form: int) -> tuple[int, int, bool]:
    """Return a reason, the ticks, and whether decimals were rounded away."""
    if form == _DECIMAL:
        return _read_decimal(text, at, end)
    if form == _DATE:
        reason, ticks = _read_date(text, at, end)
        return reason, ticks, False
    if form == _YYYYMMDD:
        days = _days(_digits(text, at, end, 4), _digits(text, at + 4, end, 2), _digits(text, at + 6, end, 2))
        fits = end - at == 8 and days != _NO_DAY and _digits(text, at, end, 4) > 0
        return (0 if fits else _NOT_TIME), (days * 86400 if fits else 0), False
    reason, ticks = _read_integer(text, at, end, _INTEGER)
    if reason == _OVERFLOW:
        reason = _TIME_RANGE
    elif reason != 0:
        reason = _DECIMALS if _is_decimal(text, at, end) else _NOT_TIME
    return reason, ticks, False


@inlined
def _read_id(text: Bytes, at: int, end: int, form: int) -> tuple[int, int]:
    """Return a reason and the id; whatever has a minus sign is negative."""
    reason, value = _read_integer(text, at, end, form)
    return (_NEGATIVE if text[at] == 45 and reason != _NOT_INTEGER else reason), value


@inlined
def _read_sign(text: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return a reason and the operation that ``+1``, ``1``, ``+``, ``-1`` or ``-`` means."""
    signed = text[at] == 43 or text[at] == 45
    fits = (end - at == 1 and (signed or text[at] == 49)) or (end - at == 2 and signed and text[at + 1] == 49)
    return (0 if fits else _BAD_OPERATION), -1 if text[at] == 45 else 1


@kernel("void(uint8[::1], int32[:,::1], int64[::1], int64[:,::1], float64[::1], int8[::1], boolean[::1])")
def read_fields(
    text: Bytes, places: Int32s, forms: Int64s, fields: NDArray[np.int64], weights: Float64s,
    reasons: Int8s, rounded: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Read the fields at ``places`` (row, role, first byte, end, ...), whose form is that of their role.

    ``reasons`` gets why each is bad (0: fine, `SLOW`: left to the caller), ``rounded`` if decimals were rounded away.
    """
    for i in range(len(places)):
        row, role, at, end = places[i, 0], places[i, 1], places[i, 2], places[i, 3]
        form, reason, value = forms[role], _MISSING, 0
        if at == end:
            pass
        elif form == _TEXT:
            reason = 0 if _is_text(text, at, end) else _BAD_BYTES
            value = int(at) << 32 | int(end - at)
        elif form == _REAL:
            reason, weights[row] = _read_real(text, at, end)
        elif form == _SIGN:
            reason, value = _read_sign(text, at, end)
        elif role == _TIME:
            reason, value, rounded[i] = _read_time(text, at, end, form)
        else:
            reason, value = _read_id(text, at, end, form)
        reasons[i] = reason
        fields[role, row] = value


@kernel("void(uint8[::1], int64[::1], uint8[::1])")
def copy_names(text: Bytes, names: Int64s, out: Bytes) -> None:
    """Copy names, each given as its first byte times 2^32 plus its size, one after another."""
    n = 0
    for name in names:
        first = name >> 32
        for i in range(first, first + (name & 0xFFFFFFFF)):
            out[n] = text[i]
            n += 1
