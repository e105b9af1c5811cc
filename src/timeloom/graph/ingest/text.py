"""Text tables as sources: what their columns are, found from the first rows, and their rows, read in parallel."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest import tokens
from timeloom.graph.ingest.files import TextFile, lines_of
from timeloom.graph.ingest.rows import Account, BadPlace, BadRows, Reading, RowBlock
from timeloom.graph.ingest.tokens import Form, Reason, Role

_SAMPLE_ROWS = 1000
_SEPARATORS = (",", "\t", ";", "|")
_KNOWN = {
    Role.source: ("source", "src", "from", "u", "sender", "user", "i", "subject", "head"),
    Role.target: ("target", "dst", "destination", "to", "v", "receiver", "item", "j", "object", "tail"),
    Role.time: ("time", "timestamp", "t", "ts", "date", "datetime", "unixtime", "seconds"),
    Role.weight: ("weight", "w", "rating", "value"),
    Role.type: ("type", "relation", "rel", "edge_type", "etype"),
}
_INTEGER, _PLAIN = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?(0|[1-9]\d*)")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


Samples = Iterable[tuple[str, Iterator[tuple[NDArray[np.uint8], int]]]]
"""Names of text tables with their blocks of lines, to find out what they look like."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a text table looks like: its separator, its first row and the role and form of every column."""

    separator: str
    has_header: bool
    roles: tuple[Role, ...]
    forms: tuple[Form, ...]
    lenient: bool

    def form(self, role: Role) -> Form | None:
        """Return how the column with this role is written (None: there is no such column)."""
        return self.forms[self.roles.index(role)] if role in self.roles else None


def column_places(names: list[str], reading: Reading, where: str, *, named: bool) -> dict[Role, int]:
    """Return which column has which role: as the user says, else by well-known names, else by position."""
    lowered = [name.strip().lower() for name in names]
    places: dict[Role, int] = {}
    for role in Role:
        if role == Role.ignored or (role == Role.time and not reading.timed):
            continue
        asked = getattr(reading.columns, role.name)
        if asked is not None:
            places[role] = _asked_place(asked, role, names, where, named=named)
    taken = set(places.values())
    if named:
        for role, known in _KNOWN.items():
            found = next((lowered.index(name) for name in known if name in lowered), None)
            if role not in places and found is not None and found not in taken and (role != Role.time or reading.timed):
                places[role] = found
                taken.add(found)
    needed = [Role.source, Role.target] + ([Role.time] if reading.timed else [])
    missing = [role for role in needed if role not in places]
    if missing and len(names) == len(needed) and set(places) <= set(needed):
        # As many columns as roles: what is not named is in the usual order.
        left = [place for place in range(len(names)) if place not in places.values()]
        return {**places, **dict(zip(missing, left, strict=True))}
    if not named and len(names) > 2:
        # Without names the source is the first column and the target the second, of those not given another role.
        left = iter([place for place in range(len(names)) if place not in places.values()])
        for role in (Role.source, Role.target):
            if role in missing and (Role.time in places or not reading.timed):
                places[role] = next(left)
        missing = [role for role in needed if role not in places]
    if missing:
        columns = ", ".join(f"{place + 1}={name!r}" for place, name in enumerate(names))
        options = " ".join(f"--{role.name} COLUMN" for role in missing)
        raise BadConfig(f"{where} does not say which column is which ({columns}): add {options}, by name or position")
    return places


def _asked_place(asked: str, role: Role, names: list[str], where: str, *, named: bool) -> int:
    if named and asked in names:
        return names.index(asked)
    if asked.isdigit() and 1 <= int(asked) <= len(names):
        return int(asked) - 1
    have = ", ".join(names) if named else f"{len(names)} columns without names"
    raise BadConfig(
        f"--{role.name} {asked}: {where} has no such column (it has {have}); give a name, or 1 to {len(names)}"
    )


class TextSource:
    """Text tables of one layout, one after another."""

    def __init__(self, files: list[TextFile], reading: Reading, *, sample: Samples | None = None) -> None:
        self._files, self._reading = files, reading
        self.layout = find_layout(sample or ((str(file), lines_of(file)) for file in files), reading)
        self.size_bytes = sum(file.size_bytes for file in files)
        form = self.layout.form(Role.time)
        unit = reading.time_unit
        self.time_unit = {Form.date: "ns", Form.yyyymmdd: "s"}.get(form or Form.integer, unit)
        if form == Form.decimal:
            self.time_unit = "nano" if unit in ("auto", "plain") else "ns"
            self._nano_factor = {"ms": 10**3, "us": 10**6, "ns": 10**9}.get(unit, 1)
        if form == Form.decimal and unit in ("ms", "us", "ns"):
            raise BadConfig(f"times have decimals, which --time-unit {unit} cannot keep: use --time-unit s")

    def blocks(self, account: Account, bad: BadRows) -> Iterator[tuple[RowBlock, int]]:
        """Yield the good rows of all files in order; two blocks are read at the same time."""
        before_bytes = 0
        with ThreadPoolExecutor(2) as pool:
            for file in self._files:
                for block, read_bytes in self.read(str(file), lines_of(file), pool, account, bad):
                    yield block, before_bytes + read_bytes
                before_bytes += file.size_bytes

    def read(
        self, where: str, texts: Iterator[tuple[NDArray[np.uint8], int]], pool: ThreadPoolExecutor,
        account: Account, bad: BadRows,
    ) -> Iterator[tuple[RowBlock, int]]:  # fmt: skip
        """Yield the good rows of one file."""
        first_line, skip = 1, self.layout.has_header
        waiting: deque[tuple[Future[_Tokens], int]] = deque()
        for text, read_bytes in texts:
            if skip:
                text, skipped, skip = self._without_header(text)
                first_line += skipped
            waiting.append((pool.submit(read_tokens, text, self.layout, self._reading.comment), read_bytes))
            while len(waiting) > 2:
                future, done_bytes = waiting.popleft()
                block, first_line = self._take(where, future.result(), first_line, account, bad)
                yield block, done_bytes
        while waiting:
            future, done_bytes = waiting.popleft()
            block, first_line = self._take(where, future.result(), first_line, account, bad)
            yield block, done_bytes

    def _without_header(self, text: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int, bool]:
        """Return the text after the header line, how many lines that leaves out, and whether it is still to come."""
        lines = 0
        data = text.tobytes()
        at = 0
        while at < len(data):
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            line = data[at:end].strip()
            at, lines = end + 1, lines + 1
            if line and line[:1] not in self._reading.comment.encode():
                return text[at:].copy(), lines, False
        return text[len(text) :], lines, True

    def _take(self, where: str, read: _Tokens, first_line: int, account: Account, bad: BadRows) -> tuple[RowBlock, int]:
        counters = read.counters
        account.read += int(counters[tokens.ROWS] + counters[tokens.BAD])
        account.note("blank lines", int(counters[tokens.BLANK]))
        account.note("comment lines", int(counters[tokens.COMMENTS]))
        account.note("times rounded to a billionth", int(counters[tokens.ROUNDED]))
        places = [
            BadPlace(
                f"{where} line {first_line + line - 1} column {column + 1}", Reason(reason), text, self._hint(reason)
            )
            for line, column, reason, text in read.bad
        ]
        bad.found(places, read.reasons)
        return read.block, first_line + int(counters[tokens.LINES])

    def _hint(self, reason: int) -> str:
        """Return what to do about a bad row, where there is more to do than to mend it."""
        hints = {
            Reason.fields: f"; the first row has {len(self.layout.roles)}, separated by {_spoken(self.layout.separator)}",
            Reason.not_integer: "; use --ids names if ids are names",
            Reason.leading_zero: "; use --ids names to keep 007 apart from 7, or --ids integers to read both as 7",
            Reason.overflow: "; use --ids names to keep such ids as text",
            Reason.decimals: "; use --time-format decimal",
        }
        return hints.get(Reason(reason), "")


def _spoken(separator: str) -> str:
    return {"": "blanks", "\t": "tabs"}.get(separator, repr(separator))


@dataclass(slots=True)
class _Tokens:
    """What a block of text came to."""

    block: RowBlock
    counters: NDArray[np.int64]
    reasons: NDArray[np.int64]
    bad: list[tuple[int, int, int, str]]


def read_tokens(text: NDArray[np.uint8], layout: Layout, comment: str) -> _Tokens:
    """Turn a block of whole lines into rows."""
    rows = int(np.count_nonzero(text == 10)) + 1
    fields = np.empty((len(Role), rows), np.int64)
    weights = np.empty(rows if Role.weight in layout.roles else 1)
    slow_columns = sum(form in (Form.real, Form.decimal) for form in layout.forms)
    slow = np.empty((rows * slow_columns + 1, 6), np.int64)
    bad = np.empty((tokens.MOST_REPORTED, 5), np.int64)
    counters, reasons = np.zeros(tokens.NUM_COUNTERS, np.int64), np.zeros(len(Reason), np.int64)
    marks = np.frombuffer(bytearray(comment.encode()), np.uint8)
    separator = ord(layout.separator) if layout.separator else 0
    roles, forms = np.array(layout.roles, np.int64), np.array(layout.forms, np.int64)
    tokens.tokenize(text, separator, roles, forms, layout.lenient, marks, fields, weights, slow, bad, counters, reasons)
    found = [
        (int(line), int(column), int(reason), _shown(text[first:last]))
        for line, column, reason, first, last in bad[: min(int(counters[tokens.BAD]), len(bad))]
    ]
    kept = int(counters[tokens.ROWS])
    gone: list[int] = []
    for row, line, column, reason, shown in _read_slow(
        text, slow[: int(counters[tokens.SLOW])], fields, weights, counters
    ):
        # A row with two bad fields is one bad row.
        if row not in gone[-1:]:
            gone.append(row)
            found.append((line, column, int(reason), shown))
            reasons[reason] += 1
    keep = np.delete(np.arange(kept), gone) if gone else slice(0, kept)
    counters[tokens.ROWS] -= len(gone)
    counters[tokens.BAD] += len(gone)
    return _Tokens(_as_block(text, layout, fields, weights, keep), counters, reasons, sorted(found))


def _shown(field: NDArray[np.uint8]) -> str:
    shown = bytes(field[:40]).decode("utf-8", "replace")
    return shown + "..." if len(field) > 40 else shown


def _read_slow(
    text: NDArray[np.uint8],
    slow: NDArray[np.int64],
    fields: NDArray[np.int64],
    weights: NDArray[np.float64],
    counters: NDArray[np.int64],
) -> list[tuple[int, int, int, Reason, str]]:
    """Read exactly the numbers that need more than 64-bit arithmetic; return (row, line, column, reason, text) of bad ones."""
    refused = []
    for row, role, first, last, line, column in slow.tolist():
        field = bytes(text[first:last]).decode("utf-8", "replace")
        reason = Reason.fine
        if role == Role.time:
            reason, fields[role, row], rounded = _exact_billionths(field)
            counters[tokens.ROUNDED] += rounded
        else:
            reason, weights[row] = _exact_real(field)
        if reason != Reason.fine:
            refused.append((row, line, column, reason, _shown(text[first:last])))
    return refused


def _exact_billionths(field: str) -> tuple[Reason, int, bool]:
    try:
        value = Decimal(field) * 10**9 if _DECIMAL.fullmatch(field) and len(field) < 100 else None
        if value is None or abs(value.adjusted()) > 100:
            return Reason.not_time if value is None else Reason.time_range, 0, False
    except InvalidOperation:
        return Reason.not_time, 0, False
    ticks = int(value.to_integral_value("ROUND_HALF_UP"))
    return (
        (Reason.fine if abs(ticks) < 2**63 else Reason.time_range),
        ticks if abs(ticks) < 2**63 else 0,
        ticks != value,
    )


def _exact_real(field: str) -> tuple[Reason, float]:
    if field.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return Reason.not_finite, 0.0
    if not _DECIMAL.fullmatch(field):
        return Reason.not_number, 0.0
    value = float(field)
    return (Reason.fine, value) if np.isfinite(value) else (Reason.not_finite, 0.0)


def _as_block(
    text: NDArray[np.uint8], layout: Layout, fields: NDArray[np.int64], weights: NDArray[np.float64], keep: Any
) -> RowBlock:
    def column(role: Role) -> Any:
        form = layout.form(role)
        if form is None:
            return None
        values = fields[role][keep]
        return _strings(text, values) if form == Form.text else values.copy()

    operation = column(Role.operation)
    return RowBlock(
        source=column(Role.source),
        target=column(Role.target),
        time=column(Role.time),
        weight=weights[keep].copy() if Role.weight in layout.roles else None,
        type=column(Role.type),
        operation=None if operation is None else operation.astype(np.int8),
    )


def _strings(text: NDArray[np.uint8], places: NDArray[np.int64]) -> Any:
    """Return the fields at these places of the text as Arrow strings."""
    starts, sizes = places >> 20, places & 0xFFFFF
    ends = np.cumsum(sizes)
    index = np.repeat(starts - (ends - sizes), sizes) + np.arange(int(ends[-1]) if len(ends) else 0)
    offsets = np.zeros(len(places) + 1, np.int32)
    offsets[1:] = ends
    return pa.StringArray.from_buffers(len(places), pa.py_buffer(offsets), pa.py_buffer(text[index]))


def find_layout(samples: Samples, reading: Reading) -> Layout:
    """Return the layout of text tables, from the first rows of the first one that has any."""
    seen = []
    for where, texts in samples:
        lines = _first_lines(texts, reading.comment)
        if lines:
            return _layout_of(where, lines, reading)
        seen.append(where)
    raise BadInput(f"{', '.join(seen[:3])}: no rows at all (only comments or blank lines): is this the right file?")


def _first_lines(texts: Iterator[tuple[NDArray[np.uint8], int]], comment: str) -> list[str]:
    found: list[str] = []
    for text, _ in texts:
        for line in text.tobytes().decode("utf-8", "replace").split("\n"):
            bare = line.strip(" \r\t")
            if bare and bare[0] not in comment:
                found.append(line.strip(" \r"))
                if len(found) > _SAMPLE_ROWS:
                    return found
    return found


def _layout_of(where: str, lines: list[str], reading: Reading) -> Layout:
    separator = _find_separator(lines, reading.separator)
    rows = [_split(line, separator) for line in lines]
    has_header, names = _find_header(rows, reading)
    rows = rows[has_header:]
    if not names:
        names = [f"column {place + 1}" for place in range(len(rows[0]))]
    places = column_places(names, reading, where, named=has_header)
    roles = [Role.ignored] * len(names)
    forms = [Form.text] * len(names)
    for role, place in places.items():
        values = [row[place] for row in rows if len(row) == len(names)]
        roles[place] = role
        forms[place] = _form_of(role, values, reading, f"{where} column {place + 1}")
    ends = (places[Role.source], places[Role.target])
    if Form.text in {forms[place] for place in ends}:
        for place in ends:
            forms[place] = Form.text
    return Layout(separator, has_header, tuple(roles), tuple(forms), reading.ids == "integers")


def _find_separator(lines: list[str], asked: str) -> str:
    spoken = {"auto": None, "blank": "", "whitespace": "", "tab": "\t", "\\t": "\t", "comma": ","}
    chosen = spoken.get(asked, asked)
    if chosen is not None:
        if len(chosen) > 1 or (chosen and ord(chosen) > 126):
            raise BadConfig(f"--separator {asked} is no separator: use one character, 'tab' or 'blank'")
        return chosen
    return next((mark for mark in _SEPARATORS if mark in lines[0] and all(mark in line for line in lines[:20])), "")


def _split(line: str, separator: str) -> list[str]:
    if not separator:
        return line.split()
    if '"' not in line:
        return [field.strip() for field in line.split(separator)]
    pattern = (
        rf'\s*"((?:[^"]|"")*)"\s*(?:{re.escape(separator)}|$)|([^{re.escape(separator)}]*)(?:{re.escape(separator)}|$)'
    )
    found = [(quoted.replace('""', '"') or plain.strip()) for quoted, plain in re.findall(pattern, line)]
    return found if line.endswith(separator) else found[:-1] or found


def _find_header(rows: list[list[str]], reading: Reading) -> tuple[bool, list[str]]:
    """Return whether the first row names the columns, and the names."""
    first = rows[0]
    if reading.header != "auto":
        return reading.header == "yes", first if reading.header == "yes" else []
    known = {name for names in _KNOWN.values() for name in names}
    asked = {getattr(reading.columns, role.name) for role in Role if role != Role.ignored} - {None}
    speaks = sum(name.lower() in known for name in first) >= 2 or any(
        name in asked and not name.isdigit() for name in first
    )
    if speaks and not any(_is_value(field) for field in first):
        return True, first
    same = [row for row in rows[1:] if len(row) == len(first)]
    if not same or any(_is_value(field) for field in first):
        return False, []
    # No field of the first row is a number or a date, and some column below it is nothing else.
    numbers = any(all(_is_value(row[place]) for row in same) for place in range(len(first)))
    return numbers, first if numbers else []


def _is_value(field: str) -> bool:
    return bool(_DECIMAL.fullmatch(field) or _DATE.fullmatch(field))


def _form_of(role: Role, values: list[str], reading: Reading, where: str) -> Form:
    """Return how a column is written, judging by its first values."""
    values = [value for value in values if value]
    if role == Role.weight:
        return Form.real
    if role == Role.operation:
        return Form.sign
    if role == Role.time:
        return _time_form(values, reading, where)
    if reading.ids == "names" and role != Role.type:
        return Form.text
    if reading.ids == "integers" and role != Role.type:
        return Form.integer
    return Form.plain_integer if values and all(_PLAIN.fullmatch(value) for value in values) else Form.text


def _time_form(values: list[str], reading: Reading, where: str) -> Form:
    asked = {"integer": Form.integer, "decimal": Form.decimal, "date": Form.date, "yyyymmdd": Form.yyyymmdd}
    if reading.time_format != "auto":
        return asked[reading.time_format]
    if all(_INTEGER.fullmatch(value) for value in values):
        return Form.integer
    first_odd = next((value for value in values if not _is_value(value)), None)
    if first_odd is not None and not any(_is_value(value) for value in values):
        raise BadInput(
            f"{where}: {first_odd!r} is no time: times are whole numbers, decimals, or dates such as 2020-01-31T12:00:00; "
            "say which column is the time with --time, or the separator with --separator"
        )
    return Form.date if any(_DATE.fullmatch(value) for value in values) else Form.decimal
