"""How a sequence of snapshots is cut into windows that are trained, and scored, together (SPEC D1.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from timeloom.errors import BadConfig
from timeloom.plan.types import Plan, Step, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSettings:
    """How many snapshots are trained together, and what their state starts from."""

    length: int = 8
    """Snapshots of a window: gradients reach no further back (truncated backpropagation)."""
    stride: int = 0
    """Snapshots between the beginnings of windows; 0: `length` where the state is inherited, else 1 (REAL, DyGNeX)."""
    targets: Literal["all", "last"] = "all"
    """Which snapshots of a window are learnt from."""
    state: Literal["inherit", "zero"] = "inherit"
    """What a window starts from: the state that the one before it left (detached), or zero."""
    groups: int = 1
    """Windows of one update; what they share is computed once. Only where windows start from zero."""
    shuffle: bool = True
    """Windows that start from zero come in another order in every epoch; others must follow each other."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise BadConfig(f"window.length={self.length} is too short: give 1 or more")
        if self.stride < 0:
            raise BadConfig(f"window.stride={self.stride} goes back in time: give 1 or more, or 0 for the default")
        if self.groups < 1 or (self.groups > 1 and self.state == "inherit"):
            raise BadConfig(
                f"window.groups={self.groups}: give 1 or more, and more than 1 only with --set window.state=zero: "
                "windows that inherit a state follow each other"
            )
        if self.state == "inherit" and self.stride > self.length:
            raise BadConfig(
                f"window.stride={self.stride} leaves out snapshots between windows of length {self.length}, so that "
                f"no state can be inherited: use a stride of {self.length} or less, or --set window.state=zero"
            )

    @property
    def step(self) -> int:
        """Snapshots between the beginnings of windows."""
        return self.stride or (self.length if self.state == "inherit" else 1)


def training_windows(settings: WindowSettings, num_snapshots: int) -> list[Unit]:
    """Return the windows over snapshots 0 to ``num_snapshots``, in the order of time.

    Where the state is inherited they cover every snapshot, the last window being shorter where it must be; else every
    window is whole.
    """
    length, step = settings.length, settings.step
    if settings.state == "zero":
        if num_snapshots < length:
            raise BadConfig(
                f"window.length={length} needs {length} snapshots to train on, but there are {num_snapshots}: use "
                f"--set window.length={max(num_snapshots, 1)}, or a finer cut of time when ingesting"
            )
        firsts = range(0, num_snapshots - length + 1, step)
        return [_window(settings, first, first + length, fresh=True) for first in firsts]
    units: list[Unit] = []
    for first in range(0, num_snapshots, step):
        last = min(first + length, num_snapshots)
        units.append(_window(settings, first, last, fresh=first == 0, keep=min(first + step, last) - 1))
        if last == num_snapshots:
            break
    return units


def steps_of(settings: WindowSettings, num_snapshots: int, *, ranks: int = 1) -> int:
    """Return how many updates an epoch has where ``ranks`` ranks take different windows."""
    return -(-len(training_windows(settings, num_snapshots)) // (settings.groups * ranks))


def _window(settings: WindowSettings, first: int, last: int, *, fresh: bool, keep: int = -1) -> Unit:
    targets = tuple(range(first, last)) if settings.targets == "all" else (last - 1,)
    return Unit(first=first, last=last, targets=targets, fresh=fresh, keep=keep)


def scoring_windows(settings: WindowSettings, first: int, last: int, *, restarts: bool) -> list[Unit]:
    """Return windows after which every snapshot from ``first`` to ``last`` (exclusive) was scored exactly once.

    A snapshot is scored with the longest past that training showed the model: its own whole window where windows start
    from zero, all snapshots before it where the state is inherited. ``restarts`` says that a part of the state starts
    anew in every window (SPEC D2.1); windows then lie as they do in training.
    """
    if settings.state == "zero":
        return [
            Unit(first=max(0, t - settings.length + 1), last=t + 1, targets=(t,), fresh=True)
            for t in range(first, last)
        ]  # fmt: skip
    length, step = (settings.length, settings.step) if restarts else (1, 1)
    units: list[Unit] = []
    scored = first
    for begin in range(0, last, step):
        end = min(begin + length, last)
        targets, keep = tuple(range(scored, end)), min(begin + step, end) - 1
        units.append(Unit(first=begin, last=end, targets=targets, fresh=begin == 0, keep=keep))
        scored = max(scored, end)
        if end == last:
            break
    return units


def in_epochs(units: list[Unit], *, groups: int, seed: int, epoch: int, shuffle: bool, ranks: int = 1) -> Plan:
    """Yield one epoch: so many windows a rank and step, steps shuffled by (seed, epoch) where that is asked for.

    Windows of a rank follow each other in time, so that they share what they can (SPEC section 5). Where the last step
    has fewer windows than ranks, the last ranks have none.
    """
    share = ranks * groups
    steps = [units[first : first + share] for first in range(0, len(units), share)]
    order = np.arange(len(steps))
    if shuffle:
        np.random.Generator(np.random.Philox([seed, epoch])).shuffle(order)
    yield from in_turn([_dealt(steps[number], ranks) for number in order])


def in_turn(steps: Sequence[Mapping[int, tuple[Unit, ...]]]) -> Plan:
    """Yield an epoch whose steps are all known before it begins."""
    for place, step in enumerate(steps):
        last = place == len(steps) - 1
        yield Step(units=step, ends_epoch=last, soon={} if last else steps[place + 1])


def _dealt(units: list[Unit], ranks: int) -> dict[int, tuple[Unit, ...]]:
    """Return the windows of each rank: as many as the others, or one fewer."""
    least, more = divmod(len(units), ranks)
    firsts = [rank * least + min(rank, more) for rank in range(ranks + 1)]
    return {rank: tuple(units[first:last]) for rank, (first, last) in enumerate(pairwise(firsts))}


def together(plan: Plan, ranks: int) -> Plan:
    """Yield the steps of a plan for one rank as steps in which every rank has its part of every window."""
    step = next(plan)
    while True:
        every = range(ranks)
        soon = dict.fromkeys(every, step.soon[0]) if step.soon else {}
        outcome = yield Step(units=dict.fromkeys(every, step.units[0]), ends_epoch=step.ends_epoch, soon=soon)
        if step.ends_epoch:
            return
        step = plan.send(outcome)
