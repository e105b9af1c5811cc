"""A graph as one Parquet file again, with original ids and times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.ingest.gather import Progress, silent
from timeloom.graph.keys import Int64s
from timeloom.graph.names import NodeIds

_GROUP_ROWS = 1 << 20


def export(graph: DynamicGraph, path: Path, *, changes: bool = False, progress: Progress = silent) -> int:
    """Write the edges of every snapshot (or only what changes) to ``path``; return the number of rows.

    Columns: snapshot, time, source, target, type (where the graph has types), and weight, or old_weight and new_weight.
    """
    if path.exists() and path.is_dir():
        raise BadConfig(f"{path} is a folder: give the name of a Parquet file")
    aside = path.with_name(path.name + ".partial")
    num_rows = 0
    try:
        writer: Any = None
        for t, columns in enumerate(_tables(graph, changes=changes)):
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(aside, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            num_rows += table.num_rows
            progress("writing", t + 1, len(graph), num_rows)
        writer.close()
        aside.replace(path)
    except OSError as error:
        raise BadConfig(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)
    return num_rows


def _tables(graph: DynamicGraph, *, changes: bool) -> Iterator[dict[str, Any]]:
    starts = graph.starts
    if changes:
        for t in range(len(graph)):
            delta = graph.delta(t)
            weights = {"old_weight": delta.old, "new_weight": delta.new}
            yield {**_ends_of(graph, t, int(starts[t]), delta.keys), **weights}
        return
    for snapshot in graph.snapshots():
        columns = _ends_of(graph, snapshot.t, int(starts[snapshot.t]), snapshot.keys)
        yield {**columns, "weight": snapshot.weights}


def _ends_of(graph: DynamicGraph, t: int, start: int, keys: Int64s) -> dict[str, Any]:
    clock = pa.timestamp(graph.clock.unit) if graph.clock.is_real else pa.int64()
    columns: dict[str, Any] = {
        "snapshot": np.full(len(keys), t, np.int32),
        "time": pa.array(np.full(len(keys), start, np.int64)).cast(clock),
        "source": _original(graph.ids, graph.layout.sources(keys)),
        "target": _original(graph.ids, graph.layout.targets(keys)),
    }
    if graph.layout.type_bits:
        columns["type"] = _original(graph.type_ids, graph.layout.types(keys))
    return columns


def _original(ids: NodeIds, numbers: Int64s) -> Any:
    """Return original ids; names as a dictionary column, so that each is written once."""
    everything = ids.all()
    if isinstance(everything, np.ndarray):
        return pa.array(everything[numbers])
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), pa.array(everything, pa.string()))
