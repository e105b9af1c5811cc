"""How the snapshots of a window are dealt out: to ranks, one stretch of time each, or into short stretches in turn."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from timeloom.plan.types import Unit

Way = Literal["forward", "back"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive snapshots of a window, at least one."""

    window: Unit
    first: int
    last: int
    """The snapshot after the last one."""

    @property
    def times(self) -> tuple[int, ...]:
        """The snapshots."""
        return tuple(range(self.first, self.last))

    @property
    def starts(self) -> bool:
        """Whether the window starts with it."""
        return self.first == self.window.first

    @property
    def ends(self) -> bool:
        """Whether the window ends with it."""
        return self.last == self.window.last

    @property
    def keeps(self) -> bool:
        """Whether the state after one of its snapshots is kept for the next window."""
        return self.first <= self.window.keep < self.last


def whole(window: Unit) -> Piece:
    """Return all of a window."""
    return Piece(window, window.first, window.last)


def dealt(window: Unit, ranks: int) -> list[Piece]:
    """Return the pieces of the first ranks: as many snapshots each, or one fewer; ranks beyond the last have none."""
    size = window.last - window.first
    least, more = divmod(size, ranks)
    firsts = [window.first + rank * least + min(rank, more) for rank in range(min(ranks, size) + 1)]
    return [Piece(window, first, last) for first, last in pairwise(firsts)]


def cut(piece: Piece, size: int) -> list[Piece]:
    """Return a piece cut into pieces of so many snapshots; the last one may be shorter."""
    return [
        Piece(piece.window, first, min(first + size, piece.last)) for first in range(piece.first, piece.last, size)
    ]  # fmt: skip


def forward_and_back(rank: int, ranks: int, windows: int) -> list[tuple[Way, int]]:
    """Return in which order a rank takes its pieces of some windows forward and back again.

    Rank r works on the next window while rank r + 1 has this one. A window goes back as soon as it may, so that no rank
    holds more windows than there are ranks from it to the last (one forward, one back).
    """
    ahead = min(max(ranks - 1 - rank, 0), windows)
    order: list[tuple[Way, int]] = [("forward", place) for place in range(ahead)]
    for place in range(windows):
        if place + ahead < windows:
            order.append(("forward", place + ahead))
        order.append(("back", place))
    return order
