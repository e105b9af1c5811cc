"""Small problems to schedule, and the best that there is by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from timeloom.plan.schedule.instance import Instance, instance
from timeloom.plan.schedule.schedule import schedule_of


@st.composite
def problems(
    draw: st.DrawFn, *, most_groups: int = 40, most_devices: int = 6, limits: tuple[int, ...] = (1, 2, 3),
    equal: bool = False,
) -> Instance:  # fmt: skip
    count, devices = draw(st.integers(1, most_groups)), draw(st.integers(1, most_devices))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    band = draw(st.integers(0, 4))
    seconds = rng.lognormal(0.0, draw(st.sampled_from([0.0, 0.2, 1.0])), count)
    reuse = rng.random((count, band)) * draw(st.sampled_from([0.0, 1.0, 3.0]))
    speeds = None if equal or draw(st.booleans()) else rng.choice([0.5, 1.0, 2.0], devices).tolist()
    return instance(
        seconds, devices=devices, reuse=reuse, limit=draw(st.sampled_from(limits)),
        alpha_s=draw(st.sampled_from([0.0, 0.3])), speeds=speeds,
    )  # fmt: skip


def windows(kind: str, count: int, devices: int, *, ratio: float = 0.5, width: int = 4, seed: int = 0) -> Instance:
    """Return groups of snapshots that grow, or come in bursts, of whose common snapshots a share is saved."""
    rng = np.random.default_rng(seed)
    size = count + width - 1
    snapshots = (0.1 + (np.arange(size) / size) ** 1.5) * rng.lognormal(0, 0.08, size)
    if kind == "bursty":
        snapshots = rng.lognormal(0, 0.8, size)
    sums = np.concatenate([[0.0], np.cumsum(snapshots)])
    reuse = np.zeros((count, width - 1))
    for d in range(1, min(width, count)):
        first = np.arange(count - d)
        reuse[: count - d, d - 1] = ratio * (sums[first + width] - sums[first + d])
    return instance(sums[width:] - sums[:-width], devices=devices, reuse=reuse)


def partitions(groups: tuple[int, ...], limit: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield every way to put groups into bins of at most so many."""
    if not groups:
        yield []
        return
    first, rest = groups[0], groups[1:]
    for size in range(min(limit, len(groups))):
        for others in itertools.combinations(rest, size):
            left = tuple(group for group in rest if group not in others)
            for bins in partitions(left, limit):
                yield [(first, *others), *bins]


def least_seconds(problem: Instance) -> float:
    """Return the time of the best schedule: every partition into bins, every way to put bins into steps."""
    best = np.inf
    for bins in partitions(tuple(range(len(problem))), problem.limit):
        works = [problem.work(bin_) for bin_ in bins]
        for steps in partitions(tuple(range(len(bins))), problem.num_devices):
            # In a step the longest bin belongs on the fastest device.
            speeds = np.sort(problem.speeds_D)[::-1]
            told = sum(
                max(
                    work / speed
                    for work, speed in zip(sorted((works[b] for b in step), reverse=True), speeds, strict=False)
                )
                for step in steps
            )
            best = min(best, told + problem.alpha_s * len(steps))
    return float(best)


def steps(*told: list[tuple[int, ...]], devices: int) -> object:
    """Return a schedule written by hand."""
    return schedule_of(told, devices)
