"""The bytes of a text table cut into rows and fields; plain numbers and names are read on the way.

A row is first tried as a plain one, in which one byte separates fields: its numbers are read while looking for the next
separator. A row that is not so plain (quotes, blanks, an empty line, a comment, a bad row) is cut again with all care.
Any field that is no plain number or name is left for later (`fields.py`), with its place.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from timeloom.graph.keys import Float64s, Int64s
from timeloom.jit import inlined, kernel

Bytes = NDArray[np.uint8]
Int32s = NDArray[np.int32]


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
    """An integer without leading zeros or a plus sign, so that no two texts mean the same id."""
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
    Reason.leading_zero: "an id has leading zeros or a plus sign",
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
ROWS, LINES, BLANK, COMMENTS, LATER, BAD = range(6)
NUM_COUNTERS = 6
MOST_REPORTED = 8

MOST_SECONDS = 9_223_372_035
"""Times kept in billionths lie within this many seconds before or after 0, so that none comes near the end of int64."""

_FIELDS, _QUOTE = int(Reason.fields), int(Reason.quote)
_PLAIN, _INTEGER, _DECIMAL, _TEXT, _REAL = (
    int(form) for form in (Form.plain_integer, Form.integer, Form.decimal, Form.text, Form.real)
)
_TIME = int(Role.time)
_TENS = 10 ** np.arange(19)
_POWERS = 10.0 ** np.arange(16)


@inlined
def _is_blank(byte: int) -> bool:
    return byte == 32 or byte == 9


@inlined
def _end_of_quoted(text: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return where a quoted text ends and where its closing quote is (-1: nowhere); doubled quotes become one."""
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


@inlined
def _next_field(text: Bytes, at: int, end: int, separator: int) -> tuple[int, int, int, bool]:
    """Return the bounds of the field at ``at``, where the next one starts (-1: none does), and whether quotes fit."""
    fits = True
    while at < end and _is_blank(text[at]) and text[at] != separator:
        at += 1
    first = at
    if separator == 0:
        while at < end and not _is_blank(text[at]):
            at += 1
        last = at
        while at < end and _is_blank(text[at]):
            at += 1
        return first, last, at if at < end else -1, True
    if at < end and text[at] == 34:
        first = at + 1
        last, close = _end_of_quoted(text, first, end)
        if close < 0:
            return first, end, -1, False
        at = close + 1
        while at < end and text[at] != separator:
            fits = fits and _is_blank(text[at])
            at += 1
    else:
        while at < end and text[at] != separator:
            at += 1
        last = at
        while last > first and _is_blank(text[last - 1]):
            last -= 1
    return first, last, at + 1 if at < end else -1, fits


@inlined
def _leave(later: Int32s, counters: Int64s, row: int, role: int, first: int, last: int, line: int, column: int) -> None:
    n = counters[LATER]
    later[n, 0], later[n, 1], later[n, 2], later[n, 3], later[n, 4], later[n, 5] = row, role, first, last, line, column
    counters[LATER] = n + 1


@inlined
def _cut_row(
    text: Bytes, at: int, end: int, separator: int, roles: Int64s, line: int, row: int, later: Int32s, counters: Int64s
) -> tuple[int, int]:
    """Cut a row of any kind, leaving all its fields for later; return a reason (0: it is good) and the column meant."""
    column, reason, bad_column, before = 0, 0, 0, counters[LATER]
    while at >= 0:
        first, last, at, fits = _next_field(text, at, end, separator)
        if not fits and reason == 0:
            reason, bad_column = _QUOTE, column
        if column < len(roles) and roles[column] > 0:
            _leave(later, counters, row, roles[column], first, last, line, column)
        column += 1
    if column != len(roles) and reason == 0:
        reason, bad_column = _FIELDS, min(column, len(roles))
    if reason != 0:
        counters[LATER] = before
    return reason, bad_column


@inlined
def _is_quick(form: int, value: int, num_digits: int, decimals: int, zero_leads: bool) -> bool:
    """Say whether a number is so short that 64-bit arithmetic is exact."""
    if num_digits == 0 or num_digits > 18:
        return False
    if form <= _INTEGER:
        return form == _INTEGER or num_digits == 1 or not zero_leads
    if form == _REAL:
        # Below 10^15 the digits are exact as a float, and so is the power of ten: one division rounds once.
        return num_digits <= 15
    return decimals <= 9 and value < (MOST_SECONDS + 1) * _TENS[min(decimals, 9)]


@inlined
def _quick_rows(
    text: Bytes, start: int, last_break: int, separator: int, roles: Int64s, forms: Int64s, comment: NDArray[np.bool_],
    line: int, row: int, fields: NDArray[np.int64], weights: Float64s, later: Int32s, counters: Int64s,
) -> tuple[int, int]:  # fmt: skip
    """Read plain rows as long as they come; return where the first other line starts, and how many rows there were.

    This is one function because an array that is given to another one costs two atomic additions in every turn.
    """
    other, separator = (9, 32) if separator == 0 else (separator, separator)
    last, before, n, is_plain = len(roles) - 1, row, counters[LATER], True
    while is_plain and start <= last_break:
        at, column, left = start, 0, n
        while is_plain and column <= last:
            role, form, quotes, sign = roles[column], forms[column], 0, 1
            if text[at] < 48:
                while text[at] == 32:
                    at += 1
                quotes = 1 if text[at] == 34 and separator != 32 else 0
                sign = -1 if text[at + quotes] == 45 and (form == _REAL or role == _TIME) else 1
            first, is_comment = at + quotes, column == 0 and comment[text[at]]
            if role > 0 and (form <= _DECIMAL or form == _REAL):
                first += 1 if sign < 0 else 0
                at, value, decimals, digit = first, np.int64(0), 0, np.int64(text[first]) - 48
                while digit >= 0 and digit <= 9:
                    value, at = value * 10 + digit, at + 1
                    digit = np.int64(text[at]) - 48
                num_digits = at - first
                if form > _INTEGER and text[at] == 46:
                    at, digit = at + 1, np.int64(text[at + 1]) - 48
                    while digit >= 0 and digit <= 9:
                        value, at, decimals = value * 10 + digit, at + 1, decimals + 1
                        digit = np.int64(text[at]) - 48
                is_plain = _is_quick(form, value, num_digits + decimals, decimals, text[first] == 48)
                if form <= _INTEGER:
                    fields[role, row] = sign * value
                elif form == _REAL:
                    weights[row] = sign * (value / _POWERS[min(decimals, 15)])
                else:
                    fields[role, row] = sign * value * _TENS[max(9 - decimals, 0)]
            else:
                is_name, at, end = form == _TEXT and role > 0, first, 34 if quotes else separator
                while text[at] >= 32 and text[at] != end:
                    is_name = is_name and text[at] < 127
                    at += 1
                is_plain = at > first and (quotes > 0 or text[at - 1] != 32)
                if is_name:
                    fields[role, row] = (first << 32) | (at - first)
                elif role > 0:
                    later[n, 0], later[n, 1], later[n, 2], later[n, 3], later[n, 4] = row, role, first, at, line
                    later[n, 5], n = column, n + 1
            is_plain = is_plain and not is_comment and (quotes == 0 or text[at] == 34)
            at += quotes if is_plain else 0
            is_plain = is_plain and (text[at] == separator or text[at] == other or column == last)
            at, column = at + (1 if is_plain and column < last else 0), column + 1
        at += 1 if is_plain and text[at] == 13 else 0
        is_plain = is_plain and text[at] == 10
        start, row, line, n = (at + 1, row + 1, line + 1, n) if is_plain else (start, row, line, left)
    counters[LATER] = n
    return start, row - before


@inlined
def _line_at(text: Bytes, at: int, separator: int) -> tuple[int, int, int]:
    """Return where the line at ``at`` begins, without blanks, where it ends, and where the next one starts."""
    end = at
    while end < len(text) and text[end] != 10:
        end += 1
    after = end + 1
    end -= 1 if end > at and text[end - 1] == 13 else 0
    first = at
    while first < end and _is_blank(text[first]):
        first += 1
    while at < first and (first == end or text[at] != separator):
        at += 1
    return at, end, after


@kernel(
    "void(uint8[::1], int64, int64[::1], int64[::1], boolean[::1], "
    "int64[:,::1], float64[::1], int32[:,::1], int64[:,::1], int64[::1], int64[::1])"
)
def tokenize(
    text: Bytes, separator: int, roles: Int64s, forms: Int64s, comment: NDArray[np.bool_],
    fields: NDArray[np.int64], weights: Float64s, later: Int32s, bad: NDArray[np.int64],
    counters: Int64s, reasons: Int64s,
) -> None:  # fmt: skip
    """Cut whole lines into rows. ``fields[role]`` and ``weights`` get what was plain, ``later`` the places of the rest.

    ``separator`` 0 means any run of blanks and tabs; ``comment`` says which bytes begin a comment. ``later`` gets (row,
    role, first byte, end, line, column), ``bad`` (line, column, reason, first byte, end) of the first rows that cannot
    be cut. The first line is 1, the first column 0. A name is kept as its first byte times 2^32 plus its size.
    """
    at, row, line = 0, 0, 1
    # A last line without a break is never tried as a plain one, so that reading ahead needs no bounds.
    last_break = len(text) - 1
    while last_break >= 0 and text[last_break] != 10:
        last_break -= 1
    while True:
        at, num_rows = _quick_rows(
            text, at, last_break, separator, roles, forms, comment, line, row, fields, weights, later, counters
        )
        row, line = row + num_rows, line + num_rows
        if at >= len(text):
            break
        at, end, after = _line_at(text, at, separator)
        if at == end:
            counters[BLANK] += 1
        elif comment[text[at]]:
            counters[COMMENTS] += 1
        else:
            reason, column = _cut_row(text, at, end, separator, roles, line, row, later, counters)
            row += 1 if reason == 0 else 0
            if reason != 0:
                n = counters[BAD]
                if n < len(bad):
                    bad[n, 0], bad[n, 1], bad[n, 2], bad[n, 3], bad[n, 4] = line, column, reason, at, end
                counters[BAD] = n + 1
                reasons[reason] += 1
        line += 1
        at = after
    counters[ROWS], counters[LINES] = row, line - 1


@kernel("int64(uint8[::1], int64, int64[:,::1])")
def cut_line(text: Bytes, separator: int, bounds: NDArray[np.int64]) -> int:
    """Return how many fields a line has, or -1 where its quotes do not fit; ``bounds`` gets where each lies."""
    at, column, fits = 0, 0, True
    while at >= 0 and column < len(bounds):
        bounds[column, 0], bounds[column, 1], at, fit = _next_field(text, at, len(text), separator)
        fits = fits and fit
        column += 1
    return column if fits else -1
