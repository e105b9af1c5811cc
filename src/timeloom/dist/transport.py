"""What moves tensors between ranks: the few things that a world stands on.

There are three: nothing at all (one rank), threads of one process (`threads.py`, for tests) and processes
(`world.py`). Everything that has a meaning (names, checks, counts, limits, reports) is in `collectives.py`, above them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from torch import Tensor

Reduction = Literal["sum", "max"]
Wait = Callable[[float], None]
"""Returns when what was started is done; raises `Broken` after so many seconds, or when a rank is gone."""


class Broken(Exception):
    """Ranks that cannot finish what they started together; ``late`` where it took too long, else a rank is gone."""

    def __init__(self, why: str, *, late: bool) -> None:
        super().__init__(why)
        self.late = late


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where a rank was last seen."""

    label: str = ""
    """The collective at which it was, or nothing where it reached none yet."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many collectives it began on each group, and how many messages it sent (`>`) and awaited (`<`) per rank."""
    failure: str = ""
    """What it failed of, by its own account."""
    gave_up: bool = False
    """It ended because another rank was missing."""

    def to_text(self) -> str:
        """Return this as text that `from_text` reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_text(text: str) -> Sighting:
        """Return what `to_text` wrote."""
        fields = json.loads(text)
        return Sighting(fields["label"], fields["counts"], fields["failure"], fields["gave_up"])


class Transport(ABC):
    """One rank's end. Tensors are contiguous and stay untouched until ``Wait`` returned; results are written in place.

    Group names that begin with ``check-`` carry fingerprints, on the CPU.
    """

    rank: int
    size: int

    @abstractmethod
    def all_reduce(self, group: str, x: Tensor, how: Reduction) -> Wait:
        """Begin to replace ``x`` by the sum or the maximum over all ranks."""

    @abstractmethod
    def broadcast(self, group: str, x: Tensor, root: int) -> Wait:
        """Begin to replace ``x`` by that of ``root``."""

    @abstractmethod
    def all_to_all(
        self, group: str, out: Tensor, x: Tensor, *, sent: tuple[int, ...], received: tuple[int, ...]
    ) -> Wait:
        """Begin to send ``sent[r]`` rows of ``x`` to rank r and to write ``received[r]`` rows from there to ``out``."""

    @abstractmethod
    def exchange(self, group: str, *, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        """Begin to send a tensor to some ranks and to fill one from others."""

    @abstractmethod
    def watch(self, look: Callable[[], Sighting]) -> None:
        """Have others see, from now and until `close`, where this rank is."""

    @abstractmethod
    def publish(self) -> None:
        """Have others see at once where this rank is."""

    @abstractmethod
    def sightings(self) -> list[Sighting]:
        """Return where each rank was last seen."""

    @abstractmethod
    def silent(self) -> set[int]:
        """Return the ranks that give no sign of life; this may take a second or two."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what this end holds."""


def _done(limit_s: float) -> None:
    """Wait for nothing."""


class Alone(Transport):
    """One rank: nothing is sent."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1

    def all_reduce(self, group: str, x: Tensor, how: Reduction) -> Wait:
        """Leave ``x`` as it is."""
        return _done

    def broadcast(self, group: str, x: Tensor, root: int) -> Wait:
        """Leave ``x`` as it is."""
        return _done

    def all_to_all(
        self, group: str, out: Tensor, x: Tensor, *, sent: tuple[int, ...], received: tuple[int, ...]
    ) -> Wait:
        """Copy."""
        out.copy_(x)
        return _done

    def exchange(self, group: str, *, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        """There is nobody to send to, as `World.start_exchange` asserts."""
        return _done

    def watch(self, look: Callable[[], Sighting]) -> None:
        """There is nobody to see it."""

    def publish(self) -> None:
        """There is nobody to see it."""

    def sightings(self) -> list[Sighting]:
        """Nobody can be missed."""
        return [Sighting()]

    def silent(self) -> set[int]:
        """Return nobody."""
        return set()

    def close(self) -> None:
        """There is nothing to let go of."""
