"""Are features and edges of a window exactly what they were, and exactly as large as is said?"""

from __future__ import annotations

import tracemalloc
from collections import deque
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.graph.tiny import TinyGraph, tiny
from tests.plan.partition.test_ledger import bytes_by_runs
from timeloom.errors import BadConfig, BadStore
from timeloom.graph.csr import Int32s
from timeloom.graph.delta import NO_KEYS, Delta, diff
from timeloom.graph.features import Float32s
from timeloom.graph.segment_edges import EdgeWindow, logged_edges
from timeloom.graph.segment_log import SegmentLog, logged_rows
from timeloom.graph.segment_parts import edge_change, feature_change, stored_bytes
from timeloom.graph.segments import FeatureWindow, Masks, SegmentLayout, changed_segments


@dataclass
class Story:
    """A graph whose features change, and a placement of its nodes: they leave, return, die and are reborn."""

    graph: TinyGraph
    rows: list[Float32s]
    servers: list[Int32s]
    masks: list[Masks]
    deltas: list[Delta]
    layout: SegmentLayout


def story(seed: int, *, num_features: int = 7, num_segments: int = 3, count: int = 9, weighted: bool = False) -> Story:
    rng = np.random.default_rng(seed)
    graph = tiny(seed, num_nodes=9, num_snapshots=count, weighted=weighted, share=0.3)
    layout, n = SegmentLayout(num_features, num_segments), 9
    rows, servers, masks, deltas = [rng.random((n, num_features), np.float32)], [], [], []
    before_N = np.full(n, -1, np.int32)
    for t, snapshot in enumerate(graph.all):
        if t:
            changes = rng.random((n, num_features)) < rng.choice([0.0, 0.1, 0.5])
            rows.append(np.where(changes, rng.random((n, num_features), np.float32), rows[-1]))
        masks.append(changed_segments(rows[max(t - 1, 0)], rows[t], layout))
        before = graph.all[t - 1] if t else None
        keys, weights = (before.keys, before.stored_weights) if before else (NO_KEYS, None)
        deltas.append(diff(keys, weights, snapshot.keys, snapshot.stored_weights, snapshot.layout))
        moves = rng.random(n) < 0.4
        drawn = np.where((before_N < 0) | moves, rng.integers(0, 2, n), before_N)
        before_N = np.where(snapshot.alive, drawn, -1).astype(np.int32)
        servers.append(before_N)
    return Story(graph, rows, servers, masks, deltas, layout)


def tell(told: Story, t: int, server: int, features: FeatureWindow, edges: EdgeWindow) -> None:
    before_N = told.servers[t - 1] if t else np.full(9, -1, np.int32)
    features.append(t, 9, feature_change(told.rows[t], told.masks[t], before_N, told.servers[t], server))
    edges.append(t, edge_change(told.deltas[t], told.graph.all[t], before_N, told.servers[t], server))


def all_arrays(of: object) -> list[NDArray[Any]]:
    """Every array that an object holds on to, found without being told where."""
    if isinstance(of, np.ndarray):
        return [of if of.base is None else of.base]
    if isinstance(of, deque | tuple | list):
        return [array for one in of for array in all_arrays(one)]
    if is_dataclass(of):
        return [array for field in fields(of) for array in all_arrays(getattr(of, field.name))]
    values = vars(of).values() if hasattr(of, "__dict__") else ()
    return [array for value in values for array in all_arrays(value)]


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), window=st.integers(1, 5), weighted=st.booleans())
def test_what_is_read_is_what_was_and_what_is_held_is_what_runs_say(seed: int, window: int, weighted: bool) -> None:
    """T29 and T30: after every snapshot, of every snapshot of the window, on both servers."""
    told = story(seed, weighted=weighted)
    has_weights = any(snapshot.stored_weights is not None for snapshot in told.graph.all)
    stores = [
        (
            FeatureWindow(told.layout, window=window),
            EdgeWindow(told.graph.all[0].layout, window=window, weighted=has_weights),
        )
        for _ in range(2)
    ]
    sizes = [
        stored_bytes(snapshot, delta, masks, told.layout, weighted=has_weights)
        for snapshot, delta, masks in zip(told.graph.all, told.deltas, told.masks, strict=True)
    ]
    full, changed = ([size[i].tolist() for size in sizes] for i in (0, 1))
    for t in range(len(told.rows)):
        for server, (features, edges) in enumerate(stores):
            tell(told, t, server, features, edges)
            assert features.snapshots == edges.snapshots == range(max(0, t - window + 1), t + 1)
            for s in features.snapshots:
                here = np.flatnonzero(told.servers[s] == server)
                assert (features.rows(s, here[::-1]) == told.rows[s][here[::-1]]).all()
                keys, weights = edges.edges(s)
                snapshot = told.graph.all[s]
                mine = told.servers[s][snapshot.targets] == server
                assert (keys == snapshot.keys[mine]).all()
                if has_weights:
                    assert (weights == snapshot.weights[mine]).all()
            runs = bytes_by_runs([row.tolist() for row in told.servers[: t + 1]], full, changed, window, server)
            assert features.whole_bytes + features.changed_bytes + edges.run_bytes == runs
            assert features.held_bytes == sum(array.nbytes for array in all_arrays(features))
            held = {id(array): array.nbytes for array in all_arrays(edges)}
            assert edges.held_bytes == sum(held.values())


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), window=st.integers(1, 3))
def test_snapshots_that_left_memory_are_read_from_disk(
    seed: int, window: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    told, log = story(seed), SegmentLog(tmp_path_factory.mktemp("log"))
    features = FeatureWindow(told.layout, window=window, log=log)
    edges = EdgeWindow(told.graph.all[0].layout, window=window, weighted=False, log=log)
    for t in range(len(told.rows)):
        tell(told, t, 0, features, edges)
    for s in range(features.snapshots[0] + 1):
        here = np.flatnonzero(told.servers[s] == 0)
        assert (logged_rows(log, s, here, told.layout.bounds) == told.rows[s][here]).all()
        keys, _ = logged_edges(log, s, told.graph.all[0].layout, weighted=False)
        mine = told.servers[s][told.graph.all[s].targets] == 0
        assert (keys == told.graph.all[s].keys[mine]).all()
    away = np.flatnonzero(told.servers[0] != 0)[:1]
    if len(away):
        with pytest.raises(BadStore, match=r"were never here|was not here then"):
            logged_rows(log, 0, away, told.layout.bounds)


@pytest.mark.parametrize("seed", range(6))
def test_a_window_that_is_filled_anew_from_its_oldest_snapshot_is_the_same(seed: int) -> None:
    """After a restart a server needs the snapshots of the window and where nodes were in them, and nothing older."""
    told, nowhere = story(seed), np.full(9, -1, np.int32)
    layout = told.graph.all[0].layout
    old, new = ((FeatureWindow(told.layout, window=3), EdgeWindow(layout, window=3, weighted=False)) for _ in range(2))
    for t in range(9):
        tell(told, t, 0, *old)
    first = told.graph.all[6]
    new[0].append(6, 9, feature_change(told.rows[6], told.masks[6], nowhere, told.servers[6], 0))
    everything = diff(NO_KEYS, None, first.keys, None, layout)
    new[1].append(6, edge_change(everything, first, nowhere, told.servers[6], 0))
    for t in (7, 8):
        tell(told, t, 0, *new)
    assert new[0].whole_bytes + new[0].changed_bytes == old[0].whole_bytes + old[0].changed_bytes
    assert new[1].run_bytes == old[1].run_bytes
    for s in range(6, 9):
        here = np.flatnonzero(told.servers[s] == 0)
        assert (new[0].rows(s, here) == old[0].rows(s, here)).all()
        assert (new[1].edges(s)[0] == old[1].edges(s)[0]).all()


def test_a_damaged_or_missing_file_of_the_log_is_a_sentence(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    with pytest.raises(BadStore, match=r"features of snapshot 3 were asked for, but .* does not exist"):
        log.read("features", 3)
    log.write("features", 3, {"a": np.arange(9)})
    assert log.read("features", 3)["a"].tolist() == list(range(9))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadStore, match="cannot be read"):
        log.read("features", 3)


@given(num_features=st.integers(0, 20), num_segments=st.integers(1, 32), seed=st.integers(0, 10**6))
def test_masks_name_the_segments_that_differ(num_features: int, num_segments: int, seed: int) -> None:
    rng, layout = np.random.default_rng(seed), SegmentLayout(num_features, num_segments)
    before = rng.random((5, num_features), np.float32)
    after = np.where(rng.random((5, num_features)) < 0.2, np.float32(np.nan), before)
    masks = changed_segments(before, after, layout)
    bounds = layout.bounds.tolist()
    for v in range(5):
        differ = [bool(np.isnan(after[v, a:b]).any()) for a, b in pairwise(bounds)]
        assert [bool(masks[v] >> s & 1) for s in range(num_segments)] == differ
        widths = [b - a for a, b in pairwise(bounds)]
        assert layout.changed_bytes(masks)[v] == 4 * sum(w for w, d in zip(widths, differ, strict=True) if d)
    assert not changed_segments(after, after, layout).any(), "a NaN that stays is no change"
    assert layout.row_bytes == 4 * num_features == 4 * bounds[-1]


def test_a_worked_case_of_three_snapshots() -> None:
    """Figure 2 of DistDy: whole at t - 2, one segment at t - 1, nothing at t; the rebase then loses nothing."""
    layout = SegmentLayout(4, 2)
    rows = [np.array([[1, 2, 3, 4]], np.float32), np.array([[1, 2, 9, 4]], np.float32)]
    window = FeatureWindow(layout, window=3)
    home = np.zeros(1, np.int32)
    nowhere, none = np.full(1, -1, np.int32), np.zeros(1, np.uint32)
    window.append(0, 1, feature_change(rows[0], none, nowhere, home, 0))
    assert (window.whole_bytes, window.changed_bytes) == (16, 0)
    window.append(1, 1, feature_change(rows[1], changed_segments(rows[0], rows[1], layout), home, home, 0))
    assert (window.whole_bytes, window.changed_bytes) == (16, 8)
    window.append(2, 1, feature_change(rows[1], none, home, home, 0))
    assert (window.whole_bytes, window.changed_bytes) == (16, 8)
    assert [window.rows(t, np.array([0])).tolist() for t in range(3)] == [rows[t > 0].tolist() for t in range(3)]
    window.append(3, 1, feature_change(rows[1], none, home, home, 0))
    assert (window.whole_bytes, window.changed_bytes) == (16, 0)
    assert window.rows(1, np.array([0])).tolist() == rows[1].tolist()


def test_what_is_said_to_be_held_is_what_the_process_holds() -> None:
    """Memory is accounted to the byte: what the allocator gave is the account and a little for Python's objects."""
    rng, layout, n = np.random.default_rng(0), SegmentLayout(64, 4), 2000
    rows, masks = rng.random((n, 64), np.float32), np.zeros(n, np.uint32)
    before_N = np.full(n, -1, np.int32)
    tracemalloc.start()
    try:
        start, _ = tracemalloc.get_traced_memory()
        window = FeatureWindow(layout, window=3)
        for t in range(8):
            now_N = np.where(rng.random(n) < 0.2, rng.integers(-1, 2, n), before_N).astype(np.int32)
            window.append(t, n, feature_change(rows, masks, before_N, now_N, 0))
            rows = np.where(rng.random((n, 64)) < 0.02, np.float32(t), rows).astype(np.float32)
            masks, before_N = np.full(n, 15, np.uint32), now_N
        del now_N
        held = tracemalloc.get_traced_memory()[0] - start
        # The features and masks of the test itself were made anew in between.
        held -= rows.nbytes + masks.nbytes + before_N.nbytes
    finally:
        tracemalloc.stop()
    assert window.held_bytes > 400_000
    assert abs(held - window.held_bytes) < 16_000


def test_the_work_of_a_slide_is_that_of_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebase in O(changed segments): no array as long as all rows is made when little changes."""
    n, layout = 20_000, SegmentLayout(64, 4)
    window = FeatureWindow(layout, window=2)
    rows, home = np.zeros((n, 64), np.float32), np.zeros(n, np.int32)
    window.append(0, n, feature_change(rows, np.zeros(n, np.uint32), np.full(n, -1, np.int32), home, 0))
    masks = np.zeros(n, np.uint32)
    masks[:20] = 1
    changes = [feature_change(rows, masks, home, home, 0) for _ in range(4)]
    tracemalloc.start()
    try:
        for t, change in enumerate(changes, 1):
            window.append(t, n, change)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000 < window.whole_bytes // 50


def test_what_is_not_here_is_a_sentence() -> None:
    told = story(1)
    features = FeatureWindow(told.layout, window=2)
    edges = EdgeWindow(told.graph.all[0].layout, window=2, weighted=False)
    with pytest.raises(BadConfig, match="the window holds none"):
        features.rows(0, np.array([0]))
    for t in range(4):
        tell(told, t, 0, features, edges)
    with pytest.raises(BadConfig, match=r"features of snapshot 1 were asked for, but the window holds 2 to 3"):
        features.rows(1, np.array([0]))
    with pytest.raises(BadConfig, match=r"edges of snapshot 1 were asked for, but the window holds 2 to 3"):
        edges.edges(1)
    away = int(np.flatnonzero(told.servers[3] != 0)[0])
    for node in (away, 99, -1):
        with pytest.raises(BadConfig, match=rf"node {node} in snapshot 3 were asked for, but it is not here then"):
            features.rows(3, np.array([node]))
    change: Any = edge_change(told.deltas[4], told.graph.all[4], told.servers[3], told.servers[4], 0)
    object.__setattr__(change, "weights", np.ones(len(change.came)))
    with pytest.raises(BadConfig, match="brings weights to a window of edges that all weigh 1"):
        edges.append(4, change)
    for count in (0, 33):
        with pytest.raises(BadConfig, match="give 1 to 32"):
            SegmentLayout(4, count)
    with pytest.raises(BadConfig, match="a window of 0 snapshots"):
        FeatureWindow(told.layout, window=0)
