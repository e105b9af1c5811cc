"""How many numbers become few without losing what the eye looks for: the extremes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def kept_places(values: Sequence[float] | Floats, most: int) -> Places:
    """Return the places of at most ``most`` values: the first, the last, the least and the largest of every stretch."""
    numbers = np.asarray(values, np.float64)
    count = len(numbers)
    if count <= most:
        return np.arange(count)
    bounds = np.linspace(0, count, max(1, (most - 2) // 2) + 1).astype(np.int64)
    kept = [0, count - 1]
    for first, stop in pairwise(bounds):
        part = numbers[first:stop]
        known = np.flatnonzero(~np.isnan(part))
        if len(known):
            kept += [int(first + known[part[known].argmin()]), int(first + known[part[known].argmax()])]
    return np.unique(np.array(kept, np.int64))


def short(values: Sequence[float] | Floats, digits: int = 6) -> list[float | None]:
    """Return numbers as JSON has them, with so many digits; None where there is none."""
    numbers = np.asarray(values, np.float64)
    known = np.isfinite(numbers).tolist()
    return [float(f"{value:.{digits}g}") if ok else None for value, ok in zip(numbers.tolist(), known, strict=True)]


def short_one(value: Any) -> float | None:
    """Return a number as JSON has it."""
    return short([float(value)])[0]
