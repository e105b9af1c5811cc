"""A few targets of the test are told one by one: which ones depends on neither ranks nor systems, nor on how good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import settings_of
from tests.train.small_runs import drift, of_kind, small
from timeloom.config import build, merge
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.graph.dynamic import open_graph
from timeloom.graph.tasks import GraphLike
from timeloom.records import Predicted
from timeloom.systems import preset_of
from timeloom.train.evaluate import MOST_SAMPLED, evaluate_baselines, marks_of, sampled
from timeloom.train.goals.goal import Marks
from timeloom.train.goals.sample import Sample
from timeloom.train.runs import train
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.workers import make_worker

TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "degree": ({}, "value"),
    "signal": ({"horizon": 2}, "value"),
    "classes": ({}, "class"),
    "links": ({"num_negatives": 3}, "probability"),
    "edge_classes": ({}, "class"),
}


def graph_for(task: str) -> TinyGraph:
    labels: Any = {"signal": "value", "classes": "class"}.get(task, "none")
    return tiny(3, num_nodes=11, num_snapshots=14, weighted=True, labels=labels)


def told(settings: RunSettings, graph: GraphLike, world: World | None = None, most: int = MOST_SAMPLED) -> Predicted:
    """Return what an untrained model predicts of the test."""
    session = open_session(settings, graph, world=world)
    evaluate_baselines(session, "test")
    (record,) = sampled(session, marks_of(make_worker(session), "test", most_sampled=most), "test")
    return record


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("system", ["vertex", "psg"])
def test_ranks_together_tell_what_one_process_tells(task: str, system: str) -> None:
    changes, form = TASKS[task]
    tables = ({"task": {"name": task, **changes}}, {"system": {"partition": {"by": "hash"}}})
    settings, graph = settings_of(*tables), graph_for(task)
    if system == "psg":
        shared = {name: part for name, part in preset_of("psg").settings.items() if name != "system"}
        settings = settings_of(*tables, shared, {"system": {"name": "psg", "divide": "windows"}})
    wanted = told(settings, graph, most=40)
    assert wanted.form == form
    assert 0 < len(wanted.truth) <= 40
    for found in threads.run(3, lambda world: told(settings, graph, world, 40), check=True):
        assert (found.what, found.form, found.classes, found.truth) == (
            wanted.what, wanted.form, wanted.classes, wanted.truth,
        )  # fmt: skip
        np.testing.assert_allclose(found.predicted, wanted.predicted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("system", ["dynahb", "distdy", "flare"])
def test_other_systems_tell_the_same_targets(system: str, tmp_path: Path) -> None:
    graph = open_graph(drift(tmp_path / "drift"))
    alone = {"task": {"name": "degree"}, "model": {"hidden": 4}, "graph": "g"}
    alone = merge(alone, {"train": {"threads": 1, "device": "cpu"}})
    wanted = told(build(RunSettings, alone), graph, most=30)
    settings = build(RunSettings, merge(preset_of(system).settings, alone))
    for found in threads.run(2, lambda world: told(settings, graph, world, 30), check=True):
        assert found.truth == wanted.truth


def test_what_is_told_is_what_was_scored() -> None:
    settings, graph = settings_of({"task": {"name": "degree"}}), graph_for("degree")
    session = open_session(settings, graph)
    evaluate_baselines(session, "test")
    marks = marks_of(make_worker(session), "test", most_sampled=10_000)
    (record,) = sampled(session, marks, "test")
    errors = np.array(record.predicted) - np.array(record.truth)
    assert np.square(errors).mean() == pytest.approx(marks.means()["mse"], rel=1e-4)
    assert len(errors) == marks.tally.sums()["mse"][1], "all targets were asked for"


def test_a_link_has_a_probability_and_half_of_the_pairs_are_linked() -> None:
    record = told(settings_of({"task": {"name": "links", "num_negatives": 3}}), graph_for("links"), most=10_000)
    assert set(record.truth) == {0.0, 1.0}
    assert sum(record.truth) == len(record.truth) / 2
    assert all(0 < share < 1 for share in record.predicted)
    assert record.classes == ("not linked", "linked")


def test_a_sample_of_samples_is_the_sample_of_all() -> None:
    rng, whole, parts = np.random.default_rng(0), Sample(50), Sample(50)
    for t in range(6):
        nodes, truth = np.arange(100), rng.normal(size=100)
        whole.add(t, nodes, truth, truth + 1)
        for half in (slice(0, 37), slice(37, 100)):
            part = Sample(50)
            part.add(t, nodes[half], truth[half], truth[half] + 1)
            parts.take_in(part.as_json())
    assert parts.as_json() == whole.as_json()
    assert len(whole.truth) == 50
    assert whole.predicted == [value + 1 for value in whole.truth]


def test_every_snapshot_and_every_target_is_as_likely() -> None:
    """Of 200 snapshots with 100 targets each a tenth is drawn: chi-square of snapshots and of targets."""
    sample = Sample(2000)
    for t in range(200):
        sample.add(t, np.arange(100), np.full(100, t), np.arange(100))
    for values, count in ((sample.truth, 200), (sample.predicted, 100)):
        found = np.bincount(np.array(values, np.int64), minlength=count)
        wanted = 2000 / count
        assert np.square(found - wanted).sum() / wanted < count + 5 * (2 * count) ** 0.5


def test_nothing_is_kept_where_nothing_is_asked_for() -> None:
    marks = Marks()
    marks.sample.add(0, np.arange(5), np.ones(5), np.ones(5))
    assert marks.as_json()["sample"] == []


def test_runs_tell_a_bounded_sample_of_the_test(tmp_path: Path) -> None:
    graph = drift(tmp_path / "drift", num_nodes=900, num_edges=3000)
    train(graph, tmp_path / "run", small({"train": {"epochs": 1}}))
    (record,) = of_kind(tmp_path / "run", "predicted")
    assert record["split"] == "test"
    assert len(record["truth"]) == len(record["predicted"]) == MOST_SAMPLED


def test_live_runs_tell_a_sample_of_the_test_too(tmp_path: Path) -> None:
    graph = drift(tmp_path / "drift", num_nodes=60, num_edges=200)
    settings = small({"train": {"protocol": "live"}, "live": {"steps": 1}})
    train(graph, tmp_path / "run", settings)
    (record,) = of_kind(tmp_path / "run", "predicted")
    tested = len(of_kind(tmp_path / "run", "graph_facts")[0]["edges"]) - 1
    assert 20 <= len(record["truth"]) <= 20 * tested
