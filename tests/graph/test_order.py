"""Sorting in memory and by merged runs gives one order: ascending, and of equal rows the earlier first."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.graph.ingest.order import as_sortable, sort_rows
from timeloom.graph.ingest.runs import Runs
from timeloom.graph.ingest.spill import Block, Columns, Spill

NUMBERS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.tuples(NUMBERS, st.integers(0, 2**31 - 1) | st.integers(0, 2), FLOATS), max_size=40)


def columns(rows: list[tuple[int, int, float]]) -> Columns:
    keys, windows, weights = ([row[place] for row in rows] for place in range(3))
    table: Columns = {"key": np.array(keys, np.int64), "window": np.array(windows, np.int32)}
    return table | {"weight": np.array(weights, np.float64), "place": np.arange(len(rows))}


@given(ROWS)
def test_rows_sort_stably_by_several_columns(rows: list[tuple[int, int, float]]) -> None:
    table = columns(rows)
    before = {name: column.copy() for name, column in table.items()}
    found = sort_rows(table, ["key", "window", "weight"])
    expected = sorted(range(len(rows)), key=lambda i: rows[i])
    assert found["place"].tolist() == expected
    for name, column in before.items():
        assert np.array_equal(table[name], column), f"sorting changed its input {name}"


@given(st.lists(FLOATS, min_size=2, max_size=30))
def test_floats_sort_as_numbers(values: list[float]) -> None:
    array = np.array(values)
    assert np.array_equal(array[np.argsort(as_sortable(array), kind="stable")], np.sort(array))


@given(ROWS, st.integers(1, 9), st.integers(1, 7), st.sampled_from([0, 200, 10**9]))
def test_merged_runs_equal_one_sort(
    rows: list[tuple[int, int, float]], run_rows: int, block_rows: int, held_bytes: int
) -> None:
    by = ["key", "window", "weight"]
    with Folder() as folder:
        runs = Runs(lambda name: folder / name, by, run_rows=run_rows, held_bytes=held_bytes)
        table = columns(rows)
        for first in range(0, len(rows), 3):
            runs.add({name: column[first : first + 3] for name, column in table.items()})
        assert runs.num_rows == len(rows)
        parts = list(runs.merged(block_rows))
    found = [place for part in parts for place in part["place"].tolist()]
    assert found == sort_rows(table, by)["place"].tolist()


class Folder:
    """A scratch folder for one example of a property test."""

    def __init__(self) -> None:
        self._made = tempfile.TemporaryDirectory()

    def __enter__(self) -> Path:
        return Path(self._made.name)

    def __exit__(self, *error: object) -> None:
        self._made.cleanup()


def test_one_key_in_every_run_does_not_stop_the_merge(tmp_path: Path) -> None:
    runs = Runs(lambda name: tmp_path / name, ["key"], run_rows=100, held_bytes=0)
    for first in range(0, 1000, 50):
        runs.add({"key": np.zeros(50, np.int64), "place": np.arange(first, first + 50)})
    places = np.concatenate([part["place"] for part in runs.merged(20)])
    assert np.array_equal(places, np.arange(1000))


def test_a_file_that_is_read_and_written_piece_by_piece_gives_whole_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.preadv, os.write
    monkeypatch.setattr(os, "preadv", lambda file, views, at: read(file, [views[0][:5]], at))
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    spill = Spill(lambda name: tmp_path / name, "rows", 0)
    spill.add({"key": np.arange(100), "small": np.arange(100, dtype=np.int8)})
    assert np.array_equal(spill.blocks[0].read()["key"], np.arange(100))
    assert spill.blocks[0].read(10, 90)["small"].tolist() == list(range(10, 90))


@pytest.mark.parametrize("limit", [0, 10**6])
def test_a_block_reads_the_same_from_memory_and_from_a_file(tmp_path: Path, limit: int) -> None:
    spill = Spill(lambda name: tmp_path / name, "rows", limit)
    spill.add({"key": np.array([1, 3, 3, 9]), "small": np.array([1, 2, 3, 4], np.int8)})
    spill.add({"key": np.array([12, 15]), "small": np.array([5, 6], np.int8)})
    block = spill.blocks[0]
    assert block.read(1, 3)["small"].tolist() == [2, 3]
    assert [block.find("key", value) for value in (0, 1, 3, 4, 9, 10)] == [0, 0, 1, 3, 3, 4]
    assert (block.num_bytes == 0) == (limit == 0)
    assert [part["key"].tolist() for part in spill.drain()] == [[1, 3, 3, 9], [12, 15]]
    assert isinstance(Block({"a": np.empty(0)}).num_rows, int)
