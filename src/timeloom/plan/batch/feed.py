"""Where training gets its next batch: from those kept, of all nodes, or built on the spot; builders work beside it.

Building is compiled code that releases the GIL, so that a thread builds while another trains. What builders do depends
on how fast they are; with ``builders=0`` training does their work itself, and the same settings give the same batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import Any

import numpy as np

from timeloom.errors import BadRun
from timeloom.plan.batch.hybrid import BatchMaker, HybridBatch
from timeloom.plan.batch.hybrid_settings import HybridSettings
from timeloom.plan.batch.reservoir import Reservoir, full_rings
from timeloom.plan.batch.timeline import Built, Stretch, Timeline

_CHOICE = 0xFEED


@dataclass(frozen=True, slots=True)
class Counts:
    """Where the batches of training came from."""

    reused: int = 0
    unused: int = 0
    """Asked for anew, and built before."""
    snapshots: int = 0
    """Of all nodes."""
    built: int = 0
    """Training waited for these."""


class BatchFeed:
    """A rank's batches, of whatever size is asked for; use it in a ``with`` block, which ends its threads."""

    def __init__(self, maker: BatchMaker, settings: HybridSettings, clock: Callable[[], float] | None = None) -> None:
        """``clock`` tells when batches were built, for a timeline; nothing is decided by it."""
        assert maker.cache.num_targets > 0, "a rank without nodes has no batches"
        self._maker, self._settings, self._clock = maker, settings, clock
        self._reservoir = self._empty_reservoir()
        self._numbers = [0] * len(maker.sizes)
        self._owed = [0] * len(maker.sizes)
        self._uses = [0] * len(maker.sizes)
        self._building = [0] * len(maker.sizes)
        self._action, self._drawn = settings.start, 0
        self._reused = self._unused = self._snapshots = self._built = 0
        self._log: list[Built] = []
        self._waits: list[Stretch] = []
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._ended = False
        self._threads: list[threading.Thread] = []

    def _empty_reservoir(self) -> Reservoir:
        cache = self._maker.cache
        full = full_rings(self._maker.sizes, num_snapshots=len(cache), num_nodes=cache.num_targets)
        return Reservoir(full, limit_bytes=self._settings.reservoir_mib * 2**20)

    def __enter__(self) -> BatchFeed:
        """Start the builders."""
        count = self._settings.builders if self._settings.reservoir else 0
        self._threads = [
            threading.Thread(target=self._build_ahead, args=(place,), name=f"batch-builder-{place}", daemon=True)
            for place in range(count)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the builders; each ends the batch that it is at."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def counts(self) -> Counts:
        """Where the batches came from so far."""
        return Counts(self._reused, self._unused, self._snapshots, self._built)

    @property
    def reservoir(self) -> Reservoir:
        """The batches that are kept."""
        return self._reservoir

    @property
    def owed(self) -> int:
        """How many batches are still to be built in place of those that were used again."""
        with self._changed:
            return sum(self._owed) + sum(self._building)

    def next(self, action: int) -> HybridBatch:
        """Return the next batch for training (Algorithm 3)."""
        if self._failure is not None:
            raise self._failure
        began_s = self._clock() if self._clock else 0.0
        rng = np.random.Generator(np.random.Philox([self._maker.seed, self._maker.rank, _CHOICE, self._drawn]))
        self._drawn += 1
        with self._changed:
            self._action = action
            self._changed.notify()
        batch = self._choose(action, rng)
        if self._settings.reservoir and not self._settings.builders:
            self._build_one()
        if self._clock:
            self._waits.append((began_s, self._clock()))
        return batch

    def _choose(self, action: int, rng: np.random.Generator) -> HybridBatch:
        """Return a kept batch, or one of all nodes where that fits, or a new one: built ahead, or else now."""
        settings, maker = self._settings, self._maker
        if not settings.reservoir:
            return self._build_now(action)
        if rng.random() < self._reservoir.reuse(action, most=settings.reuse_most):
            self._reused += 1
            self._owe(action)
            return self._reservoir.draw(action, rng)
        whole = maker.snapshots(action, rng)
        limit_bytes = settings.snapshot_batch_mib * 2**20
        if maker.bytes_of(whole.cutout.first, whole.cutout.last) <= limit_bytes:
            self._snapshots += 1
            return whole
        # What a builder made and nobody saw is as new as what would be built now.
        ready = self._reservoir.draw_unused(action)
        if ready is not None:
            self._unused += 1
            self._owe(action)
            return ready
        batch = self._build_now(action)
        self._reservoir.put(batch, used=True)
        return batch

    def _owe(self, action: int) -> None:
        """Count a use of a kept batch; after so many a new batch is owed."""
        if not self._settings.renew_every:
            return
        with self._changed:
            self._uses[action] += 1
            if self._uses[action] % self._settings.renew_every == 0:
                # Builders that cannot keep up do not gather a debt: at most a whole ring is owed.
                self._owed[action] = min(self._owed[action] + 1, max(1, len(self._reservoir.kept(action))))
                self._changed.notify()

    def _build_now(self, action: int) -> HybridBatch:
        self._built += 1
        with self._changed:
            number = self._numbers[action]
            self._numbers[action] += 1
        return self._timed(self._maker, -1, action, number)

    def _timed(self, maker: BatchMaker, builder: int, action: int, number: int) -> HybridBatch:
        began_s = self._clock() if self._clock else 0.0
        batch = maker.hybrid(action, number)
        if self._clock:
            self._log.append(Built(builder, action, number, began_s, self._clock()))
        return batch

    def timeline(self) -> Timeline:
        """Return what was built since the last call, and when training waited, where there is a clock."""
        log, self._log = self._log, []
        waits, self._waits = self._waits, []
        return Timeline(log, waits)

    def _wanted(self) -> int | None:
        """Return the size that a batch is to be built of next: of what is trained on, else of the emptiest ring."""
        order = sorted(range(len(self._numbers)), key=lambda action: (self._reservoir.filled(action), action))
        for action in (self._action, *order):
            if self._reservoir.has_room(action) and self._building[action] == 0:
                return action
        owing = [action for action in (self._action, *order) if self._owed[action]]
        return owing[0] if owing else None

    def _take(self) -> tuple[BatchMaker, int, int] | None:
        """Return the next batch to build, claimed; the lock is held."""
        action = self._wanted()
        if action is None:
            return None
        number = self._numbers[action]
        self._numbers[action] += 1
        self._building[action] += 1
        if not self._reservoir.has_room(action):
            self._owed[action] = max(self._owed[action] - 1, 0)
        return self._maker, action, number

    def _build_one(self, builder: int = -1, task: tuple[BatchMaker, int, int] | None = None) -> bool:
        """Build what is wanted most and keep it; say whether there was anything."""
        if task is None:
            with self._changed:
                task = self._take()
        if task is None:
            return False
        maker, action, number = task
        batch: HybridBatch | None = None
        try:
            batch = self._timed(maker, builder, action, number)
        finally:
            # At once, else another builder finds room that is about to be filled.
            with self._changed:
                self._building[action] -= 1
                # The graph may have grown meanwhile.
                if batch is not None and batch.version == self._maker.version:
                    self._reservoir.put(batch)
        return True

    def _build_ahead(self, builder: int) -> None:
        """Build until the end; what goes wrong is raised where training asks for its next batch."""
        try:
            while True:
                with self._changed:
                    while not self._ended and (task := self._take()) is None:
                        self._changed.wait()
                    if self._ended:
                        return
                self._build_one(builder, task)
        except BaseException as failure:
            self._failure = failure

    def renew(self, maker: BatchMaker) -> None:
        """Go on with a graph that was appended to: batches of the one before are given up, also those being built."""
        assert len(maker.sizes) == len(self._numbers), "the number of sizes stays as it is"
        assert maker.version != self._maker.version, "a graph that grew is another version"
        with self._changed:
            self._maker = maker
            self._reservoir = self._empty_reservoir()
            self._owed = [0] * len(self._owed)
            self._changed.notify_all()

    def save(self) -> dict[str, Any]:
        """Return, for JSON, what a feed of the same maker needs to go on from here.

        Batches are saved by number. What builders are at is lost, and they may have got further when it goes on: only
        without builders is the continuation the same.
        """
        with self._changed:
            actions = range(len(self._numbers))
            rings = [[batch.number for batch in self._reservoir.kept(action)] for action in actions]
            return {
                "version": self._maker.version, "numbers": list(self._numbers), "owed": list(self._owed),
                "uses": list(self._uses), "rings": rings, "drawn": self._drawn, "action": self._action,
                "counts": list(astuple(self.counts)), "unused": [self._reservoir.unused(action) for action in actions],
            }  # fmt: skip

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what was saved; the batches that were kept are built again. Call it before the builders start."""
        if len(saved["numbers"]) != len(self._numbers):
            raise BadRun(
                f"the checkpoint holds batches of {len(saved['numbers'])} sizes, this run has {len(self._numbers)}: "
                "resume with the settings that the run was begun with"
            )
        assert not self._threads, "a feed is loaded before it is entered"
        self._numbers, self._owed = list(saved["numbers"]), list(saved["owed"])
        self._uses = list(saved["uses"])
        self._drawn, self._action = saved["drawn"], saved["action"]
        self._reused, self._unused, self._snapshots, self._built = saved["counts"]
        self._reservoir.clear()
        if saved["version"] == self._maker.version:
            for action, numbers in enumerate(saved["rings"]):
                for number in numbers:
                    used = number not in saved["unused"][action]
                    self._reservoir.put(self._maker.hybrid(action, number), used=used)
