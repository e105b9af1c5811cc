"""How long the phases of a window will take: learnt while they are measured (FlareDTDG 3.4).

Two predictors: a small network on sizes and kind, as in the paper, and a linear law for each kind to compare it with.
Both learn the logarithm, or the relative error, of seconds: phases differ by orders of magnitude, and a wrong order of
short ones costs as much as one of long ones. Predictions are a rank's own; ranks agree on the largest of them.

Shape letters: P phases, F features, H hidden units, B examples of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from timeloom.plan.schedule.overlap import PhaseKind

Floats = NDArray[np.float64]
KINDS: tuple[PhaseKind, ...] = ("compute", "exchange", "recur")
LEAST_S, MOST_S = 1e-7, 1e4
"""No prediction lies outside: one that is no number would be another maximum on every rank."""
HIDDEN = 16
EXAMPLES = 1024
"""How many of the last measurements are learnt from."""
ROUNDS, BATCH, RATE = 20, 64, 1e-2
"""How many updates are made when measurements come, on how many examples each, and the step of Adam."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseWork:
    """What a phase has to do on a rank."""

    kind: PhaseKind
    rows: int
    edges: int = 0
    width: int
    """Numbers in a row."""
    moved_bytes: int = 0
    """What is sent and received."""


class Times(ABC):
    """A predictor of one rank."""

    @abstractmethod
    def predict(self, works: Sequence[PhaseWork]) -> Floats:
        """Return [P] the seconds that each phase is predicted to take, always between LEAST_S and MOST_S."""

    @abstractmethod
    def learn(self, works: Sequence[PhaseWork], seconds_P: Floats) -> None:
        """Learn from phases that were measured."""


def sizes_of(works: Sequence[PhaseWork]) -> Floats:
    """Return [P, 5] the sizes of phases."""
    rows = [(w.rows, w.edges, w.rows * w.width, w.edges * w.width, w.moved_bytes) for w in works]
    return np.array(rows, np.float64).reshape(len(works), 5)


def _kinds(works: Sequence[PhaseWork]) -> NDArray[np.int64]:
    return np.array([KINDS.index(work.kind) for work in works], np.int64)


def _guess(works: Sequence[PhaseWork]) -> Floats:
    """Return seconds for phases of which nothing was measured: only their ratios are worth something."""
    sizes = sizes_of(works)
    return np.clip(1e-5 + 1e-9 * (sizes[:, 2] + sizes[:, 3] + sizes[:, 4]), LEAST_S, MOST_S)


@final
class LinearTimes(Times):
    """Seconds as a constant and so much a row, an edge, a number and a byte, for each kind by itself."""

    def __init__(self) -> None:
        # Sums over all examples of f f^T and of f s for features f and seconds s, each example divided by s.
        self._squares = np.zeros((len(KINDS), 6, 6))
        self._products = np.zeros((len(KINDS), 6))

    def predict(self, works: Sequence[PhaseWork]) -> Floats:
        """Return the law's seconds."""
        seconds, kinds = _guess(works), _kinds(works)
        terms = _terms(works)
        for kind in np.unique(kinds):
            if self._squares[kind].any():
                seconds[kinds == kind] = terms[kinds == kind] @ self._law(int(kind))
        return np.clip(seconds, LEAST_S, MOST_S)

    def _law(self, kind: int) -> Floats:
        # Terms of one size, and a little less than the data ask for: sizes often go together.
        squares = self._squares[kind]
        scale = np.sqrt(np.maximum(np.diag(squares), 1e-300))
        matrix = squares / scale / scale[:, None] + 1e-6 * np.eye(6)
        found: Floats = np.linalg.solve(matrix, self._products[kind] / scale) / scale
        return found

    def learn(self, works: Sequence[PhaseWork], seconds_P: Floats) -> None:
        """Add examples to the sums."""
        relative = _terms(works) / np.maximum(seconds_P, LEAST_S)[:, None]
        for kind, terms in zip(_kinds(works), relative, strict=True):
            self._squares[kind] += np.outer(terms, terms)
            self._products[kind] += terms


def _terms(works: Sequence[PhaseWork]) -> Floats:
    return np.concatenate([np.ones((len(works), 1)), sizes_of(works)], axis=1)


@final
class MlpTimes(Times):
    """A network with one hidden layer, from logarithms of sizes and the kind to the logarithm of seconds."""

    def __init__(self, *, seed: int, hidden: int = HIDDEN) -> None:
        self._seed, self._updates = seed, 0
        rng = np.random.Generator(np.random.Philox([seed, 0x74696D65]))
        num_features = len(KINDS) + 5
        self._weights: list[Floats] = [
            rng.normal(size=(num_features, hidden)) / np.sqrt(num_features), np.zeros(hidden),
            rng.normal(size=hidden) / np.sqrt(hidden), np.zeros(1),
        ]  # fmt: skip
        self._first = [np.zeros_like(part) for part in self._weights]
        self._second = [np.zeros_like(part) for part in self._weights]
        self._x_BF, self._y_B = np.empty((0, num_features)), np.empty(0)

    def predict(self, works: Sequence[PhaseWork]) -> Floats:
        """Return the network's seconds."""
        if not len(self._y_B):
            return _guess(works)
        logs = self._forward(self._standard(_logs(works)))[1] * self._spread() + self._y_B.mean()
        told: Floats = np.clip(np.exp(np.clip(logs, np.log(LEAST_S), np.log(MOST_S))), LEAST_S, MOST_S)
        return told

    def learn(self, works: Sequence[PhaseWork], seconds_P: Floats) -> None:
        """Remember the examples, forget the oldest beyond EXAMPLES, and make ROUNDS updates."""
        logs = np.log(np.clip(seconds_P, LEAST_S, MOST_S))
        self._x_BF = np.concatenate([self._x_BF, _logs(works)])[-EXAMPLES:]
        self._y_B = np.concatenate([self._y_B, logs])[-EXAMPLES:]
        if not len(self._y_B):
            return
        x_BF, y_B = self._standard(self._x_BF), (self._y_B - self._y_B.mean()) / self._spread()
        for _ in range(ROUNDS):
            self._updates += 1
            rng = np.random.Generator(np.random.Philox([self._seed, self._updates, 0x62617463]))
            chosen = rng.integers(len(y_B), size=BATCH)
            self._update(x_BF[chosen], y_B[chosen])

    def _standard(self, x_PF: Floats) -> Floats:
        """Return features with mean 0 and deviation 1 over the examples."""
        standard: Floats = (x_PF - self._x_BF.mean(0)) / np.maximum(self._x_BF.std(0), 1e-3)
        # Sizes far outside those that were seen would drive the network to the end of its range.
        return np.clip(standard, -4.0, 4.0)

    def _spread(self) -> float:
        return float(max(self._y_B.std(), 1e-3))

    def _forward(self, x_PF: Floats) -> tuple[Floats, Floats]:
        first, bias, second, shift = self._weights
        h_PH = np.tanh(x_PF @ first + bias)
        return h_PH, h_PH @ second + shift

    def _update(self, x_BF: Floats, y_B: Floats) -> None:
        """Make one step of Adam on the mean squared error."""
        h_BH, told_B = self._forward(x_BF)
        d_B = 2.0 * (told_B - y_B) / len(y_B)
        d_BH = d_B[:, None] * self._weights[2] * (1.0 - h_BH**2)
        gradients = [x_BF.T @ d_BH, d_BH.sum(0), h_BH.T @ d_B, d_B.sum(keepdims=True)]
        for part, gradient, first, second in zip(self._weights, gradients, self._first, self._second, strict=True):
            first += 0.1 * (gradient - first)
            second += 0.001 * (gradient**2 - second)
            unbiased = first / (1 - 0.9**self._updates), second / (1 - 0.999**self._updates)
            part -= RATE * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)


def _logs(works: Sequence[PhaseWork]) -> Floats:
    """Return [P, F] logarithms of sizes, and the kind."""
    return np.concatenate([np.eye(len(KINDS))[_kinds(works)], np.log1p(sizes_of(works))], axis=1)


def off_by(times: Times, works: Sequence[PhaseWork], seconds_P: Floats) -> float:
    """Return by what factor predictions are off in the middle: 1.1 is a tenth too much or too little."""
    ratios = np.abs(np.log(times.predict(works)) - np.log(np.clip(seconds_P, LEAST_S, MOST_S)))
    return float(np.exp(np.median(ratios)))
