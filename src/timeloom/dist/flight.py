"""How rows and their gradients travel between ranks: an exchange that begins, flies while others compute, and lands.

`depart` and `land` are two autograd functions around one all-to-all. In the backward pass the roles are swapped: the
gradient departs where the rows landed and lands where they departed, so that what was computed between the two hides
the way back as well. `send` and `receive` do the same for one tensor between two ranks.

Autograd runs the functions of one thread in the reverse order of their making. So all ranks do the collectives of a
backward pass in the same order, if every exchange is reached on every rank: `tie` sees to that, whatever a rank's part
of the graph looks like (no edges, no targets, no work).

Shape letters: S rows sent, R rows received.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from timeloom.dist.collectives import Pending, World


@dataclass(frozen=True, slots=True)
class Route:
    """How many rows go where, and under which name."""

    world: World
    name: str
    sent: tuple[int, ...]
    received: tuple[int, ...]


class _Journey:
    """What is under way: forward, then backward."""

    __slots__ = ("pending", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.pending: Pending[Tensor] | None = None

    def start(self, rows: Tensor, *, back: bool) -> None:
        route = self.route
        sent, received = (route.received, route.sent) if back else (route.sent, route.received)
        name = f"{route.name}/back" if back else route.name
        self.pending = route.world.start_all_to_all(rows.contiguous(), name, sent=sent, received=received)

    def finish(self) -> Tensor:
        assert self.pending is not None, f"{self.route.name} has not departed"
        pending, self.pending = self.pending, None
        return pending.finish()


@dataclass(frozen=True, slots=True)
class Flight:
    """Rows under way to other ranks."""

    ticket: Tensor
    """Ties the landing to the departure; holds nothing."""
    journey: _Journey


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, journey: _Journey) -> Tensor:
        ctx.journey = journey
        journey.start(rows, back=False)
        return rows.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.journey.finish(), None


class _Land(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _ticket: Tensor, journey: _Journey) -> Tensor:
        ctx.journey = journey
        return journey.finish()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.journey.start(gradients[0], back=True)
        return gradients[0].new_empty(0), None


def depart(rows_S: Tensor, route: Route) -> Flight:
    """Collective. Begin to send ``route.sent[r]`` rows to rank r, in order.

    Rows need a gradient on all ranks or on none.
    """
    journey = _Journey(route)
    return Flight(_Depart.apply(rows_S, journey), journey)  # type: ignore[no-untyped-call]


def land(flight: Flight) -> Tensor:
    """Collective. Return the rows that came from every rank, by rank."""
    rows_R: Tensor = _Land.apply(flight.ticket, flight.journey)  # type: ignore[no-untyped-call]
    return rows_R


class _Tie(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *others: Tensor) -> Tensor:
        ctx.num_others = len(others)
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # No gradient is not the same as no visit: the functions behind the others run, and are given zeros.
        return gradients[0], *[None] * ctx.num_others


def tie(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Return ``x``, whose backward pass also visits what made ``others``, with a gradient of zero."""
    tied: Tensor = _Tie.apply(x, *others)  # type: ignore[no-untyped-call]
    return tied


@dataclass(frozen=True, slots=True)
class Lane:
    """The way of one tensor to or from one other rank."""

    world: World
    name: str
    peer: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """A tensor under way to another rank. Its backward pass begins with the gradient that comes from there."""

    stub: Tensor
    """What `tie` must tie to the loss, where gradients are wanted."""
    pending: Pending[None]

    def finish(self) -> None:
        """Return when the other rank has it."""
        self.pending.finish()


class _Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lane: Lane, begun: list[Pending[None]]) -> Tensor:
        ctx.lane, ctx.shape = lane, x.shape
        begun.append(lane.world.start_exchange(lane.name, sends={lane.peer: x.contiguous()}, receives={}))
        return x.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        lane: Lane = ctx.lane
        grad = gradients[0].new_empty(ctx.shape)
        lane.world.start_exchange(f"{lane.name}/back", sends={}, receives={lane.peer: grad}).finish()
        return grad, None, None


class _Receive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, lane: Lane, shape: tuple[int, ...]) -> Tensor:
        ctx.lane = lane
        x = anchor.new_empty(shape)
        lane.world.start_exchange(lane.name, sends={}, receives={lane.peer: x}).finish()
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        lane: Lane = ctx.lane
        grad = gradients[0].contiguous()
        lane.world.start_exchange(f"{lane.name}/back", sends={lane.peer: grad}, receives={}).finish()
        return None, None, None


def send(x: Tensor, lane: Lane) -> Parcel:
    """Begin to send a tensor to another rank, which calls `receive`; in the backward pass its gradient comes back."""
    assert x.requires_grad or not torch.is_grad_enabled(), f"{lane.name}: the receiver would send a gradient in vain"
    begun: list[Pending[None]] = []
    stub: Tensor = _Send.apply(x, lane, begun)  # type: ignore[no-untyped-call]
    return Parcel(stub, begun[0])


def receive(shape: tuple[int, ...], dtype: torch.dtype, lane: Lane) -> Tensor:
    """Return the tensor that another rank sends here; in the backward pass its gradient is sent back.

    Tie it to the loss where it might not be used: the other rank waits for the gradient.
    """
    anchor = torch.empty(0, dtype=dtype, device=lane.world.device, requires_grad=True)
    x: Tensor = _Receive.apply(anchor, lane, shape)  # type: ignore[no-untyped-call]
    return x
