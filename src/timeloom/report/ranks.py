"""What the ranks did, when: how busy they were, how evenly, and single steps in detail.

R ranks, S steps, B bins of time, P parts of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from timeloom.records import PHASES
from timeloom.report.log import Parts
from timeloom.report.shrink import Floats

Ints = npt.NDArray[np.int64]
# What a thread builds beside training is no work of the step that it happens to fall into.
_NO_WORK = tuple(PHASES.index(phase) for phase in ("communicate", "wait", "build"))
_EXCERPT_STEPS = 6
_LEAST_TOLD = 0.01
_EXCERPT_SPANS = 4_000


@dataclass(frozen=True, slots=True)
class Spent:
    """All parts of all ranks, in the order of rank and time; seconds since the first of them."""

    rank_P: Ints
    step_P: Ints
    epoch_P: Ints
    phase_P: Ints
    start_P: Floats
    seconds_P: Floats
    origin: float
    """When the first part began, in seconds since 1970."""

    @property
    def computes(self) -> npt.NDArray[np.bool_]:
        """[P]: whether a part is work: everything but to communicate, to wait, and to build later batches beside it."""
        return ~np.isin(self.phase_P, _NO_WORK)

    def __len__(self) -> int:
        return len(self.rank_P)


def spent(parts: Parts, newest: int = 0) -> Spent:
    """Return the parts in order, or only the ``newest`` of them; a part without a time is left out."""
    whole = slice(-newest, None) if newest else slice(None)
    began_P, seconds_P = (np.array(column[whole], np.float64) for column in (parts.began, parts.seconds))
    rank_P = np.array(parts.rank[whole], np.int64)
    known = np.flatnonzero(np.isfinite(began_P) & np.isfinite(seconds_P) & (seconds_P >= 0))
    order = known[np.lexsort((began_P[known], rank_P[known]))]
    origin = float(began_P[order].min()) if len(order) else 0.0
    step_P, epoch_P, phase_P = (
        np.array(column[whole], np.int64)[order] for column in (parts.step, parts.epoch, parts.phase)
    )
    return Spent(rank_P[order], step_P, epoch_P, phase_P, began_P[order] - origin, seconds_P[order], origin)


def phase_seconds(found: Spent, ranks: list[int]) -> Floats:
    """Return [R, phases]: how long each rank was at what; without the run's first step, unless there is no other.

    In its first step a run compiles, which can take longer than all that follows.
    """
    keep = found.step_P > 1
    keep |= not keep.any()
    place_P = np.searchsorted(ranks, found.rank_P[keep])
    seconds = np.zeros((len(ranks), len(PHASES)))
    np.add.at(seconds, (place_P, found.phase_P[keep]), found.seconds_P[keep])
    return seconds


def working(found: Spent) -> Spent:
    """Return the parts that are work; of what a rank did at the same time, the time counts once."""
    keep = found.computes
    rank_P, start_P, seconds_P = found.rank_P[keep], found.start_P[keep].copy(), found.seconds_P[keep].copy()
    stop_P = start_P + seconds_P
    bounds = np.flatnonzero(np.diff(rank_P)) + 1
    for first, stop in zip([0, *bounds], [*bounds, len(rank_P)], strict=True):
        if stop > first:
            latest = np.maximum.accumulate(stop_P[first:stop])[:-1]
            start_P[first + 1 : stop] = np.minimum(
                np.maximum(start_P[first + 1 : stop], latest), stop_P[first + 1 : stop]
            )
    return Spent(
        rank_P, found.step_P[keep], found.epoch_P[keep], found.phase_P[keep], start_P, stop_P - start_P, found.origin
    )


def busy_grid(found: Spent, ranks: list[int], bins: int) -> tuple[float, Floats]:
    """Return the width of a bin in seconds, and [R, B]: the share of a bin's time in which a rank worked.

    Not every step need be told: only the time of those that were counts, and a bin without any is nan.
    """
    end = float((found.start_P + found.seconds_P).max()) if len(found) else 0.0
    width = max(end / bins, 1e-9)
    edges_B = np.arange(bins + 1) * width
    work, grid, told_B = working(found), np.zeros((len(ranks), bins)), _told(found, edges_B)
    for place, rank in enumerate(ranks):
        mine = work.rank_P == rank
        start_P, stop_P = work.start_P[mine], work.start_P[mine] + work.seconds_P[mine]
        grid[place] = np.diff(_passed(start_P, edges_B) - _passed(stop_P, edges_B))
    shares = np.full_like(grid, np.nan)
    np.divide(grid, told_B, out=shares, where=told_B > _LEAST_TOLD * width)
    return width, shares.clip(0.0, 1.0)


def _told(found: Spent, edges_B: npt.NDArray[Any]) -> Floats:
    """Return [B]: for how many seconds of each bin steps were told."""
    steps, first_S, place_P = np.unique(found.step_P, return_index=True, return_inverse=True)
    start_S, stop_S = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(start_S, place_P, found.start_P)
    np.maximum.at(stop_S, place_P, found.start_P + found.seconds_P)
    # From one step to the next of its epoch no time is lost, whatever it was spent on.
    follows_S = (np.diff(steps) == 1) & (np.diff(found.epoch_P[first_S]) == 0)
    stop_S[:-1] = np.where(follows_S, np.maximum(stop_S[:-1], start_S[1:]), stop_S[:-1])
    # A rank may begin a step before another has ended the one before.
    order = np.argsort(start_S)
    start_S, stop_S = start_S[order], np.maximum.accumulate(stop_S[order])
    start_S[1:] = np.maximum(start_S[1:], stop_S[:-1])
    told: Floats = np.diff(_passed(start_S, edges_B) - _passed(stop_S, edges_B))
    return told


def _passed(moments_P: Floats, edges_B: npt.NDArray[Any]) -> Floats:
    """Return [B + 1]: how many seconds have passed since all earlier moments, together."""
    moments_P = np.sort(moments_P)
    count_B = np.searchsorted(moments_P, edges_B)
    sums = np.concatenate([[0.0], np.cumsum(moments_P)])
    passed: Floats = count_B * edges_B - sums[count_B]
    return passed


def loads(found: Spent, ranks: list[int]) -> tuple[Ints, Floats]:
    """Return the steps, and [S, R]: for how many seconds each rank worked in each."""
    work = working(found)
    steps_S = np.unique(found.step_P)
    load = np.zeros((len(steps_S), len(ranks)))
    np.add.at(load, (np.searchsorted(steps_S, work.step_P), np.searchsorted(ranks, work.rank_P)), work.seconds_P)
    return steps_S, load


def imbalance(load: Floats) -> Floats:
    """Return [S]: the largest load of a step over the least (REAL 7.5); inf where a rank had nothing to do."""
    least, most = load.min(axis=1, initial=np.inf), load.max(axis=1, initial=0.0)
    ratio = np.full(len(load), np.inf)
    np.divide(most, least, out=ratio, where=least > 0)
    return ratio


def excerpts(found: Spent, ranks: list[int], most: int = 8) -> list[dict[str, Any]]:
    """Return a few stretches of consecutive steps in detail, from the first to the last."""
    steps = np.unique(found.step_P)
    if not len(steps):
        return []
    at_once = max(1, min(_EXCERPT_STEPS, int(_EXCERPT_SPANS * len(steps) / max(len(found), 1))))
    # Where steps were left out, a stretch ends.
    whole = np.split(steps, np.flatnonzero(np.diff(steps) != 1) + 1)
    stretches = [part[first : first + at_once] for part in whole for first in range(0, len(part), at_once)]
    chosen = np.unique(np.linspace(0, len(stretches) - 1, min(most, len(stretches))).round().astype(int))
    order = np.argsort(found.step_P, kind="stable")
    sorted_steps = found.step_P[order]
    told = []
    for place in chosen:
        first, last = int(stretches[place][0]), int(stretches[place][-1])
        low, high = np.searchsorted(sorted_steps, (first, last + 1))
        told.append(_excerpt(found, np.sort(order[low:high]), ranks, (first, last)))
    return told


def _excerpt(found: Spent, places: Ints, ranks: list[int], steps: tuple[int, int]) -> dict[str, Any]:
    start_P, seconds_P = found.start_P[places], found.seconds_P[places]
    origin = float(start_P.min())
    rows = []
    for rank in ranks:
        mine = places[found.rank_P[places] == rank]
        lanes = lanes_of(found.start_P[mine], found.seconds_P[mine])
        rows.append({
            "rank": rank, "lanes": max(lanes, default=0) + 1,
            "spans": [
                [int(found.phase_P[p]), lane, round(float(found.start_P[p]) - origin, 6),
                 round(float(found.seconds_P[p]), 6), int(found.step_P[p])]
                for p, lane in zip(mine, lanes, strict=True)
            ],
        })  # fmt: skip
    return {
        "first": steps[0], "last": steps[1], "epoch": int(found.epoch_P[places[0]]), "origin": round(origin, 6),
        "seconds": round(float((start_P + seconds_P).max()) - origin, 6), "rows": rows,
    }  # fmt: skip


def lanes_of(start_P: Floats, seconds_P: Floats) -> list[int]:
    """Return the lane of each part, so that what overlaps lies in different lanes."""
    free: list[float] = []
    lanes = []
    for start, seconds in zip(start_P.tolist(), seconds_P.tolist(), strict=True):
        # A microsecond of overlap is rounding.
        lane = next((lane for lane, until in enumerate(free) if until <= start + 2e-6), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = start + seconds
        lanes.append(lane)
    return lanes
