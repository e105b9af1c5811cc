"""From plain order to a solved schedule, while training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import drift, of_kind, saved, small
from timeloom.cli.show_run import telling
from timeloom.config import merge
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import open_graph
from timeloom.plan.batch.windows import training_windows
from timeloom.plan.check import problems, run_dry
from timeloom.plan.schedule import apart, choose
from timeloom.plan.schedule.choose import scheduler_of
from timeloom.plan.schedule.schedule import Judged, schedule_of, solve
from timeloom.records import Scheduled, read
from timeloom.systems import PRESETS
from timeloom.train.inference import open_untrained
from timeloom.train.planning import plan_epoch
from timeloom.train.reopen import settings_of_run
from timeloom.train.runs import resume, train

REAL = ("real", "real_g", "real_l", "dygnex_g", "dygnex_l")


class Now:
    """A solver that is asked and answers in this process."""

    def __init__(self, question: apart.Question) -> None:
        self.question = question

    def poll(self) -> Judged:
        asked = self.question
        return solve(asked.problem, scheduler_of(asked.settings, epoch_s=1.0, seed=asked.seed))

    def close(self) -> None:
        """There is nothing to end."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph of drifting communities."""
    return drift(tmp_path_factory.mktemp("control") / "drift", num_snapshots=16)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve at once, so that it is known in which epoch the schedule comes."""
    monkeypatch.setattr("timeloom.plan.stages.Solver", Now)


def settings(**schedule: Any) -> dict[str, Any]:
    return small({
        "train": {"epochs": 6, "patience": 0, "save_seconds": 0.0, "keep": 100, "log_steps": True},
        "schedule": {"plain_epochs": 1, "profile_epochs": 2, **schedule},
    })  # fmt: skip


def scheduled(run: Path) -> list[Scheduled]:
    return [record for record in read(run) if isinstance(record, Scheduled)]


@pytest.mark.parametrize("name", REAL)
def test_the_schedule_comes_after_the_epochs_that_are_measured(
    graph: Path, tmp_path: Path, name: str, at_once: None
) -> None:
    train(graph, tmp_path / "run", settings(), system=name)
    chosen = settings_of_run(tmp_path / "run")
    assert chosen.schedule.scheduler == PRESETS[name].settings["schedule"]["scheduler"]
    (told,) = scheduled(tmp_path / "run")
    assert told.epoch == 3, "one epoch in plain order, two that are measured"
    units = training_windows(chosen.window, open_untrained(graph, chosen_of(chosen)).split.train_stop)
    assert sorted((first, last) for _, _, first, last, _ in told.units) == [(unit.first, unit.last) for unit in units]
    steps = of_kind(tmp_path / "run", "stepped")
    for epoch in range(6):
        count = sum(step["epoch"] == epoch for step in steps)
        assert count == (len(units) if epoch < 3 else len({place for place, *_ in told.units}))


def chosen_of(chosen: Any) -> dict[str, Any]:
    return {"window": {"length": chosen.window.length, "state": "zero", "stride": 1}}


def test_a_run_that_goes_on_after_its_schedule_came_ends_the_same(graph: Path, tmp_path: Path, at_once: None) -> None:
    train(graph, tmp_path / "run", settings(), system="real")
    losses = [record["loss"] for record in of_kind(tmp_path / "run", "stepped")]
    whole = saved(tmp_path / "run").tensors
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    # In the middle of the first epoch that goes by the schedule.
    _, name, *_ = (one for one in names if one.startswith("epoch-000003-step"))
    resume(tmp_path / "run", name=name)
    assert [record["loss"] for record in of_kind(tmp_path / "run", "stepped")] == losses
    assert all((saved(tmp_path / "run").tensors[key] == value).all() for key, value in whole.items())
    assert len(scheduled(tmp_path / "run")) == 1


def test_a_run_that_goes_on_before_its_schedule_came_measures_on(graph: Path, tmp_path: Path, at_once: None) -> None:
    train(graph, tmp_path / "run", settings(), system="real")
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    name = next(one for one in names if one.startswith("epoch-000002-step"))
    resume(tmp_path / "run", name=name)
    (told,) = scheduled(tmp_path / "run")
    # The epoch that was interrupted was not measured whole, so another one is.
    assert told.epoch in (3, 4)


def test_a_scheduled_epoch_has_every_window_once(graph: Path, tmp_path: Path) -> None:
    train(graph, tmp_path / "run", small({"train": {"epochs": 1}}), system="real")
    chosen = settings_of_run(tmp_path / "run")
    stop = open_untrained(graph, chosen_of(chosen)).split.train_stop
    units = training_windows(chosen.window, stop)
    schedule = schedule_of([[[0, 1], [2]], [list(range(3, len(units)))[:2]], [[n] for n in range(5, 7)],
                            *([[n]] for n in range(7, len(units)))], 2)  # fmt: skip
    for epoch in range(3):
        steps = run_dry(plan_epoch(chosen, stop, epoch=epoch, ranks=2, schedule=schedule))
        assert list(problems(steps, units)) == []
        assert all(set(step.units) == {0, 1} for step in steps)


def test_a_schedule_is_told_with_its_bound_and_with_who_found_it(
    graph: Path, tmp_path: Path, at_once: None, capsys: pytest.CaptureFixture[str]
) -> None:
    train(graph, tmp_path / "run", settings(), system="real")
    (told,) = scheduled(tmp_path / "run")
    assert told.by == "best"
    assert 0 < told.bound_s <= told.predicted_s
    assert told.solved_s > 0
    with telling(quiet=False, as_lines=False) as show:
        show(told)
    assert (
        f"a schedule by best from epoch 3 on: {told.predicted_s:.3g} s an epoch predicted, no schedule takes less than "
        f"{told.bound_s:.3g} s; found in {told.solved_s:.3g} s"
    ) in capsys.readouterr().err


def test_windows_that_go_through_a_pipeline_are_timed_and_scheduled(graph: Path, tmp_path: Path, at_once: None) -> None:
    """REAL's triple stream: what is copied, summed and multiplied overlaps, and windows are scheduled all the same."""
    train(graph, tmp_path / "run", merge(settings(), {"system": {"pipeline": True}}), system="real")
    (told,) = scheduled(tmp_path / "run")
    assert told.epoch == 3
    assert told.predicted_s > 0


def test_a_greedy_schedule_in_place_of_an_integer_programs_is_told(
    graph: Path, tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_TIMES_LIMIT", 1e-9)
    for name, by in (("real_l", "real_g"), ("dygnex_l", "dygnex_g")):
        train(graph, tmp_path / name, settings(), system=name)
        assert [told.by for told in scheduled(tmp_path / name)] == [by]


def test_neighbours_are_computed_together_from_the_beginning_where_that_is_asked_for(
    graph: Path, tmp_path: Path
) -> None:
    """REAL's type II without times: the same as two windows of one update."""
    train(graph, tmp_path / "pairs", settings(scheduler="pair_consecutive"), system="psg")
    train(graph, tmp_path / "groups", merge(settings(), {"window": {"groups": 2}}), system="psg")
    pairs, groups = (of_kind(tmp_path / name, "stepped") for name in ("pairs", "groups"))
    assert [step["loss"] for step in pairs] == [step["loss"] for step in groups]
    (started,) = of_kind(tmp_path / "pairs", "started")
    assert started["derived"]["updates an epoch"] == len([step for step in pairs if step["epoch"] == 0])
    train(graph, tmp_path / "alone", settings(), system="psg")
    assert len(of_kind(tmp_path / "alone", "stepped")) > 1.5 * len(pairs)


@pytest.mark.parametrize(("table", "system", "says"), [
    ({"window": {"groups": 2}}, "real", r"window.groups=2 does, too"),
    ({"train": {"protocol": "live"}}, "real", r"train.protocol=live.*schedule.scheduler=in_order"),
    ({"schedule": {"scheduler": "best"}}, "esdg", r"system.divide=time.*--system real"),
    ({"schedule": {"scheduler": "pair_consecutive"}}, "vertex", r"system.divide=nodes.*--system real"),
    ({"schedule": {"scheduler": "pair_consecutive"}, "window": {"state": "inherit"}}, "psg", "has no choice"),
])  # fmt: skip
def test_a_schedule_that_would_have_no_effect_is_refused(
    graph: Path, tmp_path: Path, table: dict[str, Any], system: str, says: str
) -> None:
    with pytest.raises(BadConfig, match=says):
        train(graph, tmp_path / "run", merge(small(), table), system=system)


def test_nothing_is_decided_where_the_order_is_fixed(graph: Path, tmp_path: Path) -> None:
    train(graph, tmp_path / "run", settings(), system="psg")
    assert scheduled(tmp_path / "run") == []
    assert saved(tmp_path / "run").state["control"] == {"schedule": None, "stages": None}


def test_a_solver_that_fails_ends_the_run_with_a_way_out(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart.sys, "executable", "/bin/false")
    with pytest.raises(Exception, match=r"solves the schedule ended with 1.*schedule.scheduler=in_order"):
        train(graph, tmp_path / "run", settings() | {"train": {**settings()["train"], "epochs": 200}}, system="real")


def test_windows_that_inherit_a_state_cannot_be_scheduled(graph: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"window.state=inherit"):
        train(graph, tmp_path / "run", {**settings(), "window": {"state": "inherit"}}, system="real")
    assert open_graph(graph)
