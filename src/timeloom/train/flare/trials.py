"""What trials came to, kept in the run directory, so that a search that was interrupted goes on with the next one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import final

from timeloom.config import build
from timeloom.dist.collectives import World
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.tune.window import Shape, Trial, TrialOutcome
from timeloom.records import RunDirectory

Begin = Callable[[str], RunDirectory | None]
"""Gives the run directory, on the rank that writes it, with this text about trials in it."""


def nowhere(_text: str) -> None:
    """Return that trials are kept nowhere."""


@final
class TrialLog:
    """The trials of one search so far, in memory and on disk."""

    def __init__(self, flare: FlareSettings, *, ranks: int, begin: Begin = nowhere) -> None:
        """``begin`` is called once there is something to try."""
        self.flare, self.ranks = flare, ranks
        """The windows that the search starts from, and how many ranks tried them."""
        self._begin = begin
        self.run: RunDirectory | None = None
        self._outcomes: dict[Shape, TrialOutcome] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def open(self) -> None:
        """Collective. Make or take the run directory."""
        self.run = self._begin(self._text())

    def find(self, trial: Trial) -> TrialOutcome | None:
        """Return what a trial came to before an interruption."""
        return self._outcomes.get(_shape(trial.flare))

    def add(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Remember what a trial came to."""
        self._outcomes[_shape(trial.flare)] = outcome
        if self.run is not None:
            self.run.write_trials(self._text())

    def _text(self) -> str:
        trials = [[*shape, dataclasses.asdict(outcome)] for shape, outcome in self._outcomes.items()]
        return json.dumps({"flare": dataclasses.asdict(self.flare), "ranks": self.ranks, "trials": trials})

    def take(self, trials: list[tuple[int, float, dict[str, float]]]) -> None:
        """Take in what was tried before an interruption."""
        for full, alpha, outcome in trials:
            self._outcomes[full, alpha] = TrialOutcome(**outcome)


def _shape(flare: FlareSettings) -> Shape:
    return flare.full, flare.alpha


def kept_trials(world: World, run: RunDirectory | None) -> TrialLog | None:
    """Collective. Return the trials of a run that has no checkpoint yet (None: its windows were not to be tuned).

    Seconds and memory are those of so many ranks: with another number of them all is tried anew.
    """
    text = "" if run is None else run.read_trials()
    text = world.broadcast_bytes(text.encode(), "control/trials").decode()
    if not text:
        return None
    told = json.loads(text)
    log = TrialLog(build(FlareSettings, told["flare"]), ranks=world.size, begin=lambda _: run)
    if told["ranks"] == world.size:
        log.take(told["trials"])
    return log
