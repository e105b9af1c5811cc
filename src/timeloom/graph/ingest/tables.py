"""Columns that are typed already as sources: Parquet and Arrow files, data frames, and NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest.rows import Account, BadPlace, BadRows, Reading, RowBlock
from timeloom.graph.ingest.text import column_places
from timeloom.graph.ingest.tokens import MOST_REPORTED, Reason, Role

_BATCH_ROWS = 1 << 19
_DAY_SECONDS = 86_400
Reasons = NDArray[np.int8]
Batches = Callable[[list[str]], Iterator[tuple[Any, int]]]


class TableSource:
    """Named, typed columns that arrive in batches."""

    def __init__(self, name: str, schema: Any, batches: Batches, reading: Reading, *, size_bytes: int = 0) -> None:
        self._name, self._batches, self._reading = name, batches, reading
        self.size_bytes = size_bytes
        places = column_places(list(schema.names), reading, name, named=True)
        self._columns = {role: schema.names[place] for role, place in places.items()}
        self.time_unit = reading.time_unit
        if Role.time in self._columns:
            self.time_unit = self._unit_of(schema.field(self._columns[Role.time]).type)

    def _unit_of(self, kind: Any) -> str:
        """Return the unit in which times of this type are kept."""
        asked = self._reading.time_unit
        if pa.types.is_timestamp(kind):
            return str(kind.unit)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return "ns"
        if pa.types.is_date(kind) or self._reading.time_format == "yyyymmdd":
            return "s"
        if pa.types.is_floating(kind):
            if asked in ("ms", "us", "ns"):
                raise BadConfig(
                    f"{self._name}: times are floats, which --time-unit {asked} cannot keep: use --time-unit s"
                )
            return "ns" if asked == "s" else "nano"
        return asked

    def blocks(self, account: Account, bad: BadRows) -> Iterator[tuple[RowBlock, int]]:
        """Yield the good rows batch by batch."""
        first_row = 1
        for batch, read_bytes in self._batches(list(self._columns.values())):
            block, reasons, roles = self._convert(batch, account)
            account.read += batch.num_rows
            wrong = np.flatnonzero(reasons)
            places = [
                BadPlace(f"{self._name} row {first_row + row} column {column!r}", Reason(reasons[row]), str(value))
                for row, column, value in self._shown(batch, wrong[:MOST_REPORTED], roles)
            ]
            bad.found(places, np.bincount(reasons[wrong], minlength=len(Reason)))
            first_row += batch.num_rows
            yield (_without(block, reasons != 0) if len(wrong) else block), read_bytes

    def _shown(self, batch: Any, rows: NDArray[np.int64], roles: NDArray[np.int8]) -> Iterator[tuple[int, str, object]]:
        for row in rows.tolist():
            column = self._columns[Role(roles[row])]
            yield row, column, batch.column(column)[row].as_py()

    def _convert(self, batch: Any, account: Account) -> tuple[RowBlock, Reasons, NDArray[np.int8]]:
        """Return the rows of a batch, why each is bad (0: it is good) and the role of the column that is."""
        reasons, roles = np.zeros(batch.num_rows, np.int8), np.zeros(batch.num_rows, np.int8)
        values: dict[Role, Any] = {}
        for role, name in self._columns.items():
            column = batch.column(name)
            values[role], wrong = self._column(role, column, account)
            if isinstance(values[role], np.ndarray):
                # Compiled loops take writable arrays only, and Arrow's memory is not.
                values[role] = np.require(values[role], requirements=["C", "W"])
            wrong[np.asarray(column.is_null(nan_is_null=True))] = Reason.missing
            fresh = (wrong != 0) & (reasons == 0)
            reasons[fresh], roles[fresh] = wrong[fresh], role
        block = RowBlock(source=values[Role.source], target=values[Role.target])
        if isinstance(block.source, np.ndarray) != isinstance(block.target, np.ndarray):
            raise BadInput(f"{self._name}: sources and targets must both be integers or both be text")
        for role in (Role.time, Role.weight, Role.type, Role.operation):
            setattr(block, role.name, values.get(role))
        return block, reasons, roles

    def _column(self, role: Role, column: Any, account: Account) -> tuple[Any, Reasons]:
        kind = column.type
        if pa.types.is_dictionary(kind):
            column, kind = column.cast(kind.value_type), kind.value_type
        if role == Role.time:
            return self._times(column, account)
        if role == Role.weight:
            return _weights(column, self._name)
        if role == Role.operation:
            values, wrong = _integers(column, f"{self._name}: the operation column")
            wrong[(wrong == 0) & (np.abs(values) != 1)] = Reason.operation
            return values.astype(np.int8), wrong
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or self._reading.ids == "names":
            strings = column.cast(pa.string())
            empty = np.asarray(pc.fill_null(pc.equal(pc.utf8_length(strings), 0), False))
            return strings, np.where(empty, Reason.missing, Reason.fine).astype(np.int8)
        values, wrong = _integers(column, f"{self._name}: the {role.name} column")
        wrong[(wrong == 0) & (values < 0)] = Reason.negative
        return values, wrong

    def _times(self, column: Any, account: Account) -> tuple[NDArray[np.int64], Reasons]:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            try:
                column = column.cast(pa.timestamp("ns"))
            except pa.ArrowInvalid as error:
                raise BadInput(f"{self._name}: the time column holds text that is no date ({error})") from None
        elif pa.types.is_date(kind):
            column = column.cast(pa.timestamp("s"))
        if pa.types.is_floating(kind):
            return _billionths(column, account)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values, wrong = _integers(column, f"{self._name}: the time column")
        wrong[wrong == Reason.overflow] = Reason.time_range
        if self._reading.time_format == "yyyymmdd":
            return _from_yyyymmdd(values, wrong)
        return values, wrong


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
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
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

    def batches(columns: list[str]) -> Iterator[tuple[Any, int]]:
        done_bytes = 0
        for path in paths:
            file = _opened_parquet(path)
            if missing := set(columns) - set(file.schema_arrow.names):
                raise BadInput(f"{path} has no column {sorted(missing)[0]!r}, which {paths[0]} has")
            read_rows, size = 0, path.stat().st_size
            try:
                for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(columns))):
                    read_rows += batch.num_rows
                    yield batch, done_bytes + size * read_rows // max(file.metadata.num_rows, 1)
            except (pa.ArrowException, OSError) as error:
                raise BadInput(f"{path} is broken or cut off: {_first_line(error)}") from None
            done_bytes += size

    size_bytes = sum(path.stat().st_size for path in paths)
    return TableSource(_spoken(paths), schema, batches, reading, size_bytes=size_bytes)


def _opened_parquet(path: Path) -> Any:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} is no Parquet file, or a broken one: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(".")


def arrow_source(paths: list[Path], reading: Reading) -> TableSource:
    """Return Arrow IPC (Feather) files, or streams, as one source."""
    schema = _opened_arrow(paths[0])[0]

    def batches(columns: list[str]) -> Iterator[tuple[Any, int]]:
        for path in paths:
            for batch in _opened_arrow(path)[1]:
                yield batch.select(list(dict.fromkeys(columns))), 0

    return TableSource(_spoken(paths), schema, batches, reading)


def _opened_arrow(path: Path) -> tuple[Any, Iterator[Any]]:
    """Return the schema and the batches of an Arrow file or stream."""
    try:
        data = pa.memory_map(str(path))
        try:
            file = pa.ipc.open_file(data)
            return file.schema, (file.get_batch(i) for i in range(file.num_record_batches))
        except pa.ArrowInvalid:
            data.seek(0)
            reader = pa.ipc.open_stream(data)
            return reader.schema, iter(reader)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{path} is no Arrow file, or a broken one: {_first_line(error)}") from None


def table_source(table: Any, reading: Reading) -> TableSource:
    """Return a data frame (pandas, polars, Arrow) or a mapping of arrays as a source."""
    try:
        arrow = pa.table(dict(table) if isinstance(table, Mapping) else table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadInput(f"the table cannot be read as columns: {_first_line(error)}") from None

    def batches(columns: list[str]) -> Iterator[tuple[Any, int]]:
        for batch in arrow.select(list(dict.fromkeys(columns))).to_batches(_BATCH_ROWS):
            yield batch, 0

    return TableSource("the table", arrow.schema, batches, reading)


def _spoken(paths: list[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
