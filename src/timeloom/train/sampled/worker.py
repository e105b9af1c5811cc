"""A rank that stores some of the nodes of every snapshot, and learns from sampled batches (DistDy 3.1).

For a batch all ranks together: draw the target nodes (each by itself, all the same ones), sample and fetch what embeds
them in every snapshot of the window, each where it is stored; send embeddings to where the node is stored now; take the
model's memory over them there; and add up gradients. What the next batch needs is sampled and fetched by a thread
meanwhile. One rank does the same with itself.

Shape letters: N all nodes, M nodes whose home is here, H row size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.graph.keys import Float64s, Int64s
from timeloom.nn.model import LayeredModel, remember, start
from timeloom.plan.batch.windows import scoring_windows
from timeloom.plan.types import Unit
from timeloom.train.crossing import Crossing
from timeloom.train.goals.goal import Draw, Loss, Seen
from timeloom.train.here import Here
from timeloom.train.planning import batches_of
from timeloom.train.sampled.blocks import Sample
from timeloom.train.sampled.coordinator import Coordinator
from timeloom.train.sampled.homes import Homes, bring_home, homes_of
from timeloom.train.sampled.sampler import At, Sampler
from timeloom.train.sampled.stock import Stock
from timeloom.train.session import Session, unit_randomness
from timeloom.train.walk import Carry
from timeloom.train.window_view import SomeNodes
from timeloom.train.worker import Learnt, LiveWorker, Tells

_TRAINING, _LOOKING = 0, 1
"""What neighbours are drawn for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is at hand of a batch before anything is computed."""

    unit: Unit
    homes: Homes
    born: dict[int, NDArray[np.bool_]]
    """[N] which nodes were born, after each target."""
    sample: Sample


class SampledWorker(LiveWorker):
    """Its stores hold one window after the other; nothing is carried from window to window."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        assert isinstance(session.model, LayeredModel), "other models were refused"
        settings, world = session.settings, session.world
        self._model = session.model
        coordinator = Coordinator(
            settings.system.partition, settings.distdy, world, window=settings.window.length,
            train_stop=session.split.train_stop,
        )  # fmt: skip
        self.stock = Stock(session.feed, coordinator, settings.distdy, world, window=settings.window.length)
        self.sampler = Sampler(
            self.stock, world, settings.distdy.fanouts, cache_bytes=settings.distdy.cache_bytes if world.size > 1 else 0
        )
        self._crossing = Crossing(world)
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="sample")
        self._soon: list[tuple[Unit, Draw]] = []
        self._asked: dict[tuple[Unit, Draw], Future[Batch]] = {}

    def start(self) -> Carry:
        """Return nothing: what a node was is in its window."""
        empty = torch.zeros(0, device=self.session.device)
        return Carry((), empty[:, None], empty.bool())

    def tell(self, epoch: int) -> Tells:
        """Return how snapshots were placed since this was asked last."""
        return Tells(self.stock.coordinator.tell())

    def close(self) -> None:
        """Let go of the thread that samples."""
        self._ahead.shutdown(wait=True, cancel_futures=True)

    def expect(self, units: Sequence[Unit], draw: Draw) -> None:
        """Hear what is to be learnt after the next call of `learn`, on all ranks alike."""
        self._soon = [(unit, self._of_batch(draw, unit)) for unit in units[:1]]

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Go over the batches, one after the other."""
        session, total = self.session, 0.0
        for place, unit in enumerate(units):
            dealt = self._of_batch(draw, unit)
            with session.profile.phase("load"):
                batch = self._take(unit, dealt)
            for key in [(one, self._of_batch(draw, one)) for one in units[place + 1 : place + 2]] or self._soon:
                self._ask(*key)
            with unit_randomness(session, dealt, unit, *self._apart):
                loss = self._share(self._see(batch), dealt)
                total += float(loss.detach())
                if loss.requires_grad:
                    with session.profile.phase("backward"):
                        loss.backward()  # type: ignore[no-untyped-call]
        self._soon = []
        # All ranks count the same windows: one of them says how many.
        return Learnt(loss=total, weight=len(units) if session.world.rank == 0 else 0, kept=None)

    @property
    def _apart(self) -> tuple[int, ...]:
        """What keys torch's draws beside the window: ranks have rows of their own."""
        return (self.session.world.rank,) if self.session.world.size > 1 else ()

    def _share(self, seen: list[Seen], draw: Draw) -> Tensor:
        """Collective. Return this rank's share of the mean of the losses of the window's targets (see `PartWorker`)."""
        session = self.session
        with session.computing():
            losses = [session.goal.loss(session.head, one, draw) for one in seen]
        counts = self._counted(losses)
        share = next(iter(session.predictor.parameters())).new_zeros(())
        if not counts.any():
            self._crossing.forget()
            return share
        for loss, count in zip(losses, counts.tolist(), strict=True):
            if loss is not None:
                share = share + loss.total / count
        return self._crossing.tied(share / int(np.count_nonzero(counts)))

    def _counted(self, losses: list[Loss | None]) -> Float64s:
        """Collective. Return how many targets all ranks have, for each snapshot."""
        return self._summed([0.0 if one is None else one.count for one in losses])

    def _summed(self, numbers: list[float]) -> Float64s:
        """Collective. Return the sums over all ranks."""
        told = torch.tensor(numbers, dtype=torch.float64)
        found: Float64s = self.session.world.all_reduce(told, "control/targets").numpy()
        return found

    def _of_batch(self, draw: Draw, unit: Unit) -> Draw:
        return replace(draw, batch=unit.batch, batches=batches_of(self.session.settings))

    def _take(self, unit: Unit, draw: Draw) -> Batch:
        """Collective. Return what is at hand of a batch, sampled now if nobody has asked for it."""
        if (unit, draw) not in self._asked:
            # What was asked for in vain is done all the same, as on the other ranks.
            self._asked = {}
            self._ask(unit, draw)
        return self._asked.pop((unit, draw)).result()

    def _ask(self, unit: Unit, draw: Draw) -> None:
        key = (draw.seed, _TRAINING, draw.epoch)
        self._asked[unit, draw] = self._ahead.submit(self._prepare, unit, draw, key)

    def _prepare(self, unit: Unit, draw: Draw | None, key: tuple[int, ...], part: tuple[int, int] = (0, 1)) -> Batch:
        """Collective. Hold the window, and sample what embeds the nodes that are read at its targets.

        Without a draw those are the nodes of one of several parts: all of them that were born by then.
        """
        self.stock.hold(unit.first, unit.last)
        servers = {t: self.stock.known[t].server_N for t in range(unit.first, unit.last)}
        here_N = np.zeros(self.session.feed.num_nodes, np.bool_)
        born, asked = dict[int, NDArray[np.bool_]](), list[Int64s]()
        for t, server_N in servers.items():
            here_N = here_N | (server_N >= 0)
            if t in unit.targets:
                born[t] = here_N
                nodes = np.flatnonzero(here_N)
                nodes = nodes[nodes % part[1] == part[0]]
                asked.append(nodes if draw is None else self.session.goal.asks(t, here_N, draw))
        nodes = np.unique(np.concatenate(asked))
        world, at = self.session.world, At(unit.first, len(here_N))
        homes = homes_of(nodes, servers, rank=world.rank, size=world.size)
        codes = np.concatenate([at.codes(t, told) for t, told in homes.embedded.items()])
        return Batch(unit, homes, born, self.sampler.sample(at, codes, *key))

    def _see(self, batch: Batch) -> list[Seen]:
        """Collective. Return the rows of the nodes whose home is here, after each target."""
        session, homes, model = self.session, batch.homes, self._model
        x_SF = batch.sample.x_SF
        with session.computing():
            with session.profile.phase("encode"):
                for depth, layer in enumerate(batch.sample.layers):
                    x_SF = model.layer(depth, x_SF[: layer.num_out], layer.mean(x_SF))
            with session.profile.phase("communicate"):
                rows_T = bring_home(homes, x_SF, self._crossing)
            with session.profile.phase("recur"):
                return self._remember(batch, rows_T)

    def _remember(self, batch: Batch, rows_T: dict[int, Tensor]) -> list[Seen]:
        """Take the model's memory over the embeddings; absent nodes show the row that they had last (SPEC D1.4)."""
        homes, model, hold = batch.homes, self._model, self.session.walker.hold
        like = next(model.parameters())
        size = len(homes.nodes_M)
        state = start(model.memory(), size, like)
        out_MH, born_M = like.new_zeros(size, model.out_size), torch.zeros(size, dtype=torch.bool, device=like.device)
        here, seen = Here(homes.home_N, homes.nodes_M, self._crossing), list[Seen]()
        for t, rows_MH in rows_T.items():
            alive = torch.from_numpy(homes.alive[t]).to(like.device)
            new_MH, state = remember(model, SomeNodes(t, alive), (rows_MH,), state, hold=hold)
            born_M = born_M | alive
            out_MH = torch.where((alive if hold else born_M)[:, None], new_MH, out_MH)
            if t in batch.unit.targets:
                seen.append(Seen(t, out_MH, torch.from_numpy(batch.born[t]).to(like.device), here=here))
        return seen

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield, on the first rank, what is seen of all nodes after each of these snapshots."""
        session = self.session
        for unit in scoring_windows(session.settings.window, first, last, restarts=session.restarts):
            session.check_stop()
            yield from self._look(unit)

    def _look(self, unit: Unit) -> list[Seen]:
        """Collective. Return, on the first rank, what is seen of all nodes at a window's targets."""
        session, size = self.session, batches_of(self.session.settings)
        key = (session.settings.train.seed, _LOOKING)
        found: dict[int, Tensor] = {}
        batch: Batch | None = None
        for part in range(size):
            batch = self._ahead.submit(self._prepare, unit, None, key, (part, size)).result()
            with torch.no_grad():
                for one in self._see(batch):
                    self._gather(batch.homes, one, found)
        assert batch is not None
        if session.world.rank:
            return []
        return [Seen(t, found[t], torch.from_numpy(batch.born[t]).to(session.device)) for t in unit.targets]

    def held(self, unit: Unit, draw: Draw, carry: Carry | None) -> float | None:
        """Collective. Return the mean loss of a window's targets."""
        batch = self._take(unit, draw)
        with torch.no_grad():
            seen = self._see(batch)
            with self.session.computing():
                losses = [self.session.goal.loss(self.session.head, one, draw) for one in seen]
        counts = self._counted(losses)
        totals = self._summed([0.0 if one is None else float(one.total) for one in losses])
        found = totals[counts > 0] / counts[counts > 0]
        return float(found.mean()) if len(found) else None

    def look(self, unit: Unit, carry: Carry | None) -> tuple[list[Seen], Carry | None]:
        """Collective. Return what is seen at a window's targets, on the first rank; nothing is kept."""
        return self._look(unit), None

    def moved(self, session: Session) -> SampledWorker:
        """Return this worker: what is stored stays where it is."""
        self.session = session
        self.stock.move_to(session.feed)
        return self

    def _gather(self, homes: Homes, seen: Seen, found: dict[int, Tensor]) -> None:
        """Collective. Add the rows of all ranks to what is found of all nodes, on the first rank."""
        world = self.session.world
        nodes = [np.flatnonzero(homes.home_N == rank) for rank in range(world.size if world.rank == 0 else 0)]
        sent = (len(homes.nodes_M), *[0] * (world.size - 1))
        received = tuple(len(told) for told in nodes) if world.rank == 0 else (0,) * world.size
        came = world.all_to_all(seen.out_NH.contiguous(), "state/whole", sent=sent, received=received)
        if world.rank == 0:
            rows = found.get(seen.t)
            if rows is None:
                rows = came.new_zeros(len(homes.home_N), came.shape[1])
            found[seen.t] = rows.index_copy(0, torch.from_numpy(np.concatenate(nodes)).to(rows.device), came)

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return it as it is: nothing is carried."""
        return carry

    def own(self, carry: Carry) -> Carry:
        """Return it as it is."""
        return carry
