"""Two windows at a time on each rank, one's structure beside the other's time, learn what one process learns (BLAD)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.test_systems import alone, assert_equal, graph, settings_of, together  # noqa: F401
from timeloom.graph.dynamic import open_graph
from timeloom.nn.models import MODELS
from timeloom.plan.batch.windows import training_windows
from timeloom.plan.types import Step
from timeloom.train.goals.goal import Draw
from timeloom.train.session import open_session
from timeloom.train.trainer import Trainer
from timeloom.train.walk import Walker


def stop_of(settings: Any) -> int:
    return open_session(settings, open_graph(settings.graph)).split.train_stop


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_blad_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:  # noqa: F811
    settings = settings_of(graph, "blad", {"model": {"name": model}})
    one = settings_of(graph, "psg", {"model": {"name": model}, "window": {"groups": 2}})
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(one, ranks, stop))


@pytest.mark.parametrize("variant", [
    {"model": {"layers": 2}}, {"model": {"layers": 3, "name": "dcrnn"}}, {"window": {"groups": 3}},
    {"window": {"groups": 1}}, {"window": {"groups": 5}, "model": {"layers": 2}}, {"reuse": {"mode": "versions"}},
    {"window": {"targets": "last"}, "model": {"name": "evolvegcn_o", "layers": 2}}, {"task": {"name": "links"}},
])  # fmt: skip
def test_a_pipeline_is_exact_whatever_the_windows(graph: Path, variant: dict[str, Any]) -> None:  # noqa: F811
    settings = settings_of(graph, "blad", variant)
    one = settings_of(graph, "psg", {"window": {"groups": 2}}, variant)
    stop = stop_of(settings)
    assert_equal(together(settings, 2, stop), alone(one, 2, stop))


def test_a_pipeline_also_takes_windows_that_follow_each_other(graph: Path) -> None:  # noqa: F811
    follow = {"window": {"state": "inherit", "groups": 1, "stride": 0}}
    settings, one = settings_of(graph, "blad", follow), settings_of(graph, "psg", follow)
    stop = stop_of(settings)
    assert_equal([alone(settings, 1, stop)], alone(one, 1, stop))


def test_one_window_is_encoded_while_another_remembers(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The first window's memory waits for the second one's structure to begin: one thread alone would never end."""
    begun = [threading.Event(), threading.Event()]
    encode, remember = Walker.encode, Walker.remember
    lanes: dict[str, set[str]] = {"encode": set(), "remember": set()}

    def encoding(self: Walker, *given: Any, **named: Any) -> Any:
        begun[begun[0].is_set()].set()
        lanes["encode"].add(threading.current_thread().name)
        return encode(self, *given, **named)

    def remembering(self: Walker, *given: Any, **named: Any) -> Any:
        assert begun[1].wait(20.0), "the second window's structure did not begin"
        lanes["remember"].add(threading.current_thread().name)
        return remember(self, *given, **named)

    monkeypatch.setattr(Walker, "encode", encoding)
    monkeypatch.setattr(Walker, "remember", remembering)
    settings = settings_of(graph, "blad")
    session = open_session(settings, open_graph(graph))
    units = tuple(training_windows(settings.window, session.split.train_stop)[:2])
    Trainer(session, None).step(Step(units={0: units}, ends_epoch=True), Draw(seed=0, epoch=0))
    assert lanes == {"encode": {"structure lane_0"}, "remember": {"time lane_0"}}


def test_a_failure_on_a_thread_is_raised_and_leaves_no_thread(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def failing(self: Walker, *given: Any, **named: Any) -> Any:
        raise ZeroDivisionError("the third stage")

    monkeypatch.setattr(Walker, "remember", failing)
    settings = settings_of(graph, "blad")
    session = open_session(settings, open_graph(graph))
    units = tuple(training_windows(settings.window, session.split.train_stop)[:2])
    with pytest.raises(ZeroDivisionError, match="the third stage"):
        Trainer(session, None).step(Step(units={0: units}, ends_epoch=True), Draw(seed=0, epoch=0))
    assert not [one for one in threading.enumerate() if "lane" in one.name]


def test_two_runs_of_a_pipeline_are_equal_to_the_bit(graph: Path) -> None:  # noqa: F811
    settings = settings_of(graph, "blad", {"model": {"layers": 2}, "train": {"precision": "float32"}})
    stop = stop_of(settings)
    first, second = (together(settings, 2, stop)[0] for _ in range(2))
    assert first.losses == second.losses
    assert all(torch.equal(value, second.parameters[name]) for name, value in first.parameters.items())
