"""Features and labels stand at the nodes they were given for, whatever order they came in."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from timeloom.errors import BadConfig, BadInput, TooLarge
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import AttributeOptions, Ingest, Windows, ingest
from timeloom.graph.ingest.attributes import Attributes, as_classes, read_attributes

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
        ({"features": "random:²"}, BadConfig, "write random:16"),
        ({"node_id": "²"}, BadConfig, "has no column '²'"),
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


def table(folder: Path, text: str) -> AttributeOptions:
    (folder / "nodes.csv").write_text(text)
    return AttributeOptions(nodes=folder / "nodes.csv", labels="class:team")


def parquet(folder: Path, **columns: object) -> AttributeOptions:
    pq.write_table(pa.table(columns), folder / "nodes.parquet")
    return AttributeOptions(nodes=folder / "nodes.parquet", labels="class:team")


def arrays(folder: Path, **named: np.ndarray) -> Path:
    np.savez(folder / "a.npz", **named)  # type: ignore[arg-type]
    return folder / "a.npz"


def test_parts_for_different_numbers_of_snapshots_are_refused() -> None:
    features, labels = np.zeros((2, 3, 1), np.float32), np.zeros((5, 3))
    with pytest.raises(BadInput, match="features for 2 snapshots and labels for 5 snapshots"):
        Attributes(features=features, labels=labels)
    with pytest.raises(BadInput, match="labels for 5 snapshots and present nodes for 1 snapshots"):
        Attributes(features=features[0], labels=labels, present=[np.arange(3)])
    assert Attributes(features=features, labels=labels[0]).num_snapshots == 2
    assert Attributes(features=features[0], labels=labels).num_snapshots == 5


@pytest.mark.parametrize(
    ("classes", "sentence"),
    [
        (np.array([0, -2]), "classes from -2 to 0"),
        (np.array([0, 2**40]), "classes from 0 to 1099511627776"),
        (np.array([0, 2**64 - 1], np.uint64), "classes from 0 to 18446744073709551615"),
    ],
)
def test_numbers_that_are_no_classes_are_refused(tmp_path: Path, classes: np.ndarray, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_attributes(AttributeOptions(labels=f"classes:{arrays(tmp_path, y=classes)}#y"))


def test_classes_of_any_integer_type_are_read(tmp_path: Path) -> None:
    found = read_attributes(AttributeOptions(labels=f"classes:{arrays(tmp_path, y=np.array([0, 2], np.uint64))}#y"))
    assert found.labels is not None
    assert (found.labels.tolist(), found.classes) == ([0, 2], ("0", "1", "2"))
    assert as_classes(np.empty(0, np.uint8), "labels")[1] == ()


def test_a_class_that_is_not_a_number_is_unknown(tmp_path: Path) -> None:
    found = read_attributes(parquet(tmp_path, id=[1, 2, 3], team=[2.5, float("nan"), 1.0]))
    assert found.labels is not None
    assert (found.labels.tolist(), found.classes) == ([1, -1, 0], ("1.0", "2.5"))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_broken_table_of_nodes_is_refused(tmp_path: Path, kind: str) -> None:
    text = "".join(f"{node},{node * 7919 % 1000}\n" for node in range(5000)).encode()
    whole = bytearray(
        gzip.compress(text) if kind == "gz" else zstandard.ZstdCompressor(write_checksum=True).compress(text)
    )
    (tmp_path / f"nodes.csv.{kind}").write_bytes(whole)
    options = AttributeOptions(nodes=tmp_path / f"nodes.csv.{kind}", labels="class:2")
    assert len(read_attributes(options).classes) == 1000
    whole[len(whole) // 2 : len(whole) // 2 + 50] = bytes(50)
    for damaged in (whole, whole[: len(whole) // 2]):
        (tmp_path / f"nodes.csv.{kind}").write_bytes(damaged)
        with pytest.raises(BadInput, match=f"nodes.csv.{kind} is broken"):
            read_attributes(options)


def test_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    for text, sentence in (("id,team,team\n1,a,b\n", "2 columns 'team'"), ("id,team,id\n1,a,2\n", "2 columns 'id'")):
        with pytest.raises(BadInput, match=sentence):
            read_attributes(table(tmp_path, text))


def test_columns_of_lists_are_refused(tmp_path: Path) -> None:
    for columns in ({"id": [1, 2], "team": [[1], [2, 3]]}, {"id": [[1], [2]], "team": [1, 2]}):
        with pytest.raises(BadInput, match="it must hold single values"):
            read_attributes(parquet(tmp_path, **columns))


def test_an_id_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="an id beyond 2"):
        read_attributes(parquet(tmp_path, id=np.array([1, 2**63], np.uint64), team=[1, 2]))


def test_only_an_empty_field_is_missing(tmp_path: Path) -> None:
    found = read_attributes(table(tmp_path, "id,team\nNA,null\nb,\nnull,NaN\n"))
    assert found.labels is not None
    assert (found.ids, found.labels.tolist(), found.classes) == (["NA", "b", "null"], [1, -1, 0], ("NaN", "null"))


def test_ids_are_read_as_names_where_asked(tmp_path: Path) -> None:
    options = table(tmp_path, "team,id\na,007\nb,7\n")
    for node_id in ("id", "2"):
        named = AttributeOptions(nodes=options.nodes, node_id=node_id, labels=options.labels)
        assert read_attributes(named, ids_as_names=True).ids == ["007", "7"]
    bare = AttributeOptions(nodes=tmp_path / "bare.txt", labels="class:2")
    (tmp_path / "bare.txt").write_text("007 1\n7 2\n")
    assert read_attributes(bare, ids_as_names=True).ids == ["007", "7"]
    assert read_attributes(parquet(tmp_path, id=[1, 2], team=[1, 2]), ids_as_names=True).ids == ["1", "2"]
    with pytest.raises(BadInput, match="lists an id more than once"):
        read_attributes(bare)


def test_lists_of_present_nodes_must_be_ids(tmp_path: Path) -> None:
    for listed in (np.array([0, -1]), np.array([0.5]), np.zeros((2, 2), int)):
        with pytest.raises(BadInput, match="give lists of ids"):
            read_attributes(AttributeOptions(present=f"{arrays(tmp_path, n_0=listed)}#n_{{t}}"))


@pytest.mark.parametrize(
    ("starts", "columns", "sentence"),
    [
        ([0, 2, 1, 2], [0, 1], "must ascend from 0"), ([], [], "must ascend from 0"),
        ([1, 2], [0], "must ascend from 0"),
        ([0, 1, 3], [0, 1], "2 entries with 2 values, 3 announced"), ([0, 1], [-1], "must ascend from 0"),
        ([0, 1], [5], "has shape"),
    ],
)  # fmt: skip
def test_a_sparse_matrix_that_does_not_fit_together_is_refused(
    tmp_path: Path, starts: list[int], columns: list[int], sentence: str
) -> None:
    parts = {"indptr": np.array(starts, int), "indices": np.array(columns, int), "shape": np.array([3, 4])}
    path = arrays(tmp_path, **{f"x_{part}": array for part, array in parts.items()})
    with pytest.raises(BadInput, match=sentence):
        read_attributes(AttributeOptions(features=f"array:{path}#x"))
    if sentence != "has shape":
        path = arrays(tmp_path, adj_indptr=parts["indptr"], adj_indices=parts["indices"])
        with pytest.raises(BadInput, match=sentence):
            ingest(path, tmp_path / "g", Ingest())


def test_a_sparse_matrix_must_hold_numbers_and_fit_memory(tmp_path: Path) -> None:
    starts, columns = np.array([0, 1]), np.array([0])
    path = arrays(tmp_path, x_indptr=starts, x_indices=columns, x_data=np.array(["a"]))
    with pytest.raises(BadInput, match="holds <U1, not numbers"):
        read_attributes(AttributeOptions(features=f"array:{path}#x"))
    path = arrays(tmp_path, x_indptr=starts, x_indices=columns, x_shape=np.array([1, 10**16]))
    with pytest.raises(TooLarge, match="too large to fill"):
        read_attributes(AttributeOptions(features=f"array:{path}#x"))
