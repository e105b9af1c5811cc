"""Which shape of window is best: how many full snapshots, and how fast older ones shrink (FlareDTDG 3.5, SPEC D7.6).

A search yields trials and receives how they went, as a plan does with steps; all ranks run the same search on the same
outcomes, which are rank 0's. Every trial trains a few epochs from the same checkpoint. From a shape the search goes
to the neighbour whose validation loss falls fastest, one full snapshot or one step of alpha away, as long as that is
faster. Shapes that are predicted not to fit the memory are not tried; those that turn out not to fit are not chosen.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from timeloom.errors import BadConfig, TooLarge
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.tune.memory import ChunkSizes, Load, MemoryLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneSettings:
    """How the shape of windows is searched for."""

    epochs: int = 2  # a trial trains so many epochs
    moves: int = 8  # the search ends after so many moves to a better shape
    alpha_step: float = 0.1  # from one alpha to the next (FlareDTDG 3.5)
    least_gain: float = 0.05
    """A neighbour is better when its loss falls faster by this share: measured seconds differ from run to run."""
    budget_bytes: int = 0
    """Memory that a window may take on a rank (0: any)."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.moves < 1 or self.budget_bytes < 0 or self.least_gain < 0:
            raise BadConfig(
                f"tune.epochs={self.epochs}, tune.moves={self.moves}, tune.least_gain={self.least_gain:g}, "
                f"tune.budget_bytes={self.budget_bytes}: epochs and moves are 1 or more, the others 0 or more"
            )
        if not 0.0 < self.alpha_step < 1.0:
            raise BadConfig(f"tune.alpha_step={self.alpha_step:g} is no step: give more than 0 and less than 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Train so many epochs with these windows, from the checkpoint that all trials of a search start from."""

    flare: FlareSettings
    epochs: int
    predicted_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What a trial came to, as rank 0 tells all ranks."""

    loss_before: float
    """The validation loss of the checkpoint, by states over the full history."""
    loss_after: float
    seconds: float
    """Of training alone."""
    peak_bytes: float
    """The most memory that a rank took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a search ended with."""

    flare: FlareSettings
    score: float
    """By how much the validation loss falls in a second."""
    trials: tuple[tuple[Trial, TrialOutcome], ...]


Search = Generator[Trial, TrialOutcome, Choice]
Shape = tuple[int, float]
"""Full snapshots, and alpha."""


def tune(flare: FlareSettings, settings: TuneSettings, *, sizes: ChunkSizes, law: MemoryLaw) -> Search:
    """Search from the windows that are given; yield trials, and return the choice."""
    if flare.decay == "list" or flare.history != "decayed":
        raise BadConfig(
            f"the shape of windows was to be tuned, but flare.decay={flare.decay} with flare.history={flare.history} "
            "has no alpha to tune: use --set flare.decay=paper (or public) and --set flare.history=decayed"
        )
    memory = _Memory(flare, settings, sizes, law)
    tried: dict[Shape, tuple[Trial, TrialOutcome]] = {}
    here = _first_that_fits(memory, settings)
    for _ in range(settings.moves):
        for shape in (here, *neighbours(here, flare.length, settings.alpha_step)):
            if shape in tried or not (shape == here or memory.fits(shape)):
                continue
            trial = memory.trial(shape)
            tried[shape] = trial, (yield trial)
            memory.learn(shape, tried[shape][1].peak_bytes)
        around = [shape for shape in neighbours(here, flare.length, settings.alpha_step) if shape in tried]
        best = max(around, key=lambda shape: _score(tried[shape][1], settings), default=here)
        mine, theirs = (_score(tried[shape][1], settings) for shape in (here, best))
        if theirs <= (mine + settings.least_gain * abs(mine) if np.isfinite(mine) else mine):
            break
        here = best
    return _choice(here, tried, memory, settings)


def _choice(
    here: Shape, tried: dict[Shape, tuple[Trial, TrialOutcome]], memory: _Memory, settings: TuneSettings
) -> Choice:  # fmt: skip
    trial, outcome = tried[here]
    if settings.budget_bytes and outcome.peak_bytes > settings.budget_bytes:
        raise _too_large(memory, here, outcome.peak_bytes, settings)
    return Choice(flare=trial.flare, score=_score(outcome, settings), trials=tuple(tried.values()))


def neighbours(shape: Shape, length: int, alpha_step: float) -> list[Shape]:
    """Return the up to 4 shapes beside one, of windows of as many snapshots in all."""
    full, alpha = shape
    found = [(other, alpha) for other in (full - 1, full + 1) if 1 <= other <= length]
    if full < length:
        # Without a decayed snapshot alpha says nothing. Rounded, so that a step up and one down lead back.
        steps = (round(alpha - alpha_step, 9), round(alpha + alpha_step, 9))
        found += [(full, other) for other in steps if 0.0 < other <= 1.0]
    return found


def _score(outcome: TrialOutcome, settings: TuneSettings) -> float:
    """Return by how much the loss fell in a second; nothing is worse than a loss or a memory that cannot be had."""
    if not np.isfinite(outcome.loss_after) or 0 < settings.budget_bytes < outcome.peak_bytes:
        return -np.inf
    return (outcome.loss_before - outcome.loss_after) / max(outcome.seconds, 1e-9)


class _Memory:
    """What is known of the memory that windows take."""

    def __init__(self, flare: FlareSettings, settings: TuneSettings, sizes: ChunkSizes, law: MemoryLaw) -> None:
        self.flare, self._settings, self._sizes, self._first = flare, settings, sizes, law
        self.law = law
        self._loads: list[Load] = []
        self._peaks: list[float] = []

    def windows(self, shape: Shape) -> FlareSettings:
        full, alpha = shape
        return replace(self.flare, full=full, decayed=self.flare.length - full, alpha=alpha)

    def _load(self, shape: Shape) -> Load:
        return self._sizes.load(self.windows(shape))(self.law)

    def predict(self, shape: Shape) -> float:
        return self.law.predict(self._load(shape))

    def fits(self, shape: Shape) -> bool:
        # A trial has to have a window in the sequence.
        if shape[0] > len(self._sizes.edges_TC):
            return False
        return not self._settings.budget_bytes or self.predict(shape) <= self._settings.budget_bytes

    def trial(self, shape: Shape) -> Trial:
        return Trial(
            flare=self.windows(shape), epochs=self._settings.epochs, predicted_bytes=self.predict(shape)
        )  # fmt: skip

    def learn(self, shape: Shape, peak_bytes: float) -> None:
        if peak_bytes > 0 and np.isfinite(peak_bytes):
            self._loads.append(self._load(shape))
            self._peaks.append(peak_bytes)
            self.law = self._first.fitted(self._loads, self._peaks)


def _first_that_fits(memory: _Memory, settings: TuneSettings) -> Shape:
    """Return the shape that was given, or the next smaller one that fits."""
    shape = (memory.flare.full, memory.flare.alpha)
    while not memory.fits(shape):
        least = min(settings.alpha_step, shape[1])
        smaller = (max(1, shape[0] - 1), max(least, round(shape[1] - settings.alpha_step, 9)))
        if smaller == shape:
            raise _too_large(memory, shape, memory.predict(shape), settings)
        shape = smaller
    return shape


def _too_large(memory: _Memory, shape: Shape, needed: float, settings: TuneSettings) -> TooLarge:
    mib = 2.0**20
    return TooLarge(
        f"windows with flare.full={shape[0]}, flare.decayed={memory.flare.length - shape[0]} and "
        f"flare.alpha={shape[1]:g} need {needed / mib:.1f} MiB, but tune.budget_bytes allows "
        f"{settings.budget_bytes / mib:.1f} MiB: use fewer snapshots (--set flare.decayed=...), more ranks, or a "
        "larger budget"
    )
