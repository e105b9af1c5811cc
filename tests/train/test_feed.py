"""A model is shown what is known when a snapshot is seen: never the label it predicts, never a scale of later data."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.tiny import Edge, FeatureKind, LabelKind, TinyFeatures, TinyGraph, snapshot_of, tiny
from timeloom.errors import BadConfig
from timeloom.graph.features import degree_rows
from timeloom.graph.tasks import TaskName, TaskSettings
from timeloom.kernels.norms import Norm
from timeloom.train.feed import Feed
from timeloom.train.settings import InputSettings

CPU = torch.device("cpu")
TRAIN_STOP = 5
PLENTY = 1 << 30


def feed_of(
    graph: TinyGraph, name: TaskName, *, horizon: int | None = None, inputs: InputSettings | None = None,
    cache_bytes: int = PLENTY, dtype: torch.dtype = torch.float64,
) -> Feed:  # fmt: skip
    task = TaskSettings(name=name, horizon=horizon)
    return Feed(graph, task, inputs or InputSettings(), dtype=dtype, device=CPU, cache_bytes=cache_bytes)


def labelled(name: TaskName) -> LabelKind:
    kinds: dict[str, LabelKind] = {"signal": "value", "classes": "class"}
    return kinds.get(name, "none")


def degrees_of(graph: TinyGraph, t: int, *, log: bool) -> list[list[float]]:
    """Return in- and out-degree of each node by a loop over the edges."""
    rows = [[0.0, 0.0] for _ in range(graph.num_nodes)]
    for edge in graph.edges(t):
        rows[edge.target][0] += edge.weight
        rows[edge.source][1] += edge.weight
    return [[math.copysign(math.log1p(abs(d)), d) for d in row] for row in rows] if log else rows


def label_of(graph: TinyGraph, name: TaskName, t: int) -> list[float]:
    """Return the labels of a snapshot, nan where none is known or where there is no such snapshot."""
    if t < 0:
        return [math.nan] * graph.num_nodes
    if name != "degree":
        return [float(value) for value in graph.labels.at(t)]
    sizes = [0.0] * graph.num_nodes
    for edge in graph.edges(t):
        sizes[edge.target] += abs(edge.weight)
    return [math.log1p(size) for size in sizes]


@pytest.mark.parametrize(("asked", "log"), [("degree", False), ("log_degree", True)])
def test_degrees_are_those_of_the_snapshot_seen(asked: Any, log: bool) -> None:
    graph = tiny(0, weighted=True, features="stored")
    feed = feed_of(graph, "degree", inputs=InputSettings(features=asked))
    for t in range(len(graph)):
        assert feed.raw(t) == pytest.approx(np.array(degrees_of(graph, t, log=log)), rel=1e-6)


@pytest.mark.parametrize("kind", ["stored", "fixed", "raw", "log"])
def test_auto_shows_the_features_of_the_graph_where_it_has_any(kind: FeatureKind) -> None:
    graph = tiny(0, weighted=True, features=kind)
    for asked in ("auto", "graph"):
        feed = feed_of(graph, "degree", inputs=InputSettings(features=asked))
        assert (feed.features, feed.num_features) == ("graph", graph.features.num_features)
        for t in range(len(graph)):
            assert np.array_equal(feed.raw(t), graph.features.at(t))


@pytest.mark.parametrize(
    ("name", "lags", "features", "num_lags"),
    [
        ("degree", None, "log_degree", 0),
        ("degree", 2, "log_degree", 2),
        ("links", None, "log_degree", 0),
        ("edge_classes", 0, "log_degree", 0),
        ("classes", None, "log_degree", 0),
        ("signal", None, "none", 4),
        ("signal", 2, "none", 2),
        ("signal", 0, "log_degree", 0),
    ],
)
def test_auto_without_features_shows_degrees_or_the_past_of_a_signal(
    name: TaskName, lags: int | None, features: str, num_lags: int
) -> None:
    feed = feed_of(tiny(0, labels=labelled(name)), name, inputs=InputSettings(lags=lags))
    assert (feed.features, feed.lags) == (features, num_lags)
    assert feed.num_features == feed.raw(2).shape[1] == (2 if features != "none" else 0) + num_lags


@pytest.mark.parametrize(
    ("name", "horizon"), [("signal", 0), ("signal", 1), ("signal", 2), ("degree", 1), ("degree", 2)]
)
def test_lags_are_the_last_known_labels_newest_first(name: TaskName, horizon: int) -> None:
    graph = tiny(1, labels=labelled(name), weighted=True, features="stored")
    feed = feed_of(graph, name, horizon=horizon, inputs=InputSettings(lags=3))
    newest = 0 if horizon else -1
    for t in range(len(graph)):
        raw = feed.raw(t)
        assert raw.dtype == np.float32
        assert np.array_equal(raw[:, :3], graph.features.at(t))
        for lag in range(3):
            known = np.array(label_of(graph, name, t + newest - lag), np.float32)
            assert raw[:, 3 + lag] == pytest.approx(known, nan_ok=True, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "horizon"),
    [(n, h) for n, h in product(("signal", "classes", "degree"), (0, 1, 2)) if (n, h) != ("degree", 0)],
)
def test_the_last_known_label_is_never_the_one_to_be_predicted(name: TaskName, horizon: int) -> None:
    graph = tiny(2, labels=labelled(name), weighted=True)
    feed = feed_of(graph, name, horizon=horizon)
    for t, lag in product(range(len(graph) - horizon), range(3)):
        place = t - lag - (0 if horizon else 1)
        assert place < t + horizon
        assert feed.label_before(t, lag).astype(float) == pytest.approx(
            np.array(label_of(graph, name, place)), nan_ok=True
        )


def test_a_label_that_is_not_known_is_shown_as_the_mean() -> None:
    graph = tiny(3, labels="value")
    for scale in ("standard", "none"):
        feed = feed_of(graph, "signal", inputs=InputSettings(scale=scale))
        feed.measure(TRAIN_STOP)
        for t in range(len(graph)):
            missing = np.isnan(feed.raw(t))
            rows = feed.rows(t).numpy()
            assert np.isfinite(rows).all()
            assert (rows[missing] == 0.0).all()
        assert np.isnan(feed.raw(0)[:, 1:]).all()


def two_pass(values: list[float]) -> tuple[float, float]:
    """Return mean and deviation of the values that are known; a deviation of 0 becomes 1."""
    known = [value for value in values if not math.isnan(value)]
    mean = math.fsum(known) / len(known) if known else 0.0
    variance = math.fsum((value - mean) ** 2 for value in known) / len(known) if known else 0.0
    return mean, math.sqrt(variance) if variance > 1e-18 else 1.0


@pytest.mark.parametrize("features", ["none", "stored", "fixed", "log"])
@pytest.mark.parametrize(("name", "horizon"), [("signal", 0), ("signal", 2), ("degree", 1), ("classes", 0)])
def test_scales_are_those_of_the_nodes_that_are_there_in_training(
    name: TaskName, horizon: int, features: FeatureKind
) -> None:
    graph = tiny(4, labels=labelled(name), weighted=True, features=features, num_nodes=11)
    feed = feed_of(graph, name, horizon=horizon)
    scales = feed.measure(TRAIN_STOP)
    columns: list[list[float]] = [[] for _ in range(feed.num_features)]
    targets, changes = [], []
    never_changes = features == "fixed" and not feed.lags
    for t in range(TRAIN_STOP):
        now, later = feed.raw(t), label_of(graph, name, t + horizon)
        before = label_of(graph, name, t if horizon else t - 1)
        for v in np.flatnonzero(graph.snapshot(t).alive).tolist():
            targets.append(later[v])
            changes.append(later[v] - before[v])
            for column, values in enumerate(columns):
                if not never_changes or t == TRAIN_STOP - 1:
                    values.append(float(now[v, column]))
    expected = [two_pass(values) for values in columns]
    assert scales.mean_F == pytest.approx(np.array([mean for mean, _ in expected]), rel=1e-9, abs=1e-12)
    assert scales.deviation_F == pytest.approx(np.array([deviation for _, deviation in expected]), rel=1e-6)
    if name in ("signal", "degree"):
        assert (scales.target_mean, scales.target_deviation) == pytest.approx(two_pass(targets), rel=1e-9)
        assert scales.change_deviation == pytest.approx(two_pass(changes)[1], rel=1e-9)
    assert feed.scales is scales
    rows = (feed.raw(6) - scales.mean_F) / scales.deviation_F
    assert feed.rows(6).numpy() == pytest.approx(np.where(np.isnan(rows), 0.0, rows), rel=1e-12)


def test_scales_do_not_change_with_what_comes_after_training() -> None:
    one, other = tiny(5, labels="value", features="stored"), tiny(5, labels="value", features="stored")
    assert isinstance(other.features, TinyFeatures)
    last = TRAIN_STOP + 1
    other.all[last + 1 :] = [snapshot_of(t, 8, [], alive={1}) for t in range(last + 1, len(other))]
    other.labels.at(last + 1)[:] = 1e9
    other.features.at(last + 1)[:] = 1e9
    mine, theirs = (feed_of(graph, "signal", horizon=2).measure(TRAIN_STOP) for graph in (one, other))
    assert np.array_equal(mine.mean_F, theirs.mean_F)
    assert np.array_equal(mine.deviation_F, theirs.deviation_F)
    assert (mine.target_mean, mine.target_deviation, mine.change_deviation) == (
        theirs.target_mean, theirs.target_deviation, theirs.change_deviation
    )  # fmt: skip


def test_scales_of_a_long_training_are_of_64_snapshots_evenly_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny(6, num_snapshots=150, num_nodes=3)
    read: list[int] = []
    honest = Feed.raw

    def counted(self: Feed, t: int) -> Any:
        read.append(t)
        return honest(self, t)

    monkeypatch.setattr(Feed, "raw", counted)
    feed_of(graph, "degree").measure(130)
    assert (len(read), read[0], read[-1]) == (64, 0, 129)
    assert set(np.diff(read).tolist()) == {2, 3}


def test_a_column_that_never_varies_is_shifted_but_not_blown_up() -> None:
    graph = tiny(7, features="stored")
    rows = np.full((len(graph), graph.num_nodes, 1), 0.1, np.float32)
    graph.features = TinyFeatures(rows, graph, fixed=False, degrees=None)
    feed = feed_of(graph, "degree")
    assert feed.measure(TRAIN_STOP).deviation_F.tolist() == [1.0]
    assert np.abs(feed.rows(7).numpy()).max() < 1e-6


def test_without_scaling_rows_are_as_they_are_but_targets_are_scaled() -> None:
    graph = tiny(7, weighted=True)
    feed = feed_of(graph, "degree", inputs=InputSettings(scale="none"))
    scales = feed.measure(TRAIN_STOP)
    assert np.array_equal(feed.rows(6).numpy().astype(np.float32), feed.raw(6))
    assert scales.target_mean > 0.0
    assert scales.change_deviation != 1.0


@pytest.mark.parametrize("features", ["none", "stored", "fixed", "log"])
@pytest.mark.parametrize("name", ["degree", "signal", "classes"])
def test_what_is_kept_in_memory_is_what_would_be_made_again(name: TaskName, features: FeatureKind) -> None:
    graph = tiny(8, labels=labelled(name), weighted=True, features=features)
    feeds = [feed_of(graph, name, cache_bytes=room) for room in (PLENTY, 1_500, 0)]
    for feed in feeds:
        feed.measure(TRAIN_STOP)
    for _, t in product(range(2), range(len(graph))):
        first, *others = [(feed.rows(t), feed.view(t), feed.label(t)) for feed in feeds]
        for rows, view, label in others:
            assert torch.equal(rows, first[0])
            assert torch.equal(view.edge_index, first[1].edge_index)
            assert torch.equal(view.edge_weight, first[1].edge_weight)
            assert torch.equal(view.alive_N, first[1].alive_N)
            assert view.t == first[1].t == t
            assert np.array_equal(label, first[2], equal_nan=label.dtype.kind == "f")


def test_what_has_room_is_made_once_and_nothing_is_kept_without() -> None:
    graph = tiny(8, weighted=True)
    plenty, none = feed_of(graph, "degree"), feed_of(graph, "degree", cache_bytes=0)
    for t in range(len(graph)):
        assert plenty.view(t) is plenty.view(t)
        assert plenty.rows(t) is plenty.rows(t)
        assert plenty.label(t) is plenty.label(t)
        assert none.view(t) is not none.view(t)
        assert none.rows(t) is not none.rows(t)
        assert none.label(t) is not none.label(t)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cache_bytes", [0, 700, 2_000, 6_000])
def test_what_is_kept_stays_within_the_size_allowed(cache_bytes: int, dtype: torch.dtype) -> None:
    graph = tiny(9, weighted=True, num_nodes=20)
    feed = feed_of(graph, "degree", cache_bytes=cache_bytes, dtype=dtype)
    feed.measure(TRAIN_STOP)
    size, count = 0, 0
    for t in range(len(graph)):
        view, rows, label = feed.view(t), feed.rows(t), feed.label(t)
        view.aggregate(rows, Norm("sym"))
        size += view.num_bytes if feed.view(t) is view else 0
        size += rows.numel() * rows.element_size() if feed.rows(t) is rows else 0
        size += label.nbytes if feed.label(t) is label else 0
        count += (feed.view(t) is view) + (feed.rows(t) is rows) + (feed.label(t) is label)
    assert size <= cache_bytes
    assert (count > 0) == (cache_bytes > 0)
    assert count < 3 * len(graph)


def test_the_last_few_snapshots_are_at_hand() -> None:
    feed = feed_of(tiny(9), "degree", cache_bytes=0)
    first = feed.snapshot(0)
    assert feed.snapshot(0) is first
    for t in (1, 2, 3, 0, 4, 0):
        feed.snapshot(t)
    assert feed.snapshot(0) is first
    assert len(feed._read._made) == 4


@pytest.mark.parametrize(
    ("name", "labels", "inputs", "sentence"),
    [
        ("signal", "class", {}, "task.name=signal needs a graph whose labels are of kind value, .* of kind class: ing"),
        ("signal", "none", {}, "labels are of kind value, but those of 'tiny' are of kind none"),
        ("classes", "value", {}, "labels are of kind class, but those of 'tiny' are of kind value"),
        ("degree", "none", {"features": "graph"}, "inputs.features=graph: 'tiny' has no features; use log_degree, or"),
        (
            "classes",
            "class",
            {"lags": 1},
            "inputs.lags=1 shows past values, but task.name=classes has none: leave lags",
        ),
        ("links", "none", {"lags": 3}, "inputs.lags=3 shows past values, but task.name=links has none"),
        ("degree", "none", {"features": "none"}, "a model of 'tiny' would be shown nothing: give inputs.features or"),
        ("signal", "value", {"features": "none", "lags": 0}, "would be shown nothing"),
    ],
)
def test_inputs_that_cannot_be_are_refused(
    name: TaskName, labels: LabelKind, inputs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadConfig, match=sentence):
        feed_of(tiny(0, labels=labels), name, inputs=InputSettings(**inputs))


@pytest.mark.parametrize("lags", [-1, 1_001])
def test_lags_that_are_no_number_of_snapshots_are_refused(lags: int) -> None:
    with pytest.raises(BadConfig, match=rf"inputs.lags={lags} is no number of snapshots: give 0 to 1000"):
        InputSettings(lags=lags)


def test_rows_have_the_precision_asked_for_and_one_tensor_where_nothing_changes() -> None:
    graph = tiny(1, features="fixed")
    feed = feed_of(graph, "degree", dtype=torch.float32)
    feed.measure(TRAIN_STOP)
    assert feed.rows(0).dtype == torch.float32
    assert feed.rows(0) is feed.rows(7)
    with_lags = feed_of(graph, "degree", inputs=InputSettings(lags=1))
    with_lags.measure(TRAIN_STOP)
    assert not torch.equal(with_lags.rows(0), with_lags.rows(7))


def test_a_graph_without_edges_is_fed() -> None:
    graph = TinyGraph([snapshot_of(t, 2, [Edge(0, 1, 0, 1.0)] if t == 4 else [], alive=set()) for t in range(6)])
    feed = feed_of(graph, "degree")
    scales = feed.measure(3)
    assert (scales.mean_F.tolist(), scales.deviation_F.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert (scales.target_mean, scales.target_deviation, scales.change_deviation) == (0.0, 1.0, 1.0)
    assert feed.rows(4).numpy() == pytest.approx(degree_rows(graph.snapshot(4), log=True))
