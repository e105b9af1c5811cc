"""An ingest keeps every row it does not tell of, and its snapshots are those of an independent slow reading."""

from __future__ import annotations

import itertools
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.reference import Event, operated, snapshots, stored
from timeloom.errors import BadConfig, BadInput, BadRow, TooLarge
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import AttributeOptions, Bounds, Columns, Ingest, Reading, Report, Windows, ingest
from timeloom.graph.ingest.rules import Budget

WHOLE = st.integers(-3, 4).map(float)
FRACTIONS = st.sampled_from([0.1, 0.2, 0.3, -0.1, 0.7, 1e16, -1e16])
GIVEN = Windows(kind="given")


def events_with(weights: st.SearchStrategy[float], *, types: bool = False) -> st.SearchStrategy[list[Event]]:
    event = st.builds(
        Event, st.integers(0, 4), st.integers(0, 4), st.integers(0, 9), weights, st.integers(0, 2 if types else 0)
    )
    return st.lists(event, min_size=1, max_size=30)


def table(events: Sequence[Event], *, types: bool = False, operations: bool = False) -> dict[str, np.ndarray]:
    names = ["source", "target", "time", "weight"] + ["type"] * types + ["operation"] * operations
    return {name: np.array([getattr(event, name) for event in events]) for name in names}


def columns(*, operations: bool = False) -> Reading:
    return Reading(columns=Columns(operation="operation" if operations else None))


def made(out: Path, events: Sequence[Event], options: Ingest, *, types: bool = False) -> Report:
    """Ingest events, check the graph and return the report."""
    report = ingest(table(events, types=types, operations=options.reading.columns.operation is not None), out, options)
    assert list(check(out)) == []
    assert report.account.balances
    assert report.account.read == len(events)
    return report


@pytest.fixture(params=["in memory", "spilled"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with plenty of memory, and with so little that every stage goes through scratch files."""
    if request.param == "spilled":
        monkeypatch.setattr(Budget, "share", lambda self, part: 700 if part != 0.25 else 4000)
    return str(request.param)


POLICIES = ["sum", "count", "last", "mean", "max"]


@settings(max_examples=60)
@given(
    events=events_with(WHOLE | FRACTIONS, types=True), policy=st.sampled_from(POLICIES),
    life=st.sampled_from([0, 1, 2, 4]),
    both=st.booleans(), loops=st.booleans(), spilled=st.booleans(), data=st.data(),
)  # fmt: skip
def test_snapshots_equal_a_slow_reading(
    events: list[Event], policy: str, life: int, both: bool, loops: bool, spilled: bool, data: st.DataObject
) -> None:
    if policy == "last":
        # Of events with one time the later row counts; here each has its own, so that any order of rows is the same.
        events = [Event(e.source, e.target, 3 * place, e.weight, e.type) for place, e in enumerate(events)]
    options = Ingest(
        windows=GIVEN, life=life, duplicates=policy, both_directions=both, keep_self_loops=loops, reading=columns()
    )
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if spilled:
            patch.setattr(Budget, "share", lambda self, part: 700 if part != 0.25 else 4000)
        usable = [event for event in events if loops or event.source != event.target]
        if not usable:
            with pytest.raises(BadInput, match="no row is left"):
                ingest(table(events, types=True), Path(folder) / "g", options)
            return
        starts = sorted({event.time for event in usable})
        made(Path(folder) / "g", events, options, types=True)
        found = stored(open_graph(Path(folder) / "g"))
        assert found == snapshots(events, starts, life=life, policy=policy, both=both, loops=loops)
        # T2: the order of the rows changes nothing, to the last bit.
        made(Path(folder) / "h", data.draw(st.permutations(events)), options, types=True)
        assert stored(open_graph(Path(folder) / "h")) == found


def test_the_order_of_fractions_changes_no_sum(tmp_path: Path) -> None:
    found = set()
    for number, weights in enumerate(itertools.permutations([0.1, 0.2, 0.3, 1e16, -1e16])):
        events = [Event(0, 1, 5, weight) for weight in weights]
        made(tmp_path / str(number), events, Ingest(windows=GIVEN, reading=columns()))
        found.add(tuple(stored(open_graph(tmp_path / str(number)))[0].values()))
    assert len(found) == 1


@settings(max_examples=40)
@given(
    events=events_with(st.sampled_from([1.0, 2.0])), signs=st.lists(st.sampled_from([1, -1]), min_size=30, max_size=30)
)
def test_operations_make_edges_stay_until_they_are_removed(events: list[Event], signs: list[int]) -> None:
    rows = [Event(e.source, e.target + 5, e.time, e.weight, 0, sign) for e, sign in zip(events, signs, strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        report = made(Path(folder) / "g", rows, Ingest(windows=GIVEN, reading=columns(operations=True)))
        starts = sorted({event.time for event in rows})
        assert stored(open_graph(Path(folder) / "g")) == operated(rows, starts)
        idle = report.account.dropped.get("operation without effect (the edge was there already, or gone already)", 0)
        assert report.account.kept + idle == len(rows)


def day(number: int) -> int:
    return 1_600_000_000 + 86_400 * number


def test_every_makes_windows_that_start_at_midnight_and_keeps_empty_ones(tmp_path: Path, room: str) -> None:
    events = [Event(0, 1, day(0)), Event(1, 2, day(0) + 5), Event(2, 0, day(4) - 1)]
    report = made(tmp_path / "g", events, Ingest(windows=Windows(kind="every", amount="1d"), reading=columns()))
    graph = open_graph(tmp_path / "g")
    assert [graph.clock.show(int(start)) for start in graph.starts] == [f"2020-09-{n}" for n in (13, 14, 15, 16, 17)]
    assert [len(edges) for edges in stored(graph)] == [2, 0, 0, 0, 1]
    assert (report.empty, graph.clock.show(graph.end)) == (3, "2020-09-18")


def test_months_and_years_follow_the_calendar(tmp_path: Path) -> None:
    times = [
        int(np.datetime64(text, "s").astype(int))
        for text in ("2019-12-31T23:59:59", "2020-01-01", "2020-02-29", "2020-03-01")
    ]
    events = [Event(0, 1, time) for time in times]
    for amount, shown in (
        ("1mo", ["2019-12-01", "2020-01-01", "2020-02-01", "2020-03-01"]),
        ("1y", ["2019-01-01", "2020-01-01"]),
    ):
        made(tmp_path / amount, events, Ingest(windows=Windows(kind="every", amount=amount), reading=columns()))
        graph = open_graph(tmp_path / amount)
        assert [graph.clock.show(int(start)) for start in graph.starts] == shown


def test_a_number_of_snapshots_loses_neither_the_first_nor_the_last_event(tmp_path: Path) -> None:
    events = [Event(0, 1, time) for time in (0, 3, 4, 9)]
    made(tmp_path / "g", events, Ingest(windows=Windows(kind="snapshots", amount="4"), reading=columns()))
    graph = open_graph(tmp_path / "g")
    assert graph.starts.tolist() == [0, 2, 5, 7]
    assert [len(edges) for edges in stored(graph)] == [1, 1, 0, 1]
    with pytest.raises(BadConfig, match="at most 10"):
        made(tmp_path / "h", events, Ingest(windows=Windows(kind="snapshots", amount="11"), reading=columns()))


def test_a_window_of_events_closes_where_the_time_changes(tmp_path: Path, room: str) -> None:
    events = [Event(0, 1, time) for time in (5, 1, 1, 1, 2, 3, 3, 4)]
    made(tmp_path / "g", events, Ingest(windows=Windows(kind="events", amount="2"), reading=columns()))
    graph = open_graph(tmp_path / "g")
    assert graph.starts.tolist() == [1, 2, 4]
    assert [list(edges.values()) for edges in stored(graph)] == [[3.0], [3.0], [2.0]]


def test_rows_out_of_bounds_are_counted_and_their_nodes_unknown(tmp_path: Path) -> None:
    events = [Event(0, 1, 1), Event(7, 8, 2), Event(1, 2, 3), Event(3, 4, 9)]
    options = Ingest(windows=GIVEN, bounds=Bounds("2", "9"), reading=columns())
    report = made(tmp_path / "g", events, options)
    assert report.account.dropped == {"before --start 2": 1, "at or after --stop 9": 1}
    assert list(open_graph(tmp_path / "g").ids.of(np.arange(4))) == [1, 2, 7, 8]


def test_operations_before_the_start_are_there_at_the_start(tmp_path: Path) -> None:
    rows = [Event(0, 1, 1), Event(0, 2, 2), Event(0, 1, 3, operation=-1), Event(0, 3, 20)]
    options = Ingest(windows=GIVEN, bounds=Bounds("10"), reading=columns(operations=True))
    for number, order in enumerate(itertools.permutations(rows)):
        report = made(tmp_path / str(number), order, options)
        graph = open_graph(tmp_path / str(number))
        assert graph.starts.tolist() == [10, 20]
        assert [sorted(edges) for edges in stored(graph)] == [[(0, 2, 0)], [(0, 2, 0), (0, 3, 0)]]
        assert report.account.notes["operations before --start, which make the first snapshot"] == 3


def test_self_loops_are_dropped_and_counted_but_their_node_is_known(tmp_path: Path) -> None:
    events = [Event(5, 5, 0), Event(0, 1, 0)]
    report = made(tmp_path / "g", events, Ingest(windows=GIVEN, reading=columns()))
    assert report.account.dropped == {"self loop": 1}
    assert report.num_nodes == 3


def test_names_and_integers_make_the_same_graph(tmp_path: Path) -> None:
    names = {"source": ["b", "a", "é"], "target": ["a", "é", "b"], "time": [0, 0, 1]}
    ingest(names, tmp_path / "g", Ingest(windows=GIVEN))
    graph = open_graph(tmp_path / "g")
    assert graph.ids.of(np.arange(3)) == ["a", "b", "é"]
    assert stored(graph) == [{("b", "a", 0): 1.0, ("a", "é", 0): 1.0}, {("é", "b", 0): 1.0}]
    assert graph.ids.index_of(["é", "a"]).tolist() == [2, 0]
    with pytest.raises(BadConfig, match="'c' is not in this graph"):
        graph.ids.index_of("c")


def test_large_ids_with_holes_survive(tmp_path: Path) -> None:
    big = [2**62, 5, 2**63 - 1]
    ingest({"source": big, "target": [5, 2**62, 5], "time": [0, 0, 0]}, tmp_path / "g", Ingest(windows=GIVEN))
    graph = open_graph(tmp_path / "g")
    assert list(graph.ids.of(np.arange(3))) == sorted(big)
    assert graph.ids.index_of(np.array(big)).tolist() == [1, 0, 2]


def test_more_ids_than_the_table_holds_at_first_are_found(tmp_path: Path) -> None:
    sources = np.random.default_rng(0).permutation(200_000) * 7_919
    report = ingest(
        {"source": sources, "target": sources + 1, "time": np.zeros(200_000, int)},
        tmp_path / "g",
        Ingest(windows=GIVEN),
    )
    graph = open_graph(tmp_path / "g")
    assert report.num_nodes == len(set(sources) | set(sources + 1))
    assert np.array_equal(graph.ids.of(graph.ids.index_of(sources[:1000])), sources[:1000])


def test_sources_and_targets_can_be_numbered_apart(tmp_path: Path) -> None:
    options = Ingest(windows=GIVEN, reading=Reading(bipartite=True))
    ingest({"source": [1, 2], "target": [1, 1], "time": [0, 0]}, tmp_path / "g", options)
    assert stored(open_graph(tmp_path / "g")) == [{("s:1", "t:1", 0): 1.0, ("s:2", "t:1", 0): 1.0}]


def test_types_make_different_edges_of_one_pair(tmp_path: Path) -> None:
    rows = {"source": [0, 0, 0], "target": [1, 1, 1], "time": [0, 0, 0], "type": ["x", "y", "x"]}
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    graph = open_graph(tmp_path / "g")
    assert stored(graph) == [{(0, 1, "x"): 2.0, (0, 1, "y"): 1.0}]
    assert graph.type_ids.of(np.arange(2)) == ["x", "y"]


def test_snapshot_t_is_made_of_the_past_alone(tmp_path: Path) -> None:
    early = [Event(0, 1, 0), Event(1, 2, 1), Event(2, 0, 2)]
    late = [Event(0, 2, 3), Event(0, 1, 3), Event(9, 8, 4)]
    for life in (0, 1, 3):
        options = Ingest(windows=GIVEN, life=life, reading=columns())
        made(tmp_path / f"a{life}", early, options)
        made(tmp_path / f"b{life}", early + late, options)
        assert stored(open_graph(tmp_path / f"b{life}"))[:3] == stored(open_graph(tmp_path / f"a{life}"))


def test_a_failed_ingest_leaves_nothing_and_an_old_graph_as_it_was(tmp_path: Path) -> None:
    good = {"source": [0], "target": [1], "time": [0]}
    bad = {"source": [0, -1], "target": [1, 1], "time": [0, 0]}
    with pytest.raises(BadRow, match="row 2 column 'source': an id is negative"):
        ingest(bad, tmp_path / "g", Ingest(windows=GIVEN))
    assert not (tmp_path / "g").exists()
    ingest(good, tmp_path / "g", Ingest(windows=GIVEN))
    with pytest.raises(BadConfig, match="exists already"):
        ingest(good, tmp_path / "g", Ingest(windows=GIVEN))
    with pytest.raises(BadRow):
        ingest(bad, tmp_path / "g", Ingest(windows=GIVEN, overwrite=True))
    assert stored(open_graph(tmp_path / "g")) == [{(0, 1, 0): 1.0}]
    ingest(good | {"target": [2]}, tmp_path / "g", Ingest(windows=GIVEN, overwrite=True))
    assert stored(open_graph(tmp_path / "g")) == [{(0, 2, 0): 1.0}]
    assert sorted(path.name[:7] for path in (tmp_path / "g").glob("*.npy"))[0] == "000002-"


def test_bad_rows_are_counted_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = {"source": [0, -1, 3], "target": [1, 1, 4], "time": [0, 0, 0], "weight": [1.0, 2.0, float("nan")]}
    report = ingest(rows, tmp_path / "g", Ingest(windows=GIVEN, drop_bad_rows=True))
    assert report.account.dropped == {"an id is negative": 1, "a field is empty": 1}
    assert report.account.balances
    assert len(report.bad_examples) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (Ingest(), "say how time is cut"),
        (Ingest(windows=Windows(kind="every", amount="7d")), "needs clock times"),
        (Ingest(windows=Windows(kind="every", amount="0")), "not a positive whole number of ticks"),
        (Ingest(windows=GIVEN, life=-1), "is not a number of windows"),
        (Ingest(windows=GIVEN, duplicates="min"), "is unknown"),
        (Ingest(windows=GIVEN, bounds=Bounds("yesterday")), "is no time"),
        (Ingest(windows=Windows(kind="every", amount="2"), origin="5"), "is after the first event"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(tmp_path: Path, options: Ingest, sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        ingest({"source": [0, 1], "target": [1, 2], "time": [1, 9]}, tmp_path / "g", options)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("kind", "amount"),
    [("every", "x"), ("every", "7x"), ("every", "9" * 20 + "y"), ("events", "0"), ("snapshots", "²"), ("evry", "")],
)
def test_a_window_that_means_nothing_is_refused_before_anything_is_read(kind: str, amount: str) -> None:
    with pytest.raises(BadConfig):
        Windows(kind=kind, amount=amount)


def test_too_many_snapshots_are_refused(tmp_path: Path) -> None:
    rows = {"source": [0, 1], "target": [1, 2], "time": [0, 10**15]}
    with pytest.raises(TooLarge, match="at most 2000000 are kept"):
        ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="1")))


def test_a_budget_that_cannot_hold_the_ids_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "share", lambda self, part: 10_000)
    rows = {"source": np.arange(100_000), "target": np.arange(100_000) + 7, "time": np.zeros(100_000, int)}
    with pytest.raises(TooLarge, match="raise --memory"):
        ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    with pytest.raises(BadConfig, match="is too little"):
        Budget(100)


def test_a_graph_may_end_with_empty_snapshots_or_have_nothing_else(tmp_path: Path) -> None:
    empty = np.empty((2, 0), np.int64)
    for name, edges in (("last", [np.array([[0], [1]]), empty, empty]), ("all", [empty, empty])):
        signal = SimpleNamespace(edge_indices=edges, edge_weights=None, features=None, targets=None)
        report = ingest(signal, tmp_path / name, Ingest())
        assert list(check(tmp_path / name)) == []
        assert (report.num_snapshots, report.empty) == (len(edges), sum(e is empty for e in edges))


def test_bounds_hold_for_snapshots_without_edges_too(tmp_path: Path) -> None:
    empty = np.empty((2, 0), np.int64)
    signal = SimpleNamespace(
        edge_indices=[empty, np.array([[0], [1]]), empty, empty], edge_weights=None, features=None, targets=None
    )
    ingest(signal, tmp_path / "g", Ingest(bounds=Bounds("1", "3")))
    assert open_graph(tmp_path / "g").starts.tolist() == [1, 2]
    with pytest.raises(BadConfig, match="--start 3 is not before --stop 1"):
        ingest(signal, tmp_path / "h", Ingest(bounds=Bounds("3", "1")))


def test_both_directions_of_a_row_come_before_the_next_row(tmp_path: Path) -> None:
    rows = [Event(1, 2, 0), Event(1, 2, 5), Event(2, 1, 5, operation=-1)]
    made(tmp_path / "g", rows, Ingest(windows=GIVEN, both_directions=True, reading=columns(operations=True)))
    assert stored(open_graph(tmp_path / "g")) == [{(1, 2, 0): 1.0, (2, 1, 0): 1.0}, {}]
    last = [Event(1, 2, 5, 1.0), Event(2, 1, 5, 9.0)]
    made(tmp_path / "h", last, Ingest(windows=GIVEN, both_directions=True, duplicates="last", reading=columns()))
    assert stored(open_graph(tmp_path / "h")) == [{(1, 2, 0): 9.0, (2, 1, 0): 9.0}]


def test_whole_weights_too_large_to_add_exactly_still_do_not_depend_on_their_order(tmp_path: Path) -> None:
    found = set()
    for number, weights in enumerate(itertools.permutations([2.0**53, 1.0, 1.0])):
        made(
            tmp_path / str(number),
            [Event(0, 1, 5, weight) for weight in weights],
            Ingest(windows=GIVEN, reading=columns()),
        )
        found.add(tuple(stored(open_graph(tmp_path / str(number)))[0].values()))
    assert len(found) == 1


def test_a_sum_beyond_all_floats_is_refused(tmp_path: Path) -> None:
    rows = [Event(0, 1, 5, 1.7e308), Event(0, 1, 5, 1.7e308)]
    with pytest.raises(BadInput, match="more than a float can hold"):
        made(tmp_path / "g", rows, Ingest(windows=GIVEN, reading=columns()))


def test_sums_do_not_depend_on_where_blocks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = {
        "source": np.zeros(3000, int),
        "target": np.ones(3000, int),
        "time": np.zeros(3000, int),
        "weight": rng.normal(size=3000),
    }
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    monkeypatch.setattr(Budget, "share", lambda self, part: 3000)
    order = rng.permutation(3000)
    ingest({name: column[order] for name, column in rows.items()}, tmp_path / "h", Ingest(windows=GIVEN))
    assert stored(open_graph(tmp_path / "g")) == stored(open_graph(tmp_path / "h"))


def test_times_as_far_apart_as_they_can_be_find_their_windows(tmp_path: Path) -> None:
    far = 6 * 10**18
    rows = {"source": [0, 0, 0, 0], "target": [1, 2, 3, 4], "time": [-far, -far, -far + 1, far]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="events", amount="2")))
    assert [len(edges) for edges in stored(open_graph(tmp_path / "g"))] == [2, 2]
    assert list(check(tmp_path / "g")) == []


def test_few_files_are_open_however_many_snapshots_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "share", lambda self, part: 2000)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    rng = np.random.default_rng(0)
    rows = {
        "source": rng.integers(0, 50, 9000),
        "target": rng.integers(0, 50, 9000),
        "time": rng.integers(0, 600, 9000),
    }
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(120, limit[0]), limit[1]))
    try:
        report = ingest(rows, tmp_path / "g", Ingest(windows=GIVEN))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert report.num_snapshots == 600
    assert list(check(tmp_path / "g")) == []


@pytest.mark.parametrize(
    "options",
    [
        Ingest(windows=GIVEN, origin="0"),
        Ingest(windows=GIVEN, reading=Reading(columns=Columns(operation="op")), duplicates="max"),
        Ingest(windows=GIVEN, life=2**40), Ingest(reading=Reading(timed=False), bounds=Bounds("1")),
        Ingest(windows=GIVEN, bounds=Bounds("now")), Ingest(windows=GIVEN, bounds=Bounds("9" * 30)),
    ],
)  # fmt: skip
def test_options_that_would_do_nothing_or_overflow_are_refused(tmp_path: Path, options: Ingest) -> None:
    with pytest.raises(BadConfig):
        ingest({"source": [0, 1], "target": [1, 2], "time": [1, 9], "op": [1, 1]}, tmp_path / "g", options)


def test_calendar_windows_beyond_the_clock_are_refused(tmp_path: Path) -> None:
    rows = {"source": [0], "target": [1], "time": np.array(["2020-01-01"], "datetime64[ns]")}
    with pytest.raises(BadConfig, match="beyond 2"):
        ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="every", amount="900y")))


def test_present_nodes_are_given_by_their_ids(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id\n20\n10\n0\n")
    np.savez(tmp_path / "p.npz", n0=np.array([20, 10]), n1=np.array([0]))
    extra = AttributeOptions(nodes=tmp_path / "nodes.csv", present=f"{tmp_path}/p.npz#n{{t}}")
    rows = {"source": [10, 10], "target": [20, 20], "time": [0, 1]}
    ingest(rows, tmp_path / "g", Ingest(windows=GIVEN, attributes=extra))
    graph = open_graph(tmp_path / "g")
    alive = [list(graph.ids.of(np.flatnonzero(graph.snapshot(t).alive))) for t in range(2)]
    assert alive == [[10, 20], [0, 10, 20]], "those of the list, and whoever has an edge"
