"""Text tables as sources: their rows, read in parallel, with the place of every row that is bad."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest import tokens
from timeloom.graph.ingest.fields import SLOW, Int8s, copy_names, read_fields
from timeloom.graph.ingest.files import TextFile, lines_of
from timeloom.graph.ingest.layout import Layout, Samples, Texts, cut, find_layout, kind_of_line, speaks
from timeloom.graph.ingest.rows import Account, BadPlace, BadRows, Reading, RowBlock
from timeloom.graph.ingest.tokens import MOST_SECONDS, Bytes, Form, Int32s, Reason, Role
from timeloom.graph.keys import Float64s, Int64s


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
        self, where: str, texts: Texts, pool: ThreadPoolExecutor, account: Account, bad: BadRows
    ) -> Iterator[tuple[RowBlock, int]]:
        """Yield the good rows of one file."""
        first_line, starts = 1, True
        waiting: deque[tuple[Future[_Tokens], int]] = deque()
        for text, read_bytes in texts:
            if starts and self.layout.header:
                text, skipped, starts = self._without_header(where, text, account)
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

    def _without_header(self, where: str, text: Bytes, account: Account) -> tuple[Bytes, int, bool]:
        """Return the text after the header, how many lines that leaves out, and whether the header is still to come."""
        lines, at = 0, 0
        for line in io.BytesIO(text.tobytes()):
            kind = kind_of_line(line, self._reading.comment, self.layout.separator)
            if kind == "row" and not self._is_header(where, line):
                return text[at:].copy(), lines, False
            account.note("header lines" if kind == "row" else f"{kind} lines", 1)
            lines, at = lines + 1, at + len(line)
            if kind == "row":
                return text[at:].copy(), lines, False
        return text[at:], lines, True

    def _is_header(self, where: str, line: bytes) -> bool:
        """Say whether the first row of a file is the header of them all; a different header is refused."""
        fields = cut(line, self.layout.separator)
        if tuple(fields) == self.layout.header:
            return True
        if self._reading.header == "yes" or speaks(fields, self._reading):
            raise BadInput(
                f"{where} names its columns {', '.join(fields)}, but the first file {', '.join(self.layout.header)}: "
                "ingest files whose columns are the same"
            )
        return False

    def _take(self, where: str, read: _Tokens, first_line: int, account: Account, bad: BadRows) -> tuple[RowBlock, int]:
        counters = read.counters
        account.read += int(counters[tokens.ROWS] + counters[tokens.BAD])
        account.note("blank lines", int(counters[tokens.BLANK]))
        account.note("comment lines", int(counters[tokens.COMMENTS]))
        account.note("times rounded to a billionth", read.num_rounded)
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
            Reason.fields: f"; it has {len(self.layout.roles)}, separated by {_spoken(self.layout.separator)}",
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
    """What a block of text came to; of bad rows (line, column, reason, text) of the first and how many by reason."""

    block: RowBlock
    counters: Int64s
    num_rounded: int
    bad: list[tuple[int, int, int, str]]
    reasons: Int64s


def read_tokens(text: Bytes, layout: Layout, comment: str) -> _Tokens:
    """Turn a block of whole lines into rows."""
    num_lines = int(np.count_nonzero(text == 10)) + 1
    num_used = sum(role != Role.ignored for role in layout.roles)
    fields = np.empty((max(layout.roles) + 1, num_lines), np.int64)
    weights = np.empty(num_lines if Role.weight in layout.roles else 1)
    later = np.empty(((num_lines + 1) * num_used, 6), np.int32)
    bad = np.empty((tokens.MOST_REPORTED, 5), np.int64)
    counters, reasons = np.zeros(tokens.NUM_COUNTERS, np.int64), np.zeros(len(Reason), np.int64)
    begins_comment = np.zeros(256, np.bool_)
    begins_comment[list(comment.encode())] = True
    separator = ord(layout.separator) if layout.separator else 0
    roles, forms = np.array(layout.roles, np.int64), np.array(layout.forms, np.int64)
    tokens.tokenize(text, separator, roles, forms, begins_comment, fields, weights, later, bad, counters, reasons)
    places = later[: int(counters[tokens.LATER])]
    why, rounded = _read_later(text, places, layout, fields, weights)
    # The first bad field of a row speaks for it.
    wrong = np.flatnonzero(why)
    wrong = wrong[np.diff(places[wrong, 0], prepend=-1) != 0]
    gone = places[wrong, 0]
    reasons += np.bincount(why[wrong], minlength=len(reasons))
    found = [
        (line, column, reason, first, end) for line, column, reason, first, end in bad.tolist()[: counters[tokens.BAD]]
    ]
    for place in wrong[: tokens.MOST_REPORTED].tolist():
        _, _, first, end, line, column = places[place].tolist()
        found.append((line, column, int(why[place]), first, end))
    kept = int(counters[tokens.ROWS])
    keep = np.delete(np.arange(kept), gone) if len(gone) else slice(0, kept)
    counters[tokens.ROWS] -= len(gone)
    counters[tokens.BAD] += len(gone)
    if len(gone) and rounded.any():
        rounded &= ~np.isin(places[:, 0], gone)
    shown = [(line, column, why, _shown(text[first:end])) for line, column, why, first, end in sorted(found)]
    return _Tokens(_as_block(text, layout, fields, weights, keep), counters, int(rounded.sum()), shown, reasons)


def _shown(field: Bytes) -> str:
    shown = bytes(field[:40]).decode("utf-8", "replace")
    return shown + "..." if len(field) > 40 else shown


def _read_later(
    text: Bytes, places: Int32s, layout: Layout, fields: NDArray[np.int64], weights: Float64s
) -> tuple[Int8s, NDArray[np.bool_]]:
    """Read the fields that were left for later; return why each is bad (0: it is fine) and whether it was rounded."""
    why, rounded = np.zeros(len(places), np.int8), np.zeros(len(places), np.bool_)
    if len(places):
        forms = np.zeros(len(Role), np.int64)
        forms[list(layout.roles)] = layout.forms
        read_fields(text, places, forms, fields, weights, why, rounded)
        slow = np.flatnonzero(why == SLOW)
        is_real = places[slow, 1] == Role.weight
        _read_slow_reals(text, places, slow[is_real], weights, why)
        _read_slow_times(text, places, slow[~is_real], fields, why, rounded)
    return why, rounded


def _read_slow_reals(text: Bytes, places: Int32s, slow: Int64s, weights: Float64s, why: Int8s) -> None:
    """Read numbers of many digits as the nearest float."""
    if not len(slow):
        return
    # Arrow rounds correctly too, and is faster, but it knows no plus sign.
    first, end = places[slow, 2].astype(np.int64), places[slow, 3]
    first += text[first] == ord("+")
    strings = _strings(text, first << 32 | (end - first))
    try:
        values = np.asarray(strings.cast(pa.float64()))
    except pa.ArrowInvalid:
        values = np.array([float(string) for string in strings.to_pylist()])
    weights[places[slow, 0]] = values
    why[slow] = np.where(np.isfinite(values), Reason.fine, Reason.not_finite)


def _read_slow_times(
    text: Bytes, places: Int32s, slow: Int64s, fields: NDArray[np.int64], why: Int8s, rounded: NDArray[np.bool_]
) -> None:
    """Read decimals with an exponent, which may move any digit across the point, in billionths."""
    for place in slow.tolist():
        row, role, first, end = places[place, :4].tolist()
        ticks, exact = _billionths(bytes(text[first:end]).decode())
        why[place] = Reason.time_range if ticks is None else Reason.fine
        fields[role, row], rounded[place] = ticks or 0, not exact


def _billionths(number: str) -> tuple[int | None, bool]:
    """Return a decimal in billionths, half rounded away from zero (None: out of range), and whether it is exact."""
    context = Context(prec=len(number) + 20, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    value = context.create_decimal(number)
    if value.is_zero():
        return 0, True
    if not value.is_finite() or value.adjusted() > 10 or value.copy_abs() >= MOST_SECONDS + 1:
        return None, True
    # Whatever is this small is rounded to 0, and its exponent may be too large to compute with.
    if value.adjusted() < -20:
        return 0, False
    scaled = context.scaleb(value, 9)
    ticks = scaled.to_integral_value(ROUND_HALF_UP, context)
    return int(ticks), ticks == scaled


def _as_block(text: Bytes, layout: Layout, fields: NDArray[np.int64], weights: Float64s, keep: Any) -> RowBlock:
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


def _strings(text: Bytes, names: Int64s) -> Any:
    """Return names (first byte times 2^32 plus size) of the text as Arrow strings."""
    ends = np.zeros(len(names) + 1, np.int32)
    np.cumsum(names & 0xFFFFFFFF, out=ends[1:])
    data = np.empty(int(ends[-1]), np.uint8)
    copy_names(text, np.ascontiguousarray(names), data)
    return pa.StringArray.from_buffers(len(names), pa.py_buffer(ends), pa.py_buffer(data))
