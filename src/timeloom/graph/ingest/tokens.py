"""The bytes of a text table turned into numbers, exactly, with the place and the reason of every row that is bad.

One pass over the bytes. Numbers that need more than 64-bit arithmetic to be exact are left to the caller ("slow" fields).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Float64s, Int64s
from timeloom.jit import inlined, kernel

Bytes = NDArray[np.uint8]


class Role(IntEnum):
    """What a column is for."""

    ignored = 0
    source = 1
    target = 2
    time = 3
    weight = 4
    type = 5
    operation = 6


class Form(IntEnum):
    """How the fields of a column are written."""

    plain_integer = 0
    """An integer without leading zeros, so that no two texts mean the same id."""
    integer = 1
    decimal = 2
    """A number with up to nine decimals, kept in billionths."""
    date = 3
    """An ISO 8601 date, with or without a time of day and an offset, kept in nanoseconds since 1970 (UTC)."""
    yyyymmdd = 4
    """A date such as 20240131, kept in seconds since 1970."""
    text = 5
    real = 6
    sign = 7


class Reason(IntEnum):
    """Why a row is bad."""

    fine = 0
    fields = 1
    missing = 2
    not_integer = 3
    negative = 4
    overflow = 5
    leading_zero = 6
    not_number = 7
    not_finite = 8
    not_time = 9
    decimals = 10
    time_range = 11
    operation = 12
    quote = 13
    bytes = 14
    late = 15


REASONS = {
    Reason.fields: "another number of fields than the first row",
    Reason.missing: "a field is empty",
    Reason.not_integer: "an id is not an integer",
    Reason.negative: "an id is negative",
    Reason.overflow: "an id is beyond 2^63",
    Reason.leading_zero: "an id has leading zeros",
    Reason.not_number: "a weight is not a number",
    Reason.not_finite: "a number is NaN or infinite",
    Reason.not_time: "a time cannot be read",
    Reason.decimals: "a time has decimals where the first rows have none",
    Reason.time_range: "a time is out of range",
    Reason.operation: "an operation is neither +1 nor -1",
    Reason.quote: "a quote is not closed",
    Reason.bytes: "a byte is no text",
    Reason.late: "its time is before the end of the graph it is appended to",
}

# Places in the counters a tokenizer returns.
ROWS, LINES, BLANK, COMMENTS, SLOW, BAD, ROUNDED = range(7)
NUM_COUNTERS = 7
MOST_REPORTED = 8

_FIELDS, _MISSING, _NOT_INTEGER, _NEGATIVE = (
    int(r) for r in (Reason.fields, Reason.missing, Reason.not_integer, Reason.negative)
)
_OVERFLOW, _LEADING_ZERO, _NOT_NUMBER, _NOT_FINITE = (
    int(r) for r in (Reason.overflow, Reason.leading_zero, Reason.not_number, Reason.not_finite)
)
_NOT_TIME, _DECIMALS, _TIME_RANGE, _BAD_OPERATION, _QUOTE, _BAD_BYTES = (
    int(r) for r in (Reason.not_time, Reason.decimals, Reason.time_range, Reason.operation, Reason.quote, Reason.bytes)
)
_PLAIN, _INTEGER, _DECIMAL, _DATE, _YYYYMMDD, _TEXT, _REAL, _SIGN = (int(form) for form in Form)
_TIME = int(Role.time)
_SLOW_FIELD = -1
_MOST = np.int64(9223372036854775807)
_NANO = np.int64(1_000_000_000)


@inlined
def _digits(text: Bytes, at: int, end: int, count: int) -> int:
    """Return the number that exactly ``count`` digits make, or -1."""
    if at + count > end:
        return -1
    value = 0
    for i in range(at, at + count):
        digit = np.int64(text[i]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@inlined
def _read_integer(text: Bytes, at: int, end: int, form: int) -> tuple[int, int]:
    """Return a reason (0: fine) and the integer; an id may not be negative, a time may."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    if at == end:
        return _NOT_INTEGER, 0
    value = np.int64(0)
    for i in range(at, end):
        digit = np.int64(text[i]) - 48
        if digit < 0 or digit > 9:
            return _NOT_INTEGER, 0
        if value > (_MOST - digit) // 10:
            return _OVERFLOW, 0
        value = value * 10 + digit
    if form == _PLAIN and end - at > 1 and text[at] == 48:
        return _LEADING_ZERO, 0
    return 0, -value if negative else value


@inlined
def _read_decimal(text: Bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Return a reason, the number in billionths, and whether decimals were rounded away."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    whole, part, decimals, digits, rounded, up = np.int64(0), np.int64(0), -1, 0, False, False
    for i in range(at, end):
        byte = text[i]
        if byte == 46 and decimals < 0:
            decimals = 0
            continue
        digit = np.int64(byte) - 48
        if digit < 0 or digit > 9:
            return (_SLOW_FIELD if byte == 69 or byte == 101 else _NOT_TIME), 0, False
        digits += 1
        if decimals < 0:
            if whole > 9_223_372_036:
                return _TIME_RANGE, 0, False
            whole = whole * 10 + digit
        elif decimals < 9:
            part = part * 10 + digit
            decimals += 1
        else:
            if decimals == 9:
                up = digit >= 5
                decimals += 1
            rounded = rounded or digit > 0
    if digits == 0:
        return _NOT_TIME, 0, False
    for _ in range(max(decimals, 0), 9):
        part *= 10
    part += 1 if up else 0
    if whole > 9_223_372_035:
        return _TIME_RANGE, 0, False
    value = whole * _NANO + part
    return 0, -value if negative else value, rounded


@inlined
def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date of the Gregorian calendar, or a huge number where there is no such day."""
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    longest = 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31
    if month == 2:
        longest = 29 if leap else 28
    if month < 1 or month > 12 or day < 1 or day > longest:
        return 1 << 40
    y = year - 1 if month <= 2 else year
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@inlined
def _read_date(text: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return a reason and the nanoseconds since 1970 of an ISO 8601 date and time (UTC where no offset is given)."""
    year, month, day = _digits(text, at, end, 4), _digits(text, at + 5, end, 2), _digits(text, at + 8, end, 2)
    if year < 0 or month < 0 or day < 0 or text[at + 4] != 45 or text[at + 7] != 45:
        return _NOT_TIME, 0
    days = _days(year, month, day)
    if days == 1 << 40:
        return _NOT_TIME, 0
    at += 10
    seconds, part = 0, np.int64(0)
    if at < end:
        hour, minute = _digits(text, at + 1, end, 2), _digits(text, at + 4, end, 2)
        if (
            (text[at] != 84 and text[at] != 32)
            or hour < 0
            or hour > 23
            or minute < 0
            or minute > 59
            or text[at + 3] != 58
        ):
            return _NOT_TIME, 0
        seconds = hour * 3600 + minute * 60
        at += 6
        if at < end and text[at] == 58:
            second = _digits(text, at + 1, end, 2)
            if second < 0 or second > 59:
                return _NOT_TIME, 0
            seconds += second
            at += 3
            if at < end and text[at] == 46:
                at += 1
                decimals = 0
                while at < end and text[at] >= 48 and text[at] <= 57 and decimals < 9:
                    part = part * 10 + np.int64(text[at]) - 48
                    decimals += 1
                    at += 1
                if decimals == 0:
                    return _NOT_TIME, 0
                for _ in range(decimals, 9):
                    part *= 10
        if at < end and text[at] == 90:
            at += 1
        elif at < end and (text[at] == 43 or text[at] == 45):
            hours = _digits(text, at + 1, end, 2)
            minutes_at = at + 4 if at + 3 < end and text[at + 3] == 58 else at + 3
            minutes = 0 if at + 3 == end else _digits(text, minutes_at, end, 2)
            if hours < 0 or minutes < 0 or hours > 23 or minutes > 59:
                return _NOT_TIME, 0
            offset = hours * 3600 + minutes * 60
            seconds += offset if text[at] == 45 else -offset
            at = at + 3 if at + 3 == end else minutes_at + 2
    if at != end:
        return _NOT_TIME, 0
    total = days * 86400 + seconds
    if total > 9_223_372_035 or total < -9_223_372_035:
        return _TIME_RANGE, 0
    return 0, total * _NANO + part


@inlined
def _read_real(text: Bytes, at: int, end: int) -> tuple[int, float]:
    """Return a reason and a float; only where one correctly rounded operation gives it, else it is left to the caller."""
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += 1
    value, decimals, digits = np.int64(0), -1, 0
    for i in range(at, end):
        byte = text[i]
        if byte == 46 and decimals < 0:
            decimals = 0
            continue
        digit = np.int64(byte) - 48
        if digit < 0 or digit > 9 or value > 900_719_925_474_098:
            return _SLOW_FIELD, 0.0
        value = value * 10 + digit
        digits += 1
        decimals += 1 if decimals >= 0 else 0
    if digits == 0 or decimals > 22:
        return _SLOW_FIELD, 0.0
    real = float(value)
    power = 1.0
    for _ in range(max(decimals, 0)):
        power *= 10.0
    real = real / power
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
    reason, ticks = _read_integer(text, at, end, _INTEGER)
    if reason == _OVERFLOW:
        return _TIME_RANGE, 0, False
    if reason != 0:
        decimal, _, _ = _read_decimal(text, at, end)
        return (_DECIMALS if decimal <= 0 or decimal == _TIME_RANGE else _NOT_TIME), 0, False
    if form == _YYYYMMDD:
        days = _days(ticks // 10000, ticks // 100 % 100, ticks % 100)
        if ticks < 10101 or ticks > 99991231 or days == 1 << 40:
            return _NOT_TIME, 0, False
        return 0, days * 86400, False
    return 0, ticks, False


@inlined
def _read_field(text: Bytes, at: int, end: int, role: int, form: int) -> tuple[int, int, float, bool]:
    """Return a reason (-1: the field is slow), the field as an integer and as a float, and whether it was rounded."""
    if at == end:
        return _MISSING, 0, 0.0, False
    if form == _TEXT:
        return (0 if _is_text(text, at, end) else _BAD_BYTES), (at << 20) | (end - at), 0.0, False
    if form == _REAL:
        reason, real = _read_real(text, at, end)
        return reason, 0, real, False
    if role == _TIME:
        reason, ticks, rounded = _read_time(text, at, end, form)
        return reason, ticks, 0.0, rounded
    if form == _SIGN:
        one = at if end - at == 1 else at + 1
        signed = end - at == 2 and (text[at] == 43 or text[at] == 45) and text[one] == 49
        alone = end - at == 1 and (text[at] == 43 or text[at] == 45 or text[at] == 49)
        return (0 if signed or alone else _BAD_OPERATION), -1 if text[at] == 45 else 1, 0.0, False
    reason, value = _read_integer(text, at, end, form)
    if reason == 0 and value < 0:
        reason = _NEGATIVE
    return reason, value, 0.0, False


@inlined
def _end_of_quoted(text: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return where a quoted field's text ends and where its closing quote is (-1: nowhere); doubled quotes become one."""
    out, i = at, at
    while i < end:
        if text[i] == 34:
            if i + 1 < end and text[i + 1] == 34:
                i += 1
            else:
                return out, i
        text[out] = text[i]
        out += 1
        i += 1
    return out, -1


@kernel(
    "void(uint8[::1], int64, int64[::1], int64[::1], boolean, uint8[::1], "
    "int64[:,::1], float64[::1], int64[:,::1], int64[:,::1], int64[::1], int64[::1])"
)
def tokenize(
    text: Bytes, separator: int, roles: Int64s, forms: Int64s, lenient: bool, comment: Bytes,
    fields: NDArray[np.int64], weights: Float64s, slow: NDArray[np.int64], bad: NDArray[np.int64],
    counters: Int64s, reasons: Int64s,
) -> None:  # fmt: skip
    """Read whole lines. ``fields[role]`` and ``weights`` get the good rows, ``counters`` and ``reasons`` the numbers.

    ``separator`` 0 means any run of blanks and tabs. ``bad`` gets (line, column, reason, first byte, last byte) of the
    first bad rows, ``slow`` gets (row, role, first byte, last byte, line, column). A line starts at 1. ``comment`` holds
    the bytes that begin a comment.
    """
    at, row, line, num_columns = 0, 0, 0, len(roles)
    while at < len(text):
        end = at
        while end < len(text) and text[end] != 10:
            end += 1
        after = end + 1
        line += 1
        if end > at and text[end - 1] == 13:
            end -= 1
        while at < end and (text[at] == 32 or (text[at] == 9 and separator != 9)):
            at += 1
        if at == end:
            counters[BLANK] += 1
            at = after
            continue
        is_comment = False
        for mark in comment:
            is_comment = is_comment or text[at] == mark
        if is_comment:
            counters[COMMENTS] += 1
            at = after
            continue
        column, reason, bad_column, bad_first, bad_last, num_slow = 0, 0, 0, at, end, counters[SLOW]
        rounded_here, more = 0, True
        while more:
            more = False
            if separator == 0:
                first = at
                while at < end and text[at] != 32 and text[at] != 9:
                    at += 1
                last = at
                while at < end and (text[at] == 32 or text[at] == 9):
                    at += 1
                more = at < end
            else:
                while at < end and (text[at] == 32 or (text[at] == 9 and separator != 9)):
                    at += 1
                first, quoted = at, at < end and text[at] == 34
                if quoted:
                    first = at + 1
                    last, close = _end_of_quoted(text, first, end)
                    if close < 0:
                        reason, bad_column = _QUOTE, column
                        at = end
                    else:
                        at = close + 1
                        while at < end and text[at] != separator:
                            if text[at] != 32 and text[at] != 9:
                                reason, bad_column = _QUOTE, column
                            at += 1
                else:
                    while at < end and text[at] != separator:
                        at += 1
                    last = at
                    while last > first and (text[last - 1] == 32 or text[last - 1] == 9):
                        last -= 1
                more = at < end
                at += 1
            if column < num_columns and roles[column] > 0 and reason == 0:
                role = roles[column]
                why, value, real, rounded = _read_field(text, first, last, role, forms[column])
                if why == _SLOW_FIELD:
                    n = counters[SLOW]
                    slow[n, 0], slow[n, 1], slow[n, 2], slow[n, 3], slow[n, 4], slow[n, 5] = (
                        row,
                        role,
                        first,
                        last,
                        line,
                        column,
                    )
                    counters[SLOW] = n + 1
                elif why != 0 and not (why == _LEADING_ZERO and lenient):
                    reason, bad_column, bad_first, bad_last = why, column, first, last
                fields[role, row] = value
                if forms[column] == _REAL:
                    weights[row] = real
                rounded_here += 1 if rounded else 0
            column += 1
        if column != num_columns and reason != _QUOTE:
            reason, bad_column = _FIELDS, column
        if reason == 0:
            row += 1
            counters[ROUNDED] += rounded_here
        else:
            counters[SLOW] = num_slow
            n = counters[BAD]
            if n < len(bad):
                bad[n, 0], bad[n, 1], bad[n, 2], bad[n, 3], bad[n, 4] = line, bad_column, reason, bad_first, bad_last
            counters[BAD] = n + 1
            reasons[reason] += 1
        at = after
    counters[ROWS] = row
    counters[LINES] = line
