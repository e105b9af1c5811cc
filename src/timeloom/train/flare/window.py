"""How a model is taken over a window whose older snapshots have shrunk: snapshot by snapshot, in turns.

A snapshot is a coroutine: it computes up to its next exchange, starts it, and gives its turn away. Models need not
know: what a layer asks of others first is found by watching it (`nn/watch.py`), so it is sent for before that.

Shape letters: O own rows of a block, N own nodes, H the model's output size.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import dropout

from timeloom.kernels import blocked
from timeloom.kernels.front import Sight as Sighted
from timeloom.nn.model import Model, PerNode, RowModel, Rows, State, remember
from timeloom.nn.stack import layers_of
from timeloom.nn.watch import Opening, watch
from timeloom.plan.schedule.overlap import Pause, PhaseKind, Task, Turns, run_turns
from timeloom.plan.schedule.overlap_times import PhaseWork
from timeloom.plan.types import Unit
from timeloom.train.encode import Make, Maps, make_of
from timeloom.train.flare.aliases import Aliases
from timeloom.train.flare.epoch import Epoch, Sight
from timeloom.train.flare.view import BlockView
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.session import Session, keyed_torch
from timeloom.train.walk import Carry

_SNAPSHOT_STREAM = 13
_LEAST_WAIT_S = 5e-5
"""Whoever waited less for rows of others does not know when they came."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of the model, and what it asks of others first."""

    model: Model
    num_in: int
    make: Make
    """What is made of a snapshot before the memory comes in."""
    opening: Opening | None
    first_slot: int
    """Where its part of the state begins."""


@dataclass(frozen=True, slots=True)
class Layers:
    """A model as windows that shrink go over it."""

    model: Model
    layers: tuple[Layer, ...]
    dropout: float


def layers_from(session: Session) -> Layers:
    """Return the layers of a session's model."""
    parts, share = layers_of(session.model)
    found, num_in, slot = list[Layer](), session.feed.num_features, 0
    for part in parts:
        found.append(Layer(part, num_in, make_of(part), watch(part, num_in).opening, slot))
        num_in, slot = part.out_size, slot + len(part.memory())
    return Layers(session.model, tuple(found), share)


def task_of(layers: Layers, sight: Sight) -> Task:
    """Return the phases of a snapshot, of which `Window` makes turns."""
    phases: list[PhaseKind] = []
    for layer in layers.layers:
        if layer.opening is not None and sight.view.halo is not None:
            phases += ["compute", "exchange"]
        phases += ["compute", "recur"]
    return tuple(phases)


def works_of(layers: Layers, sight: Sight) -> list[PhaseWork]:
    """Return what each phase of a snapshot has to do on this rank."""
    rows, edges, found = sight.rows.size, len(sight.view.edges), list[PhaseWork]()
    for layer in layers.layers:
        width, halo = layer.model.out_size, sight.view.halo
        if layer.opening is not None and halo is not None:
            moved = len(halo.rows_S) + halo.num_halo
            found += [
                PhaseWork(kind="compute", rows=rows, width=layer.num_in),
                PhaseWork(kind="exchange", rows=moved, width=width, moved_bytes=moved * width * 4),
            ]
        found += [
            PhaseWork(kind="compute", rows=rows, edges=edges, width=width),
            PhaseWork(kind="recur", rows=rows, width=width),
        ]
    return found


@dataclass(slots=True)
class Measured:
    """What the phases of a window took on this rank."""

    works: list[PhaseWork] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, work: PhaseWork, seconds: float) -> None:
        """Remember a phase."""
        self.works.append(work)
        self.seconds.append(seconds)


class Window:
    """One window on its way over its snapshots."""

    def __init__(
        self, session: Session, layers: Layers, sights: Sequence[Sight], unit: Unit, draw: Draw, *, aliased: bool
    ) -> None:  # fmt: skip
        """With ``aliased`` no bit of the gradient depends on the order of turns."""
        self._session, self._layers, self._sights, self._unit, self._draw = session, layers, sights, unit, draw
        self._aliases = Aliases(layers.model, len(sights)) if aliased else None
        self._hold = session.walker.hold
        self._memory = layers.model.memory()
        self.measured = Measured()

    def go(self, carry: Carry, epoch: Epoch, turns: Turns) -> tuple[list[Seen], Carry]:
        """Return what is seen at the targets, in the order of the graph, and what is kept.

        A rank that keeps none of its nodes has something to keep nevertheless: to save it, all ranks must take part.
        """
        self._carry, self._epoch = carry, epoch
        # After each snapshot: the state of each slot, the last output and who was born; None once nobody reads it.
        self._after: list[list[Tensor | None]] = [[None] * (len(self._memory) + 2) for _ in self._sights]
        self._seen: dict[int, Seen] = {}
        self._kept: list[Tensor | None] = [None] * (len(self._memory) + 2)
        run_turns([self._snapshot(place) for place in range(len(self._sights))], turns)
        self._after.clear()
        seen = [self._seen[t] for t in self._unit.targets]
        return seen, self._kept_carry()

    def _kept_carry(self) -> Carry:
        *state, out_NH, born_N = (
            old if new is None else new for old, new in zip(self._carry.tensors(), self._kept, strict=True)
        )
        return Carry(tuple(state), out_NH, born_N)

    async def _snapshot(self, place: int) -> None:
        """Take all layers over one snapshot; what stands between two pauses is a turn."""
        sight, x_OF = self._sights[place], self._sights[place].x_OF
        works, layers = iter(works_of(self._layers, sight)), self._layers.layers
        for depth, layer in enumerate(layers):
            if depth:
                await Pause()
                with self._drawing(place, 2 * depth):
                    x_OF = dropout(x_OF, self._layers.dropout, self._session.model.training)
            exchange, begun = None, 0.0
            if layer.opening is not None and sight.view.halo is not None:
                with self._computing(place, "encode", next(works)):
                    sight.view.begin(layer.opening, x_OF)
                exchange, begun = next(works), time.perf_counter()
                await Pause()
            with self._drawing(place, 2 * depth + 1), self._computing(place, "encode", next(works), exchange, begun):
                made = layer.make(sight.view, x_OF)
            await Pause()
            with self._computing(place, "recur", next(works)):
                x_OF = self._recur(place, layer, made, shows=depth == len(layers) - 1)

    @contextmanager
    def _computing(
        self, place: int, phase: str, work: PhaseWork, exchange: PhaseWork | None = None, begun: float = 0.0
    ) -> Iterator[None]:
        """Read the parameters of a snapshot, and measure; what a wait for others tells is how long they took."""
        aliases, view = self._aliases, self._sights[place].view
        with self._session.profile.phase(phase), nullcontext() if aliases is None else aliases.of(place):
            began = time.perf_counter()
            yield
            taken, waited_s = time.perf_counter() - began, view.take_waited()
        self.measured.add(work, taken - waited_s)
        if exchange is not None and waited_s > _LEAST_WAIT_S:
            self.measured.add(exchange, began - begun + waited_s)

    @contextmanager
    def _drawing(self, place: int, purpose: int) -> Iterator[None]:
        """Key torch's draws by the snapshot, where the order of turns would else be that of the draws."""
        session, unit = self._session, self._unit
        if session.world.size == 1 or not session.model.training:
            yield
            return
        key = (_SNAPSHOT_STREAM, self._draw.epoch, unit.first, unit.last, place, purpose, session.world.rank)
        with keyed_torch(session.settings.train.seed, *key):
            yield

    def _recur(self, place: int, layer: Layer, made: tuple[Rows, Maps], *, shows: bool) -> Tensor:
        """Take a layer's memory over a snapshot; return its output."""
        view, model, slot = self._sights[place].view, layer.model, layer.first_slot
        before = tuple(
            self._alias(self._going_on(place, slot + number)) if isinstance(part, PerNode)
            else self._shared(place, slot + number, part.start)
            for number, part in enumerate(model.memory())
        )  # fmt: skip
        if isinstance(model, RowModel):
            out_OH, after = self._by_cell(model, view, made, before)
        else:
            out_OH, after = remember(model, view, made[0], before, hold=self._hold)
        for number, part in enumerate(after):
            self._set(place, slot + number, part)
        if shows:
            self._show(place, out_OH)
        return self._alias(out_OH)

    def _by_cell(
        self, model: RowModel, view: BlockView, made: tuple[Rows, Maps], before: State
    ) -> tuple[Tensor, State]:  # fmt: skip
        """Take maps and cell over a snapshot in blocks of nodes, which keeps less than autograd would."""
        walker, ((rows,), maps) = self._session.walker, made
        alive_O = view.alive_N if self._hold and not view.all_alive else None
        window = blocked.Window(
            sights=(Sighted(rows, None, alive_O),), front=maps, cell=model.cell(), wanted=(0,), keep=None,
            precision=walker.precision,
        )  # fmt: skip
        with torch.autocast(rows.device.type, enabled=False):
            walked = blocked.walk_window(window, before, walker.pool)
        return walked.outputs[0], walked.state

    def _shared(self, place: int, slot: int, start: Tensor) -> Tensor:
        """Return what belongs to no node: it starts anew in every window (SPEC D2.1)."""
        if not place:
            return start
        before, self._after[place - 1][slot] = self._after[place - 1][slot], None
        assert before is not None, "the snapshot before had its turn"
        return before

    def _going_on(self, place: int, slot: int) -> Tensor:
        """Return what each row of a snapshot's block goes on from: the snapshot before, or what was kept."""
        rows, kept = self._sights[place].rows, self._carry.tensors()[slot]
        if not place:
            return kept[: rows.size]
        before, self._after[place - 1][slot] = self._after[place - 1][slot], None
        assert before is not None, "the snapshot before had its turn"
        if rows.going_on == rows.size:
            return before
        return torch.cat([before[: rows.going_on], kept[rows.going_on : rows.size]])

    def _set(self, place: int, slot: int, after: Tensor) -> None:
        """Remember what the next snapshot goes on from, and what the next window does."""
        if place + 1 < len(self._sights):
            self._after[place][slot] = after
        rows, old = self._sights[place].rows, self._carry.tensors()[slot]
        is_shared = slot < len(self._memory) and not isinstance(self._memory[slot], PerNode)
        if is_shared or rows.kept_from == rows.size:
            return
        # Not in place: what was kept before is read by snapshots to come, and by the way back.
        kept = self._kept[slot]
        if kept is None:
            kept = self._kept[slot] = old.detach().clone()
        kept[rows.kept_from : rows.size] = after.detach()[rows.kept_from : rows.size]

    def _show(self, place: int, out_OH: Tensor) -> None:
        """Note what there is to predict from: absent nodes show the row that they had last."""
        view, size, slot = self._sights[place].view, self._sights[place].rows.size, len(self._memory)
        born_O = self._going_on(place, slot + 1) | view.alive_N
        last_OH = self._going_on(place, slot)
        if not view.all_alive:
            here_O = view.alive_N if self._hold else born_O
            out_OH = torch.where(here_O[:, None], out_OH, last_OH)
        shown_OH = self._alias(out_OH)
        self._set(place, slot, shown_OH)
        self._set(place, slot + 1, born_O)
        if view.t not in self._unit.targets:
            return
        places_O = self._epoch.places_O
        if size < len(places_O):
            # Of a block that is not whole nothing is known of the other nodes: as if they were not born.
            there = places_O[:size]
            shown_NH = shown_OH.new_zeros(len(places_O), shown_OH.shape[1]).index_copy(0, there, shown_OH)
            born_N = born_O.new_zeros(len(places_O)).index_copy(0, there, born_O)
        else:
            shown_NH, born_N = (part.index_select(0, self._epoch.rows_N) for part in (shown_OH, born_O))
        self._seen[view.t] = Seen(view.t, shown_NH, born_N)

    def _alias(self, x: Tensor) -> Tensor:
        """Return the same numbers; gradients that come to them are added up before they join others."""
        return x if self._aliases is None else x.view_as(x)
