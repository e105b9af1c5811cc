"""Columns that are typed already as sources: Parquet and Arrow files, data frames, and NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest.layout import column_places
from timeloom.graph.ingest.rows import Account, BadPlace, BadRows, Reading, RowBlock
from timeloom.graph.ingest.tokens import MOST_REPORTED, Reason, Role
from timeloom.graph.ingest.unpacked import refuse_wide

_BATCH_ROWS = 1 << 19
_DAY_SECONDS = 86_400
Reasons = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows, the file they come from with the number of the first of them in it, and the bytes read so far."""

    rows: Any
    where: str
    first_row: int = 1
    read_bytes: int = 0


Pieces = Callable[[list[str]], Iterator[_Piece]]


class TableSource:
    """Named, typed columns that arrive piece by piece. Every file must have the types of the first."""

    def __init__(self, name: str, schema: Any, pieces: Pieces, reading: Reading, *, size_bytes: int = 0) -> None:
        self._pieces, self._reading = pieces, reading
        self.size_bytes = size_bytes
        places = column_places(list(schema.names), reading, name, named=True)
        self._columns = {role: schema.names[place] for role, place in places.items()}
        for column in self._columns.values():
            if schema.names.count(column) > 1:
                raise BadInput(f"{name} has {schema.names.count(column)} columns {column!r}: give each its own name")
        self._types = {role: _plain_type(schema.types[place]) for role, place in places.items()}
        self.time_unit = reading.time_unit
        if Role.time in self._types:
            self.time_unit = _unit_of(self._types[Role.time], name, reading)

    def blocks(self, account: Account, bad: BadRows) -> Iterator[tuple[RowBlock, int]]:
        """Yield the good rows piece by piece."""
        for piece in self._pieces(list(dict.fromkeys(self._columns.values()))):
            block, reasons, roles = self._convert(piece, account)
            account.read += piece.rows.num_rows
            wrong = np.flatnonzero(reasons)
            places = [
                BadPlace(
                    f"{piece.where} row {piece.first_row + row} column {column!r}", Reason(reasons[row]), str(value)
                )
                for row, column, value in self._shown(piece.rows, wrong[:MOST_REPORTED], roles)
            ]
            bad.found(places, np.bincount(reasons[wrong], minlength=len(Reason)))
            yield (_without(block, reasons != 0) if len(wrong) else block), piece.read_bytes

    def _shown(self, batch: Any, rows: NDArray[np.int64], roles: NDArray[np.int8]) -> Iterator[tuple[int, str, object]]:
        for row in rows.tolist():
            column = self._columns[Role(roles[row])]
            yield row, column, batch.column(column)[row].as_py()

    def _convert(self, piece: _Piece, account: Account) -> tuple[RowBlock, Reasons, NDArray[np.int8]]:
        """Return the rows of a piece, why each is bad (0: it is good) and the role of the column that is."""
        batch, where = piece.rows, piece.where
        reasons, roles = np.zeros(batch.num_rows, np.int8), np.zeros(batch.num_rows, np.int8)
        values: dict[Role, Any] = {}
        for role, name in self._columns.items():
            column = batch.column(name)
            self._refuse_another_type(role, column.type, where)
            values[role], wrong = self._column(role, column, where, account)
            if isinstance(values[role], np.ndarray):
                # Compiled loops take writable arrays only, and Arrow's memory is not.
                values[role] = np.require(values[role], requirements=["C", "W"])
            wrong[np.asarray(column.is_null(nan_is_null=True))] = Reason.missing
            fresh = (wrong != 0) & (reasons == 0)
            reasons[fresh], roles[fresh] = wrong[fresh], role
        block = RowBlock(source=values[Role.source], target=values[Role.target])
        if isinstance(block.source, np.ndarray) != isinstance(block.target, np.ndarray):
            raise BadInput(f"{where}: sources and targets must both be integers or both be text")
        for role in (Role.time, Role.weight, Role.type, Role.operation):
            setattr(block, role.name, values.get(role))
        return block, reasons, roles

    def _refuse_another_type(self, role: Role, kind: Any, where: str) -> None:
        first = self._types[role]
        if _family(role, first) != _family(role, _plain_type(kind)):
            raise BadInput(
                f"{where}: column {self._columns[role]!r} has type {kind}, but the first file has {first}: "
                "write all files with the same types"
            )

    def _column(self, role: Role, column: Any, where: str, account: Account) -> tuple[Any, Reasons]:
        column = _plain(column)
        if role == Role.time:
            return self._times(column, where, account)
        if role == Role.weight:
            return _weights(column, where)
        if role == Role.operation:
            values, wrong = _integers(column, f"{where}: the operation column")
            wrong[(wrong == 0) & (np.abs(values) != 1)] = Reason.operation
            return values.astype(np.int8), wrong
        if _is_text(column.type) or self._reading.ids == "names":
            strings = column.cast(pa.string())
            empty = np.asarray(pc.fill_null(pc.equal(pc.utf8_length(strings), 0), False))
            return strings, np.where(empty, Reason.missing, Reason.fine).astype(np.int8)
        values, wrong = _integers(column, f"{where}: the {role.name} column")
        wrong[(wrong == 0) & (values < 0)] = Reason.negative
        return values, wrong

    def _times(self, column: Any, where: str, account: Account) -> tuple[NDArray[np.int64], Reasons]:
        """Return times in the unit that the first file settled; a cast that would lose something is refused."""
        kind = column.type
        if pa.types.is_floating(kind):
            return _billionths(column, account)
        if _is_text(kind) or _is_date(kind):
            try:
                column = column.cast(pa.timestamp(self.time_unit, getattr(kind, "tz", None))).cast(pa.int64())
            except pa.ArrowException as error:
                what = "text that is no date" if _is_text(kind) else f"times that are no whole {self.time_unit}"
                raise BadInput(f"{where}: the time column holds {what} ({_first_line(error)})") from None
        values, wrong = _integers(column, f"{where}: the time column")
        wrong[wrong == Reason.overflow] = Reason.time_range
        if self._reading.time_format == "yyyymmdd":
            return _from_yyyymmdd(values, wrong)
        return values, wrong


def _unit_of(kind: Any, where: str, reading: Reading) -> str:
    """Return the unit in which times of this type are kept."""
    asked = reading.time_unit
    if pa.types.is_timestamp(kind):
        return str(kind.unit)
    if _is_text(kind):
        return "ns"
    if pa.types.is_date(kind) or reading.time_format == "yyyymmdd":
        return "s"
    if pa.types.is_floating(kind):
        if asked in ("ms", "us", "ns"):
            raise BadConfig(f"{where}: times are floats, which --time-unit {asked} cannot keep: use --time-unit s")
        return "ns" if asked == "s" else "nano"
    return asked


def _plain(column: Any) -> Any:
    """Return a column as its values themselves."""
    kind = _plain_type(column.type)
    if pa.types.is_dictionary(column.type):
        # Arrow cannot look up views of strings, so the few values are made strings before.
        return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind)).cast(kind)
    return column.cast(kind)


def _plain_type(kind: Any) -> Any:
    """Return the type of the values themselves: those of a dictionary, and strings for views of strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if pa.types.is_string_view(kind) else kind


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_date(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _family(role: Role, kind: Any) -> str:
    """Return what types of one column must share in all files; inside of it every value means the same."""
    if _is_text(kind):
        return "text"
    if _is_date(kind):
        return "local date" if getattr(kind, "tz", None) is None else "date"
    if role == Role.weight and _is_number(kind):
        return "number"
    return "integer" if pa.types.is_integer(kind) else "float" if pa.types.is_floating(kind) else str(kind)


def _is_number(kind: Any) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_kind(kind) for is_kind in kinds)


def _integers(column: Any, what: str) -> tuple[NDArray[np.int64], Reasons]:
    """Return a column as integers; floats are taken where they are whole, never rounded."""
    kind, wrong = column.type, np.zeros(len(column), np.int8)
    if pa.types.is_integer(kind):
        values = np.asarray(pc.fill_null(column, 0))
        if kind == pa.uint64():
            wrong[values > np.iinfo(np.int64).max] = Reason.overflow
        return values.astype(np.int64), wrong
    if pa.types.is_floating(kind):
        values = np.asarray(pc.fill_null(column, 0)).astype(np.float64)
        whole = np.isfinite(values) & (np.floor(values) == values) & (np.abs(values) <= 2**53)
        wrong[~whole] = Reason.not_integer
        return np.where(whole, values, 0).astype(np.int64), wrong
    raise BadInput(f"{what} has type {kind}: it must hold integers or text")


def _weights(column: Any, name: str) -> tuple[NDArray[np.float64], Reasons]:
    kind = column.type
    if not _is_number(kind):
        raise BadInput(f"{name}: the weight column has type {kind}: it must hold numbers")
    values = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), 0.0)).astype(np.float64)
    return values, np.where(np.isfinite(values), Reason.fine, Reason.not_finite).astype(np.int8)


def _billionths(column: Any, account: Account) -> tuple[NDArray[np.int64], Reasons]:
    """Return float times in billionths; what that rounds is said in the account."""
    values = np.asarray(pc.fill_null(column, 0.0)).astype(np.float64)
    fits = np.isfinite(values) & (np.abs(values) < 9_223_372_035)
    usable = np.where(fits, values, 0.0)
    whole = np.floor(usable)
    part = np.rint((usable - whole) * 1e9)
    ticks = whole.astype(np.int64) * 10**9 + part.astype(np.int64)
    account.note("times rounded to a billionth", int(np.count_nonzero(whole + part / 1e9 != usable)))
    wrong = np.where(np.isfinite(values), Reason.time_range, Reason.not_finite).astype(np.int8)
    wrong[fits] = Reason.fine
    return ticks, wrong


def _from_yyyymmdd(values: NDArray[np.int64], wrong: Reasons) -> tuple[NDArray[np.int64], Reasons]:
    year, month, day = values // 10000, values // 100 % 100, values % 100
    sane = (year >= 1) & (year <= 9999) & (month >= 1) & (month <= 12) & (day >= 1)
    months = np.where(sane, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = months.astype("datetime64[D]").astype(np.int64) + np.where(sane, day - 1, 0)
    sane &= days < (months + 1).astype("datetime64[D]").astype(np.int64)
    wrong[(wrong == 0) & ~sane] = Reason.not_time
    return days * _DAY_SECONDS, wrong


def _without(block: RowBlock, gone: NDArray[np.bool_]) -> RowBlock:
    """Return the rows that are not gone."""
    keep = np.flatnonzero(~gone)
    taken = {}
    for role in ("source", "target", "time", "weight", "type", "operation"):
        column = getattr(block, role)
        taken[role] = None if column is None else column[keep] if isinstance(column, np.ndarray) else column.take(keep)
    return RowBlock(**taken)


def parquet_source(paths: list[Path], reading: Reading) -> TableSource:
    """Return Parquet files as one source; they are read row group by row group."""
    schema = _opened_parquet(paths[0]).schema_arrow

    def pieces(columns: list[str]) -> Iterator[_Piece]:
        done_bytes = 0
        for path in paths:
            file = _opened_parquet(path)
            _refuse_missing(columns, file.schema_arrow.names, path, paths[0])
            read_rows, size = 0, path.stat().st_size
            try:
                for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                    first_row, read_rows = read_rows + 1, read_rows + batch.num_rows
                    read_bytes = done_bytes + size * read_rows // max(file.metadata.num_rows, 1)
                    yield _Piece(batch, str(path), first_row, read_bytes)
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise BadInput(f"{path} is broken or cut off: {_first_line(error)}") from None
            done_bytes += size

    size_bytes = sum(path.stat().st_size for path in paths)
    return TableSource(str(paths[0]), schema, pieces, reading, size_bytes=size_bytes)


def _opened_parquet(path: Path) -> Any:
    try:
        file = pq.ParquetFile(path)
        # Names are decoded only when they are asked for.
        assert file.schema_arrow.names is not None
        refuse_wide(file, path)
        return file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no Parquet file, or a broken one: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")


def arrow_source(paths: list[Path], reading: Reading) -> TableSource:
    """Return Arrow IPC (Feather) files, or streams, as one source."""
    schema = _opened_arrow(paths[0])[0]

    def pieces(columns: list[str]) -> Iterator[_Piece]:
        for path in paths:
            found, batches = _opened_arrow(path)
            _refuse_missing(columns, found.names, path, paths[0])
            first_row = 1
            try:
                for batch in batches:
                    # Arrow maps a file as it is: offsets beyond its end and text that is none are found only here.
                    batch.validate(full=True)
                    yield _Piece(batch.select(columns), str(path), first_row)
                    first_row += batch.num_rows
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise BadInput(f"{path} is broken or cut off: {_first_line(error)}") from None

    return TableSource(str(paths[0]), schema, pieces, reading)


def _refuse_missing(columns: list[str], found: list[str], path: Path, first: Path) -> None:
    for name in columns:
        if found.count(name) != 1:
            what = "several columns" if name in found else "no column"
            raise BadInput(f"{path} has {what} {name!r}, which {first} has" + (" once" if name in found else ""))


def _opened_arrow(path: Path) -> tuple[Any, Iterator[Any]]:
    """Return the schema and the batches of an Arrow file or stream."""
    try:
        schema, batches = _mapped_arrow(path)
        # Names are decoded only when they are asked for.
        assert schema.names is not None
        return schema, batches
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is no Arrow file, or a broken one: {_first_line(error)}") from None


def _mapped_arrow(path: Path) -> tuple[Any, Iterator[Any]]:
    data = pa.memory_map(str(path))
    try:
        file = pa.ipc.open_file(data)
        return file.schema, (file.get_batch(i) for i in range(file.num_record_batches))
    except pa.ArrowInvalid:
        data.seek(0)
        reader = pa.ipc.open_stream(data)
        return reader.schema, iter(reader)


def table_source(table: Any, reading: Reading) -> TableSource:
    """Return a data frame (pandas, polars, Arrow) or a mapping of arrays as a source."""
    try:
        arrow = pa.table(dict(table) if isinstance(table, Mapping) else table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(f"the table cannot be read as columns: {_first_line(error)}") from None

    def pieces(columns: list[str]) -> Iterator[_Piece]:
        first_row = 1
        for batch in arrow.select(columns).to_batches(_BATCH_ROWS):
            yield _Piece(batch, "the table", first_row)
            first_row += batch.num_rows

    return TableSource("the table", arrow.schema, pieces, reading)
