"""Snapshots that come as lists: what PyTorch Geometric (Temporal) makes, by its attributes, and arrays of snapshots."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.graph.reference import stored
from timeloom.errors import BadConfig, BadInput
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import AttributeOptions, Columns, Ingest, Reading, Windows, ingest

EDGES = [np.array([[0, 1], [1, 2]]), np.array([[2], [0]]), np.empty((2, 0), np.int64)]
WEIGHTS = [np.array([0.5, 2.0]), np.array([3.0]), np.empty(0)]
EXPECTED = [{(0, 1, 0): 0.5, (1, 2, 0): 2.0}, {(2, 0, 0): 3.0}, {}]


class Tensor:
    """What a torch tensor looks like to someone who does not import torch."""

    def __init__(self, values: object) -> None:
        self._values = np.asarray(values)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self._values


def test_a_dynamic_signal_brings_edges_features_and_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features, targets = [rng.random((3, 2)) for _ in EDGES], [rng.random(3) for _ in EDGES]
    signal = SimpleNamespace(edge_indices=EDGES, edge_weights=WEIGHTS, features=features, targets=targets)
    ingest(signal, tmp_path / "g", Ingest())
    graph = open_graph(tmp_path / "g")
    assert stored(graph) == EXPECTED
    for t in range(3):
        assert np.array_equal(graph.features.at(t), features[t].astype(np.float32))
        assert np.array_equal(graph.labels.at(t), targets[t])
    assert (graph.features.num_features, graph.features.fixed, graph.labels.kind) == (2, False, "value")


def test_a_static_signal_keeps_its_topology_and_changes_its_values(tmp_path: Path) -> None:
    signal = SimpleNamespace(
        edge_index=EDGES[0], edge_weight=WEIGHTS[0], features=[np.full((3, 1), t) for t in range(5)],
        targets=[np.full(3, float(t)) for t in range(5)],
    )  # fmt: skip
    ingest(signal, tmp_path / "g", Ingest())
    graph = open_graph(tmp_path / "g")
    assert stored(graph) == [EXPECTED[0]] * 5
    assert graph.labels.at(4).tolist() == [4.0, 4.0, 4.0]
    assert [len(graph.delta(t)) for t in range(5)] == [2, 0, 0, 0, 0]
    with pytest.raises(BadConfig, match="this source has no times"):
        ingest(signal, tmp_path / "h", Ingest(windows=Windows(kind="given")))


def test_a_list_of_data_is_a_sequence_of_snapshots(tmp_path: Path) -> None:
    data = [
        SimpleNamespace(
            edge_index=Tensor(index), edge_weight=Tensor(weight), x=Tensor(np.ones((4, 2)) * t),
            y=Tensor(np.array([0, 1, 1, -1])),
            num_nodes=4,
        )
        for t, (index, weight) in enumerate(zip(EDGES, WEIGHTS, strict=True))
    ]  # fmt: skip
    ingest(data, tmp_path / "g", Ingest())
    graph = open_graph(tmp_path / "g")
    assert stored(graph) == EXPECTED
    assert graph.num_nodes == 4
    assert (graph.labels.kind, graph.labels.classes, graph.labels.at(1).tolist()) == (
        "class",
        ["0", "1"],
        [0, 1, 1, -1],
    )
    assert graph.features.at(2).tolist() == [[2.0, 2.0]] * 4
    del data[1].x
    with pytest.raises(BadInput, match="some snapshots of the list have 'x'"):
        ingest(data, tmp_path / "h", Ingest())


def test_temporal_data_is_events(tmp_path: Path) -> None:
    data = SimpleNamespace(src=Tensor([0, 1]), dst=Tensor([1, 2]), t=Tensor([5, 9]), msg=Tensor([[2.0], [4.0]]))
    ingest(data, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="2")))
    graph = open_graph(tmp_path / "g")
    assert graph.starts.tolist() == [5, 7, 9]
    assert stored(graph) == [{(0, 1, 0): 2.0}, {}, {(1, 2, 0): 4.0}]


@pytest.mark.parametrize("zipped", [False, True])
def test_json_signals_are_read_in_every_shape(tmp_path: Path, zipped: bool) -> None:
    values = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    shapes = {
        "england": {
            "edge_mapping": {
                "edge_index": {"0": [[0, 1]], "1": [[1, 2], [2, 0]]}, "edge_weight": {"0": [2.0], "1": [1.0, 1.0]}
            },
            "y": values, "time_periods": 2,
        },
        "tennis": {
            str(t): {"index": t, "edges": [[0, 1]], "weights": [1.0], "X": [[1, 2], [3, 4], [5, 6]], "y": values[t]}
            for t in range(2)
        } | {"time_periods": 2, "node_ids": {}},
        "chickenpox": {"edges": [[0, 1], [1, 2]], "node_ids": {}, "FX": values},
        "pedalme": {"edges": [[0, 1], [1, 2]], "weights": [0.5, 0.25], "X": values, "time_periods": 2},
        "bus": {
            "nodes": [{"bus_stop": 70 + k, "y": [row[k] for row in values]} for k in range(3)],
            "links": [{"source": 70, "target": 72, "weight": 9}],
        },
    }  # fmt: skip
    for name, shape in shapes.items():
        text = json.dumps(shape).encode()
        path = tmp_path / (f"{name}.json.gz" if zipped else f"{name}.json")
        path.write_bytes(gzip.compress(text) if zipped else text)
        report = ingest(path, tmp_path / f"{name}-{zipped}", Ingest())
        graph = open_graph(tmp_path / f"{name}-{zipped}")
        assert (report.num_nodes, report.num_snapshots) == (3, 2), name
        assert [graph.labels.at(t).tolist() for t in range(2)] == values, name
    bus = open_graph(tmp_path / f"bus-{zipped}")
    assert stored(bus)[1] == {(70, 72, 0): 9.0}


def test_arrays_of_snapshots_and_of_present_nodes(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", edge_index_0=np.array([[0, 1], [1, 2]]), edge_index_1=np.array([[1], [0]]),
        kind_0=np.array([0, 2]), kind_1=np.array([1]), nodes_0=np.array([0, 1, 2]), nodes_1=np.array([0, 1, 3]),
        y=np.array([1, 0, 1, 1]),
    )  # fmt: skip
    columns = Columns(source="edge_index_{t}[0]", target="edge_index_{t}[1]", type="kind_{t}")
    extra = AttributeOptions(labels=f"classes:{tmp_path}/a.npz#y", present=f"{tmp_path}/a.npz#nodes_{{t}}")
    ingest(tmp_path / "a.npz", tmp_path / "g", Ingest(reading=Reading(columns=columns), attributes=extra))
    graph = open_graph(tmp_path / "g")
    assert stored(graph) == [{(0, 1, 0): 1.0, (1, 2, 2): 1.0}, {(1, 0, 1): 1.0}]
    assert [graph.snapshot(t).alive.tolist() for t in range(2)] == [
        [True, True, True, False],
        [True, True, False, True],
    ]
    assert graph.labels.at(1).tolist() == [1, 0, 1, 1]


def test_a_sparse_adjacency_is_a_fixed_topology(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", adj_indptr=np.array([0, 1, 1, 2, 2]), adj_indices=np.array([2, 0]), adj_data=np.ones(2),
        attr_indptr=np.array([0, 1, 1, 2, 2]), attr_indices=np.array([1, 0]), attr_shape=np.array([4, 3]),
    )  # fmt: skip
    extra = AttributeOptions(features=f"array:{tmp_path}/a.npz#attr")
    report = ingest(tmp_path / "a.npz", tmp_path / "g", Ingest(attributes=extra))
    graph = open_graph(tmp_path / "g")
    assert (report.num_nodes, stored(graph)) == (4, [{(0, 2, 0): 1.0, (2, 0, 0): 1.0}])
    assert graph.features.at(0).tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", e=np.array([[0, 1], [1, 2]]), w=np.array([1.0]), y=np.zeros((3, 3)))
    for columns, kind, sentence in (
        (Columns(source="e", target="e"), BadInput, r"e has shape \(2, 2\): choose a row"),
        (Columns(source="e[2]", target="e[1]"), BadInput, "has no row 2"),
        (Columns(source="f", target="e[1]"), BadInput, "has no array 'f'; it has e, w, y"),
        (Columns(source="e[0]", target="e[1]", weight="w"), BadInput, "different lengths"),
        (Columns(), BadConfig, "say which are the edges"),
    ):
        with pytest.raises(kind, match=sentence):
            ingest(tmp_path / "a.npz", tmp_path / "g", Ingest(reading=Reading(columns=columns)))
    reading = Reading(columns=Columns(source="e[0]", target="e[1]"))
    signal = SimpleNamespace(edge_indices=EDGES[:2], edge_weights=None, targets=None, features=None)
    with pytest.raises(BadInput, match="given for 3 snapshots, but the edges make 2"):
        ingest(signal, tmp_path / "g", Ingest(attributes=AttributeOptions(labels=f"values:{tmp_path}/a.npz#y")))
    ingest(tmp_path / "a.npz", tmp_path / "g", Ingest(reading=reading))


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    for bad in (np.nan, np.inf, 1e300):
        data = [SimpleNamespace(edge_index=index, x=np.full((3, 2), bad), num_nodes=3) for index in EDGES]
        with pytest.raises(BadInput, match=r"features holds NaN or infinite .* first at \(0, 0, 0\)"):
            ingest(data, tmp_path / "g", Ingest())


def test_operations_in_arrays_are_operations(tmp_path: Path) -> None:
    rows = {"source": [0, 1, 0], "target": [1, 2, 1], "time": [0, 0, 1], "op": [1, 1, -1]}
    np.savez(tmp_path / "a.npz", **{name: np.array(column) for name, column in rows.items()})  # type: ignore[arg-type]
    columns = Columns(source="source", target="target", time="time", operation="op")
    ingest(tmp_path / "a.npz", tmp_path / "g", Ingest(windows=Windows(kind="given"), reading=Reading(columns=columns)))
    assert stored(open_graph(tmp_path / "g")) == [{(0, 1, 0): 1.0, (1, 2, 0): 1.0}, {(1, 2, 0): 1.0}]


def test_an_archive_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", e_0=np.array([[0], [1]]), e_1=np.array([[1], [0]]))
    loads: list[object] = []
    load = np.load

    def counted(path: Any, *, allow_pickle: bool) -> Any:
        loads.append(path)
        return load(path, allow_pickle=allow_pickle)

    monkeypatch.setattr(np, "load", counted)
    ingest(
        tmp_path / "a.npz",
        tmp_path / "g",
        Ingest(reading=Reading(columns=Columns(source="e_{t}[0]", target="e_{t}[1]"))),
    )
    assert len(loads) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"time_periods": Infinity, "0": {"edges": [[0, 1]]}}',
        '{"time_periods": 1' + "0" * 400 + ', "0": {"edges": [[0, 1]], "weights": [1], "X": [[1]], "y": [1]}}',
        '{"edges": [[0, 1]], "FX": [[1' + "0" * 400 + ", 1]]}",
        "[" * 100_000,
        "{}",
        "7",
    ],
)
def test_nonsense_in_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BadInput, match=r"a\.json is"):
        ingest(tmp_path / "a.json", tmp_path / "g", Ingest())
