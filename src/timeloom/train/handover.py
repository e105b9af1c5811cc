"""What one rank tells the next about a window: the state of all layers, last rows, who was born, targets so far.

Numbers travel as one message, along which gradients come back; what has none travels as bytes ahead of it.

Shape letters: N nodes, H the model's output size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.dist.collectives import Pending, World
from timeloom.dist.flight import Lane, Parcel, receive, send
from timeloom.nn.model import Model, PerNode
from timeloom.train.walk import Carry

_STATE, _KNOWN, _KEPT = "state/relay", "state/known", "state/kept"


@dataclass(frozen=True, slots=True)
class Sent:
    """A state under way."""

    parcel: Parcel
    known: Pending[None]

    def finish(self) -> None:
        """Return when the other rank has it."""
        self.known.finish()
        self.parcel.finish()


@dataclass(frozen=True, slots=True)
class Taken:
    """A state that came."""

    carry: Carry
    count: int
    """How many snapshots of the window had targets so far."""
    numbers: Tensor
    """What `tie` must tie to the loss: the other rank waits for its gradient."""


def hand_on(world: World, carry: Carry, count: int, needed_N: Tensor) -> Sent:
    """Begin to send what there is after a piece to the next rank; of the last rows only those that are needed."""
    peer = world.rank + 1
    rows = carry.out_NH.index_select(0, needed_N.nonzero()[:, 0])
    sizes = torch.tensor([count, *(len(part) for part in carry.state)])
    told = torch.cat([sizes.view(torch.uint8).to(world.device), carry.born_N.view(torch.uint8)])
    known = world.start_exchange(_KNOWN, sends={peer: told}, receives={})
    flat = _flat((*carry.state, rows), carry.out_NH.dtype)
    if torch.is_grad_enabled() and not flat.requires_grad:
        flat.requires_grad_()
    return Sent(send(flat, Lane(world, _STATE, peer)), known)


def take_over(world: World, model: Model, alive_N: Tensor, *, hold: bool) -> Taken:
    """Return what the rank before had after its piece; ``alive_N`` is of the first snapshot of this rank's."""
    peer, memory, like = world.rank - 1, model.memory(), next(model.parameters())
    head = 8 * (len(memory) + 1)
    told = torch.empty(head + len(alive_N), dtype=torch.uint8, device=world.device)
    world.start_exchange(_KNOWN, sends={}, receives={peer: told}).finish()
    count, *sizes = told[:head].cpu().view(torch.int64).tolist()
    born_N = told[head:].view(torch.bool)
    needed = last_rows_needed(born_N, alive_N, hold=hold).nonzero()[:, 0]
    shapes = [
        (size, *(slot.shape if isinstance(slot, PerNode) else slot.start.shape[1:]))
        for size, slot in zip(sizes, memory, strict=True)
    ]
    shapes.append((len(needed), model.out_size))
    numbers = receive((sum(map(math.prod, shapes)),), like.dtype, Lane(world, _STATE, peer))
    *state, rows = _parts(numbers, shapes)
    out_NH = like.new_zeros(len(alive_N), model.out_size).index_copy(0, needed, rows)
    return Taken(Carry(tuple(state), out_NH, born_N), count, numbers)


def last_rows_needed(born_N: Tensor, alive_N: Tensor, *, hold: bool) -> Tensor:
    """Return which nodes' last rows may still be shown: of those absent from the next snapshot, where rows are held.

    Every other node that was born gets another row there, or nobody reads it; one not yet born has 0.
    """
    return born_N & ~alive_N if hold else torch.zeros_like(born_N)


def send_kept(world: World, model: Model, kept: Carry, *, to: int) -> None:
    """Send what the next window goes on from to another rank; what is shared starts anew there."""
    numbers = _flat((*_of_nodes(model, kept), kept.out_NH), kept.out_NH.dtype).detach()
    world.start_exchange(f"{_KEPT}/born", sends={to: kept.born_N.view(torch.uint8)}, receives={}).finish()
    world.start_exchange(_KEPT, sends={to: numbers}, receives={}).finish()


def receive_kept(world: World, model: Model, like: Carry, *, of: int) -> Carry:
    """Return what another rank kept; ``like`` has its shapes."""
    born_N = torch.empty_like(like.born_N).view(torch.uint8)
    world.start_exchange(f"{_KEPT}/born", sends={}, receives={of: born_N}).finish()
    shapes = [tuple(part.shape) for part in (*_of_nodes(model, like), like.out_NH)]
    numbers = like.out_NH.new_empty(sum(map(math.prod, shapes)))
    world.start_exchange(_KEPT, sends={}, receives={of: numbers}).finish()
    *rows, out_NH = _parts(numbers, shapes)
    left = iter(rows)
    state = tuple(next(left) if isinstance(slot, PerNode) else slot.start for slot in model.memory())
    return Carry(state, out_NH, born_N.view(torch.bool))


def _of_nodes(model: Model, carry: Carry) -> list[Tensor]:
    return [part for slot, part in zip(model.memory(), carry.state, strict=True) if isinstance(slot, PerNode)]


def _flat(parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    return torch.cat([part.reshape(-1).to(dtype) for part in parts])


def _parts(numbers: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(numbers, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
