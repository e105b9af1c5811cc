"""When do ranks that train each for itself average their parameters, and when do they stop (SPEC D8.7)?

A rank trains for a round: until a time has passed, and at least one step. Then it enters one collective, whatever it
did, and all that is decided is decided from what the collective gave, which is the same on every rank. So all ranks
take part in equally many collectives, however their speeds differ, and a rank without nodes does, too. Clock readings
come in as numbers; what is summed over ranks goes out as an array:

    rounds.begin(clock())
    while True:
        while not rounds.is_due(clock()):
            rounds.stepped(train_a_step(), seconds)
        mine = rounds.report(stop=wants_to_stop)
        summed = all_reduce([weight_of(mine) * parameters, pack(mine, rank, num_ranks)])
        decision = rounds.take(unpack(summed_reports))
        parameters = summed_parameters / decision.total_weight  (kept where that is 0)
        if decision.stop: break
        rounds.begin(clock())

An overlapped average is started where a round is due and taken up where the next one is; see ``carried``.

Shape letters: M ranks, P parameters.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from timeloom.errors import Diverged
from timeloom.graph.keys import Float64s
from timeloom.plan.batch.hybrid_settings import HybridSettings

FIRST_STEPS = 3
"""Where the time of a round follows from that of a step, the first round has so many steps (the authors' program)."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank says of its round; each field is a number, so that reports can be summed."""

    steps: int = 0
    """That it learnt from."""
    step_seconds: float = 0.0
    """The median of its steps."""
    loss_sum: float = 0.0
    """Of its steps."""
    held_sum: float = 0.0
    """The loss of its share of the validation nodes, where there was a validation in the round."""
    held_count: float = 0.0
    """How many these are."""
    stop: float = 0.0
    """1: it wants to stop."""
    save: float = 0.0
    """1: it is time to save."""
    cells: float = 0.0
    """Targets that its steps went over: nodes times snapshots."""
    edges: float = 0.0


_FIELDS = len(astuple(Report()))


@dataclass(frozen=True, slots=True)
class Decision:
    """What all ranks make of a round."""

    number: int
    """Rounds that ended so far."""
    stop: bool
    total_weight: float
    """What the sum of the parameters is divided by; 0: nobody made a step, and all keep what they have."""
    interval_s: float
    """How long the next round is; 0: it has ``FIRST_STEPS`` steps."""
    loss: float | None
    """The mean over the steps of all ranks; None: there was none."""
    held_loss: float | None
    """The mean over the validation nodes of all ranks."""
    step_seconds: float
    """The median of the ranks that made steps (0: none did)."""
    save: bool
    """It is time to save."""
    cells: int
    """Targets that all ranks' steps went over."""
    edges: int
    steps: tuple[int, ...]
    """What each rank learnt from."""


def pack(report: Report, rank: int, num_ranks: int) -> Float64s:
    """Return [9 M] a rank's report in its own place, 0 elsewhere: the sum over ranks holds all reports."""
    places = np.zeros((num_ranks, _FIELDS))
    places[rank] = astuple(report)
    return places.ravel()


def unpack(summed: Float64s) -> tuple[Report, ...]:
    """Return the reports of all ranks."""
    rows = summed.reshape(-1, _FIELDS).tolist()
    return tuple(Report(round(row[0]), *row[1:]) for row in rows)


def weight_of(report: Report, *, by_steps: bool) -> float:
    """Return how much a rank's parameters count: one that made no step has nothing new to say."""
    return float(report.steps if by_steps else report.steps > 0)


def carried(averaged_P: Float64s, sent_P: Float64s, now_P: Float64s) -> Float64s:
    """Return the parameters after an overlapped average: the average, moved as this rank moved meanwhile."""
    return averaged_P + (now_P - sent_P)


class Rounds:
    """A rank's part in the rounds."""

    def __init__(self, settings: HybridSettings, *, has_nodes: bool) -> None:
        self._settings, self._has_nodes = settings, has_nodes
        self._number, self._interval_s = 0, settings.round_seconds
        self._deadline_s: float | None = None
        self._seconds: list[float] = []
        self._learnt, self._loss_sum, self._cells, self._edges = 0, 0.0, 0, 0

    @property
    def interval_s(self) -> float:
        """How long a round is; 0: that is not known yet."""
        return self._interval_s

    def begin(self, now_s: float) -> None:
        """Begin a round."""
        self._deadline_s = now_s + self._interval_s
        self._seconds = []
        self._learnt, self._loss_sum, self._cells, self._edges = 0, 0.0, 0, 0

    def stepped(self, loss: float | None, seconds: float, *, cells: int = 0, edges: int = 0) -> None:
        """Count a step; one without a loss had nothing to learn from."""
        self._seconds.append(seconds)
        self._learnt += loss is not None
        self._loss_sum += loss or 0.0
        self._cells += cells
        self._edges += edges

    def is_due(self, now_s: float) -> bool:
        """Say whether the rank is to make no further step in this round. One without nodes never makes any."""
        assert self._deadline_s is not None, "a round is begun first"
        steps = len(self._seconds)
        if not self._has_nodes:
            return True
        if self._settings.sync == "allreduce":
            return steps >= 1
        if self._interval_s == 0.0:
            return steps >= FIRST_STEPS
        return steps >= 1 and now_s >= self._deadline_s

    def report(
        self, *, held_sum: float = 0.0, held_count: float = 0.0, stop: bool = False, save: bool = False
    ) -> Report:  # fmt: skip
        """Return what this rank says of the round that ends."""
        took_s = statistics.median(self._seconds) if self._seconds else 0.0
        return Report(
            self._learnt, took_s, self._loss_sum, held_sum, held_count, float(stop), float(save), float(self._cells),
            float(self._edges),
        )  # fmt: skip

    def take(self, reports: Sequence[Report]) -> Decision:
        """Return what follows from the reports of all ranks; a rank that votes to stop stops all of them."""
        self._number += 1
        steps = sum(report.steps for report in reports)
        self._refuse_divergence(reports)
        held_count = sum(report.held_count for report in reports)
        times_s = [report.step_seconds for report in reports if report.steps]
        step_s = statistics.median(times_s) if times_s else 0.0
        if times_s and not self._settings.round_seconds:
            self._interval_s = self._settings.round_steps * step_s
        by_steps = self._settings.weigh_by_steps
        return Decision(
            number=self._number,
            stop=any(report.stop > 0.0 for report in reports),
            total_weight=sum(weight_of(report, by_steps=by_steps) for report in reports),
            interval_s=self._interval_s,
            loss=sum(report.loss_sum for report in reports) / steps if steps else None,
            held_loss=sum(report.held_sum for report in reports) / held_count if held_count else None,
            step_seconds=step_s,
            save=any(report.save > 0.0 for report in reports),
            cells=round(sum(report.cells for report in reports)),
            edges=round(sum(report.edges for report in reports)),
            steps=tuple(report.steps for report in reports),
        )

    def _refuse_divergence(self, reports: Sequence[Report]) -> None:
        # Every rank sees the same reports and ends with the same words: none is left waiting for another.
        for rank, report in enumerate(reports):
            if not math.isfinite(report.loss_sum + report.held_sum):
                raise Diverged(
                    f"rank {rank} reports losses of {report.loss_sum} in training and {report.held_sum} in validation "
                    f"after round {self._number}: lower optim.rate, or set optim.clip"
                )

    def save(self) -> dict[str, Any]:
        """Return, for JSON, what is needed to go on after a round."""
        return {"number": self._number, "interval_s": self._interval_s}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what was saved; a round must be begun then."""
        self._number, self._interval_s, self._deadline_s = saved["number"], saved["interval_s"], None
