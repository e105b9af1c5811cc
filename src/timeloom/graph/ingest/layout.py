"""What a text table looks like, judging by its first rows: its separator, header, and the role and form of columns."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest.rows import Reading
from timeloom.graph.ingest.tokens import Form, Role, cut_line

SAMPLE_ROWS = 1000
_SEPARATORS = (",", "\t", ";", "|")
_KNOWN = {
    Role.source: ("source", "src", "from", "u", "sender", "user", "i", "subject", "head"),
    Role.target: ("target", "dst", "destination", "to", "v", "receiver", "item", "j", "object", "tail"),
    Role.time: ("time", "timestamp", "t", "ts", "date", "datetime", "unixtime", "seconds"),
    Role.weight: ("weight", "w", "rating", "value"),
    Role.type: ("type", "relation", "rel", "edge_type", "etype"),
}
_KNOWN_NAMES = {name for names in _KNOWN.values() for name in names}
_NO_VALUE = {"", "nan", "inf", "infinity", "null", "none", "na", "n/a"}
_INTEGER, _PLAIN = re.compile(r"[+-]?[0-9]+"), re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE | re.ASCII)
_POSITION = re.compile(r"[0-9]{1,9}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?")

Texts = Iterator[tuple[NDArray[np.uint8], int]]
"""The blocks of lines of a text, each with how many bytes were read from disk so far."""
Samples = Iterable[tuple[str, Texts]]
"""Names of text tables with their text, to find out what they look like."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a text table looks like."""

    separator: str
    """One character, or nothing for any run of blanks and tabs."""
    header: tuple[str, ...]
    """The names in the first row; none where the first row is data."""
    roles: tuple[Role, ...]
    forms: tuple[Form, ...]

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
            place = _asked_place(asked, role, names, where, named=named)
            other = next((known for known, taken in places.items() if taken == place), None)
            if other is not None:
                raise BadConfig(f"--{other.name} and --{role.name} are both column {place + 1} of {where}: give two")
            places[role] = place
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
        left = [place for place in range(len(names)) if place not in places.values()]
        for role in (Role.source, Role.target):
            if role in missing and left and (Role.time in places or not reading.timed):
                places[role] = left.pop(0)
        missing = [role for role in needed if role not in places]
    if missing:
        columns = ", ".join(f"{place + 1}={name!r}" for place, name in enumerate(names))
        options = " ".join(f"--{role.name} COLUMN" for role in missing)
        raise BadConfig(f"{where} does not say which column is which ({columns}): add {options}, by name or position")
    return places


def _asked_place(asked: str, role: Role, names: list[str], where: str, *, named: bool) -> int:
    if named and asked in names:
        return names.index(asked)
    if _POSITION.fullmatch(asked) and 1 <= int(asked) <= len(names):
        return int(asked) - 1
    have = ", ".join(names) if named else f"{len(names)} columns without names"
    raise BadConfig(
        f"--{role.name} {asked}: {where} has no such column (it has {have}); give a name, or 1 to {len(names)}"
    )


def find_layout(samples: Samples, reading: Reading) -> Layout:
    """Return the layout of text tables, from the first rows of the first one that has any."""
    if not reading.comment.isascii():
        raise BadConfig(f"--comment {reading.comment}: a comment can only begin with ASCII characters")
    seen = []
    for where, texts in samples:
        lines = _first_rows(texts, reading.comment)
        if lines:
            return _layout_of(where, lines, reading)
        seen.append(where)
    raise BadInput(f"{', '.join(seen[:3])}: no rows at all (only comments or blank lines): is this the right file?")


def kind_of_line(line: bytes, comment: str, separator: str = "") -> str:
    """Say whether a line is a `row`, `blank` or a `comment`."""
    bare = line.removesuffix(b"\n").removesuffix(b"\r")
    if not bare.strip(b" \t"):
        return "blank"
    return "comment" if bare.lstrip(b" " if separator == "\t" else b" \t")[:1] in comment.encode() else "row"


def _first_rows(texts: Texts, comment: str) -> list[bytes]:
    found: list[bytes] = []
    for text, _ in texts:
        for line in io.BytesIO(text.tobytes()):
            if kind_of_line(line, comment) == "row":
                found.append(line)
                if len(found) > SAMPLE_ROWS:
                    return found
    return found


def cut(line: bytes, separator: str) -> list[str]:
    """Return the fields of a line as they are read later, or none where its quotes do not fit."""
    text = np.frombuffer(bytearray(line.removesuffix(b"\n").removesuffix(b"\r")), np.uint8)
    bounds = np.empty((len(text) + 1, 2), np.int64)
    count = cut_line(text, ord(separator) if separator else 0, bounds)
    return [bytes(text[first:end]).decode("utf-8", "replace") for first, end in bounds[: max(count, 0)].tolist()]


def _layout_of(where: str, lines: list[bytes], reading: Reading) -> Layout:
    separator = _find_separator(lines, reading.separator)
    rows = [cut(line, separator) for line in lines]
    if not rows[0]:
        raise BadInput(f"{where}: a quote of the first row is not closed, or text follows it")
    header = _find_header(rows, reading)
    rows = rows[1:] if header else rows
    names = header or [f"column {place + 1}" for place in range(len(rows[0]))]
    places = column_places(names, reading, where, named=bool(header))
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
    return Layout(separator, tuple(header), tuple(roles), tuple(forms))


def _find_separator(lines: list[bytes], asked: str) -> str:
    spoken = {"auto": None, "blank": "", "whitespace": "", " ": "", "tab": "\t", "\\t": "\t", "comma": ","}
    chosen = spoken.get(asked, asked)
    if chosen is not None:
        # What may be part of a number cannot end one.
        if len(chosen) > 1 or not chosen.isascii() or chosen.isalnum() or chosen in tuple('\0\n\r\x7f"+-.'):
            raise BadConfig(
                f"--separator {asked!r} is no separator: use one character such as ',', or 'tab' or 'blank'"
            )
        return chosen
    # Best is what cuts all rows into as many fields; but one bad row must not hide what is in all of them.
    present = [mark for mark in _SEPARATORS if all(mark.encode() in line for line in lines[:20])]
    # Where tabs are in all rows, runs of tabs and blanks may be what is meant.
    sizes = {mark: {len(cut(line, mark)) for line in lines[:20]} for mark in (*present, *[""] * (present == ["\t"]))}
    return next((mark for mark in sizes if len(sizes[mark]) == 1 and min(sizes[mark]) > 1), (*present, "")[0])


def _find_header(rows: list[list[str]], reading: Reading) -> list[str]:
    """Return the names of the columns, or none where the first row is data."""
    first = rows[0]
    if reading.header != "auto":
        return first if reading.header == "yes" else []
    if any(_is_value(field) for field in first):
        return []
    others = [row for row in rows[1:] if len(row) == len(first) and row != first]
    for place, name in enumerate(first):
        # A column that has a name in the first row and is nothing but numbers or dates below it.
        values = [row[place] for row in others if row[place].lower() not in _NO_VALUE]
        if name.lower() not in _NO_VALUE and values and all(_is_value(value) for value in values):
            return first
    recurs = any(row[place] == name for row in others for place, name in enumerate(first) if name)
    return first if speaks(first, reading) and not recurs else []


def speaks(fields: list[str], reading: Reading) -> bool:
    """Say whether these are well-known names of columns, or one that the user asked for, and no values."""
    asked = {getattr(reading.columns, role.name) for role in Role if role != Role.ignored} - {None}
    known = sum(name.lower() in _KNOWN_NAMES for name in fields) >= 2
    return (known or any(name in asked and not name.isdigit() for name in fields)) and not any(map(_is_value, fields))


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
    if reading.ids == "integers" and (role != Role.type or all(_INTEGER.fullmatch(value) for value in values)):
        return Form.integer
    return Form.plain_integer if values and all(_PLAIN.fullmatch(value) for value in values) else Form.text


def _time_form(values: list[str], reading: Reading, where: str) -> Form:
    asked = {"integer": Form.integer, "decimal": Form.decimal, "date": Form.date, "yyyymmdd": Form.yyyymmdd}
    if reading.time_format != "auto":
        return asked[reading.time_format]
    # A value that is no time at all says nothing about how times are written: its row is a bad one.
    times = [value for value in values if _is_value(value)]
    if values and not times:
        raise BadInput(
            f"{where}: {values[0]!r} is no time: times are whole numbers, decimals, or dates such as "
            "2020-01-31T12:00:00; say which column is the time with --time, or the separator with --separator"
        )
    if all(_INTEGER.fullmatch(value) for value in times):
        return Form.integer
    return Form.date if any(_DATE.fullmatch(value) for value in times) else Form.decimal
