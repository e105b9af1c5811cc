"""Two windows at a time on one rank: what one is made of is computed beside what the other remembers (BLAD).

A window is a chain of stages: a layer encodes (the structure stage), a layer remembers (the time stage), and so on up,
then back down. Each kind of stage has a thread of its own. Between two stages the graph is cut: a stage goes back by
itself, from the gradients that the next one left, so that threads share no graph and add no gradient to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from timeloom.kernels.front import Affine
from timeloom.plan.batch.pieces import whole
from timeloom.plan.types import Unit
from timeloom.train.encode import Encoded
from timeloom.train.goals.goal import Draw, Seen
from timeloom.train.session import Session, unit_randomness
from timeloom.train.walk import Carry
from timeloom.train.whole import WholeWorker
from timeloom.train.worker import Learnt, Worker

_AT_ONCE = 2
Done = Future[torch.cuda.Event | None]


class _Cuts:
    """Where a stage's results were cut off from what reads them."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def cut(self, made: Tensor) -> Tensor:
        """Return a leaf in place of a result; what needs no gradient, and parameters, are as they are."""
        if made.is_leaf:
            return made
        leaf = made.detach().requires_grad_()
        self._pairs.append((made, leaf))
        return leaf

    def cut_all(self, encoded: Encoded) -> Encoded:
        """Return encoded rows, cut off."""
        return replace(
            encoded, parts=tuple(tuple(self.cut(part) for part in rows) for rows in encoded.parts),
            maps=tuple(self._cut_map(step) for step in encoded.maps),
        )  # fmt: skip

    def _cut_map(self, step: Affine) -> Affine:
        bias = None if step.bias_O is None else self.cut(step.bias_O)
        return Affine(self.cut(step.weight_IO), bias, step.relu)

    @property
    def leaves(self) -> list[Tensor]:
        """What others read."""
        return [leaf for _, leaf in self._pairs]

    def take(self) -> list[tuple[Tensor, Tensor]]:
        """Return results and their gradients, as far as somebody left one, and forget all."""
        ready = [(made, leaf.grad) for made, leaf in self._pairs if leaf.grad is not None]
        self._pairs = []
        return ready


class _Lane:
    """One thread, and on a GPU one stream (written, not tried: no GPU was at hand); work is done in order."""

    def __init__(self, session: Session, name: str, num_threads: int) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, f"{name} lane", lambda: torch.set_num_threads(num_threads))
        self.stream: torch.cuda.Stream | None = None
        if session.device.type == "cuda":
            self.stream = torch.cuda.Stream(session.device)  # type: ignore[no-untyped-call]
        self._parameters = [one for one in session.predictor.parameters() if one.requires_grad]
        self.grads: list[Tensor | None] = [None] * len(self._parameters)

    def begin(self, after: Sequence[Done], work: Callable[[_Lane], None]) -> Done:
        """Begin to do some work as soon as that before it is done, here and on other lanes."""

        def do() -> torch.cuda.Event | None:
            events = [one.result() for one in after]
            with self._on(), self._session.computing():
                for event in events:
                    if self.stream is not None and event is not None:
                        self.stream.wait_event(event)
                work(self)
                return None if self.stream is None else self.stream.record_event()

        return self._thread.submit(do)

    def _on(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def go_back(self, results: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor]) -> None:
        """Take gradients back over a stage: those of parameters add up here, each leaf gets its own."""
        if not results:
            return
        made, gradients = [one for one, _ in results], [one for _, one in results]
        with torch.autocast(self._session.device.type, enabled=False):
            found = torch.autograd.grad(made, [*self._parameters, *leaves], gradients, allow_unused=True)
        for place, grad in enumerate(found[: len(self._parameters)]):
            if grad is not None:
                before = self.grads[place]
                self.grads[place] = grad if before is None else before + grad
        for leaf, grad in zip(leaves, found[len(self._parameters) :], strict=True):
            leaf.grad = grad

    def take(self) -> list[tuple[torch.nn.Parameter, Tensor]]:
        """Return the gradients of parameters that came up here, and forget them."""
        found = [(one, grad) for one, grad in zip(self._parameters, self.grads, strict=True) if grad is not None]
        self.grads = [None] * len(self._parameters)
        return found

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class _Window:
    """One window on its way through the stages."""

    def __init__(self, session: Session, unit: Unit, draw: Draw, carry: Carry) -> None:
        self._session, self._piece, self._draw, self._carry = session, whole(unit), draw, carry
        walker = session.walker
        # Made here, before two threads would make it.
        self._demand = walker.demand(unit, session.goal.reads)
        self._views = [session.feed.view(t) for t in self._piece.times]
        self._encoded: list[Encoded] = []
        self._structure = [_Cuts() for _ in walker.layers]
        self._given = [_Cuts() for _ in walker.layers]
        self._below: list[Tensor] = []
        self._state, self._kept_state = list[Tensor](), list[Tensor]()
        self.loss = 0.0
        self.kept: Carry | None = None

    def encode(self, depth: int) -> None:
        """Let a layer encode all snapshots."""
        walker, reads = self._session.walker, self._session.goal.reads
        if depth:
            made = walker.encode_above(depth, self._piece, self._below, reads)
        else:
            made = walker.encode(self._piece, reads)
        self._encoded.append(self._structure[depth].cut_all(made))

    def encode_back(self, lane: _Lane, depth: int) -> None:
        """Take back what the time stage left."""
        lane.go_back(self._structure[depth].take(), self._given[depth - 1].leaves if depth else [])

    def remember(self, lane: _Lane, depth: int) -> None:
        """Take a layer's memory over the window; at the top go on to the loss, and turn round."""
        walker = self._session.walker
        first = len(self._state)
        before = self._carry.state[first : first + len(walker.layers[depth].memory())]
        told = walker.remember(depth, self._piece, self._encoded[depth], before, self._demand.outputs[depth])
        self._state.extend(told.state)
        self._kept_state.extend(told.kept)
        if depth + 1 < len(walker.layers):
            self._below = [self._given[depth].cut(rows) for rows in told.outputs_T]
            return
        loss = self._finish(told.outputs_T)
        if loss is not None:
            self.loss = float(loss.detach())
            lane.go_back([(loss, torch.ones_like(loss))], self._structure[depth].leaves)

    def remember_back(self, lane: _Lane, depth: int) -> None:
        """Take back what the structure stage above left."""
        lane.go_back(self._given[depth].take(), self._structure[depth].leaves)

    def _finish(self, outputs_T: list[Tensor]) -> Tensor | None:
        session, losses = self._session, list[Tensor]()
        walked = session.walker.see(
            self._piece, self._carry, outputs_T, tuple(self._state), tuple(self._kept_state)
        )  # fmt: skip
        self.kept = walked.kept
        for seen in walked.seen:
            if (loss := session.goal.loss(session.head, seen, self._draw)) is not None:
                losses.append(loss.total / loss.count)
        return torch.stack(losses).mean() if losses else None


class PipelineWorker(Worker):
    """It takes whole windows by twos: the structure of one beside the time of the other."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._alone = WholeWorker(session)

    def start(self) -> Carry:
        """Return what there is before the first snapshot."""
        return self._alone.start()

    def learn(self, units: tuple[Unit, ...], draw: Draw, carry: Carry | None) -> Learnt:
        """Collective. Take its windows through the pipeline, two at a time."""
        session, total, kept, began = self.session, 0.0, None, perf_counter()
        number = torch.get_num_threads()
        lanes = [_Lane(session, "structure", max(1, number // 2)), _Lane(session, "time", number - number // 2)]
        try:
            for first in range(0, len(units), _AT_ONCE):
                some = units[first : first + _AT_ONCE]
                with unit_randomness(session, draw, some[0]):
                    windows = [_Window(session, unit, draw, self._alone.before(unit, carry)) for unit in some]
                    self._flow(windows, *lanes)
                total += sum(window.loss for window in windows)
                kept = windows[-1].kept
        finally:
            for lane in lanes:
                lane.close()
        for lane in lanes:
            for parameter, grad in lane.take():
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad
        if len(units) == 1:
            # Its stages wait for each other, so that schedules are made of what it takes alone, as elsewhere.
            session.profile.seconds[units[0]] = perf_counter() - began
        return Learnt(loss=total, weight=len(units), kept=kept)

    def _flow(self, windows: list[_Window], structure: _Lane, time: _Lane) -> None:
        """Do all stages of some windows, each as soon as those that it needs are done."""
        depths, done = len(self.session.walker.layers), dict[tuple[str, int, int], Done]()
        here = torch.cuda.current_stream(self.session.device) if structure.stream is not None else None
        for lane in (structure, time):
            if lane.stream is not None and here is not None:
                lane.stream.wait_stream(here)
        places = range(len(windows))

        def begin(lane: _Lane, name: str, depth: int, needs: str, needs_depth: int, place: int) -> None:
            window = windows[place]
            work: Callable[[_Lane], None] = {
                "encode": lambda _: window.encode(depth), "remember": lambda on: window.remember(on, depth),
                "encode back": lambda on: window.encode_back(on, depth),
                "remember back": lambda on: window.remember_back(on, depth),
            }[name]  # fmt: skip
            known = done.get((needs, needs_depth, place))
            done[name, depth, place] = lane.begin([] if known is None else [known], work)

        for depth in range(depths):
            for place in places:
                begin(structure, "encode", depth, "remember", depth - 1, place)
            for place in places:
                begin(time, "remember", depth, "encode", depth, place)
        for depth in reversed(range(depths)):
            turned = "remember" if depth == depths - 1 else "remember back"
            for place in places:
                begin(structure, "encode back", depth, turned, depth, place)
            for place in places if depth else ():
                begin(time, "remember back", depth - 1, "encode back", depth, place)
        failed = [error for one in done.values() if (error := one.exception()) is not None]
        if failed:
            raise failed[0]
        for lane in (structure, time):
            if lane.stream is not None and here is not None:
                here.wait_stream(lane.stream)

    def see(self, first: int, last: int) -> Iterator[Seen]:
        """Collective. Yield this rank's share of what is seen; nothing goes back, so there is nothing to fill."""
        yield from self._alone.see(first, last)

    def whole(self, carry: Carry) -> Carry:
        """Collective. Return it as it is."""
        return carry

    def own(self, carry: Carry) -> Carry:
        """Return it as it is."""
        return carry
