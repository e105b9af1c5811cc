"""A run goes from plain order over profiling to a schedule, and never waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import numpy as np
import psutil
import pytest

from tests.plan.schedule.problems import windows
from timeloom.errors import BadConfig, BadRun, TimeloomError
from timeloom.plan.reuse import GroupTimes
from timeloom.plan.schedule.apart import Question, Solver
from timeloom.plan.schedule.choose import SchedulerName, ScheduleSettings, scheduler_of
from timeloom.plan.schedule.greedy import dygnex_g, real_g
from timeloom.plan.schedule.schedule import epoch_seconds, loads_of, problem_of
from timeloom.plan.stages import Solved, Stages, speeds_of, told_apart, typical

COUNT = 24
RANKS = np.arange(COUNT) % 2
PREDICTED = GroupTimes(np.ones(COUNT), np.ones(COUNT) / 2, np.full((COUNT, 1), 0.2))


def stages(scheduler: SchedulerName = "real_g", *, profile: int = 2) -> Stages:
    settings = ScheduleSettings(scheduler=scheduler, plain_epochs=1, profile_epochs=profile)
    return Stages(settings, PREDICTED, 2, alpha_s=0.0, seed=0)


def until_solved(asked: Stages, seconds: np.ndarray) -> Solved:
    for _ in range(600):
        if (found := asked.epoch_ended(seconds, RANKS, 1.0)) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError("no schedule after half a minute")


def poll_until_told(solver: Solver) -> None:
    for _ in range(600):
        assert solver.poll() is None
        time.sleep(0.05)


def test_stages_follow_each_other_and_end_with_a_schedule_made_of_measured_times() -> None:
    """T9: the steps of stages I and II are those of plain order; only the outcome of stage III changes them."""
    asked = stages()
    took = np.linspace(1.0, 3.0, COUNT)
    seen = []
    for _ in range(3):
        seen.append(asked.stage)
        assert asked.epoch_ended(took, RANKS, 1.0) is None, "the solver has only just begun"
    assert seen == ["plain", "profile", "profile"]
    assert asked.stage == "solve"
    found = until_solved(asked, took * 100)
    problem = asked.problem()
    assert problem.seconds_K == pytest.approx(took), "what is measured while it solves does not count"
    assert found.schedule == real_g(problem)
    assert found.predicted_s == pytest.approx(epoch_seconds(found.schedule, problem))
    assert found.bound_s <= found.predicted_s
    assert asked.epoch_ended(took, RANKS, 1.0) is None, "a schedule is told once"
    assert asked.state()["solved"]
    assert json.loads(json.dumps(found.as_json()))["steps"] == found.schedule.as_json()


def test_asking_never_waits() -> None:
    asked = stages("best", profile=1)
    asked.epoch_ended(np.ones(COUNT), RANKS, 60.0)
    began = time.perf_counter()
    assert asked.epoch_ended(np.ones(COUNT), RANKS, 60.0) is None
    assert asked.epoch_ended(np.ones(COUNT), RANKS, 60.0) is None
    assert time.perf_counter() - began < 0.5, "starting Python alone takes longer than this to import the solver"
    asked.close()
    asked.close()


def test_outliers_do_not_count() -> None:
    epochs = np.array([[1.0, 2.0], [1.02, 2.0], [9.0, 2.0], [0.98, 2.05], [1.0, 2.0]])
    assert typical(epochs) == pytest.approx([1.0, 2.01])
    assert typical(epochs[:1]).tolist() == [1.0, 2.0]


def test_a_resumed_run_goes_on_with_what_was_measured() -> None:
    before = stages()
    for _ in range(2):
        before.epoch_ended(np.full(COUNT, 2.0), RANKS, 1.0)
    after = stages()
    after.restore(json.loads(json.dumps(before.state())))
    assert after.stage == before.stage == "profile"
    after.epoch_ended(np.full(COUNT, 2.0), RANKS, 1.0)
    assert len(until_solved(after, np.ones(COUNT)).schedule.steps) > 1
    other = GroupTimes(np.ones(3), np.ones(3), np.zeros((3, 0)))
    with pytest.raises(BadRun, match="times of 24 groups, but this run has 3"):
        Stages(ScheduleSettings(), other, 1, alpha_s=0.0, seed=0).restore(before.state())


def test_a_solver_that_was_at_work_when_a_run_stopped_begins_again() -> None:
    before = stages()
    for _ in range(3):
        before.epoch_ended(np.ones(COUNT), RANKS, 1.0)
    before.close()
    after = stages()
    after.restore(before.state())
    assert after.stage == "solve"
    assert len(until_solved(after, np.ones(COUNT)).schedule.steps) > 1


@pytest.mark.parametrize("name", ["in_order", "pair_consecutive"])
def test_schedules_that_need_no_times_are_there_from_the_beginning(name: SchedulerName) -> None:
    asked = stages(name)
    assert asked.stage == "scheduled"
    assert asked.epoch_ended(np.ones(COUNT), RANKS, 1.0) is None


@pytest.mark.parametrize("name", ["best", "real_l", "real_g", "dygnex_l", "dygnex_g", "pair_consecutive", "in_order"])
def test_every_scheduler_can_be_asked_for(name: SchedulerName) -> None:
    problem = windows("growing", 6, 2)
    found = scheduler_of(ScheduleSettings(scheduler=name, search_s=0.05), epoch_s=1.0, seed=0)(problem)
    assert problem_of(found, problem) is None


def test_an_integer_program_that_is_too_slow_gives_way_to_its_greedy() -> None:
    problem = windows("growing", 40, 4)
    for name, greedy in (("real_l", real_g), ("dygnex_l", dygnex_g)):
        chosen: SchedulerName = "real_l" if name == "real_l" else "dygnex_l"
        assert scheduler_of(ScheduleSettings(scheduler=chosen), epoch_s=0.01, seed=0)(problem) == greedy(problem)


def test_a_solver_that_fails_says_so() -> None:
    problem = windows("growing", 6, 2)
    broken = ScheduleSettings(scheduler="real_g")
    object.__setattr__(broken, "limit", 0)
    solver = Solver(Question(problem=problem, settings=broken, epoch_s=1.0, seed=0))
    with pytest.raises(TimeloomError, match=r"solves the schedule ended with 1.*schedule.limit=0.*in_order"):
        poll_until_told(solver)
    solver.close()


def test_a_solver_ends_with_the_process_that_asked() -> None:
    """A rank that is killed must not leave a solver at work for as long as two of its epochs take."""
    settings = ScheduleSettings(scheduler="best", search_s=100.0)
    child = os.fork()
    if child == 0:
        Solver(Question(problem=windows("growing", 60, 4), settings=settings, epoch_s=1000.0, seed=0))
        time.sleep(100)
        os._exit(0)
    while not (started := psutil.Process(child).children()):
        time.sleep(0.01)
    (solver,) = started
    try:
        until = time.monotonic() + 60
        while solver.nice() == 0:
            assert time.monotonic() < until, "it does not begin"
            time.sleep(0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert psutil.wait_procs([solver], timeout=10)[1] == []
    finally:
        # It would search for as long as it was given.
        with contextlib.suppress(psutil.NoSuchProcess):
            solver.kill()


def test_speeds_are_told_from_times() -> None:
    predicted = np.array([1.0, 2.0, 3.0, 1.0])
    took = np.array([1.0, 2.0, 6.0, 2.0])
    assert speeds_of(predicted, took, np.array([0, 0, 1, 1]), 3).tolist() == [1.0, 0.5, 0.75]


def test_ranks_hardly_slower_than_the_fastest_are_as_fast() -> None:
    assert told_apart(np.array([1.0, 0.81, 0.77, 0.5, 0.52, 0.001])).tolist() == [1.0, 1.0, 0.75, 0.5, 0.5, 0.05]


def test_a_slow_rank_is_found_out_and_given_less() -> None:
    """Half as fast: its groups take twice as long, and would take as long as the others' on the other rank."""
    asked = stages("best")
    took = np.where(RANKS == 1, 2.0, 1.0)
    for _ in range(3):
        asked.epoch_ended(took, RANKS, 1.0)
    problem = asked.problem()
    assert problem.speeds_D.tolist() == [1.0, 0.5]
    assert problem.seconds_K == pytest.approx(np.ones(COUNT))
    found = until_solved(asked, took)
    given = [sum(len(step[rank]) for step in found.schedule.steps) for rank in (0, 1)]
    assert given[0] > 1.5 * given[1] > 0
    even = loads_of(found.schedule, problem)
    assert found.predicted_s == pytest.approx(even.max(1).sum())


def test_how_fast_ranks_were_is_forgotten_where_there_are_others() -> None:
    before = stages()
    for _ in range(3):
        before.epoch_ended(np.where(RANKS == 1, 2.0, 1.0), RANKS, 1.0)
    before.close()
    told = json.loads(json.dumps(before.state()))
    same, other = stages(), Stages(ScheduleSettings(scheduler="real_g"), PREDICTED, 3, alpha_s=0.0, seed=0)
    same.restore(told)
    other.restore(told)
    assert same.problem().speeds_D.tolist() == [1.0, 0.5]
    assert other.problem().speeds_D.tolist() == [1.0, 1.0, 1.0]


def test_settings_without_sense_are_refused() -> None:
    for wrong in ({"limit": 0}, {"plain_epochs": -1}, {"profile_epochs": 0}, {"search_s": 0.0}):
        with pytest.raises(BadConfig, match=f"schedule.{next(iter(wrong))}="):
            ScheduleSettings(**wrong)
