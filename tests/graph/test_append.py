"""Going on with a graph gives the graph that one ingest of everything gives."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.reference import Event, stored
from tests.graph.test_ingest import FRACTIONS, GIVEN, POLICIES, WHOLE, columns, events_with, table
from timeloom.errors import BadConfig, BadInput, BadRow
from timeloom.graph.append import Append, append
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows, ingest
from timeloom.graph.ingest.attributes import AttributeOptions, Attributes
from timeloom.graph.ingest.signals import Listed, listed_snapshots


@settings(max_examples=60)
@given(
    events=events_with(WHOLE | FRACTIONS, types=True), policy=st.sampled_from(POLICIES),
    life=st.sampled_from([0, 1, 2, 4]), both=st.booleans(), stop=st.integers(1, 9), operations=st.booleans(),
)  # fmt: skip
def test_appending_equals_one_ingest(
    events: list[Event], policy: str, life: int, both: bool, stop: int, operations: bool
) -> None:
    # Every time has an event, so that "as given" has the same windows however the events are split.
    events = [*events, *(Event(8, 9, time) for time in range(10))]
    if operations:
        events = [Event(e.source, e.target, e.time, e.weight, e.type, 1 if e.weight > 0 else -1) for e in events]
        policy, life = "sum", 1
    reading = columns(operations=operations)
    options = Ingest(windows=GIVEN, life=life, duplicates=policy, both_directions=both, reading=reading)
    early, late = [e for e in events if e.time < stop], [e for e in events if e.time >= stop]
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder) / "one", Path(folder) / "two"
        ingest(table(events, types=True, operations=operations), one, options)
        ingest(table(early, types=True, operations=operations), two, options)
        report = append(two, table(late, types=True, operations=operations), Append(reading=reading))
        assert list(check(two)) == []
        assert report.account.balances
        whole, grown = open_graph(one), open_graph(two)
        assert stored(grown) == stored(whole)
        assert grown.starts.tolist() == whole.starts.tolist()
        for name in ("edges", "added", "removed", "reweighted", "active", "born", "returned", "left"):
            assert grown.statistics[name].tolist() == whole.statistics[name].tolist(), name
        one_by_one = [grown.snapshot(t).weights.tolist() for t in range(10)]
        assert [snapshot.weights.tolist() for snapshot in grown.snapshots()] == one_by_one
        assert [len(grown.delta(t)) for t in range(10)] == [len(whole.delta(t)) for t in range(10)]


@pytest.mark.parametrize(
    ("windows", "starts"),
    [
        (Windows(kind="every", amount="2"), [1, 3, 5, 7, 9]),
        (Windows(kind="snapshots", amount="2"), [1, 2, 4, 5, 7, 8]),
        (Windows(kind="events", amount="2"), [1, 4]),
        (GIVEN, [1, 3, 4, 9]),
    ],
)
def test_windows_go_on_by_the_same_rule(tmp_path: Path, windows: Windows, starts: list[int]) -> None:
    ingest({"source": [0, 1], "target": [1, 2], "time": [1, 3]}, tmp_path / "g", Ingest(windows=windows))
    append(
        tmp_path / "g",
        {"source": [0, 1, 5], "target": [1, 2, 1], "time": [4 + (windows.kind == "every"), 9, 9]},
        Append(),
    )
    graph = open_graph(tmp_path / "g")
    assert graph.starts.tolist() == starts
    append(tmp_path / "g", {"source": [0], "target": [7], "time": [graph.end]}, Append())
    assert open_graph(tmp_path / "g").starts[: len(starts)].tolist() == starts
    assert list(check(tmp_path / "g")) == []


def test_nodes_keep_their_numbers_and_new_ones_follow(tmp_path: Path) -> None:
    ingest({"source": ["m"], "target": ["z"], "time": [0]}, tmp_path / "g", Ingest(windows=GIVEN))
    append(tmp_path / "g", {"source": ["z", "b"], "target": ["a", "m"], "time": [1, 1]}, Append())
    graph = open_graph(tmp_path / "g")
    assert graph.ids.of(np.arange(4)) == ["m", "z", "a", "b"]
    assert graph.first_seen.tolist() == [0, 0, 1, 1]


def test_a_graph_that_is_open_stays_as_it_was(tmp_path: Path) -> None:
    ingest({"source": [1], "target": [2], "time": [0]}, tmp_path / "g", Ingest(windows=GIVEN))
    before = open_graph(tmp_path / "g")
    append(tmp_path / "g", {"source": [0], "target": [3], "time": [1]}, Append())
    assert len(before) == 1
    assert list(before.ids.of(np.arange(2))) == [1, 2]
    assert stored(before) == [{(1, 2, 0): 1.0}]
    assert before.first_seen.tolist() == [0, 0]


def test_events_from_before_the_end_are_bad_rows(tmp_path: Path) -> None:
    ingest({"source": [1, 2], "target": [2, 3], "time": [0, 5]}, tmp_path / "g", Ingest(windows=GIVEN))
    late = {"source": [1, 1], "target": [3, 4], "time": [5, 6]}
    with pytest.raises(BadRow, match="before the end of the graph"):
        append(tmp_path / "g", late, Append())
    report = append(tmp_path / "g", late, Append(drop_bad_rows=True))
    assert sum(report.account.dropped.values()) == 1
    assert stored(open_graph(tmp_path / "g"))[2] == {(1, 4, 0): 1.0}


def test_what_cannot_be_appended_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="does not exist"):
        append(tmp_path / "none", {"source": [1], "target": [2], "time": [0]}, Append())
    assert not (tmp_path / "none").exists()
    ingest({"source": [1], "target": [2], "time": [0]}, tmp_path / "g", Ingest(windows=GIVEN))
    with pytest.raises(BadInput, match="nothing to append"):
        append(tmp_path / "g", {"source": [1], "target": [1], "time": [4]}, Append())
    with pytest.raises(BadInput, match="node ids are integers so far"):
        append(tmp_path / "g", {"source": ["a"], "target": ["b"], "time": [4]}, Append())
    with pytest.raises(BadInput, match="kept in ns"):
        append(
            tmp_path / "g", {"source": [1], "target": [2], "time": np.array(["2020-01-01"], "datetime64[ns]")}, Append()
        )
    assert len(open_graph(tmp_path / "g")) == 1


def test_what_is_known_of_nodes_stays_and_new_ones_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,team\n1,red\n2,blue\n")
    known = AttributeOptions(nodes=tmp_path / "nodes.csv", features="one-hot:team", labels="class:team")
    ingest({"source": [1], "target": [2], "time": [0]}, tmp_path / "g", Ingest(windows=GIVEN, attributes=known))
    append(tmp_path / "g", {"source": [9], "target": [2], "time": [1]}, Append())
    graph = open_graph(tmp_path / "g")
    assert graph.labels.at(1).tolist() == [1, 0, -1]
    assert graph.features.at(1).tolist() == [[0, 1], [1, 0], [0, 0]]


def test_features_of_each_snapshot_must_be_given_for_new_ones(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    listed = listed_snapshots([[[0], [1]], [[1], [2]]], None, features=values)
    np.savez(
        tmp_path / "a.npz",
        source=listed.columns["source"],
        target=listed.columns["target"],
        time=listed.columns["time"],
        x=values,
    )
    options = Ingest(windows=GIVEN, attributes=AttributeOptions(features=f"array:{tmp_path}/a.npz#x"))
    ingest(listed.columns, tmp_path / "g", options)
    more = {"source": [0], "target": [3], "time": [2]}
    with pytest.raises(BadConfig, match="has features for each snapshot"):
        append(tmp_path / "g", more, Append())
    new = np.full((1, 4, 2), 7, np.float32)
    append(tmp_path / "g", more, Append(attributes=Attributes(features=new)))
    graph = open_graph(tmp_path / "g")
    assert graph.features.at(1).tolist() == [*values[1].tolist(), [0.0, 0.0]]
    assert graph.features.at(2).tolist() == new[0].tolist()


@pytest.mark.parametrize(
    ("made", "reading", "rows", "sentence"),
    [
        ({"type": [1]}, Reading(), {}, "have a column of types"),
        ({}, Reading(), {"type": [1]}, "have no column of types"),
        ({"weight": [2.0]}, Reading(), {}, "have a column of weights"),
        ({}, Reading(columns=Columns(operation="op")), {"op": [-1]}, "have no column of operations"),
    ],
)
def test_rows_of_another_kind_are_refused(
    tmp_path: Path, made: dict[str, Any], reading: Reading, rows: dict[str, Any], sentence: str
) -> None:
    ingest({"source": [1], "target": [2], "time": [0], **made}, tmp_path / "g", Ingest(windows=GIVEN))
    with pytest.raises(BadConfig, match=sentence):
        append(tmp_path / "g", {"source": [1], "target": [3], "time": [4], **rows}, Append(reading=reading))
    assert len(open_graph(tmp_path / "g")) == 1


def test_a_bipartite_graph_stays_bipartite(tmp_path: Path) -> None:
    rows = {"source": ["a"], "target": ["x"], "time": [0]}
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN, reading=Reading(bipartite=True)))
    append(tmp_path / "g", {**rows, "time": [1]}, Append())
    assert stored(open_graph(tmp_path / "g")) == [{("s:a", "t:x", 0): 1.0}] * 2


def test_what_is_known_of_all_nodes_cannot_be_replaced_by_an_append(tmp_path: Path) -> None:
    ingest({"source": [1], "target": [2], "time": [0]}, tmp_path / "g", Ingest(windows=GIVEN))
    more = {"source": [1], "target": [2], "time": [3]}
    for known in (
        Attributes(labels=np.array([0, 1, 1]), classes=("a", "b")),
        Attributes(features=np.zeros((1, 3, 2), np.float32)),
        Attributes(spec={"kind": "degree", "log": True}),
    ):
        with pytest.raises(BadConfig):
            append(tmp_path / "g", more, Append(attributes=known))
    assert len(open_graph(tmp_path / "g")) == 1


def test_times_of_another_unit_become_the_graphs_own(tmp_path: Path) -> None:
    ingest({"source": [1], "target": [2], "time": [0.5]}, tmp_path / "nano", Ingest(windows=GIVEN))
    append(tmp_path / "nano", {"source": [1], "target": [2], "time": [3]}, Append())
    assert open_graph(tmp_path / "nano").starts.tolist() == [500_000_000, 3_000_000_000]
    day = np.array(["2020-01-01"], "datetime64[ms]")
    ingest({"source": [1], "target": [2], "time": day}, tmp_path / "ms", Ingest(windows=GIVEN))
    append(tmp_path / "ms", {"source": [1], "target": [2], "time": day.astype("datetime64[s]") + 5}, Append())
    append(
        tmp_path / "ms", {"source": [1], "target": [2], "time": day.astype("datetime64[ns]") + 7_000_000_000}, Append()
    )
    assert np.diff(open_graph(tmp_path / "ms").starts).tolist() == [5000, 2000]
    fine = day.astype("datetime64[ns]") + 9_000_000_001
    with pytest.raises(BadInput, match="finer than the graph's clock"):
        append(tmp_path / "ms", {"source": [1], "target": [2], "time": fine}, Append())


def test_small_appends_store_changes_and_not_the_whole_snapshot(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {"source": rng.integers(0, 999, 5000), "target": rng.integers(0, 999, 5000), "time": np.zeros(5000, int)}
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN, life=0, duplicates="last"))
    for time in range(1, 5):
        append(tmp_path / "g", {"source": [time], "target": [1000], "time": [time]}, Append())
    graph = open_graph(tmp_path / "g")
    assert graph.num_keyframes == 1
    assert [len(graph.delta(t)) for t in range(1, 5)] == [1, 1, 1, 1]
    assert list(check(tmp_path / "g")) == []


def test_empty_snapshots_can_be_appended(tmp_path: Path) -> None:
    first = listed_snapshots([[[0], [1]], [[], []]], None)
    ingest(_signal(first), tmp_path / "g", Ingest())
    assert list(check(tmp_path / "g")) == []
    append(tmp_path / "g", {"source": [0], "target": [1], "time": [2]}, Append())
    graph = open_graph(tmp_path / "g")
    assert (graph.starts.tolist(), [len(edges) for edges in stored(graph)]) == ([0, 1, 2], [1, 0, 1])


def _signal(listed: Listed) -> SimpleNamespace:
    times = np.array(listed.columns["time"])
    ends = np.stack([listed.columns["source"], listed.columns["target"]])
    edges = [ends[:, times == t] for t in listed.moments]
    return SimpleNamespace(edge_indices=edges, edge_weights=None, features=None, targets=None)
