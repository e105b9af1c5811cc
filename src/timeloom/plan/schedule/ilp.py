"""The integer programs as published, solved by HiGHS: DyGNeX-L (appendix C) and REAL-L (REAL 5.2).

Both have an unknown for each group, step and device, and as many steps as one group a device needs (DyGNeX Eq. 11).
They are here to be compared with: symmetric in steps and in devices, they come to an end for tens of groups at most.
REAL's unknowns for pairs are made for pairs that save something only; others change no load. In both a step without
groups costs its all-reduce, too, as printed. Devices are taken to be equal.

Shape letters: K groups, M steps, D devices, V unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from timeloom.plan.schedule.instance import Float64s, Instance, Int64s
from timeloom.plan.schedule.schedule import Schedule, Scheduler, schedule_of


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a solver came to within its time."""

    schedule: Schedule | None
    """The best one that it found (None: none)."""
    converged: bool
    """It proved that the schedule is within the gap that was asked for."""


Solver = Callable[[Instance], Attempt]


def first_of(solver: Solver, otherwise: Scheduler, *, by: str = "") -> Scheduler:
    """Return the scheduler that takes what a solver found if it converged, else what another one finds (REAL 5.4).

    REAL says both that the solver has to find a feasible schedule (3.2) and that it has to converge (5.4) in its time;
    here it has to converge. The time limit, twice an epoch's time in REAL, is the solver's. ``by`` is what the other
    one's schedules are said to be found by.
    """

    def scheduler(problem: Instance) -> Schedule:
        told = solver(problem)
        if told.converged and told.schedule is not None:
            return told.schedule
        return replace(otherwise(problem), by=by)

    return scheduler


def real_l(*, gap: float = 0.10, limit_s: float = 60.0) -> Solver:
    """Return REAL's integer program, stopped within ``gap`` of the optimum (REAL 5.2: 10 %) or at the time limit."""
    return lambda problem: _solve(problem, _real(problem), gap, limit_s)


def dygnex_l(*, gap: float = 0.02, limit_s: float = 60.0) -> Solver:
    """Return DyGNeX's integer program, stopped within ``gap`` of the optimum (DyGNeX 4.2: 2 %) or at the time limit.

    It knows of no reuse; that its schedule saves something is chance.
    """
    return lambda problem: _solve(problem, _dygnex(problem), gap, limit_s)


class _Rows:
    """Rows of a sparse system of inequalities, as they are added."""

    def __init__(self) -> None:
        self.size = 0
        self._rows: list[Int64s] = []
        self._columns: list[Int64s] = []
        self._values: list[Float64s] = []
        self._low: list[Float64s] = []
        self._high: list[Float64s] = []

    def add(self, *terms: tuple[Int64s, float | Float64s], low: float, high: float) -> None:
        """Add rows: each term holds the unknowns of every row, [rows] or [rows, many], and their factors."""
        count = len(terms[0][0])
        for columns, factors in terms:
            columns = columns.reshape(count, -1)
            self._columns.append(columns.ravel())
            self._rows.append(np.repeat(self.size + np.arange(count), columns.shape[1]))
            self._values.append(np.broadcast_to(np.asarray(factors, np.float64), columns.shape).ravel())
        self._low.append(np.full(count, low))
        self._high.append(np.full(count, high))
        self.size += count

    def constraint(self, num_unknowns: int) -> LinearConstraint:
        """Return all rows."""
        cells = (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = coo_array((np.concatenate(self._values), cells), (self.size, num_unknowns))
        return LinearConstraint(matrix.tocsr(), np.concatenate(self._low), np.concatenate(self._high))


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    rows: _Rows
    cost_V: Float64s
    whole_V: Int64s
    most_V: Float64s
    constant_s: float


def _num_steps(problem: Instance) -> int:
    return math.ceil(len(problem) / problem.num_devices)


def _assignment(problem: Instance) -> tuple[_Rows, Int64s]:
    """Return the rows that every group is somewhere and no device has too many, and the unknowns [K, M * D]."""
    places = _num_steps(problem) * problem.num_devices
    x = np.arange(len(problem) * places).reshape(len(problem), places)
    rows = _Rows()
    rows.add((x, 1.0), low=1.0, high=1.0)
    rows.add((x.T, 1.0), low=0.0, high=problem.limit)
    return rows, x


def _real(problem: Instance) -> _Program:
    """Equations 11 to 14 of REAL."""
    rows, x = _assignment(problem)
    places, devices = x.shape[1], problem.num_devices
    i, d = np.nonzero(problem.reuse_KB > 0)
    y = (x.size + np.arange(len(i) * places)).reshape(len(i), places)
    length = x.size + y.size + np.arange(places // devices)
    one, other = x[i].ravel(), x[i + d + 1].ravel()
    if len(i):
        both = y.ravel()
        rows.add((both, 1.0), (one, -1.0), low=-np.inf, high=0.0)
        rows.add((both, 1.0), (other, -1.0), low=-np.inf, high=0.0)
        rows.add((both, 1.0), (one, -1.0), (other, -1.0), low=-1.0, high=np.inf)
    longest = np.repeat(length, devices)
    saved = [(y.T, problem.reuse_KB[i, d])] if len(i) else []
    rows.add((longest, 1.0), (x.T, -problem.seconds_K), *saved, low=problem.alpha_s, high=np.inf)
    size = x.size + y.size + len(length)
    cost, whole = np.zeros(size), np.ones(size, np.int64)
    cost[length], whole[length] = 1.0, 0
    return _Program(rows, cost, whole, np.where(whole > 0, 1.0, np.inf), 0.0)


def _dygnex(problem: Instance) -> _Program:
    """Equations 21 to 30 of DyGNeX."""
    rows, x = _assignment(problem)
    places, devices = x.shape[1], problem.num_devices
    z = (x.size + np.arange(places)).reshape(-1, devices)
    u = z + places
    big = float(problem.seconds_K.sum())
    before, after, choice = z[:, :-1].ravel(), z[:, 1:].ravel(), u[:, 1:].ravel()
    own = x.T.reshape(*z.shape, len(problem))
    later, times = own[:, 1:].reshape(-1, len(problem)), problem.seconds_K
    rows.add((z.ravel(), 1.0), (x.T, -times), low=0.0, high=np.inf)
    # Nothing comes before the first device: its z is its own load.
    rows.add((z[:, 0], 1.0), (own[:, 0], -times), low=0.0, high=0.0)
    if devices > 1:
        rows.add((after, 1.0), (before, -1.0), low=0.0, high=np.inf)
        rows.add((after, 1.0), (before, -1.0), (choice, big), low=-np.inf, high=big)
        rows.add((after, 1.0), (later, -times), (choice, -big), low=-np.inf, high=0.0)
    size = x.size + 2 * places
    cost, whole = np.zeros(size), np.ones(size, np.int64)
    cost[z[:, -1]], whole[z.ravel()] = 1.0, 0
    return _Program(rows, cost, whole, np.where(whole > 0, 1.0, np.inf), problem.alpha_s * len(z))


def _solve(problem: Instance, program: _Program, gap: float, limit_s: float) -> Attempt:
    size = len(program.cost_V)
    found = milp(
        program.cost_V, integrality=program.whole_V, bounds=Bounds(0.0, program.most_V),
        constraints=program.rows.constraint(size), options={"time_limit": limit_s, "mip_rel_gap": gap},
    )  # fmt: skip
    if found.x is None:
        return Attempt(None, converged=False)
    devices = problem.num_devices
    taken = found.x[: len(problem) * _num_steps(problem) * devices].reshape(len(problem), -1, devices) > 0.5
    steps = [
        [np.flatnonzero(taken[:, step, device]).tolist() for device in range(devices)] for step in range(taken.shape[1])
    ]
    return Attempt(schedule_of(steps, devices), converged=found.status == 0)
