"""Columns that are typed already: every kind of frame and file says the same, and what cannot be meant is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tests.graph.reference import stored
from timeloom.errors import BadConfig, BadInput, BadRow
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows, ingest

GIVEN = Windows(kind="given")
ROWS: dict[str, list[Any]] = {
    "source": [3, 1, 3],
    "target": [1, 7, 1],
    "time": [10, 10, 20],
    "weight": [1.0, 2.5, -1.0],
}
EXPECTED = [{(3, 1, 0): 1.0, (1, 7, 0): 2.5}, {(3, 1, 0): -1.0}]


def parquet(folder: Path, rows: dict[str, Any]) -> Path:
    pq.write_table(pa.table(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


def feather(folder: Path, rows: dict[str, Any]) -> Path:
    pyarrow.feather.write_feather(pa.table(rows), folder / "rows.feather", compression="uncompressed")
    return folder / "rows.feather"


def stream(folder: Path, rows: dict[str, Any]) -> Path:
    table = pa.table(rows)
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return folder / "rows.arrow"


def npz(folder: Path, rows: dict[str, Any]) -> Path:
    np.savez(folder / "rows.npz", **{name: np.array(column) for name, column in rows.items()})  # type: ignore[arg-type]
    return folder / "rows.npz"


@pytest.mark.parametrize(
    "make",
    [
        lambda folder, rows: pd.DataFrame(rows), lambda folder, rows: pl.DataFrame(rows),
        lambda folder, rows: pa.table(rows),
        lambda folder, rows: {name: np.array(column) for name, column in rows.items()}, parquet, feather, stream, npz,
    ],
    ids=["pandas", "polars", "arrow", "arrays", "parquet", "feather", "stream", "npz"],
)  # fmt: skip
def test_every_kind_of_table_makes_the_same_graph(tmp_path: Path, make: Any) -> None:
    named = Columns(source="source", target="target", time="time", weight="weight")
    ingest(make(tmp_path, ROWS), tmp_path / "g", Ingest(windows=GIVEN, reading=Reading(columns=named)))
    assert stored(open_graph(tmp_path / "g")) == EXPECTED


def test_several_files_are_one_source(tmp_path: Path) -> None:
    first, second = (tmp_path / name for name in ("a.parquet", "b.parquet"))
    pq.write_table(pa.table({name: column[:2] for name, column in ROWS.items()}), first)
    pq.write_table(pa.table({name: column[2:] for name, column in ROWS.items()}), second)
    ingest([second, first], tmp_path / "g", Ingest(windows=GIVEN))
    assert stored(open_graph(tmp_path / "g")) == EXPECTED
    pq.write_table(pa.table({"source": [1], "target": [2], "when": [3]}), second)
    with pytest.raises(BadInput, match=r"b.parquet has no column 'time', which .*a.parquet has"):
        ingest([first, second], tmp_path / "h", Ingest(windows=GIVEN))
    paths = [tmp_path / "a.arrow", tmp_path / "b.arrow"]
    pyarrow.feather.write_feather(pa.table(ROWS), paths[0])
    pyarrow.feather.write_feather(pa.table({"source": [1], "target": [2], "when": [3]}), paths[1])
    with pytest.raises(BadInput, match=r"b.arrow has no column 'time', which .*a.arrow has"):
        ingest(paths, tmp_path / "h", Ingest(windows=GIVEN))


@pytest.mark.parametrize(
    ("times", "unit", "shown"),
    [
        (np.array(["2020-01-01T00:00:00.5"], "datetime64[ms]"), "ms", "2020-01-01T00:00:00.5"),
        (np.array(["2020-01-01"], "datetime64[ns]"), "ns", "2020-01-01"),
        (["2020-01-01T12:00:00"], "ns", "2020-01-01T12:00:00"),
        (pa.array([18262], pa.date32()), "s", "2020-01-01"),
        ([1_577_836_800], "s", "2020-01-01"),
        ([1_577_836_800_123], "ms", "2020-01-01T00:00:00.123"),
        ([12], "plain", "12"),
        ([0.25], "nano", "0.25"),
    ],
)
def test_times_keep_the_unit_they_came_in(tmp_path: Path, times: Any, unit: str, shown: str) -> None:
    rows = {"source": [1], "target": [2], "time": times}
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    graph = open_graph(tmp_path / "g")
    assert (graph.clock.unit, graph.clock.show(int(graph.starts[0]))) == (unit, shown)


def test_numbers_of_dates_are_dates(tmp_path: Path) -> None:
    rows = {"source": [1, 1], "target": [2, 2], "time": [20200229, 20210301]}
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN, reading=Reading(time_format="yyyymmdd")))
    graph = open_graph(tmp_path / "g")
    assert [graph.clock.show(int(start)) for start in graph.starts] == ["2020-02-29", "2021-03-01"]
    bad = rows | {"time": [20200229, 20210229]}
    with pytest.raises(BadRow, match=r"row 2 column 'time': a time cannot be read \(found '20210229'\)"):
        ingest(bad, tmp_path / "h", Ingest(windows=GIVEN, reading=Reading(time_format="yyyymmdd")))


def test_float_times_say_how_many_were_rounded(tmp_path: Path) -> None:
    rows = {"source": [1, 1], "target": [2, 2], "time": [0.1, 1 / 3]}
    report = ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    assert report.account.notes["times rounded to a billionth"] == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"source": [3, -1, 3]}, "row 2 column 'source': an id is negative"),
        ({"source": [3.5, 1.0, 3.0]}, "row 1 column 'source': an id is not an integer"),
        ({"target": pa.array([1, None, 1])}, "row 2 column 'target': a field is empty"),
        ({"source": np.array([3, 2**63, 3], np.uint64)}, "row 2 column 'source': an id is beyond 2\\^63"),
        ({"weight": [1.0, 2.0, float("inf")]}, "row 3 column 'weight': a number is NaN or infinite"),
        ({"time": [1.0, 1e300, 2.0]}, "row 2 column 'time': a time is out of range"),
        ({"source": ["a", "", "b"], "target": ["x", "y", "z"]}, "row 2 column 'source': a field is empty"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRow, match=sentence):
        ingest(ROWS | change, tmp_path / "g", Ingest(windows=GIVEN))


def test_operations_are_plus_or_minus_one(tmp_path: Path) -> None:
    reading = Reading(columns=Columns(operation="op"))
    with pytest.raises(BadRow, match="row 2 column 'op': an operation is neither"):
        ingest(ROWS | {"op": [1, 0, -1]}, tmp_path / "g", Ingest(windows=GIVEN, reading=reading))
    with pytest.raises(BadConfig, match="--life 3 does not go with --operation"):
        ingest(ROWS | {"op": [1, 1, -1]}, tmp_path / "g", Ingest(windows=GIVEN, reading=reading, life=3))


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        ({"source": ["a", "b", "c"]}, BadInput, "must both be integers or both be text"),
        ({"source": [True, False, True]}, BadInput, "has type bool: it must hold integers or text"),
        ({"weight": ["a", "b", "c"]}, BadInput, "has type string: it must hold numbers"),
        ({"time": ["now", "then", "never"]}, BadInput, "holds text that is no date"),
        ({"source": [1, 2]}, BadInput, "cannot be read as columns"),
    ],
)
def test_columns_of_the_wrong_type_are_refused(
    tmp_path: Path, change: dict[str, Any], kind: type, sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        ingest(ROWS | change, tmp_path / "g", Ingest(windows=GIVEN))


def test_columns_that_cannot_be_told_apart_are_asked_for(tmp_path: Path) -> None:
    rows = {"a": [1], "b": [2], "c": [3], "d": [4]}
    with pytest.raises(BadConfig, match="add --source COLUMN --target COLUMN --time COLUMN"):
        ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    with pytest.raises(BadConfig, match=r"--source x: the table has no such column \(it has a, b, c, d\)"):
        ingest(rows, tmp_path / "g", Ingest(windows=GIVEN, reading=Reading(columns=Columns(source="x"))))


def test_broken_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.npz", "a.json", "a.tar", "a.zip"):
        (tmp_path / name).write_bytes(b"no such thing at all")
        with pytest.raises(BadInput, match=name):
            ingest(tmp_path / name, tmp_path / "g", Ingest(windows=GIVEN))
    np.savez(tmp_path / "o.npz", source=np.array([{}, {}], object))
    with pytest.raises(BadInput, match="cannot be read as NumPy arrays"):
        ingest(
            tmp_path / "o.npz",
            tmp_path / "g",
            Ingest(windows=GIVEN, reading=Reading(columns=Columns(source="source", target="source"))),
        )
    with pytest.raises(BadInput, match="does not exist"):
        ingest(tmp_path / "none.csv", tmp_path / "g", Ingest(windows=GIVEN))


def time_files(folder: Path, *times: Any) -> list[Path]:
    """Write one Parquet file of one edge for each array of times."""
    paths = [folder / f"{place}.parquet" for place in range(len(times))]
    for path, column in zip(paths, times, strict=True):
        pq.write_table(pa.table({"source": [1], "target": [2], "time": column}), path)
    return paths


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        (pa.array([10**6], pa.timestamp("us")), pa.array([2000], pa.timestamp("ms")), "us"),
        (pa.array([1000], pa.timestamp("ms")), pa.array([2_000_000], pa.timestamp("us")), "ms"),
        (pa.array([10**6], pa.timestamp("us")), pa.array([1], pa.date32()), "us"),
    ],
)
def test_files_with_times_of_different_units_mean_the_same_times(
    tmp_path: Path, first: Any, second: Any, unit: str
) -> None:
    ingest(time_files(tmp_path, first, second), tmp_path / "g", Ingest(windows=GIVEN))
    graph = open_graph(tmp_path / "g")
    shown = "1970-01-02" if pa.types.is_date(second.type) else "1970-01-01T00:00:02"
    assert graph.clock.unit == unit
    assert [graph.clock.show(int(start)) for start in graph.starts] == ["1970-01-01T00:00:01", shown]


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (pa.array([1], pa.timestamp("ms")), pa.array([1_500], pa.timestamp("us")), "1.parquet: .* no whole ms"),
        (
            pa.array([1], pa.timestamp("ms")),
            pa.array([5]),
            r"1.parquet: column 'time' has type int64, but .* timestamp",
        ),
        (pa.array([1]), pa.array([0.5]), "has type double, but the first file has int64"),
        (pa.array([1], pa.timestamp("s")), pa.array([1], pa.timestamp("s", "UTC")), "write all files with the same"),
    ],
)
def test_files_with_other_types_are_refused(tmp_path: Path, first: Any, second: Any, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        ingest(time_files(tmp_path, first, second), tmp_path / "g", Ingest(windows=GIVEN))


def test_views_of_text_are_text(tmp_path: Path) -> None:
    text = {"source": ["a", "b"], "target": ["b", ""], "time": ["2020-01-01T00:00:00", "2020-01-02T00:00:00"]}
    views = {name: pa.array(column, pa.string_view()) for name, column in text.items()}
    with pytest.raises(BadRow, match="row 2 column 'target': a field is empty"):
        ingest(pa.table(views), tmp_path / "g", Ingest(windows=GIVEN))
    ingest(pa.table(views), tmp_path / "g", Ingest(windows=GIVEN, drop_bad_rows=True))
    graph = open_graph(tmp_path / "g")
    assert (graph.clock.unit, stored(graph)) == ("ns", [{("a", "b", 0): 1.0}])
    ingest(pl.DataFrame(text | {"target": ["b", "c"]}), tmp_path / "h", Ingest(windows=GIVEN))
    assert len(open_graph(tmp_path / "h")) == 2
    kinds = {name: pl.Categorical() for name in ("source", "target")}
    ingest(
        pl.DataFrame(text | {"target": ["b", "c"]}).cast(kinds),  # type: ignore[arg-type]
        tmp_path / "i",
        Ingest(windows=GIVEN),
    )
    assert stored(open_graph(tmp_path / "i")) == stored(open_graph(tmp_path / "h"))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_bad_row_is_named_by_its_own_file_and_row(tmp_path: Path, kind: str) -> None:
    rows = [{"source": [1, 2], "target": [2, 3], "time": [0, 0]}, {"source": [1, -2], "target": [2, 3], "time": [0, 0]}]
    paths = [tmp_path / f"{name}.{kind}" for name in "ab"]
    for path, columns in zip(paths, rows, strict=True):
        write = pq.write_table if kind == "parquet" else pyarrow.feather.write_feather
        write(pa.table(columns), path)
    with pytest.raises(BadRow, match=rf"b\.{kind} row 2 column 'source': an id is negative"):
        ingest(paths, tmp_path / "g", Ingest(windows=GIVEN))


def test_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    numbers = pa.array([1, 2])
    table = pa.Table.from_arrays([numbers] * 4, names=["source", "target", "time", "time"])
    with pytest.raises(BadInput, match="the table has 2 columns 'time'"):
        ingest(table, tmp_path / "g", Ingest(windows=GIVEN))
