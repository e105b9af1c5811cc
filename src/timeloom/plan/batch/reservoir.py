"""Which batches are kept, and when one of them is used again (DynaHB 5.2, Eq. 4, SPEC D8.6)?

A ring for each size: a new batch takes the place of the oldest one. Rings are written by builders and read by training;
a lock is held for a few assignments and never while a batch is built or trained on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from timeloom.plan.batch.hybrid import HybridBatch
from timeloom.plan.batch.hybrid_settings import BatchSize


def full_rings(sizes: Sequence[BatchSize], *, num_snapshots: int, num_nodes: int) -> tuple[int, ...]:
    """Return how many batches of each size there are when a ring is full: the denominator of Eq. 4, at least 1.

    All rings together then hold about as many (node, snapshot) targets as a rank has; ``num_nodes`` are its own.
    """
    cells = num_snapshots * num_nodes
    return tuple(max(1, cells // max(1, size.snapshots * size.nodes * len(sizes))) for size in sizes)


class Reservoir:
    """The batches that are kept, in one ring for each size."""

    def __init__(self, full: Sequence[int], *, limit_bytes: float) -> None:
        """``full`` is how many batches each ring takes; a ring that reaches its share of the limit takes no more."""
        self._full = tuple(full)
        self._share_bytes = limit_bytes / len(full)
        self._rings: tuple[deque[HybridBatch], ...] = tuple(deque() for _ in full)
        self._bytes = [0] * len(full)
        self._tight = [False] * len(full)
        # Batches that nobody was given yet, by number, the oldest first.
        self._unused: tuple[dict[int, HybridBatch], ...] = tuple({} for _ in full)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many batches are kept."""
        return sum(map(len, self._rings))

    @property
    def num_bytes(self) -> int:
        """What the batches that are kept take; arrays that two of them share count twice."""
        return sum(self._bytes)

    def put(self, batch: HybridBatch, *, used: bool = False) -> None:
        """Keep a batch; the oldest ones of its size go where there is no room. The newest one always stays."""
        action, size = batch.action, batch.num_bytes
        with self._lock:
            ring, unused = self._rings[action], self._unused[action]
            ring.append(batch)
            if not used:
                unused[batch.number] = batch
            self._bytes[action] += size
            # Once a ring met the limit it counts as full, else builders would fill it for ever.
            self._tight[action] |= self._bytes[action] > self._share_bytes
            while len(ring) > 1 and (len(ring) > self._full[action] or self._bytes[action] > self._share_bytes):
                gone = ring.popleft()
                self._bytes[action] -= gone.num_bytes
                unused.pop(gone.number, None)

    def reuse(self, action: int, *, most: float) -> float:
        """Return how likely a kept batch is to be used again: Eq. 4, up to ``most``."""
        return min(most, len(self._rings[action]) / self._full[action])

    def draw(self, action: int, rng: np.random.Generator) -> HybridBatch:
        """Return one of the kept batches of a size, all equally likely; there must be one."""
        with self._lock:
            ring = self._rings[action]
            batch = ring[int(rng.integers(len(ring)))]
            self._unused[action].pop(batch.number, None)
            return batch

    def draw_unused(self, action: int) -> HybridBatch | None:
        """Return the oldest kept batch of a size that nobody was given yet, if there is one; it stays kept."""
        with self._lock:
            unused = self._unused[action]
            return unused.pop(next(iter(unused))) if unused else None

    def unused(self, action: int) -> list[int]:
        """Return the numbers of the batches that nobody was given yet."""
        with self._lock:
            return list(self._unused[action])

    def has_room(self, action: int) -> bool:
        """Say whether a ring takes another batch without giving one up."""
        return len(self._rings[action]) < self._full[action] and not self._tight[action]

    def filled(self, action: int) -> float:
        """Return the share of a ring that is filled."""
        return len(self._rings[action]) / self._full[action]

    def kept(self, action: int) -> list[HybridBatch]:
        """Return the batches of a size, the oldest first."""
        with self._lock:
            return list(self._rings[action])

    def clear(self) -> None:
        """Give up all batches."""
        with self._lock:
            for action, ring in enumerate(self._rings):
                ring.clear()
                self._unused[action].clear()
                self._bytes[action], self._tight[action] = 0, False
