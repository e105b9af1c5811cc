"""What is no number stops a run, on all ranks in the same step, and is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.train.divided_runs import EXACT as EXACT_RUN
from tests.train.divided_runs import take_steps
from tests.train.small_runs import drift, small
from timeloom.config import build, merge
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import Diverged
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import AttributeOptions, Columns, Ingest, Reading, Windows, ingest
from timeloom.graph.tasks import degree_label
from timeloom.systems import preset_of
from timeloom.train.faults import Faults, named
from timeloom.train.hybrid.loop import train_apart
from timeloom.train.runs import resume, train
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer

EXACT = small({"window": {"length": 3}, "train": {"epochs": 1}})


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("graphs") / "drift")


def heavy(path: Path, weight: float, at: int) -> Path:
    """Make a graph of ten snapshots in which two edges of a node at one time have an extreme weight."""
    rows = [(u, (u + 1 + t) % 9, t, weight if (u, t) == (3, at) else 1.0) for t in range(10) for u in range(9)]
    rows.append((3, 7, at, weight))
    table = {name: [row[place] for row in rows] for place, name in enumerate(("source", "target", "time", "weight"))}
    reading = Reading(columns=Columns(source="source", target="target", time="time", weight="weight"))
    ingest(table, path, Ingest(windows=Windows(kind="given"), reading=reading))
    return path


def test_a_degree_that_no_single_precision_number_holds_is_named(tmp_path: Path) -> None:
    graph = heavy(tmp_path / "g", 3e38, at=1)
    with pytest.raises(
        Diverged,
        match=r"the start, after step 0 \(epoch 0\): the features \(degree\) of snapshot 1 held inf \(of row \d",
    ):
        train(graph, tmp_path / "run", small({"inputs": {"features": "degree"}}))


def test_a_weight_that_no_single_precision_number_holds_is_named(tmp_path: Path) -> None:
    graph = heavy(tmp_path / "g", 1e200, at=1)
    with pytest.raises(
        Diverged, match=r"the start, after step 0 .*the weights of snapshot 1 held 1e\+200 \(of the edge 3 -> 5\)"
    ):
        train(graph, tmp_path / "run", small())


def test_values_of_which_no_deviation_can_be_told_are_named(tmp_path: Path) -> None:
    graph = heavy(tmp_path / "g", 1e200, at=1)
    settings = small({"train": {"precision": "float64"}, "inputs": {"features": "degree"}, "task": {"residual": False}})
    with pytest.raises(
        Diverged, match=r"the start, after step 0 \(epoch 0\): the features \(degree\) of snapshot 1 held inf"
    ):
        train(graph, tmp_path / "run", settings)
    signals = np.ones((10, 9))
    signals[2, 3] = 1e200
    np.savez(tmp_path / "s.npz", signals=signals)
    rows = [(u, (u + 1) % 9, t) for t in range(10) for u in range(9)]
    table = {name: [row[place] for row in rows] for place, name in enumerate(("source", "target", "time"))}
    attributes = AttributeOptions(labels=f"values:{tmp_path}/s.npz#signals")
    ingest(table, tmp_path / "s", Ingest(windows=Windows(kind="given"), attributes=attributes))
    with pytest.raises(Diverged, match=r"the start, .*the last known labels of snapshot \d held inf"):
        train(tmp_path / "s", tmp_path / "run", small(), task="signal", overwrite=True)
    without = small({"inputs": {"lags": 0, "features": "log_degree"}})
    with pytest.raises(Diverged, match=r"the start, .*the mean or the deviation of .* was no number"):
        train(tmp_path / "s", tmp_path / "run", without, task="signal", overwrite=True)


@pytest.mark.parametrize(
    ("number", "unknown", "stops"), [(np.nan, False, True), (np.inf, False, True), (-np.inf, True, True),
                                     (np.nan, True, False), (3.0, False, False)],
)  # fmt: skip
def test_only_what_is_no_number_is_a_fault(number: float, unknown: bool, stops: bool) -> None:
    faults, rows = Faults(), np.zeros((4, 2))
    rows[2, 1] = number
    faults.look("the features", 7, rows, unknown=unknown)
    assert bool(faults.first) == stops
    assert not stops or faults.first.startswith(f"the features of snapshot 7 held {number} (of row 2")
    faults.look("the labels", 8, np.array([np.nan]))
    assert ("snapshot 7" in faults.first) == stops, "the first one is told"


def spoil(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Have the graph hold what is no number."""
    snapshot = DynamicGraph.snapshot
    at = 9 if what == "test" else 4

    def spoilt(graph: DynamicGraph, t: int) -> Any:
        found = snapshot(graph, t)
        if t != at:
            return found
        weights = found.weights.copy()
        weights[5] = np.nan
        return dataclasses.replace(found, stored_weights=weights)

    def spoilt_label(facts: Any) -> Any:
        label = degree_label(facts)
        if facts.t == at:
            label[3] = np.inf
        return label

    if what == "labels":
        monkeypatch.setattr("timeloom.train.feed.degree_label", spoilt_label)
    else:
        monkeypatch.setattr(DynamicGraph, "snapshot", spoilt)


@pytest.mark.parametrize(("what", "sentence"), [
    ("labels", r"the start, after step 0 .*the labels of snapshot 4 held inf \(of row 3"),
    ("weights", r"the start, after step 0 .*the weights of snapshot 4 held nan \(of the edge \d+ -> \d+\)"),
    ("test", r"the test, after step 2 .*the weights of snapshot 9 held nan"),
])  # fmt: skip
def test_an_input_that_is_no_number_is_named(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, sentence: str
) -> None:
    spoil(monkeypatch, what)
    with pytest.raises(Diverged, match=sentence) as told:
        train(drifting, tmp_path / "run", EXACT)
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    assert resume(tmp_path / "run").best_epoch >= 0, "with a good graph it goes on"


def test_a_parameter_and_a_gradient_are_named() -> None:
    model = nn.Linear(2, 3)
    assert named(Faults(), model) == ""
    model.weight.grad = model.weight.detach() * float("nan")
    assert named(Faults(), model) == "the gradient of weight was no number"
    model.bias.data[1] = float("inf")
    assert named(Faults(), model) == "bias was no number"
    faults = Faults()
    faults.look("x", 0, np.array([np.nan]))
    assert named(faults, model) == faults.first


@pytest.mark.parametrize("system", ["psg", "esdg", "vertex", "dynahb"])
def test_what_one_rank_finds_ends_all_in_the_same_step_with_the_same_words(drifting: Path, system: str) -> None:
    own = {"train": {"spans": 0}, "window": {"length": 2}}
    settings = build(RunSettings, merge(preset_of(system).settings, EXACT_RUN, own))
    graph, told = open_graph(drifting), list[tuple[int, str]]()

    def run(world: World) -> None:
        trainer = Trainer(open_session(settings, graph, world=world), None)
        if system != "dynahb":
            take_steps(trainer, 1)
        else:
            # Found while a round goes on, and not before it.
            trainer.refuse_faults = lambda where: None  # type: ignore[method-assign]
        if world.rank == 1:
            trainer.session.feed.faults.note("the number 7")
        with pytest.raises(Diverged) as found:
            _ = list(train_apart(trainer)) if system == "dynahb" else take_steps(trainer, 5)
        told.append((trainer.progress.step, str(found.value)))
        trainer.close()

    threads.run(2, run)
    assert len(set(told)) == 1
    assert "on rank 1 the number 7 was no number" in told[0][1]
