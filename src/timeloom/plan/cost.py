"""What a computation is predicted to cost: laws fitted to measured times, with no coefficient below zero (SPEC D6.1).

A kernel's time is a constant, so much a row, so much an edge, and so much for every number that it reads or writes,
``rows x width`` and ``edges x width``. Rows that fit a processor's cache cost less an edge than rows that do not, so
there is a law for each. Laws are fitted to relative errors: a small graph counts as much as a large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadInput

Kernel = Literal["sum", "step", "attend", "amend", "gather", "multiply"]
"""sum: over neighbours, a pass over all edges. step: from one snapshot's sums to the next one's; its edges are the
entries that changed. attend: a pass of attention, forward and back. amend: attention from snapshot to snapshot; its
edges are all of the first one and the entries that changed. gather: rows picked by index, and their gradients put back.
multiply: products; its edges are thousands of operations, its width is 1."""
KERNELS: tuple[Kernel, ...] = ("sum", "step", "attend", "amend", "gather", "multiply")
CACHED_BYTES = 8 << 20
"""Rows that take no more than this are taken to stay in cache."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much a kernel has to do."""

    rows: int
    edges: int
    width: int

    @property
    def in_cache(self) -> bool:
        """Whether the rows that edges lead to fit the cache (numbers of 4 bytes)."""
        return 4 * self.rows * self.width <= CACHED_BYTES

    @property
    def terms(self) -> tuple[float, ...]:
        """What the coefficients of a law are multiplied by."""
        return 1.0, self.rows, self.rows * self.width, self.edges, self.edges * self.width


@dataclass(frozen=True, slots=True)
class Law:
    """Seconds a call, a row, a number of a row, an edge, a number of an edge; in cache, and beyond it."""

    cached: tuple[float, ...]
    beyond: tuple[float, ...]

    def seconds(self, work: Work) -> float:
        """Return the time that some work is predicted to take."""
        law = self.cached if work.in_cache else self.beyond
        return float(np.dot(law, work.terms))


@dataclass(frozen=True, slots=True)
class Costs:
    """The laws of a machine."""

    laws: Mapping[Kernel, Law]
    threads: int

    def seconds(self, kernel: Kernel, *, rows: int, edges: int, width: int) -> float:
        """Return the time that a kernel is predicted to take; nothing costs nothing."""
        return self.laws[kernel].seconds(Work(rows, edges, width)) if rows or edges else 0.0


def fit(works: Sequence[Work], seconds: Sequence[float]) -> Law:
    """Return the law with the least relative errors; where one kind of work was not measured the other stands in."""
    laws = []
    for in_cache in (True, False):
        chosen = [place for place, work in enumerate(works) if work.in_cache == in_cache]
        laws.append(_least(works, seconds, chosen) if chosen else None)
    cached, beyond = laws
    if cached is None and beyond is None:
        raise BadInput("a law cannot be fitted to no measurement at all")
    return Law(cached or beyond or (), beyond or cached or ())


def _least(works: Sequence[Work], seconds: Sequence[float], chosen: Sequence[int]) -> tuple[float, ...]:
    took = np.array([seconds[place] for place in chosen])
    terms = np.array([works[place].terms for place in chosen])
    # Columns of one size, else the solver's tolerance swallows the small ones.
    sizes = np.maximum(np.abs(terms).max(0), 1e-300)
    found = least_squares(terms / sizes / took[:, None], np.ones(len(took)))
    return tuple((found / sizes).tolist())


def least_squares(terms_WC: NDArray[np.float64], wanted_W: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients, none of them below zero, with the least squared error.

    The best ones leave out some columns and are the plain least squares of the others, so every choice of columns is
    tried: there are few (W measurements, C columns).
    """
    count = terms_WC.shape[1]
    best, least = np.zeros(count), float(wanted_W @ wanted_W)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            columns = terms_WC[:, chosen]
            found = np.linalg.lstsq(columns, wanted_W, rcond=None)[0]
            error = float(np.square(columns @ found - wanted_W).sum())
            if found.min() >= 0.0 and error < least:
                best, least = np.zeros(count), error
                best[list(chosen)] = found
    return best


def errors(law: Law, works: Sequence[Work], seconds: Sequence[float]) -> NDArray[np.float64]:
    """Return by what factor each prediction is off, at least 1."""
    told = np.array([law.seconds(work) for work in works]) / np.array(seconds)
    off: NDArray[np.float64] = np.maximum(told, 1.0 / np.maximum(told, 1e-12))
    return off


def as_json(costs: Costs) -> dict[str, object]:
    """Return costs as they are written to a file."""
    return {"threads": costs.threads, "laws": {kernel: asdict(law) for kernel, law in costs.laws.items()}}


def from_json(told: Mapping[str, object]) -> Costs:
    """Return costs that were written; a file that is something else is refused."""
    laws, threads = told.get("laws"), told.get("threads")
    try:
        assert isinstance(laws, Mapping)
        assert isinstance(threads, int)
        found = {
            kernel: Law(*(tuple(map(float, laws[kernel][part])) for part in ("cached", "beyond"))) for kernel in KERNELS
        }
        assert all(len(part) == 5 and min(part) >= 0 for law in found.values() for part in (law.cached, law.beyond))
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"the file of costs is no such file ({error!r}): make it anew with 'timeloom calibrate'"
        ) from None
    return Costs(found, threads)
