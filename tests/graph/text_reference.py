"""A slow and obvious reading of text tables, written independently of the fast one, for tests to compare with."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from timeloom.graph.ingest.layout import Layout
from timeloom.graph.ingest.tokens import Form, Reason, Role

Value = int | float | str
DECIMAL = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE]([+-]?[0-9]+))?")
DATE = re.compile(
    rb"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?)?"
)
LAST_SECOND = 9_223_372_035


@dataclass
class Read:
    """What a text says: its good rows, where the bad ones are and why, and how many lines were something else."""

    rows: list[dict[Role, Value]] = field(default_factory=list)
    bad: list[tuple[int, int, Reason]] = field(default_factory=list)
    """(line, column, reason); both begin at 1."""
    others: Counter[str] = field(default_factory=Counter)
    num_rounded: int = 0

    @property
    def reasons(self) -> Counter[Reason]:
        return Counter(reason for _, _, reason in self.bad)


def read(data: bytes, layout: Layout, comment: str = "#%") -> Read:
    """Return what a text says, whose layout is known."""
    found = Read()
    header_comes = bool(layout.header)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        bare = line.removesuffix(b"\r").lstrip(b" " if layout.separator == "\t" else b" \t")
        if not bare.strip(b" \t"):
            found.others["blank lines"] += 1
        elif bare[:1] in comment.encode():
            found.others["comment lines"] += 1
        elif header_comes:
            found.others["header lines"] += 1
            header_comes = False
        else:
            row, num_rounded = read_row(bare, layout)
            if isinstance(row, tuple):
                found.bad.append((number, *row))
            else:
                found.rows.append(row)
                found.num_rounded += num_rounded
    return found


def read_row(line: bytes, layout: Layout) -> tuple[dict[Role, Value] | tuple[int, Reason], int]:
    """Return the values of a row and how many were rounded, or the column and the reason for which it is bad."""
    fields, broken = split(line, layout.separator.encode())
    if broken:
        return (broken, Reason.quote), 0
    if len(fields) != len(layout.roles):
        return (min(len(fields), len(layout.roles)) + 1, Reason.fields), 0
    row: dict[Role, Value] = {}
    num_rounded = 0
    for column, (text, role, form) in enumerate(zip(fields, layout.roles, layout.forms, strict=True), 1):
        if role == Role.ignored:
            continue
        value = value_of(text, role, form)
        if isinstance(value, Reason):
            return (column, value), 0
        if isinstance(value, Fraction):
            # Half a billionth is rounded away from zero.
            nano = abs(value) * 10**9
            num_rounded += nano.denominator > 1
            value = int(nano + Fraction(1, 2)) * (1 if value > 0 else -1)
        row[role] = value
    return row, num_rounded


def split(line: bytes, separator: bytes) -> tuple[list[bytes], int]:
    """Return the fields of a line, and the column (from 1) whose quotes do not fit (0: all fit)."""
    if not separator:
        return re.split(rb"[ \t]+", line.rstrip(b" \t")), 0
    fields: list[bytes] = []
    rest, more = line, True
    while more:
        rest = rest.lstrip(b" " if separator == b"\t" else b" \t")
        if rest.startswith(b'"'):
            quoted = re.match(rb'"((?:[^"]|"")*)"(?!")', rest)
            if not quoted:
                return fields, len(fields) + 1
            between, mark, rest = rest[quoted.end() :].partition(separator)
            if between.strip(b" \t"):
                return fields, len(fields) + 1
            fields.append(quoted[1].replace(b'""', b'"'))
        else:
            text, mark, rest = rest.partition(separator)
            fields.append(text.rstrip(b" \t"))
        more = bool(mark)
    return fields, 0


def value_of(text: bytes, role: Role, form: Form) -> Value | Fraction | Reason:
    """Return what a field says, or why it is bad."""
    if not text:
        return Reason.missing
    if form == Form.text:
        return name_of(text)
    if form == Form.real:
        return real_of(text)
    if form == Form.sign:
        return {b"+1": 1, b"1": 1, b"+": 1, b"-1": -1, b"-": -1}.get(text, Reason.operation)
    if role == Role.time:
        return time_of(text, form)
    if not re.fullmatch(rb"[+-]?[0-9]+", text):
        return Reason.not_integer
    if text.startswith(b"-"):
        return Reason.negative
    if int(text) >= 2**63:
        return Reason.overflow
    if form == Form.plain_integer and str(int(text)).encode() != text:
        return Reason.leading_zero
    return int(text)


def name_of(text: bytes) -> str | Reason:
    try:
        name = text.decode()
    except UnicodeDecodeError:
        return Reason.bytes
    return Reason.bytes if any(ord(letter) < 32 or ord(letter) == 127 for letter in name) else name


def real_of(text: bytes) -> float | Reason:
    if not DECIMAL.fullmatch(text):
        word = text.decode("latin-1").lower().removeprefix("+").removeprefix("-")
        return Reason.not_finite if word in ("nan", "inf", "infinity") else Reason.not_number
    value = float(text)
    return Reason.not_finite if abs(value) == float("inf") else value


def time_of(text: bytes, form: Form) -> int | Fraction | Reason:
    number = DECIMAL.fullmatch(text)
    if form == Form.integer:
        if re.fullmatch(rb"[+-]?[0-9]+", text):
            return int(text) if abs(int(text)) < 2**63 else Reason.time_range
        return Reason.decimals if number else Reason.not_time
    if form == Form.decimal:
        if not number:
            return Reason.not_time
        value = fraction_of(text.decode())
        return Reason.time_range if abs(value) >= LAST_SECOND + 1 else value
    if form == Form.yyyymmdd:
        days = (
            days_of(*(int(text[a:b]) for a, b in ((0, 4), (4, 6), (6, 8)))) if re.fullmatch(rb"\d{8}", text) else None
        )
        return Reason.not_time if days is None or text.startswith(b"0000") else days * 86400
    return date_of(text)


def fraction_of(number: str) -> Fraction:
    """Return a decimal exactly, but one of a huge exponent as one that is as far out of range, or as near to 0."""
    digits, _, exponent = number.lower().partition("e")
    if abs(int(exponent or 0)) > 400:
        exponent = "400" if int(exponent) > 0 else "-400"
    return Fraction(f"{digits}e{exponent or 0}")


def days_of(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a date (None: there is none); Python knows no year 0, which is like 400."""
    try:
        return (dt.date(year or 400, month, day) - dt.date(1970, 1, 1)).days - (0 if year else 146_097)
    except ValueError:
        return None


def date_of(text: bytes) -> int | Reason:
    """Return the nanoseconds since 1970."""
    date = DATE.fullmatch(text)
    if not date:
        return Reason.not_time
    year, month, day, hour, minute, second = (int(part or 0) for part in date.group(1, 2, 3, 4, 5, 6))
    hours, minutes = int(date[10] or 0), int(date[11] or 0)
    days = days_of(year, month, day)
    if days is None or hour > 23 or minute > 59 or second > 59 or hours > 23 or minutes > 59:
        return Reason.not_time
    offset = (hours * 3600 + minutes * 60) * (-1 if date[9] == b"-" else 1)
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - offset
    if abs(seconds) > LAST_SECOND:
        return Reason.time_range
    return seconds * 10**9 + int((date[7] or b"").ljust(9, b"0"))
