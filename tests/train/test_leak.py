"""T35: nothing known after a snapshot changes with what comes later, to the bit; and what peeks is found out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.graph.tiny import FeatureKind, LabelKind, TinyFeatures, TinyGraph, TinyLabels, tiny
from timeloom.graph.tasks import SplitSettings, TaskName, TaskSettings
from timeloom.kernels.front import Affine
from timeloom.nn.gcn_gru import GcnGru
from timeloom.nn.model import View
from timeloom.nn.models import MODELS
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.train.feed import Feed, Scales
from timeloom.train.goals.classes import ClassGoal
from timeloom.train.goals.edge_classes import EdgeClassGoal
from timeloom.train.goals.goal import Columns, Goal
from timeloom.train.goals.links import LinkGoal
from timeloom.train.goals.values import ValueGoal
from timeloom.train.leak import leaks
from timeloom.train.localise import WholeView
from timeloom.train.part_view import PartView
from timeloom.train.session import Session, open_session
from timeloom.train.settings import InputSettings, RunSettings, TrainSettings

State = Literal["inherit", "zero"]
TASKS: tuple[TaskName, ...] = ("degree", "signal", "classes", "links", "edge_classes")
GOALS: dict[TaskName, type[Goal]] = {
    "degree": ValueGoal, "signal": ValueGoal, "classes": ClassGoal, "links": LinkGoal, "edge_classes": EdgeClassGoal
}  # fmt: skip


def graph_of(
    task: TaskName, *, fixed: bool = False, features: FeatureKind = "none", num_nodes: int = 12, seed: int = 0
) -> TinyGraph:
    kinds: dict[str, LabelKind] = {"signal": "value", "classes": "class"}
    return tiny(
        seed, num_nodes=num_nodes, num_snapshots=10, weighted=task != "links",
        num_types=2 if task == "edge_classes" else 0, labels=kinds.get(task, "none"), fixed_labels=fixed,
        features=features,
    )  # fmt: skip


def run_of(
    task: TaskName, *, model: str = "gcn_gru", state: State = "inherit", graph: TinyGraph | None = None,
    horizon: int | None = None, lags: int | None = None, inputs: Any = "auto", residual: bool = True,
    split: SplitSettings | None = None, node_split: Any = "auto", seed: int = 0,
) -> Session:  # fmt: skip
    settings = RunSettings(
        graph="", model=ModelSettings(name=model, hidden=4, heads=2, span=3),
        task=TaskSettings(
            name=task, horizon=horizon, num_negatives=5, residual=residual, node_split=node_split,
            negatives=("random", "historical", "inductive"),
        ),
        window=WindowSettings(length=3, state=state), inputs=InputSettings(features=inputs, lags=lags),
        split=split or SplitSettings(train=0.5, val=0.25),
        train=TrainSettings(device="cpu", seed=seed, cache_bytes=1 << 20),
    )  # fmt: skip
    session = open_session(settings, graph_of(task) if graph is None else graph)
    _stir(session)
    return session


def _stir(session: Session) -> None:
    """Draw every parameter anew: an untrained bias that is 0 could hide what a model knows."""
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in session.predictor.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng))


# Honest runs


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_no_model_knows_the_future_in_any_task(model: str, task: TaskName) -> None:
    for state in ("inherit", "zero"):
        assert list(leaks(run_of(task, model=model, state=state))) == []


@pytest.mark.parametrize("horizon", [0, 1, 2, 3])
@pytest.mark.parametrize("task", TASKS)
def test_no_horizon_shows_the_future(task: TaskName, horizon: int) -> None:
    if horizon == 0 and task not in ("signal", "classes"):
        return
    lags = 2 if task in ("signal", "degree") else None
    for seed, features in ((1, "none"), (2, "stored"), (3, "log"), (4, "fixed")):
        graph = graph_of(task, features=features, seed=seed)  # type: ignore[arg-type]
        assert list(leaks(run_of(task, horizon=horizon, graph=graph, lags=lags, residual=seed % 2 == 0))) == []


@pytest.mark.parametrize("node_split", ["auto", "time", "nodes"])
@pytest.mark.parametrize("fixed", [True, False])
def test_neither_classes_that_stay_nor_classes_that_change_are_told_early(fixed: bool, node_split: str) -> None:
    for horizon, seed in ((0, 1), (1, 2), (2, 3)):
        graph = graph_of("classes", fixed=fixed, seed=seed)
        assert list(leaks(run_of("classes", horizon=horizon, graph=graph, node_split=node_split, seed=seed))) == []


def test_a_graph_that_has_grown_since_training_is_checked_as_it_was_split_then() -> None:
    graph = graph_of("degree")
    shorter = TinyGraph(graph.all[:7])
    trained = run_of("degree", graph=shorter)
    session = open_session(trained.settings, graph, num_snapshots=7, scales=trained.feed.scales)
    assert session.split == trained.split
    assert list(leaks(session)) == []


# Runs that peek


def found(session: Session) -> str:
    """Return everything that was found, and see that it is found again."""
    told = list(leaks(session))
    assert list(leaks(session)) == told
    return "\n".join(told)


@pytest.mark.parametrize(
    ("task", "horizon"),
    [("degree", 1), ("degree", 2), ("signal", 0), ("signal", 1), ("signal", 2), ("classes", 0), ("classes", 1)],
)
def test_the_label_to_be_predicted_among_the_inputs_is_found(
    task: TaskName, horizon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Feed.raw

    def peeks(self: Feed, t: int) -> NDArray[np.float32]:
        raw, later = honest(self, t).copy(), t + self._task.ahead
        if later < len(self.graph):
            raw[:, 0] += self.label(later)
        return raw

    monkeypatch.setattr(Feed, "raw", peeks)
    told = found(run_of(task, horizon=horizon))
    assert "the inputs of snapshot" in told
    assert "the predictions after snapshot" in told


@pytest.mark.parametrize("fixed", [True, False])
def test_the_class_of_nodes_that_are_not_for_training_among_the_inputs_is_found(
    fixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Feed.raw

    def peeks(self: Feed, t: int) -> NDArray[np.float32]:
        raw = honest(self, t).copy()
        # Classes of the past are known of nodes of training alone.
        raw[:, 0] += self.label(max(t - 1, 0))
        return raw

    monkeypatch.setattr(Feed, "raw", peeks)
    session = run_of("classes", graph=graph_of("classes", fixed=fixed), node_split="nodes")
    told = found(session)
    assert "change with the classes of nodes that are not for training" in told
    assert "what comes after" not in told


class Peeking(GcnGru):
    """A model that looks at the next snapshot."""

    coming: Tensor = torch.empty(0)

    def spatial(self, view: View, x_NF: Tensor) -> tuple[Tensor, tuple[Affine, ...]]:
        rows, maps = super().spatial(view, x_NF)
        return rows + self.coming[:, None], maps


@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_reads_the_next_snapshot_is_found(
    task: TaskName, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Feed.view

    def tells(self: Feed, t: int) -> WholeView | PartView:
        coming = self.graph.snapshot(min(t + 1, len(self.graph) - 1))
        Peeking.coming = torch.from_numpy(np.bincount(coming.targets, minlength=self.graph.num_nodes)).float()
        return honest(self, t)

    monkeypatch.setattr(Feed, "view", tells)
    session = run_of(task, state=state)
    session.model.__class__ = Peeking
    made = open_session

    def peeking_too(*given: Any, **named: Any) -> Session:
        other = made(*given, **named)
        other.model.__class__ = Peeking
        return other

    monkeypatch.setattr("timeloom.train.leak.open_session", peeking_too)
    assert "the predictions after snapshot" in found(session)


@pytest.mark.parametrize("task", TASKS)
def test_scales_of_all_snapshots_are_found(task: TaskName, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Feed.measure
    monkeypatch.setattr(Feed, "measure", lambda self, stop: honest(self, len(self.graph) - self._task.ahead))
    assert "the scales of inputs or targets change with what comes after" in found(run_of(task))


@pytest.mark.parametrize("field", ["target_mean", "target_deviation", "change_deviation", "mean_F", "deviation_F"])
def test_every_scale_is_compared(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Feed.measure

    def peeks(self: Feed, stop: int) -> Scales:
        later = honest(self, len(self.graph) - 1)
        self.scales = replace(honest(self, stop), **{field: getattr(later, field)})
        return self.scales

    monkeypatch.setattr(Feed, "measure", peeks)
    told = found(run_of("degree", inputs="log_degree"))
    assert "the scales of inputs or targets" in told
    # Scales are blamed alone: all else is compared under the same ones.
    assert told.count("change with what comes after") == told.count("the scales of inputs or targets")


@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize(
    ("task", "horizon"),
    [(task, horizon) for task in TASKS for horizon in (0, 1, 2) if horizon or task in ("signal", "classes")],
)
def test_baselines_that_look_one_snapshot_too_far_are_found(
    task: TaskName, horizon: int, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = GOALS[task].guesses

    def peeks(self: Goal, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        for t, told in honest(self, first + 1, last + 1):
            yield t - 1, told

    monkeypatch.setattr(GOALS[task], "guesses", peeks)
    told = found(run_of(task, horizon=horizon, state=state, graph=graph_of(task, seed=2)))
    assert "what persistence goes by after snapshot" in told
    assert "the predictions" not in told


def test_a_table_of_classes_that_asks_nodes_of_test_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ClassGoal.guesses

    def peeks(self: ClassGoal, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        for t, told in honest(self, first, last):
            yield t, {**told, "persistence": self._feed.label(0)}

    monkeypatch.setattr(ClassGoal, "guesses", peeks)
    told = found(run_of("classes", graph=graph_of("classes", fixed=True)))
    assert "what persistence goes by" in told
    assert "changes with the classes of nodes that are not for training" in told


def test_candidates_of_negatives_that_come_later_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def peeks(self: LinkGoal, t: int) -> NDArray[np.int64]:
        return np.unique(self._feed.snapshot(len(self._feed.graph) - 1).targets)

    monkeypatch.setattr(LinkGoal, "_candidates", peeks)
    assert "the scores of" in found(run_of("links"))


def valued(features: NDArray[np.float32], values: NDArray[np.float64]) -> TinyGraph:
    graph = graph_of("signal")
    graph.labels = TinyLabels("value", [], False, values)
    graph.features = TinyFeatures(features, graph, fixed=False, degrees=None)
    return graph


def drawn_values(seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(10, 12, 3)).astype(np.float32), rng.normal(size=(10, 12))


@pytest.mark.parametrize("horizon", [0, 1, 2])
def test_data_whose_features_are_their_labels_are_found(horizon: int) -> None:
    # As StarryGL's, whose label of a snapshot is made of its features.
    features, values = drawn_values()
    features[: 10 - horizon, :, 1] = values[horizon:]
    told = list(leaks(run_of("signal", horizon=horizon, graph=valued(features, values), lags=0)))
    assert told == [f"input 1 of a node is the very value that is to be predicted {horizon} snapshots ahead"]


def test_a_label_that_is_told_is_found_though_it_stood_still_for_a_while() -> None:
    features, values = drawn_values()
    values[1] = values[0]
    values[3] = np.nan
    features[:9, :, 2] = np.nan_to_num(values[1:])
    told = list(leaks(run_of("signal", graph=valued(features, values), lags=0)))
    assert told == ["input 2 of a node is the very value that is to be predicted 1 snapshots ahead"]


def test_a_value_that_returns_is_no_leak_though_a_lag_equals_it() -> None:
    values = np.tile(np.random.default_rng(0).normal(size=(2, 12)), (5, 1))
    # Where the first lag is not known nothing moves, so that all that moves equals it.
    values[1] = np.nan
    assert list(leaks(run_of("signal", graph=valued(drawn_values()[0], values), lags=2))) == []


def test_a_constant_is_no_leak_though_all_values_that_change_become_it() -> None:
    rng = np.random.default_rng(0)
    features = np.ones((10, 12, 1), np.float32)
    values = (np.arange(10)[:, None] >= rng.integers(1, 9, 12)).astype(np.float64)
    assert list(leaks(run_of("signal", graph=valued(features, values), lags=0))) == []


def test_the_last_known_value_among_the_features_is_no_leak() -> None:
    features, values = drawn_values()
    features[:, :, 1] = values
    assert list(leaks(run_of("signal", graph=valued(features, values), lags=0))) == []


def test_a_signal_that_never_moves_tells_nothing() -> None:
    features, values = drawn_values()
    values[:] = values[0]
    features[:, :, 0] = values
    assert list(leaks(run_of("signal", graph=valued(features, values), lags=0))) == []
