"""A graph as one Parquet file again, with original ids and times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput, TimeloomError, TooLarge, is_disk_full
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.ingest.gather import Progress, silent
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.names import NodeIds
from timeloom.graph.times import TICKS_PER_SECOND

_GROUP_ROWS = 1 << 20
# Parquet keeps seconds as milliseconds, and readers take timestamps of the years 1 to 9999.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


class _Rows(NamedTuple):
    """What is written of one snapshot: edges or changes, and their columns of weights by name."""

    t: int
    keys: Int64s
    weights: dict[str, Float64s]


def export(
    graph: DynamicGraph, path: str | PathLike[str], *, changes: bool = False, overwrite: bool = False,
    progress: Progress = silent,
) -> int:  # fmt: skip
    """Write the edges of every snapshot (or only what changes) to ``path``; return the number of rows.

    Columns: snapshot, time, source, target, type (where the graph has types), and weight, or old_weight and new_weight.
    Times of a real clock are timestamps, unless some lie outside the years 1 to 9999: all are then whole numbers.
    """
    out = Path(path)
    _refuse_in_the_way(out, overwrite=overwrite)
    aside = out.with_name(out.name + ".partial")
    columns = _Columns(graph)
    try:
        num_rows = _write(aside, columns, _batches(_rows(graph, changes=changes)), graph, progress)
        aside.replace(out)
    except OSError as error:
        raise _unwritable(out, error) from None
    finally:
        with suppress(OSError):
            aside.unlink()
    return num_rows


def write_columns(path: Path, columns: Mapping[str, NDArray[Any]], *, overwrite: bool) -> None:
    """Write columns of equal length as one Parquet file; ``path`` is then whole, or as it was before."""
    _refuse_in_the_way(path, overwrite=overwrite)
    aside = path.with_name(path.name + ".partial")
    try:
        pq.write_table(pa.table(dict(columns)), aside, compression="zstd")
        aside.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        with suppress(OSError):
            aside.unlink()


def _unwritable(path: Path, error: OSError) -> TimeloomError:
    kind = TooLarge if is_disk_full(error) else BadConfig
    return kind(f"{path} cannot be written ({error.strerror or error}): give another --out, or make room for it")


def read_pairs(path: Path) -> tuple[Any, Any]:
    """Return the columns `source` and `target` of a Parquet file: original ids."""
    try:
        table = pq.read_table(path, columns=["source", "target"])
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{path} cannot be read as Parquet with columns source and target ({error})") from None
    if table.column_names != ["source", "target"]:
        raise BadInput(
            f"{path} must have columns source and target; it has {', '.join(table.column_names) or 'neither'}"
        )
    if table["source"].null_count or table["target"].null_count:
        raise BadInput(f"{path} has rows without a source or a target: leave them out")
    return table["source"].to_numpy(), table["target"].to_numpy()


def _refuse_in_the_way(path: Path, *, overwrite: bool) -> None:
    if path.is_dir():
        raise BadConfig(f"{path} is a folder: give the name of a Parquet file")
    if path.exists() and not overwrite:
        raise BadConfig(f"{path} exists already: give another --out, or --overwrite to replace it")


def _write(
    aside: Path, columns: _Columns, batches: Iterator[list[_Rows]], graph: DynamicGraph, progress: Progress
) -> int:
    """Write batches, each as row groups of its own; return the number of rows."""
    num_rows, writer = 0, None
    try:
        for batch in batches:
            table = columns.table(batch)
            writer = writer or pq.ParquetWriter(aside, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            num_rows += table.num_rows
            progress("writing", batch[-1].t + 1, len(graph), num_rows)
    finally:
        if writer is not None:
            writer.close()
    return num_rows


def _rows(graph: DynamicGraph, *, changes: bool) -> Iterator[_Rows]:
    if changes:
        for t in range(len(graph)):
            delta = graph.delta(t)
            yield _Rows(t, delta.keys, {"old_weight": delta.old, "new_weight": delta.new})
        return
    for snapshot in graph.snapshots():
        yield _Rows(snapshot.t, snapshot.keys, {"weight": snapshot.weights})


def _batches(rows: Iterator[_Rows]) -> Iterator[list[_Rows]]:
    """Yield snapshots together until they fill a row group; at least one batch comes, be it of empty snapshots."""
    batch: list[_Rows] = []
    size = 0
    for part in rows:
        # Of empty snapshots in a row the last one is enough: it says how far the work is.
        if batch and not len(batch[-1].keys):
            batch.pop()
        batch.append(part)
        size += len(part.keys)
        if size >= _GROUP_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Columns:
    """The columns of a graph; what they share is read once."""

    def __init__(self, graph: DynamicGraph) -> None:
        self._layout = graph.layout
        self._starts = graph.starts
        self._ids = _originals(graph.ids)
        self._types = _originals(graph.type_ids) if graph.layout.type_bits else None
        self._time = pa.int64()
        if graph.clock.is_real:
            seconds = self._starts[[0, -1]] // TICKS_PER_SECOND[graph.clock.unit]
            if seconds[0] >= _FIRST_SECOND and seconds[1] <= _LAST_SECOND:
                self._time = pa.timestamp(graph.clock.unit)

    def table(self, batch: list[_Rows]) -> Any:
        """Return the rows of some snapshots."""
        keys = np.concatenate([rows.keys for rows in batch])
        t = np.repeat([rows.t for rows in batch], [len(rows.keys) for rows in batch])
        columns: dict[str, Any] = {
            "snapshot": t.astype(np.int32),
            "time": pa.array(self._starts[t]).cast(self._time),
            "source": _taken(self._ids, self._layout.sources(keys)),
            "target": _taken(self._ids, self._layout.targets(keys)),
        }
        if self._types is not None:
            columns["type"] = _taken(self._types, self._layout.types(keys))
        for name in batch[0].weights:
            columns[name] = np.concatenate([rows.weights[name] for rows in batch])
        return pa.table(columns)


def _originals(ids: NodeIds) -> Any:
    """Return original ids by number: integers, or an Arrow array of names."""
    everything = ids.all()
    return everything if isinstance(everything, np.ndarray) else pa.array(everything, pa.string())


def _taken(originals: Any, numbers: Int64s) -> Any:
    """Return original ids; names as a dictionary column, so that each is written once."""
    if isinstance(originals, np.ndarray):
        return pa.array(originals[numbers])
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), originals)
