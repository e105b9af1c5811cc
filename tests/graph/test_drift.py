"""Drifting communities change as asked, and hold classes and degrees that only their history foretells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.test_synth import SMALL_DRIFT, classes_of, edges_of, fitted_exponent, make, turnovers
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import DynamicGraph
from timeloom.graph.keys import Float64s
from timeloom.graph.synth import Drift, drift
from timeloom.graph.synth.communities import past_classes, tides, wander


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> DynamicGraph:
    """The graph of drifting communities that a demo is made of."""
    return make(Drift(), tmp_path_factory.mktemp("default"))


def test_drifting_snapshots_have_the_edges_and_the_turnover_asked_for(default: DynamicGraph, tmp_path: Path) -> None:
    assert default.statistics["edges"].tolist() == [Drift().num_edges] * Drift().num_snapshots
    assert turnovers(default).mean() == pytest.approx(Drift().turnover, abs=0.005)
    assert np.abs(turnovers(default) - Drift().turnover).max() < 0.02
    for turnover in (Drift().least_turnover + 0.01, 0.6, 1.0):
        graph = make(Drift(turnover=turnover, num_snapshots=20), tmp_path)
        assert turnovers(graph).mean() == pytest.approx(turnover, abs=0.01)


def test_without_drift_and_waves_any_turnover_can_be_asked_for(tmp_path: Path) -> None:
    graph = make(Drift(turnover=0.01, drift=0.0, wave=0.0, num_snapshots=30), tmp_path)
    assert turnovers(graph).mean() == pytest.approx(0.01, abs=0.001)


def test_a_longer_drift_begins_like_a_shorter_one(tmp_path: Path) -> None:
    short, longer = make(SMALL_DRIFT, tmp_path), make(replace(SMALL_DRIFT, num_snapshots=15), tmp_path)
    assert edges_of(longer)[:12] == edges_of(short)
    assert classes_of(longer)[:12] == classes_of(short)


def test_edges_stay_inside_communities_as_often_as_asked(default: DynamicGraph) -> None:
    asked, law = Drift(), drift.DriftLaw(Drift())
    inside = [
        np.mean(law.communities[s.t, s.sources] == law.communities[s.t, s.targets]) for s in default.snapshots()
    ]  # fmt: skip
    by_chance = (1 - asked.inside) / asked.num_communities
    assert np.mean(inside) == pytest.approx(asked.inside + by_chance, abs=0.02)
    # Nodes that moved take their edges to the new community with them: the share does not decay.
    assert abs(np.mean(inside[-10:]) - np.mean(inside[:10])) < 0.02


def test_no_two_nodes_expect_much_more_than_one_edge() -> None:
    # Else the edges of a snapshot would tell of the one before: what cannot be there twice cannot be drawn again.
    asked = Drift(wave=0.0)
    moment = drift.DriftLaw(asked).moment(0)
    hubs = np.argsort(-moment.activity)[:100]
    pairs = np.repeat(hubs, 100), np.tile(hubs, 100)
    assert 0.5 < asked.num_edges * moment.likelihood(*pairs).max() < 1.5


def test_nodes_move_as_often_as_asked_and_to_any_other_community() -> None:
    communities = wander(5_000, 5, 40, drift=0.03, seed=1)
    moved = communities[1:] != communities[:-1]
    assert moved.mean() == pytest.approx(0.03, abs=0.001)
    steps = (communities[1:] - communities[:-1])[moved] % 5
    assert np.bincount(steps, minlength=5)[1:] / moved.sum() == pytest.approx([0.25] * 4, abs=0.02)


@pytest.mark.parametrize(("num_communities", "lag"), [(8, 3), (5, 2), (2, 1), (6, 4)])
def test_a_tide_is_met_rising_as_often_as_falling(num_communities: int, lag: int) -> None:
    seen = tides(num_communities, 480 * lag + lag, 4 * lag).round(9)
    rising, seen = seen[:-lag] > 0, seen[lag:]
    for tide in np.unique(seen):
        assert rising[seen == tide].mean() == pytest.approx(0.5, abs=0.01)
    assert abs(seen).min() > 0.01


def test_a_class_is_the_tide_of_the_community_some_snapshots_ago(default: DynamicGraph) -> None:
    asked, law = Drift(), drift.DriftLaw(Drift())
    busy = tides(asked.num_communities, asked.num_snapshots, 4 * asked.lag) > 0
    for t in range(len(default)):
        past = t - asked.lag
        expected = np.full(asked.num_nodes, -1) if past < 0 else busy[past][law.communities[past]].astype(int)
        assert default.labels.at(t).tolist() == expected.tolist()
    assert default.labels.classes == ["calm", "busy"]
    assert past_classes(law.communities[:2], tides(8, 2, 12), 3).tolist() == [[-1] * asked.num_nodes] * 2


def readings(graph: DynamicGraph) -> Float64s:
    """Return [T, N, F] what one snapshot says of a node: log-degrees, its own and averaged over one and two hops."""
    out = []
    for snapshot in graph.snapshots():
        ends, size = (snapshot.sources, snapshot.targets), graph.num_nodes
        own = [np.log1p(np.bincount(ends[side], minlength=size)) for side in (0, 1)]

        def mean(values: Float64s, to: int, ends: Any = ends, size: int = size) -> Float64s:
            counts = np.maximum(np.bincount(ends[to], minlength=size), 1)
            return np.bincount(ends[to], values[ends[1 - to]], size) / counts

        near = [mean(values, to) for values in own for to in (0, 1)]
        far = [mean(values, to) for values in near for to in (0, 1)]
        out.append(np.stack([*own, *near, *far], axis=1))
    return np.stack(out)


def accuracy(graph: DynamicGraph, seen: Float64s, split: int) -> float:
    """Return how often a quadratic reader is right from snapshot ``split`` on that learnt from those before."""
    alive = np.stack([snapshot.alive for snapshot in graph.snapshots()])
    classes = np.stack([graph.labels.at(t) for t in range(len(graph))])
    scaled = (seen - seen.mean((0, 1))) / seen.std((0, 1))
    scaled = np.concatenate([scaled, scaled**2, np.ones((*scaled.shape[:2], 1))], axis=2)
    early = alive & (np.arange(len(graph)) < split)[:, None] & (classes >= 0)
    early[: Drift().lag] = False
    late = alive & (np.arange(len(graph)) >= split)[:, None]
    learnt, *_ = np.linalg.lstsq(scaled[early], 2.0 * classes[early] - 1.0, rcond=None)
    return float(np.mean((scaled[late] @ learnt > 0) == classes[late]))


def test_classes_are_read_from_history_and_not_from_one_snapshot(default: DynamicGraph) -> None:
    now = readings(default)
    history = np.concatenate([np.roll(now, back, axis=0) for back in range(Drift().lag + 1)], axis=2)
    assert accuracy(default, now, split=40) < 0.54
    assert accuracy(default, history, split=40) > 0.9


def test_not_even_who_knows_all_that_a_snapshot_was_drawn_from_knows_the_classes(default: DynamicGraph) -> None:
    # Everything in a snapshot is a draw from the communities and their tides at that time.
    law, asked = drift.DriftLaw(Drift()), Drift()
    tide = tides(asked.num_communities, asked.num_snapshots, 4 * asked.lag)
    known = np.stack([tide[t][law.communities[t]] for t in range(len(default))])[asked.lag :].round(6)
    classes = np.stack([default.labels.at(t) for t in range(asked.lag, len(default))])
    shares = [classes[known == value].mean() for value in np.unique(known)]
    assert max(shares) < 0.56
    assert min(shares) > 0.44


def test_what_stays_tells_nothing_of_the_past(tmp_path: Path) -> None:
    # With as much change as there can be, or as little, a busy community has as many edges: no lag, no echo.
    asked = Drift(drift=0.0, num_snapshots=48, seed=5)
    swings = []
    for turnover in (0.2, 1.0):
        kind = replace(asked, turnover=turnover)
        law, graph = drift.DriftLaw(kind), make(kind, tmp_path)
        counts = np.stack([np.bincount(law.communities[s.t, s.targets], minlength=8) for s in graph.snapshots()])
        phase = np.exp(-2j * np.pi * np.arange(48) / (4 * asked.lag))
        swings.append((np.log(counts) * phase[:, None]).mean(axis=0))
    assert np.abs(np.angle(swings[0] / swings[1])).max() < 0.15
    assert np.abs(np.abs(swings[0] / swings[1]) - 1).max() < 0.15


def test_degrees_to_come_are_foretold_better_by_history_than_by_the_last(default: DynamicGraph) -> None:
    degrees = np.stack([np.log1p(s.degrees()[0]) for s in default.snapshots()])
    lags = np.stack([degrees[4 - back : -back] for back in (1, 2, 3, 4)], axis=2)
    lags = np.concatenate([lags, np.ones((*lags.shape[:2], 1))], axis=2)
    learnt, *_ = np.linalg.lstsq(lags[:36].reshape(-1, 5), degrees[4:40].ravel(), rcond=None)
    error = np.mean((lags[36:] @ learnt - degrees[40:]) ** 2)
    persistence = np.mean((degrees[39:-1] - degrees[40:]) ** 2)
    assert error < 0.85 * persistence


@pytest.mark.parametrize("exponent", [2.2, 3.0])
def test_drifting_degrees_follow_the_power_law_asked_for(exponent: float, tmp_path: Path) -> None:
    kind = Drift(
        num_nodes=20_000, num_edges=200_000, num_snapshots=2, num_communities=4, exponent=exponent, wave=0.0, seed=1
    )
    into, out_of = make(kind, tmp_path).snapshot(1).degrees()
    for degrees in (into, out_of):
        assert fitted_exponent(degrees.astype(np.int64), 15, 120) == pytest.approx(exponent, abs=0.2)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"num_nodes": 3}, "num_nodes=3 was asked for, but it must lie between 4"),
        ({"num_nodes": 100}, "num_edges=10000 was asked for, but 100 nodes leave room for 2475"),
        ({"num_snapshots": 0}, "num_snapshots=0 was asked for"),
        ({"num_communities": 0}, "num_communities=0 was asked for"),
        ({"inside": 1.5}, "inside=1.5 was asked for, but it must lie between 0 and 1"),
        ({"drift": float("nan")}, "drift=nan was asked for"),
        ({"turnover": 0.1}, r"turnover=0.1 was .* wave=1 and lag=3 alone replace about 0\.18 .* raise turnover"),
        ({"exponent": 1.0}, "exponent=1 was asked for"),
        ({"wave": -1.0}, "wave=-1 was asked for"),
        ({"lag": 0}, "lag=0 was asked for"),
        ({"seed": -1}, "seed=-1 was asked for"),
    ],
)
def test_a_drift_that_cannot_be_meant_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        Drift(**asked)
