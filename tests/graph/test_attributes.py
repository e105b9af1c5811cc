"""Features and labels stand at the nodes they were given for, whatever order they came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import AttributeOptions, Ingest, Windows, ingest

NODES = "id,team,height,score\n30,red,1.5,7\n10,blue,2.0,8\n20,red,,9\n40,,0.5,1\n"
ROWS = {"source": [10, 20], "target": [20, 30], "time": [0, 1], "weight": [2.0, 3.0]}


def made(folder: Path, **options: object) -> DynamicGraph:
    (folder / "nodes.csv").write_text(NODES)
    attributes = AttributeOptions(**({"nodes": folder / "nodes.csv"} | options))  # type: ignore[arg-type]
    ingest(ROWS, folder / "g", Ingest(windows=Windows(kind="given"), attributes=attributes, overwrite=True))
    return open_graph(folder / "g")


def test_a_column_becomes_one_hot_rows_and_classes(tmp_path: Path) -> None:
    graph = made(tmp_path, features="one-hot:team", labels="class:team")
    assert list(graph.ids.of(np.arange(4))) == [10, 20, 30, 40]
    assert graph.features.at(1).tolist() == [[1, 0], [0, 1], [0, 1], [0, 0]]
    assert (graph.labels.classes, graph.labels.at(0).tolist()) == (["blue", "red"], [0, 1, 1, -1])


def test_columns_of_numbers_become_features_and_values(tmp_path: Path) -> None:
    graph = made(tmp_path, features="columns:score,score", labels="value:height")
    assert graph.features.at(0).tolist() == [[8, 8], [9, 9], [7, 7], [1, 1]]
    assert graph.features.fixed
    assert np.array_equal(graph.labels.at(0), [2.0, np.nan, 1.5, 0.5], equal_nan=True)


def test_degrees_are_those_of_the_snapshot(tmp_path: Path) -> None:
    graph = made(tmp_path, features="degree")
    assert graph.features.at(0).tolist() == [[0, 2], [2, 0], [0, 0], [0, 0]]
    assert graph.features.at(1).tolist() == [[0, 0], [0, 3], [3, 0], [0, 0]]
    logs = made(tmp_path, features="log-degree")
    assert np.allclose(logs.features.at(1), np.log1p(graph.features.at(1)))


def test_random_features_depend_on_the_seed_and_the_node_alone(tmp_path: Path) -> None:
    one, two = (
        made(tmp_path, features="random:3:5").features.at(0),
        made(tmp_path, features="random:3:5").features.at(1),
    )
    assert np.array_equal(one, two)
    assert one.shape == (4, 3)
    assert not np.array_equal(one, made(tmp_path, features="random:3:6").features.at(0))


def test_arrays_are_by_id(tmp_path: Path) -> None:
    values = np.arange(82, dtype=np.float32).reshape(41, 2)
    (tmp_path / "c#").mkdir()
    np.save(tmp_path / "c#/x.npy", values)
    np.savez(tmp_path / "c#/y.npz", x=values)
    for spec in ("c#/x.npy", "c#/y.npz#x"):
        graph = made(tmp_path, nodes=None, features=f"array:{tmp_path}/{spec}")
        assert graph.num_nodes == 41
        assert np.array_equal(graph.features.at(0), values)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"features": "one-hot:size"}, BadConfig, "has no column 'size'; it has id, team, height, score"),
        ({"features": "one-hot:team", "nodes": None}, BadConfig, "add --nodes FILE"),
        ({"features": "columns:team"}, BadInput, "holds string, not numbers"),
        ({"features": "random:0"}, BadConfig, "write random:16"),
        ({"features": "sparkles"}, BadConfig, "is unknown"),
        ({"labels": "sparkles"}, BadConfig, "is unknown"),
        ({"node_id": "team"}, BadInput, "rows without an id"),
        ({"node_id": "nothing"}, BadConfig, "has no column 'nothing'"),
        ({"features": "array:none.npy"}, BadInput, "cannot be read"),
        ({"features": "columns:height"}, BadInput, "NaN"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, options: dict[str, object], kind: type, sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        made(tmp_path, **options)
    assert not (tmp_path / "g").exists()
