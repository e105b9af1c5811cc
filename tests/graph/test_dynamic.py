"""Any snapshot, delta or number of a graph can be read on its own, and all ways of reading agree."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.graph.reference import edges_of, stored
from timeloom.errors import BadConfig
from timeloom.graph import export as export_module
from timeloom.graph.append import Append, append
from timeloom.graph.delta import NO_KEYS, apply, diff
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.export import export
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows, ingest
from timeloom.graph.ingest.writer import LONGEST_CHAIN, plan_keyframes
from timeloom.graph.stats import sparkline, stats


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> DynamicGraph:
    """A graph that grows and changes a little, so that it is stored as keyframes and deltas."""
    rng = np.random.default_rng(3)
    rows = {
        "source": rng.integers(0, 60, 6000),
        "target": rng.integers(0, 60, 6000),
        "time": rng.integers(0, 200, 6000),
    }
    path = tmp_path_factory.mktemp("graphs") / "g"
    ingest(rows, path, Ingest(windows=Windows(kind="given"), life=40, duplicates="last"))
    return open_graph(path)


def test_the_graph_of_these_tests_has_keyframes_and_deltas(graph: DynamicGraph) -> None:
    assert 1 < graph.num_keyframes < len(graph) / 2


def test_snapshots_in_a_row_equal_snapshots_one_by_one(graph: DynamicGraph) -> None:
    for snapshot in graph.snapshots(7, 150):
        alone = graph.snapshot(snapshot.t)
        assert np.array_equal(snapshot.keys, alone.keys)
        assert np.array_equal(snapshot.weights, alone.weights)
        assert np.array_equal(snapshot.alive, alone.alive)
    assert [snapshot.t for snapshot in graph.snapshots()] == list(range(len(graph)))


def test_a_delta_is_the_difference_of_its_snapshots(graph: DynamicGraph) -> None:
    keys, weights = NO_KEYS, None
    for t in range(len(graph)):
        delta, now = graph.delta(t), graph.snapshot(t)
        expected = diff(keys, weights, now.keys, now.stored_weights, graph.layout)
        assert np.array_equal(delta.keys, expected.keys)
        assert np.array_equal(delta.new, expected.new)
        keys, weights = apply(keys, weights, delta)


def test_counts_are_those_of_the_snapshots(graph: DynamicGraph) -> None:
    counted = graph.statistics
    assert counted["edges"].tolist() == [len(edges) for edges in stored(graph)]
    for t in (0, 1, 57, 199):
        snapshot = graph.snapshot(t)
        nodes = set(snapshot.sources.tolist()) | set(snapshot.targets.tolist())
        assert counted["active"][t] == len(nodes) == snapshot.alive.sum()
    assert counted["born"].sum() == (graph.first_seen >= 0).sum()
    assert sum(counted["added"] - counted["removed"]) == len(graph.snapshot(-1))


def test_rows_and_degrees_of_a_snapshot_agree(graph: DynamicGraph) -> None:
    snapshot = graph.snapshot(100)
    into, out_of = snapshot.degrees()
    assert into.tolist() == np.diff(snapshot.incoming().starts).tolist()
    assert out_of.tolist() == np.diff(snapshot.outgoing().starts).tolist()


def test_a_snapshot_that_is_not_there_is_refused(graph: DynamicGraph) -> None:
    assert graph.snapshot(-1).t == len(graph) - 1
    for t in (len(graph), -len(graph) - 1):
        with pytest.raises(BadConfig, match=f"snapshot {t} of 'g' was asked for, but it has 200"):
            graph.snapshot(t)
    assert "200 snapshots" in repr(graph)


def test_keyframes_bound_what_reading_a_snapshot_costs() -> None:
    changes, edges = np.full(1000, 3), np.full(1000, 1000)
    whole = plan_keyframes(changes, edges, weighted=False)
    assert max(np.diff(np.flatnonzero(whole))) == LONGEST_CHAIN + 1
    changes[500] = 5000
    assert plan_keyframes(changes, edges, weighted=False)[500]
    assert plan_keyframes(np.zeros(9, int), edges[:9], weighted=False).sum() == 0
    assert plan_keyframes(np.array([0, 3]), edges[:2], weighted=False, chain=(64, 64)).tolist() == [False, True]


def test_opening_takes_milliseconds_with_ten_thousand_snapshots(tmp_path: Path) -> None:
    rows = {"source": np.arange(10_000) % 7, "target": np.arange(10_000) % 5 + 7, "time": np.arange(10_000)}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    open_graph(tmp_path / "g")
    began = time.process_time()
    for _ in range(20):
        len(open_graph(tmp_path / "g").snapshot(9_999))
    assert (time.process_time() - began) / 20 < 0.02


def test_an_export_ingested_again_is_the_same_graph(graph: DynamicGraph, tmp_path: Path) -> None:
    num_rows = export(graph, tmp_path / "g.parquet")
    assert num_rows == graph.statistics["edges"].sum()
    named = Columns(source="source", target="target", time="time", weight="weight")
    ingest(
        tmp_path / "g.parquet", tmp_path / "h", Ingest(windows=Windows(kind="given"), reading=Reading(columns=named))
    )
    assert stored(open_graph(tmp_path / "h")) == stored(graph)
    assert export(graph, tmp_path / "d.parquet", changes=True) == sum(len(graph.delta(t)) for t in range(len(graph)))
    assert pq.read_table(tmp_path / "d.parquet").column_names == [
        "snapshot", "time", "source", "target", "old_weight", "new_weight"
    ]  # fmt: skip
    with pytest.raises(BadConfig, match="is a folder"):
        export(graph, tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def test_names_and_types_are_exported(tmp_path: Path) -> None:
    rows = {
        "source": ["a", "b"],
        "target": ["b", "c"],
        "time": np.array(["2020-01-01", "2020-01-02"], "datetime64[s]"),
        "type": [5, 9],
    }
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="1d")))
    export(open_graph(tmp_path / "g"), tmp_path / "g.parquet")
    table = pq.read_table(tmp_path / "g.parquet").to_pydict()
    assert (table["source"], table["target"], table["type"]) == (["a", "b"], ["b", "c"], [5, 9])
    assert str(table["time"][1]) == "2020-01-02 00:00:00"


def test_stats_say_what_the_snapshots_say(graph: DynamicGraph) -> None:
    found = stats(graph)
    for t in (1, 2, 90):
        before, now = set(edges_of(graph, t - 1)), set(edges_of(graph, t))
        assert found.overlap[t] == pytest.approx(len(before & now) / len(before | now))
        assert found.change[t] == pytest.approx(len(graph.delta(t)) / max(len(now), len(before)))
        assert found.density[t] == pytest.approx(len(now) / found.active[t] ** 2)
    degrees = np.diff(graph.snapshot(-1).incoming().starts)
    assert found.degree_quantiles["in"][-1] == degrees.max()
    assert found.as_json()["num_edges"] == sum(found.edges)


def test_a_sparkline_shows_the_shape() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert len(sparkline(list(range(1000)))) == 48
    assert sparkline([0, 0]) == "▁▁"


def test_negative_snapshots_count_from_the_end(graph: DynamicGraph) -> None:
    assert [snapshot.t for snapshot in graph.snapshots(-2)] == [198, 199]
    assert [snapshot.t for snapshot in graph.snapshots(-3, -1)] == [197, 198]
    assert [snapshot.t for snapshot in graph.snapshots(200)] == []
    assert np.array_equal(next(graph.snapshots(-2)).keys, graph.snapshot(198).keys)
    assert edges_of(graph, -1) == edges_of(graph, 199)
    for first, last in ((-201, None), (0, 201)):
        with pytest.raises(BadConfig, match="was asked for, but it has 200"):
            next(graph.snapshots(first, last))


def test_what_is_stored_of_a_snapshot_from_the_end_is_found_after_an_append(tmp_path: Path) -> None:
    ingest({"source": [1, 1], "target": [2, 3], "time": [0, 1]}, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    append(tmp_path / "g", {"source": [5], "target": [2], "time": [2]}, Append())
    graph = open_graph(tmp_path / "g")
    for t in range(3):
        for alone, again in zip(graph.stored(t), graph.stored(t - 3), strict=True):
            assert str(alone) == str(again)
        assert graph.segment_row("starts", t - 3) == t


def test_reading_a_snapshot_of_a_mostly_idle_graph_takes_milliseconds(tmp_path: Path) -> None:
    rows = {"source": [1, 2, 3], "target": [2, 3, 4], "time": [0, 50, 199_999], "op": [1, 1, 1]}
    reading = Reading(columns=Columns(operation="op"))
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="1"), reading=reading))
    graph = open_graph(tmp_path / "g")
    assert len(graph) == 200_000
    assert [len(graph.snapshot(t)) for t in (0, 49, 50, 199_998, 199_999)] == [1, 1, 2, 2, 3]
    began = time.process_time()
    for t in range(190_000, 190_020):
        graph.snapshot(t)
    assert time.process_time() - began < 0.1


def test_a_graph_that_is_open_goes_on_during_an_append(tmp_path: Path) -> None:
    rows = {"source": ["a", "b"], "target": ["b", "c"], "time": [0, 1], "type": ["x", "y"]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given"), life=3))
    graph, unread = open_graph(tmp_path / "g"), open_graph(tmp_path / "g")
    told, edges = stats(graph).as_json(), stored(graph)
    append(tmp_path / "g", {"source": ["d"], "target": ["a"], "time": [2], "type": ["z"]}, Append())
    assert stats(unread).as_json() == told
    assert stored(unread) == edges
    replaced = [name for name in unread.store.names if name.split(".")[0] in ("nodes", "types", "tail")]
    assert {"nodes.degrees", "types.id_ends", "tail.key"} <= set(replaced)
    for name in replaced:
        unread.store.array(name)


def test_no_ids_are_no_nodes(graph: DynamicGraph) -> None:
    assert graph.ids.index_of([]).tolist() == []


def test_a_snapshot_that_lost_all_edges_has_changed_by_its_whole(tmp_path: Path) -> None:
    rows = {"source": [*range(99), 0], "target": [*range(1, 100), 1], "time": [*[0] * 99, 2]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="1")))
    assert stats(open_graph(tmp_path / "g")).change == [0.0, 1.0, 1.0]


def test_an_export_replaces_a_file_only_where_asked(graph: DynamicGraph, tmp_path: Path) -> None:
    (tmp_path / "g.parquet").write_bytes(b"mine")
    with pytest.raises(BadConfig, match="exists already: give another --out, or --overwrite"):
        export(graph, tmp_path / "g.parquet")
    assert (tmp_path / "g.parquet").read_bytes() == b"mine"
    num_rows = export(graph, str(tmp_path / "g.parquet"), overwrite=True)
    assert pq.read_metadata(tmp_path / "g.parquet").num_rows == num_rows


def test_an_export_fills_row_groups_and_decodes_names_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"source": ["a", "b"] * 500, "target": ["b", "c"] * 500, "time": [t // 2 * 2 for t in range(1000)]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="1")))
    graph = open_graph(tmp_path / "g")
    decoded: list[object] = []
    names = graph.ids.all()

    def counted() -> object:
        decoded.append(1)
        return names

    monkeypatch.setattr(graph.ids, "all", counted)
    monkeypatch.setattr(export_module, "_GROUP_ROWS", 400)
    assert export(graph, tmp_path / "g.parquet") == 1000
    found = pq.ParquetFile(tmp_path / "g.parquet")
    assert [found.metadata.row_group(group).num_rows for group in range(found.num_row_groups)] == [400, 400, 200]
    assert len(decoded) == 1
    assert found.read().column("snapshot").to_pylist() == rows["time"]


def test_times_beyond_timestamps_are_exported_as_numbers(tmp_path: Path) -> None:
    reading = Reading(time_unit="s")
    rows = {"source": [1, 1], "target": [2, 2], "time": [0, 2**62]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given"), reading=reading))
    export(open_graph(tmp_path / "g"), tmp_path / "g.parquet")
    assert pq.read_table(tmp_path / "g.parquet").column("time").to_pylist() == [0, 2**62]


def test_a_graph_without_edges_is_exported(tmp_path: Path) -> None:
    rows = {"source": [1, 1], "target": [2, 2], "time": [0, 0], "weight": [1.0, -1.0]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    assert export(open_graph(tmp_path / "g"), tmp_path / "g.parquet") == 0
    assert pq.read_table(tmp_path / "g.parquet").num_rows == 0
