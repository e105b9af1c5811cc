"""In which order the snapshots of a window take turns, so that rows travel while others are computed (FlareDTDG 3.4).

A snapshot of a window is a *task*: phases, one after the other. It computes, exchanges rows with other ranks, computes
with what came, ...; a phase that `recur`s also waits for the same phase of the snapshot before. A *turn* is what a task
computes up to its next exchange, which it starts at the end of its turn and waits for at the beginning of its next one.
The order of turns is all there is to decide: exchanges are started in the order of turns, so ranks with one order of
turns start the same exchanges in the same order, also those that have no row to send (SPEC section 7, T22). That order
follows from one table of predicted seconds, the largest of all ranks' predictions; what a rank measures, or whether its
rows came early, changes nothing before the next table.

No order that is made here is slower than one task after the other, whatever the phases really take on one rank: at any
time either the next turn is being computed, or the exchange that it waits for is on its way.

Shape letters: P phases of all tasks, R ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PhaseKind = Literal["compute", "exchange", "recur"]
Task = tuple[PhaseKind, ...]
Turns = tuple[int, ...]
"""The task whose turn it is, one for each turn."""
Seconds = NDArray[np.float64]


def task_of(layers: int, *, exchanges: bool, inputs_at_hand: bool) -> Task:
    """Return the phases of a snapshot in a model of layers, each of which aggregates and then remembers.

    ``exchanges``: rows of other ranks are needed. ``inputs_at_hand``: not of the inputs, which lie on every rank that
    reads them.
    """
    phases: list[PhaseKind] = []
    for layer in range(layers):
        if exchanges and (layer or not inputs_at_hand):
            # Before its first exchange a layer makes what it sends; the inputs are there.
            phases += ["compute", "exchange"]
        phases += ["compute", "recur"]
    return tuple(phases)


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn of a task: what it computes, and the exchange that it starts."""

    computes: int
    """The place of its phase among all phases."""
    recurs: int
    """Which of its task's recurring phases it is (-1: none)."""
    exchange: int
    """The place of the exchange that it starts (-1: none)."""


def _turns_of(tasks: Sequence[Task]) -> list[list[_Turn]]:
    """Return the turns of each task."""
    found, place = list[list[_Turn]](), 0
    assert len({task.count("recur") for task in tasks}) <= 1, f"tasks of different models: {tasks}"
    for task in tasks:
        assert "exchange" not in (*task[:1], *task[-1:]), f"{task} begins or ends with an exchange"
        turns, recurred = list[_Turn](), 0
        for at, kind in enumerate(task):
            if kind == "exchange":
                assert task[at - 1] != "exchange", f"{task} has two exchanges without a phase between them"
                continue
            follows = at + 1 < len(task) and task[at + 1] == "exchange"
            recurs = recurred if kind == "recur" else -1
            recurred += kind == "recur"
            turns.append(_Turn(place + at, recurs, place + at + 1 if follows else -1))
        found.append(turns)
        place += len(task)
    return found


def num_phases(tasks: Sequence[Task]) -> int:
    """Return how many phases all tasks have: the length of a table of seconds."""
    return sum(len(task) for task in tasks)


class _Clock:
    """A window under way: when everything happened so far, on every rank."""

    def __init__(self, tasks: Sequence[Task], seconds_RP: Seconds) -> None:
        wanted = (len(seconds_RP), num_phases(tasks))
        assert seconds_RP.shape == wanted, f"seconds of shape {seconds_RP.shape}, and no table of {wanted}"
        self.turns, self.seconds_RP = _turns_of(tasks), seconds_RP
        ranks = len(seconds_RP)
        self.free_R, self.channel_s, self.done = np.zeros(ranks), 0.0, [0] * len(tasks)
        self._ready: list[Seconds] = [np.zeros(ranks) for _ in tasks]
        self._recurred: list[list[Seconds]] = [[] for _ in tasks]

    def available(self) -> Iterator[int]:
        """Yield the tasks whose next turn waits for no turn that is still to come."""
        for task, turns in enumerate(self.turns):
            if self.done[task] < len(turns) and self._before(task) is not None:
                yield task

    def next_turn(self, task: int) -> _Turn:
        return self.turns[task][self.done[task]]

    def _before(self, task: int) -> Seconds | None:
        """Return when the state was there that the next turn of a task goes on from, or None before it is computed."""
        recurs = self.next_turn(task).recurs
        if recurs < 0 or not task:
            return np.zeros_like(self.free_R)
        done = self._recurred[task - 1]
        return done[recurs] if recurs < len(done) else None

    def ready(self, task: int) -> Seconds:
        """Return [R] when the next turn of a task could begin if nothing else was computed."""
        before = self._before(task)
        assert before is not None, f"task {task} waits for a turn of task {task - 1} that comes later"
        return np.maximum(self._ready[task], before)

    def ready_s(self, task: int) -> float:
        """Return the same on the first rank."""
        return float(self.ready(task)[0])

    def take(self, task: int) -> None:
        """Compute the next turn of a task, and start its exchange."""
        assert self.done[task] < len(self.turns[task]), f"task {task} has no turn left"
        turn = self.next_turn(task)
        self.free_R = np.maximum(self.free_R, self.ready(task)) + self.seconds_RP[:, turn.computes]
        self._ready[task] = self.free_R
        if turn.recurs >= 0:
            self._recurred[task].append(self.free_R)
        if turn.exchange >= 0:
            # It begins when all ranks have started it, and is over when the slowest has its rows.
            begin = max(self.channel_s, float(self.free_R.max()))
            self.channel_s = begin + float(self.seconds_RP[:, turn.exchange].max())
            self._ready[task] = np.full_like(self.free_R, self.channel_s)
        self.done[task] += 1


def makespan(tasks: Sequence[Task], turns: Turns, seconds_RP: Seconds) -> float:
    """Return when the last rank is done with all turns, given what each phase takes on each rank."""
    clock = _Clock(tasks, seconds_RP)
    for task in turns:
        clock.take(task)
    left = [task for task, done in enumerate(clock.done) if done < len(clock.turns[task])]
    assert not left, f"tasks {left} have turns left"
    return float(clock.free_R.max(initial=0.0))


Urgency = Callable[[_Clock, int], tuple[float, ...]]
"""How a task's next turn compares with others': the smallest comes first."""


def one_by_one(tasks: Sequence[Task]) -> Turns:
    """Return the order without overlap: a task's next turn waits for the exchange that its last one started."""
    return tuple(task for task, turns in enumerate(_turns_of(tasks)) for _ in turns)


def early_short(tasks: Sequence[Task], seconds_P: Seconds) -> Turns:
    """Return the order Early-Ready & Short-Comm (FlareDTDG 3.4).

    Whenever a turn can be chosen, that is the one whose exchange can start first; of several, the one with the shortest
    exchange. Turns that lead to no exchange come when there is none that does.
    """

    def urgency(clock: _Clock, task: int) -> tuple[float, ...]:
        ready_s = max(float(clock.free_R[0]), clock.ready_s(task))
        for turn in clock.turns[task][clock.done[task] :]:
            ready_s += float(seconds_P[turn.computes])
            if turn.exchange >= 0:
                return 0, ready_s, float(seconds_P[turn.exchange])
        return 1, 0.0, 0.0

    return _greedy(tasks, seconds_P, urgency)


def longest_first(tasks: Sequence[Task], seconds_P: Seconds) -> Turns:
    """Return the order in which the task goes first after whose turn the most is still to come, exchanges included."""
    tails_P = _tails(tasks, seconds_P)
    return _greedy(tasks, seconds_P, lambda clock, task: (-float(tails_P[clock.next_turn(task).computes]),))


def best_turns(tasks: Sequence[Task], seconds_P: Seconds) -> Turns:
    """Return the better of these orders by the predicted seconds; the paper's where they are as good.

    ``seconds_P`` is one table for all ranks: the largest of their predictions.
    """
    found = [early_short(tasks, seconds_P), longest_first(tasks, seconds_P), one_by_one(tasks)]
    return min(found, key=lambda turns: makespan(tasks, turns, seconds_P[None]))


def _greedy(tasks: Sequence[Task], seconds_P: Seconds, urgency: Urgency) -> Turns:
    """Return turns such that nobody waits while a turn could be computed: of several the most urgent, or the first."""
    clock, turns = _Clock(tasks, seconds_P[None]), list[int]()
    while available := list(clock.available()):
        begins = {task: max(float(clock.free_R[0]), clock.ready_s(task)) for task in available}
        soonest = min(begins.values())
        task = min(
            (task for task in available if begins[task] == soonest), key=lambda task: (*urgency(clock, task), task)
        )
        clock.take(task)
        turns.append(task)
    return tuple(turns)


def _tails(tasks: Sequence[Task], seconds_P: Seconds) -> Seconds:
    """Return [P] what has to come after the beginning of each phase at least, the phase included."""
    tails_P = np.zeros(len(seconds_P))
    later: dict[int, float] = {}
    place = len(seconds_P)
    for task in reversed(tasks):
        recurring: dict[int, float] = {}
        number, tail = task.count("recur"), 0.0
        for kind in reversed(task):
            place -= 1
            if kind == "recur":
                number -= 1
                tail = max(tail, later.get(number, 0.0))
            tail += float(seconds_P[place])
            if kind == "recur":
                recurring[number] = tail
            tails_P[place] = tail
        later = recurring
    return tails_P


class Pause:
    """What a task awaits at the end of a turn: ``await Pause()``."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


def run_turns(coroutines: Sequence[Coroutine[Any, None, None]], turns: Turns) -> None:
    """Let coroutines take turns; each must be done with the last of its turns, and not before."""
    left = [turns.count(task) for task in range(len(coroutines))]
    try:
        for task in turns:
            left[task] -= 1
            try:
                coroutines[task].send(None)
            except StopIteration:
                assert not left[task], f"task {task} was done {left[task]} turns early"
            else:
                assert left[task], f"task {task} was not done after its last turn"
    finally:
        for coroutine in coroutines:
            coroutine.close()
