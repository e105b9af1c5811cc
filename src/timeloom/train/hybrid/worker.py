"""A rank that learns from hybrid batches of its own nodes, and asks nobody for rows (DynaHB)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple
from typing import Any

import numpy as np
import torch

from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import Part
from timeloom.plan.batch.feed import BatchFeed, Counts
from timeloom.plan.batch.hybrid import BatchMaker, HybridBatch
from timeloom.plan.batch.hybrid_settings import BatchSize
from timeloom.plan.batch.layered import between
from timeloom.plan.batch.windows import scoring_windows
from timeloom.plan.partition.load import balanced_groups, walk_loads
from timeloom.plan.types import Unit
from timeloom.records import Batched
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.holding import HoldsOwn
from timeloom.train.hybrid.cache import Held, hold, work_of
from timeloom.train.hybrid.walk import cutout_walker, reach_of
from timeloom.train.session import Session, keyed_torch
from timeloom.train.walk import Carry
from timeloom.train.worker import Learnt, Tells, Worker

_STEP_STREAM = 13


class HybridWorker(Worker):
    """It has a cache of what its own nodes depend on; batches of it are built beside training.

    Nothing here waits for another rank, so that ranks may make as many steps as they like between meetings.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(session)
        settings, holding = session.settings, session.feed.holding
        self.owned: Int64s = np.arange(session.graph.num_nodes)
        if isinstance(holding, HoldsOwn):
            self.owned = holding.nodes.nodes
        self.action = settings.hybrid.start
        """The size of the batches that are learnt from."""
        self.cells = self.edges = 0
        """Targets and edges of the last batch."""
        self.sizes: tuple[BatchSize, ...] = settings.hybrid.sizes(session.split.train_stop, len(self.owned))
        self._walker = cutout_walker(session)
        self._cache: Held | None = None
        self._scoring: tuple[tuple[int, int], Held] | None = None
        self.batches: BatchFeed | None = None
        if self.has_nodes:
            self._cache = hold(session, self.owned, 0, session.split.train_stop)
            # What validation needs is predicted, and refused, before training begins.
            self._held_for("val")
            self.batches = BatchFeed(self._maker(self._cache), settings.hybrid, clock)
        self._clock, self._told = clock, Counts()

    @property
    def has_nodes(self) -> bool:
        """Whether there is anything to learn from here."""
        return len(self.owned) > 0

    def _maker(self, cache: Held) -> BatchMaker:
        session, settings = self.session, self.session.settings
        layers, graph = reach_of(session.model), session.graph
        hops = max(1, sum(layer.hops for layer in layers))
        groups = balanced_groups(
            self.owned, walk_loads(graph, session.split.train_stop, hops), settings.hybrid.groups
        )  # fmt: skip
        return BatchMaker(
            cache.cutout, layers, settings.hybrid.sets, self.sizes, groups.draw, settings.train.seed,
            session.world.rank, work=work_of(session),
        )  # fmt: skip

    @contextmanager
    def building(self) -> Iterator[None]:
        """Let batches be built beside what is done in the block."""
        with nullcontext() if self.batches is None else self.batches:
            yield

    def tell(self, epoch: int) -> Tells:
        """Return where its batches came from since this was asked last, and what was built beside training when."""
        if self.batches is None:
            return Tells()
        counts, before = self.batches.counts, self._told
        if counts == before:
            # What was built since will be told with the batches that are learnt from next.
            return Tells()
        line, self._told = self.batches.timeline(), counts
        told = Batched(
            rank=self.session.world.rank, epoch=epoch, reused=counts.reused - before.reused,
            unused=counts.unused - before.unused, whole=counts.snapshots - before.snapshots,
            built=counts.built - before.built, waited_s=line.waited_s, beside=len(line.beside),
            beside_s=line.beside_s, hidden_s=line.hidden_s,
        )  # fmt: skip
        since_1970 = time.time() - self._clock()
        threads = tuple(("build", one.began_s + since_1970, one.ended_s - one.began_s) for one in line.beside)
        return Tells((told,), threads)

    def saved(self) -> dict[str, Any]:
        """Return, for JSON, where its batches have got to."""
        return {"action": self.action, "batches": None if self.batches is None else self.batches.save()}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from what was saved; call it before batches are built."""
        self.action = saved["action"]
        if self.batches is not None and saved["batches"] is not None:
            self.batches.load(saved["batches"])
            self._told = self.batches.counts

    def start(self) -> Carry:
        """Return what there is before the first snapshot: nothing, as batches start from nothing."""
        like = next(self.session.model.parameters())
        born = torch.zeros(0, dtype=torch.bool, device=like.device)
        return Carry((), like.new_zeros(0, self.session.model.out_size), born)

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Add the gradient of the sum of the losses of the next batch's targets to ``.grad``; ``units`` say nothing."""
        self.cells = self.edges = 0
        if self.batches is None or self._cache is None:
            return Learnt(loss=0.0, weight=0.0, kept=None)
        profile = self.session.profile
        with profile.phase("load"):
            batch = self.batches.next(self.action)
        self.cells, self.edges = batch.cutout.num_targets * len(batch.cutout), batch.cutout.num_edges
        with self._randomness(sum(astuple(self.batches.counts))):
            return self.learn_from(batch, draw)

    @contextmanager
    def _randomness(self, number: int) -> Iterator[None]:
        """Key torch's draws (dropout) by seed, rank and the number of the batch."""
        settings = self.session.settings
        key = (settings.train.seed, _STEP_STREAM, self.session.world.rank, number)
        with keyed_torch(*key) if settings.model.dropout else nullcontext():
            yield

    def learn_from(self, batch: HybridBatch, draw: Draw) -> Learnt:
        """Add the gradient of the sum of the losses of a batch's targets to ``.grad``; the weight is their number."""
        session, cache = self.session, self._cache
        assert cache is not None, "a batch is of a cache"
        with session.profile.phase("load"):
            inputs = cache.inputs.over(batch.cutout)
        with session.computing():
            seen, _ = self._walker.walk(batch.levels, inputs, self._walker.start(batch.levels))
            # Targets lie first in a cache, in the order of the rank's own nodes.
            nodes = batch.cutout.places_N[: batch.cutout.num_targets].astype(np.int64)
            losses = [
                loss
                for one in seen
                if (loss := session.goal.loss(session.head, Seen(one.t, one.out_NH, one.born_N, nodes), draw))
                is not None
            ]
        if not losses:
            return Learnt(loss=0.0, weight=0.0, kept=None)
        total = torch.stack([loss.total for loss in losses]).sum()
        with session.profile.phase("backward"):
            total.backward()  # type: ignore[no-untyped-call]
        return Learnt(loss=float(total.detach()), weight=float(sum(loss.count for loss in losses)), kept=None)

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Yield what is seen of its own nodes after each of these snapshots."""
        if not self.has_nodes:
            return
        session, walker = self.session, self._walker
        held = self._held(first, last)
        carry: Carry | None = None
        for unit in scoring_windows(session.settings.window, first, last, restarts=session.restarts):
            levels = between(held.levels, unit.first, unit.last)
            with torch.no_grad(), session.computing():
                before = walker.start(levels) if unit.fresh or carry is None else walker.goes_on(carry)
                seen, after = walker.walk(levels, held.inputs.over(levels[0]), before, keep=unit.keep)
            carry = after if unit.keep >= 0 else carry
            yield from (one for one in seen if one.t in unit.targets)

    def _held_for(self, part: Part) -> Held:
        return self._held(*self.session.split.of(part))

    def _held(self, first: int, last: int) -> Held:
        """Return the cache by which some snapshots are scored; the one that was asked for last is kept."""
        session, cache = self.session, self._cache
        units = scoring_windows(session.settings.window, first, last, restarts=session.restarts)
        key = (min((unit.first for unit in units), default=first), last)
        if self._scoring is None or self._scoring[0] != key:
            self._scoring = None
            taken = 0 if cache is None else cache.num_bytes
            self._scoring = (key, hold(session, self.owned, *key, taken_bytes=taken))
        return self._scoring[1]

    def whole(self, carry: Carry) -> Carry:
        """Return it as it is."""
        return carry

    def own(self, carry: Carry) -> Carry:
        """Return it as it is."""
        return carry
