"""What the collectives of a rank came to: calls, bytes and seconds waited, by name."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What one name came to since the world began, on one rank.

    Bytes are those that must leave and reach this rank: a reduction over R ranks costs 2 (R - 1) / R of the tensor each
    way, a broadcast R - 1 copies from its root, an all-to-all what goes to and comes from others.
    """

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    waited_s: float = 0.0


class Tallies:
    """The tallies of a rank; its threads may add to them at once."""

    __slots__ = ("_by_name", "_lock", "_taken")

    def __init__(self) -> None:
        # Calls, bytes sent, bytes received, seconds: counted in place, for this happens at every collective.
        self._by_name: dict[str, list[float]] = {}
        self._taken: dict[str, Tally] = {}
        self._lock = threading.Lock()

    def add_call(self, name: str, sent_bytes: int, received_bytes: int) -> None:
        """Count a call that has begun."""
        with self._lock:
            counts = self._by_name.setdefault(name, [0, 0, 0, 0.0])
            counts[0] += 1
            counts[1] += sent_bytes
            counts[2] += received_bytes

    def add_wait(self, name: str, waited_s: float) -> None:
        """Count seconds in which this rank did nothing but wait."""
        with self._lock:
            self._by_name[name][3] += waited_s

    def read(self) -> dict[str, Tally]:
        """Return all tallies as they are now, by name in the order of first use."""
        with self._lock:
            return {
                name: Tally(calls=int(calls), sent_bytes=int(sent), received_bytes=int(received), waited_s=waited_s)
                for name, (calls, sent, received, waited_s) in self._by_name.items()
            }

    def take(self) -> dict[str, Tally]:
        """Return what was added since this was called last."""
        now, before = self.read(), self._taken
        self._taken = now
        return {name: _less(tally, before[name]) if name in before else tally for name, tally in now.items()}


def _less(tally: Tally, before: Tally) -> Tally:
    return Tally(
        calls=tally.calls - before.calls, sent_bytes=tally.sent_bytes - before.sent_bytes,
        received_bytes=tally.received_bytes - before.received_bytes, waited_s=tally.waited_s - before.waited_s,
    )  # fmt: skip


def total(tallies: dict[str, Tally]) -> Tally:
    """Return the sum of all tallies."""
    parts = tallies.values()
    return Tally(
        calls=sum(part.calls for part in parts), sent_bytes=sum(part.sent_bytes for part in parts),
        received_bytes=sum(part.received_bytes for part in parts), waited_s=sum(part.waited_s for part in parts),
    )  # fmt: skip
