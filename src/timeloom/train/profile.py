"""Where the time of a rank's steps goes, phase by phase, and how long each of its windows takes.

On a GPU these are the times at which work was handed over, not those at which it was done.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from timeloom.dist.collectives import World
from timeloom.plan.types import Unit

Part = tuple[str, float, float]
"""A phase, when it began after its step did, and how long it took; in seconds."""
_ROUNDS = 5


class Profile:
    """The stopwatch of one rank."""

    def __init__(self) -> None:
        self.began = time.time()
        """When the step under way began, in seconds since 1970."""
        self.seconds: dict[Unit, float] = {}
        """How long each window took, forward and backward, the last time that it was alone in a step."""
        self._parts: list[Part] = []
        self._zero = time.perf_counter()

    def begin(self) -> None:
        """Begin a step."""
        self.began, self._zero, self._parts = time.time(), time.perf_counter(), []

    def end(self) -> tuple[Part, ...]:
        """Return what the step was spent on; phases of one kind that follow each other are one."""
        joined: list[Part] = []
        for name, begin, seconds in self._parts:
            if joined and joined[-1][0] == name and begin - sum(joined[-1][1:]) < 1e-4:
                joined[-1] = (name, joined[-1][1], begin + seconds - joined[-1][1])
            else:
                joined.append((name, begin, seconds))
        return tuple((name, round(begin, 6), round(seconds, 6)) for name, begin, seconds in joined)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block as that of a phase."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._parts.append((name, begin - self._zero, time.perf_counter() - begin))

    def total(self) -> float:
        """Return the seconds since the step began that were spent in a phase other than waiting for other ranks."""
        return sum(seconds for name, _, seconds in self._parts if name != "communicate")


def clock_offset(world: World) -> float:
    """Collective. Return by how many seconds this rank's clock is ahead of that of the first one."""
    offsets = []
    for _ in range(_ROUNDS if world.size > 1 else 0):
        world.barrier("control/clock")
        now = time.time()
        first = world.broadcast(torch.tensor([now], dtype=torch.float64), "control/clock/first")
        offsets.append(now - float(first))
    return statistics.median(offsets) if offsets else 0.0
