"""A split goes by the time of the label, tasks that make no sense are refused, and labels are what they say."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.graph.tiny import Edge, snapshot_of, tiny
from timeloom.errors import BadConfig
from timeloom.graph.tasks import (
    Part,
    SplitSettings,
    TaskSettings,
    degree_label,
    edge_classes_of,
    node_parts,
    split_by_time,
)

PARTS: tuple[Part, ...] = ("train", "val", "test")
SHARES = [(0.7, 0.15), (0.01, 0.01), (0.98, 0.01), (0.01, 0.98), (0.5, 0.25), (0.34, 0.33)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"horizon": -1}, r"task.horizon=-1 is no number of snapshots: give 0 or more"),
        ({"horizon": 1_000_001}, "task.horizon=1000001 is no number"),
        ({"name": "degree", "horizon": 0}, "horizon=0 with task.name=degree asks for what the model is shown"),
        ({"name": "links", "horizon": 0}, "task.name=links asks for what"),
        ({"name": "edge_classes", "horizon": 0}, "task.name=edge_classes asks for what"),
        ({"train_negatives": 0}, "task.train_negatives=0 is too small: give 1 or more"),
        ({"num_negatives": 0}, "task.num_negatives=0 is too small: give 1 or more"),
        ({"most_pairs": -1}, "task.most_pairs=-1 is too small: give 0 or more"),
        ({"negatives": ()}, r"task.negatives=\[\]: name each kind once"),
        ({"negatives": ("random", "random")}, r"task.negatives=\['random', 'random'\]: name each kind once"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        TaskSettings(**settings)


@pytest.mark.parametrize(
    ("train", "val"), [(0.0, 0.5), (1.0, 0.1), (0.5, 0.0), (0.5, 0.5), (0.9, 0.2), (-0.1, 0.5), (0.5, math.nan)]
)
def test_a_split_that_leaves_a_part_empty_is_refused(train: float, val: float) -> None:
    with pytest.raises(BadConfig, match=r"split.train=.* and split.val=.* leave nothing for the test"):
        SplitSettings(train=train, val=val)


def test_how_far_ahead_a_label_lies_follows_from_the_task() -> None:
    assert [TaskSettings(name=name).ahead for name in ("degree", "signal", "links", "edge_classes")] == [1, 1, 1, 1]
    assert TaskSettings(name="classes").ahead == 0
    assert TaskSettings(name="classes", horizon=2).ahead == 2
    assert TaskSettings(name="signal", horizon=0).ahead == 0


@pytest.mark.parametrize(("train", "val"), SHARES)
def test_every_part_has_a_label_and_parts_follow_each_other(train: float, val: float) -> None:
    settings = SplitSettings(train=train, val=val)
    for num_snapshots, horizon in product(range(3, 40), range(5)):
        if num_snapshots - horizon < 3:
            continue
        split = split_by_time(settings, num_snapshots, horizon)
        after = [list(range(*split.of(part))) for part in PARTS]
        assert all(after)
        # In the order of time, each snapshot that has a label once and no other.
        assert [t for part in after for t in part] == list(range(num_snapshots - horizon))
        assert split.horizon == horizon


def test_parts_are_as_large_as_asked_where_that_can_be() -> None:
    split = split_by_time(SplitSettings(train=0.7, val=0.15), 101, 1)
    assert [split.of(part) for part in PARTS] == [(0, 70), (70, 85), (85, 100)]


@pytest.mark.parametrize(("num_snapshots", "horizon", "count"), [(0, 0, 0), (2, 0, 2), (3, 1, 2), (4, 9, 0)])
def test_too_few_snapshots_to_split_are_refused(num_snapshots: int, horizon: int, count: int) -> None:
    said = f"needs 3 snapshots that have a label {horizon} ahead, .* {num_snapshots} snapshots have {count}: use a"
    with pytest.raises(BadConfig, match=said):
        split_by_time(SplitSettings(), num_snapshots, horizon)


def test_every_node_is_in_one_part_and_stays_there_when_nodes_join() -> None:
    settings = SplitSettings(train=0.5, val=0.3)
    before, after = node_parts(3_000, settings, seed=4), node_parts(4_000, settings, seed=4)
    assert (np.stack([after[part] for part in PARTS]).sum(0) == 1).all()
    for part, share in zip(PARTS, (0.5, 0.3, 0.2), strict=True):
        assert np.array_equal(before[part], after[part][:3_000])
        assert after[part].mean() == pytest.approx(share, abs=0.03)
    other = node_parts(4_000, settings, seed=5)
    assert not np.array_equal(other["train"], after["train"])
    assert {part: len(mask) for part, mask in node_parts(0, settings, seed=4).items()} == dict.fromkeys(PARTS, 0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("weighted", "num_types"), [(False, 0), (True, 0), (False, 3), (True, 3)])
def test_the_label_of_a_degree_counts_weights_by_their_size(seed: int, weighted: bool, num_types: int) -> None:
    graph = tiny(seed, weighted=weighted, num_types=num_types)
    for t in range(len(graph)):
        degrees = [0.0] * graph.num_nodes
        for edge in graph.edges(t):
            degrees[edge.target] += abs(edge.weight)
        label = degree_label(graph.snapshot(t))
        assert label.dtype == np.float64
        assert label.tolist() == pytest.approx([math.log1p(degree) for degree in degrees], rel=1e-14)


def test_a_type_and_a_sign_are_the_classes_of_edges() -> None:
    edges = [Edge(0, 1, 2, -1.5), Edge(1, 0, 1, 3.0), Edge(1, 0, 0, -0.5), Edge(1, 1, 0, 1.0)]
    snapshot = snapshot_of(0, 3, edges, num_types=3, alive=set())
    pairs = list(zip(snapshot.sources.tolist(), snapshot.targets.tolist(), snapshot.types.tolist(), strict=True))
    assert edge_classes_of(snapshot, "type").tolist() == [kind for _, _, kind in pairs]
    negative = {(edge.source, edge.target, edge.kind) for edge in edges if edge.weight < 0}
    assert edge_classes_of(snapshot, "sign").tolist() == [int(pair in negative) for pair in pairs]
    bare = snapshot_of(0, 3, [Edge(0, 1, 0, 1.0)], alive=set())
    assert edge_classes_of(bare, "sign").tolist() == edge_classes_of(bare, "type").tolist() == [0]
