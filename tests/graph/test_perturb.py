"""A graph with another future is the true one up to a snapshot, and another in everything from there on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.graph.tiny import FeatureKind, LabelKind, TinyGraph, TinyLabels, tiny
from timeloom.graph.dynamic import open_graph
from timeloom.graph.features import degree_rows
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.ingest.attributes import AttributeOptions
from timeloom.graph.perturb import Perturbed
from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import GraphLike


def same(one: Snapshot, other: Snapshot) -> bool:
    """Say whether two snapshots agree in everything that can be read of them."""
    return (
        one.t == other.t
        and np.array_equal(one.keys, other.keys)
        and np.array_equal(one.weights, other.weights)
        and np.array_equal(one.alive, other.alive)
    )


def drawn(seed: int, *, labels: LabelKind = "value", features: FeatureKind = "stored", num_types: int = 0) -> TinyGraph:
    return tiny(
        seed, num_nodes=12, num_snapshots=8, weighted=True, labels=labels, features=features, num_types=num_types
    )


@pytest.mark.parametrize("num_types", [0, 3])
@pytest.mark.parametrize("after", [0, 3, 6])
def test_the_past_is_true_and_the_future_is_not(after: int, num_types: int) -> None:
    for labels in ("value", "class"):
        true = drawn(1, labels=labels, num_types=num_types)
        other = Perturbed(true, after, seed=5)
        for t in range(len(true)):
            is_past = t <= after
            assert same(other.snapshot(t), true.snapshot(t)) == is_past
            assert np.array_equal(other.snapshot(t).alive, true.snapshot(t).alive) == is_past
            assert np.array_equal(other.features.at(t), true.features.at(t)) == is_past
            assert np.array_equal(other.labels.at(t), true.labels.at(t), equal_nan=labels == "value") == is_past


def test_what_never_changes_has_no_other_future() -> None:
    true = tiny(1, labels="value", fixed_labels=True, features="fixed")
    other = Perturbed(true, 2, seed=5)
    assert np.array_equal(other.features.at(7), true.features.at(0))
    assert np.array_equal(other.labels.at(7), true.labels.at(0), equal_nan=True)
    assert other.features.fixed
    assert other.labels.fixed


def test_labels_can_be_noise_before_edges_are() -> None:
    true = drawn(1, labels="class")
    other = Perturbed(true, 4, seed=5, labels_after=3)
    assert [np.array_equal(other.labels.at(t), true.labels.at(t)) for t in (3, 4, 5)] == [True, False, False]
    assert [same(other.snapshot(t), true.snapshot(t)) for t in (3, 4, 5)] == [True, True, False]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("labels", ["class", "value"])
def test_labels_of_hidden_nodes_are_noise_at_all_times(labels: LabelKind, fixed: bool) -> None:
    true = tiny(1, num_nodes=30, labels=labels, fixed_labels=fixed)
    hidden = np.arange(30) % 2 == 0
    other = Perturbed(true, 100, seed=5, hidden_N=hidden)
    for t in range(len(true)):
        mine, theirs = true.labels.at(t), other.labels.at(t)
        assert np.array_equal(mine[~hidden], theirs[~hidden], equal_nan=labels == "value")
        assert not np.array_equal(mine[hidden], theirs[hidden], equal_nan=labels == "value")
        assert mine.dtype == theirs.dtype
        assert same(other.snapshot(t), true.snapshot(t))
    assert np.array_equal(other.labels.at(2), other.labels.at(6), equal_nan=labels == "value") == fixed
    bare = tiny(1, num_nodes=30)
    assert np.array_equal(Perturbed(bare, 0, seed=5, hidden_N=hidden).labels.at(3), bare.labels.at(3))


@pytest.mark.parametrize("kind", ["raw", "log"])
def test_features_that_are_degrees_follow_the_other_edges(kind: FeatureKind) -> None:
    true = drawn(2, features=kind)
    other = Perturbed(true, 3, seed=5)
    for t in range(len(true)):
        assert np.array_equal(other.features.at(t), degree_rows(other.snapshot(t), log=kind == "log"))
    assert not np.array_equal(other.features.at(5), true.features.at(5))


@pytest.mark.parametrize("num_types", [0, 3])
def test_the_other_future_is_a_graph_like_any(num_types: int) -> None:
    true = drawn(3, num_types=num_types)
    other: GraphLike = Perturbed(true, 1, seed=5)
    assert (len(other), other.num_nodes, other.name) == (len(true), true.num_nodes, true.name)
    assert other.num_edge_types == num_types
    assert other.ids is true.ids
    for t in range(len(other)):
        now, was = other.snapshot(t), true.snapshot(t)
        assert (now.keys[1:] > now.keys[:-1]).all()
        assert len(now.weights) == len(now)
        assert now.alive.shape == (true.num_nodes,)
        assert 0 <= len(now) <= len(was) + 1
        assert not len(now) or max(now.sources.max(), now.targets.max()) < true.num_nodes
        assert not len(now) or now.types.max() < max(num_types, 1)
        assert other.features.at(t).shape == true.features.at(t).shape
        assert other.features.at(t).dtype == np.float32
        assert other.labels.at(t).dtype == true.labels.at(t).dtype
    assert (other.labels.kind, other.labels.classes) == (true.labels.kind, true.labels.classes)
    assert other.features.num_features == true.features.num_features


def test_a_seed_settles_the_future() -> None:
    true = drawn(4)
    one, again, other = (Perturbed(true, 1, seed=seed) for seed in (5, 5, 6))
    assert same(one.snapshot(4), again.snapshot(4))
    assert same(one.snapshot(4), one.snapshot(4))
    assert np.array_equal(one.labels.at(4), again.labels.at(4), equal_nan=True)
    assert not same(one.snapshot(4), other.snapshot(4))
    assert not same(one.snapshot(4), one.snapshot(5))


def test_labels_of_which_none_is_known_and_graphs_without_labels_are_taken() -> None:
    true = drawn(5)
    true.labels = TinyLabels("value", [], False, np.full((len(true), true.num_nodes), np.nan))
    assert np.isfinite(Perturbed(true, 1, seed=0).labels.at(5)).all()
    bare = Perturbed(drawn(5, labels="none", features="none"), 1, seed=0)
    assert bare.labels.at(5).tolist() == [-1] * 12
    assert bare.features.at(5).shape == (12, 0)


def test_a_graph_on_disk_gets_another_future(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {"source": rng.integers(0, 9, 80), "target": rng.integers(0, 9, 80), "time": np.arange(80) % 8}
    features = AttributeOptions(features="log-degree")
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given"), attributes=features, keep_self_loops=True))
    true = open_graph(tmp_path / "g")
    other = Perturbed(true, 3, seed=1)
    assert [same(other.snapshot(t), true.snapshot(t)) for t in range(8)] == [True] * 4 + [False] * 4
    assert np.array_equal(other.features.at(6), degree_rows(other.snapshot(6), log=True))
