"""Turns overlap exchanges with computing, never lose by it, and are one for all ranks (T22)."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.plan.schedule.overlap import (
    Pause,
    PhaseKind,
    Task,
    Turns,
    best_turns,
    early_short,
    longest_first,
    makespan,
    num_phases,
    one_by_one,
    run_turns,
    task_of,
)

HALO: Task = ("compute", "exchange", "compute", "recur")
LOCAL: Task = ("compute", "recur")
DEEP = task_of(2, exchanges=True, inputs_at_hand=False)
DEEP_LOCAL = task_of(2, exchanges=False, inputs_at_hand=False)
ORDERS = (early_short, longest_first, best_turns)


@st.composite
def windows(draw: st.DrawFn, *, most: int = 6) -> list[Task]:
    """Draw windows: older snapshots local, newer ones with exchanges, of one or two layers; or any mixture."""
    layers, at_hand = draw(st.integers(1, 2)), draw(st.booleans())
    exchanges = draw(st.lists(st.booleans(), min_size=1, max_size=most))
    return [task_of(layers, exchanges=one, inputs_at_hand=at_hand) for one in exchanges]


def seconds_for(tasks: list[Task], data: st.DataObject, *, ranks: int = 1) -> np.ndarray:
    size = num_phases(tasks)
    one = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0]), min_size=size, max_size=size)
    return np.array([data.draw(one) for _ in range(ranks)])


def exchanges_in(tasks: list[Task], turns: Turns) -> list[tuple[int, int]]:
    """Return (task, which of its exchanges) in the order in which turns start them."""
    queues = [[at for at, kind in enumerate(task) if kind != "exchange"] for task in tasks]
    started, counts = list[tuple[int, int]](), [0] * len(tasks)
    for task in turns:
        at = queues[task].pop(0)
        if at + 1 < len(tasks[task]) and tasks[task][at + 1] == "exchange":
            started.append((task, counts[task]))
            counts[task] += 1
    assert not any(queues)
    return started


def test_a_tiny_window_by_hand() -> None:
    """Two snapshots: 1 s, an exchange of 4 s, 2 s, 1 s of recurrence; one by one 16 s, overlapped 12 s."""
    tasks, seconds = [HALO, HALO], np.array([1.0, 4.0, 2.0, 1.0] * 2)
    assert one_by_one(tasks) == (0, 0, 0, 1, 1, 1)
    assert makespan(tasks, one_by_one(tasks), seconds[None]) == 16.0
    turns = early_short(tasks, seconds)
    # 0-1 and 1-2 computed, exchanges 1-5 and 5-9, then 5-7 and 9-11, recurrences 7-8 and 11-12.
    assert turns == (0, 1, 0, 0, 1, 1)
    assert makespan(tasks, turns, seconds[None]) == 12.0


def test_the_exchange_that_can_start_first_goes_first_and_of_several_the_shortest() -> None:
    tasks = [HALO, HALO, HALO]
    early = early_short(tasks, np.array([3.0, 1.0, 1.0, 0.0, 1.0, 9.0, 1.0, 0.0, 2.0, 1.0, 1.0, 0.0]))
    assert [task for task, _ in exchanges_in(tasks, early)] == [1, 2, 0]
    short = early_short(tasks, np.array([1.0, 3.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]))
    assert [task for task, _ in exchanges_in(tasks, short)] == [1, 2, 0]


def test_local_snapshots_are_computed_while_rows_of_others_travel() -> None:
    """A decayed snapshot and a full one: the exchange of the full one is hidden behind the decayed one."""
    tasks, seconds = [LOCAL, HALO], np.array([4.0, 1.0, 1.0, 4.0, 1.0, 1.0])
    assert makespan(tasks, early_short(tasks, seconds), seconds[None]) == 8.0
    assert makespan(tasks, one_by_one(tasks), seconds[None]) == 12.0


@given(tasks=windows(), data=st.data())
def test_turns_are_complete_and_recurrences_follow_each_other(tasks: list[Task], data: st.DataObject) -> None:
    seconds = seconds_for(tasks, data)[0]
    for order in ORDERS:
        turns = order(tasks, seconds)
        assert sorted(turns) == sorted(one_by_one(tasks))
        queues = [[kind for kind in task if kind != "exchange"] for task in tasks]
        recurred = [0] * len(tasks)
        for task in turns:
            if queues[task].pop(0) == "recur":
                assert task == 0 or recurred[task] < recurred[task - 1]
                recurred[task] += 1


@given(tasks=windows(), data=st.data())
def test_no_order_is_slower_than_one_by_one_whatever_the_phases_really_take(
    tasks: list[Task], data: st.DataObject
) -> None:
    predicted, real = seconds_for(tasks, data, ranks=2)
    for order in ORDERS:
        turns = order(tasks, predicted)
        for seconds in (predicted, real):
            whole = makespan(tasks, one_by_one(tasks), seconds[None])
            assert whole == pytest.approx(seconds.sum())
            assert makespan(tasks, turns, seconds[None]) <= whole + 1e-9


@given(tasks=windows(), data=st.data())
def test_several_ranks_take_no_longer_than_the_slowest_of_each_phase(tasks: list[Task], data: st.DataObject) -> None:
    seconds_RP = seconds_for(tasks, data, ranks=3)
    slowest = seconds_RP.max(0)
    turns = best_turns(tasks, slowest)
    together = makespan(tasks, turns, seconds_RP)
    assert together <= makespan(tasks, turns, slowest[None]) + 1e-9 <= slowest.sum() + 1e-9
    assert together >= max(makespan(tasks, turns, row[None]) for row in seconds_RP) - 1e-9


@given(tasks=windows(), data=st.data())
def test_ranks_that_predict_differently_issue_the_same_exchanges_in_the_same_order(
    tasks: list[Task], data: st.DataObject
) -> None:
    """T22: each rank's own prediction is any table; after the maximum over ranks there is one order."""
    local_RP = seconds_for(tasks, data, ranks=4)
    shared = [np.maximum.reduce(local_RP) for _ in range(4)]
    issued = [exchanges_in(tasks, best_turns(tasks, seconds)) for seconds in shared]
    assert issued[1:] == issued[:-1]
    whole = [(task, number) for task, phases in enumerate(tasks) for number in range(phases.count("exchange"))]
    assert sorted(issued[0]) == whole, "no rank skips an exchange"


def test_without_the_maximum_ranks_would_issue_them_in_different_orders() -> None:
    """So that the test before this one could fail."""
    tasks = [HALO] * 4
    rng = np.random.default_rng(0)
    tables = rng.random((20, 4, num_phases(tasks)))
    differ = [len({early_short(tasks, row) for row in table}) > 1 for table in tables]
    assert all(differ)


def all_turns(tasks: list[Task]) -> Iterator[Turns]:
    """Yield every order of turns in which no recurrence comes before that of the snapshot before."""
    kinds = [[kind for kind in task if kind != "exchange"] for task in tasks]

    def go_on(done: tuple[int, ...], turns: Turns) -> Iterator[Turns]:
        if all(done[task] == len(kinds[task]) for task in range(len(tasks))):
            yield turns
        for task in range(len(tasks)):
            if done[task] == len(kinds[task]):
                continue
            recurred = kinds[task][: done[task] + 1].count("recur") if kinds[task][done[task]] == "recur" else 0
            if task and kinds[task - 1][: done[task - 1]].count("recur") < recurred:
                continue
            yield from go_on((*done[:task], done[task] + 1, *done[task + 1 :]), (*turns, task))

    return go_on((0,) * len(tasks), ())


@pytest.mark.parametrize("tasks", [[HALO] * 3, [LOCAL, HALO, HALO], [DEEP, DEEP], [DEEP_LOCAL, DEEP]], ids=str)
def test_the_best_of_the_orders_is_near_the_best_there_is(tasks: list[Task]) -> None:
    """Against every order, on random times: never more than twice as slow, 3 % slower in the mean."""
    rng, orders, ratios = np.random.default_rng(1), list(all_turns(tasks)), list[float]()
    for _ in range(8):
        seconds = np.exp(rng.normal(size=num_phases(tasks)))
        least = min(makespan(tasks, turns, seconds[None]) for turns in orders)
        found = makespan(tasks, best_turns(tasks, seconds), seconds[None])
        for order in (early_short, longest_first):
            assert found <= makespan(tasks, order(tasks, seconds), seconds[None])
        ratios.append(found / least)
    assert min(ratios) >= 1.0 - 1e-12
    assert max(ratios) <= 2.0
    assert np.mean(ratios) <= 1.03


def test_every_phase_counts_in_the_longest_way_to_the_end() -> None:
    """What goes first is the task whose turn the longest chain hangs on, also through recurrences of others."""
    tasks = [LOCAL, LOCAL, LOCAL]
    seconds = np.array([1.0, 5.0, 1.0, 5.0, 1.0, 5.0])
    assert longest_first(tasks, seconds)[0] == 0
    assert longest_first([HALO, HALO], np.array([1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 1.0, 1.0]))[0] == 1


def test_layers_exchange_what_is_not_at_hand() -> None:
    assert task_of(1, exchanges=False, inputs_at_hand=False) == ("compute", "recur")
    assert task_of(1, exchanges=True, inputs_at_hand=True) == ("compute", "recur")
    assert task_of(1, exchanges=True, inputs_at_hand=False) == HALO
    second: tuple[PhaseKind, ...] = ("compute", "recur", "compute", "exchange", "compute", "recur")
    assert task_of(2, exchanges=True, inputs_at_hand=True) == second


@pytest.mark.parametrize("task", [("exchange", "compute"), ("compute", "exchange")], ids=str)
def test_tasks_that_begin_or_end_with_an_exchange_are_refused(task: Task) -> None:
    with pytest.raises(AssertionError, match="begins or ends with an exchange"):
        one_by_one([task])


def test_turns_that_cannot_be_taken_are_refused() -> None:
    seconds = np.ones((1, 4))
    with pytest.raises(AssertionError, match="task 1 waits for a turn of task 0"):
        makespan([LOCAL, LOCAL], (1, 1, 0, 0), seconds)
    with pytest.raises(AssertionError, match=r"tasks \[1\] have turns left"):
        makespan([LOCAL, LOCAL], (0, 0, 1), seconds)
    with pytest.raises(AssertionError, match="no turn left"):
        makespan([LOCAL, LOCAL], (0, 0, 0, 1, 1), seconds)
    with pytest.raises(AssertionError, match="different models"):
        one_by_one([LOCAL, DEEP])
    with pytest.raises(AssertionError, match="no table"):
        makespan([LOCAL], (0, 0), seconds)


async def speak(task: int, turns: int, said: list[str]) -> None:
    for turn in range(turns):
        said.append(f"{task}.{turn}")
        if turn < turns - 1:
            await Pause()


def test_coroutines_take_turns() -> None:
    said = list[str]()
    run_turns([speak(0, 2, said), speak(1, 3, said)], (1, 0, 1, 1, 0))
    assert said == ["1.0", "0.0", "1.1", "1.2", "0.1"]


@pytest.mark.parametrize(("turns", "sentence"), [((0, 0, 0), "1 turns early"), ((0,), "not done after its last turn")])
def test_a_coroutine_of_another_number_of_turns_is_found(turns: Turns, sentence: str) -> None:
    coroutines: list[Coroutine[Any, None, None]] = [speak(0, 2, [])]
    with pytest.raises(AssertionError, match=sentence):
        run_turns(coroutines, turns)


def test_an_error_in_a_turn_reaches_the_caller_and_ends_all_of_them() -> None:
    ended = list[int]()

    async def fail(task: int) -> None:
        try:
            await Pause()
            if task:
                raise ValueError("no rows came")
            await Pause()
        finally:
            ended.append(task)

    with pytest.raises(ValueError, match="no rows came"):
        run_turns([fail(0), fail(1)], (0, 1, 0, 1, 0))
    assert sorted(ended) == [0, 1]


def test_many_snapshots_are_ordered_fast_enough_to_do_it_now_and_then() -> None:
    tasks = [task_of(2, exchanges=place >= 6, inputs_at_hand=False) for place in range(8)]
    seconds = np.exp(np.random.default_rng(2).normal(size=num_phases(tasks)))
    turns = best_turns(tasks, seconds)
    assert len(turns) == sum(kind != "exchange" for task in tasks for kind in task)
    assert len(list(itertools.groupby(turns))) < len(turns)
