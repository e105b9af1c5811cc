"""Sizes of snapshots are read from graphs, made up, written and read back; what does not fit together is refused."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest.rules import Budget
from timeloom.graph.sizes import COLUMNS, SnapshotSizes, read_sizes, sizes_of, write_sizes
from timeloom.graph.synth import PowerLaw, SizesOptions, make_sizes, synth


def equal(one: SnapshotSizes, two: SnapshotSizes) -> bool:
    return one.name == two.name and all(np.array_equal(getattr(one, name), getattr(two, name)) for name in COLUMNS)


def sizes(**columns: list[int]) -> SnapshotSizes:
    """Return three snapshots, with some columns replaced."""
    good = {"num_nodes": [2, 3, 0], "edges": [4, 6, 0], "added": [4, 5, 0], "removed": [0, 3, 6]}
    arrays = {name: np.array(values, np.int64) for name, values in {**good, **columns}.items()}
    return SnapshotSizes(name="three", **arrays)


def test_sizes_of_a_graph_are_those_of_its_snapshots(tmp_path: Path) -> None:
    asked = PowerLaw(num_nodes=100, num_edges=400, num_snapshots=8, turnover=0.2, first_share=0.5, name="grown")
    synth(asked, tmp_path / "g", budget=Budget(512 << 20))
    graph = open_graph(tmp_path / "g")
    found = sizes_of(graph)
    assert len(found) == 8
    assert found.name == "grown"
    assert found.edges.tolist() == [len(snapshot) for snapshot in graph.snapshots()]
    assert found.num_nodes.tolist() == [np.count_nonzero(snapshot.alive) for snapshot in graph.snapshots()]
    deltas = [graph.delta(t) for t in range(8)]
    assert found.added.tolist() == [np.count_nonzero(delta.old == 0) for delta in deltas]
    assert found.removed.tolist() == [np.count_nonzero(delta.new == 0) for delta in deltas]


def test_written_sizes_are_read_back(tmp_path: Path) -> None:
    for written in (sizes(), make_sizes(SizesOptions(num_snapshots=500, name="näme"))):
        write_sizes(written, tmp_path / "sizes.json")
        assert equal(read_sizes(tmp_path / "sizes.json"), written)
    assert [path.name for path in tmp_path.iterdir()] == ["sizes.json"]


def test_sizes_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere/sizes.json cannot be written \(No such file or directory\)"):
        write_sizes(sizes(), tmp_path / "nowhere" / "sizes.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="folder cannot be written"):
        write_sizes(sizes(), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"edges": [4, 6]}, "3 num_nodes, 2 edges, 3 added, 3 removed are not equally many snapshots"),
        ({"num_nodes": [], "edges": [], "added": [], "removed": []}, "are not equally many snapshots, at least 1"),
        ({"added": [4, 5, -1]}, "added of snapshot 2 is -1"),
        ({"num_nodes": [2, 1 << 60, 0]}, "num_nodes of snapshot 1 is 1152921504606846976, not between"),
        ({"edges": [4, 7, 0]}, "snapshot 1 has 7 edges, but 4 before it, 5 added and 3 removed do not lead there"),
        ({"added": [4, 7, 0], "removed": [0, 5, 6]}, "snapshot 1 has 6 edges, but 4 before it, 7 added and 5 removed"),
        ({"added": [5, 5, 0], "removed": [1, 3, 6]}, "snapshot 0 has 4 edges, but 0 before it"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(columns: dict[str, list[int]], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        sizes(**columns)


def altered(**changes: Any) -> str:
    """Return a file of one snapshot with some fields replaced; `gone` leaves a field out."""
    head = {"format": "timeloom sizes", "version": 1, "name": "x"}
    good = {**head, "num_nodes": [1], "edges": [2], "added": [2], "removed": [0]}
    return json.dumps({name: value for name, value in {**good, **changes}.items() if value != "gone"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no JSON file, or a broken one"),
        (altered()[:-5], "is no JSON file, or a broken one"),
        ("[" * 100_000, "is no JSON file, or a broken one"),
        ("9" * 5_000, "is no JSON file, or a broken one"),
        ("\udcff", "is no JSON file, or a broken one"),
        ("[1, 2]", "is JSON, but no file of sizes"),
        (altered(format="other"), "is JSON, but no file of sizes"),
        (altered(version=2), "has version 2, but this timeloom reads 1"),
        (altered(version="gone"), "has version None"),
        (altered(name=7), "gives the name 7, which is no text"),
        (altered(edges="gone"), "gives nothing for 'edges'"),
        (altered(edges={"a": 1}), "gives dict for 'edges'"),
        (altered(edges=[2.5]), "gives '2.5' for 'edges' of snapshot 0"),
        (altered(edges=[True]), "gives 'True' for 'edges'"),
        (altered(edges=[None]), "gives 'None' for 'edges'"),
        (altered(edges=[1 << 70]), "gives '1180591620717411303424' for 'edges'"),
        (altered(edges=[[2]]), r"gives '\[2\]' for 'edges'"),
        (altered(edges=[2, 2]), "not equally many snapshots"),
        (altered(edges=[3]), "snapshot 0 has 3 edges"),
        (altered(removed=[-1]), "removed of snapshot 0 is -1"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "sizes.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadInput, match=words) as refused:
        read_sizes(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadInput, match="cannot be read"):
            read_sizes(path)


def test_a_seed_settles_made_up_sizes() -> None:
    for curve in ("growing", "flat", "bursty"):
        asked = SizesOptions(curve=curve, num_snapshots=300)
        assert equal(make_sizes(asked), make_sizes(asked))
        assert not equal(make_sizes(asked), make_sizes(replace(asked, seed=1)))


def test_ten_thousand_sizes_take_well_under_a_second() -> None:
    began = time.process_time()
    assert len(make_sizes(SizesOptions(curve="bursty"))) == 10_000
    assert time.process_time() - began < 0.5


def test_made_up_sizes_follow_their_curve() -> None:
    smooth = SizesOptions(num_snapshots=2_000, num_edges=1_000_000, num_nodes=100_000, noise=0.0)
    growing = make_sizes(smooth)
    assert (np.diff(growing.edges) >= 0).all()
    assert growing.edges[[0, -1]].tolist() == [50_000, 1_000_000]
    assert growing.num_nodes[-1] == 100_000
    assert (np.diff(growing.num_nodes) >= 0).all()
    flat = make_sizes(replace(smooth, curve="flat"))
    assert set(flat.edges.tolist()) == {1_000_000}
    bursty = make_sizes(replace(smooth, curve="bursty", num_snapshots=20_000))
    assert np.median(bursty.edges) == pytest.approx(1_000_000, rel=0.1)
    assert bursty.edges.max() > 6_000_000
    assert np.mean(bursty.edges > 3_000_000) == pytest.approx(0.04, abs=0.02)


def test_made_up_sizes_are_as_noisy_and_change_as_much_as_asked() -> None:
    made = make_sizes(SizesOptions(curve="flat", noise=0.2, turnover=0.3))
    assert np.std(np.log(made.edges)) == pytest.approx(0.2, abs=0.03)
    assert (made.removed[1:] / made.edges[:-1]).mean() == pytest.approx(0.3, abs=0.02)
    steps = np.diff(np.log(made.edges))
    assert np.std(steps) < 0.25 * np.std(np.log(made.edges))


def test_made_up_snapshots_have_no_more_nodes_than_ends_of_edges() -> None:
    made = make_sizes(SizesOptions(num_nodes=2_000, num_edges=1_000, num_snapshots=500))
    assert (made.num_nodes <= 2 * made.edges).all()
    assert (made.num_nodes >= 1).all()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_nodes": 1}, "num_nodes=1 was asked for"),
        ({"num_edges": 0}, "num_edges=0 was asked for"),
        ({"num_edges": 400_000}, "num_nodes=1000000 nodes with an edge were .* but 400000 edges have 800000 ends"),
        ({"num_snapshots": 0}, "num_snapshots=0 was asked for"),
        ({"curve": "round"}, "curve='round' is unknown: use growing, flat or bursty"),
        ({"turnover": 2.0}, "turnover=2 was asked for"),
        ({"noise": -0.1}, "noise=-0.1 was asked for"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        SizesOptions(**asked)
