"""How a model is taken over a window, and what goes on from one window to the next.

Shape letters: N nodes, H the model's output size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.nn.model import Model, PerNode, State, advance, resume, start
from timeloom.plan.types import Unit
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import Seen


@dataclass(frozen=True, slots=True)
class Carry:
    """What there is after a snapshot: the model's state, every node's last row, and which nodes were born."""

    state: State
    out_NH: Tensor
    born_N: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all of it, for a checkpoint."""
        return (*self.state, self.out_NH, self.born_N)


def first_carry(model: Model, feed: Feed) -> Carry:
    """Return what there is before the first snapshot."""
    like = next(model.parameters())
    size = feed.graph.num_nodes
    return Carry(
        start(model.memory(), size, like),
        torch.zeros(size, model.out_size, dtype=like.dtype, device=like.device),
        torch.zeros(size, dtype=torch.bool, device=like.device),
    )


def carry_of(model: Model, tensors: tuple[Tensor, ...], feed: Feed) -> Carry:
    """Return what was saved; nodes that joined the graph since start as they would have then."""
    more = feed.graph.num_nodes - len(tensors[-1])
    of_nodes = [*(isinstance(slot, PerNode) for slot in model.memory()), True, True]
    rows = [
        torch.cat([part, part.new_zeros(more, *part.shape[1:])]) if more and is_rows else part
        for part, is_rows in zip(tensors, of_nodes, strict=True)
    ]
    return Carry(tuple(rows[:-2]), rows[-2], rows[-1])


def goes_on(model: Model, carry: Carry) -> Carry:
    """Return what a window starts from that goes on where another ended; no gradient flows back into that one."""
    like = next(model.parameters())
    # Under bf16 what is carried from window to window is kept exactly.
    state = tuple(part.to(like.dtype) for part in resume(model.memory(), carry.state))
    return Carry(state, carry.out_NH.detach().to(like.dtype), carry.born_N)


def walk(model: Model, feed: Feed, unit: Unit, carry: Carry, *, hold: bool) -> tuple[list[Seen], Carry | None]:
    """Take the model over a window; return what is seen at its targets, and what is kept for the next window.

    With ``hold`` a node that is absent keeps its state and its last row, else it goes on without edges; one that is not
    yet born gives 0 either way (SPEC D1.4).
    """
    seen: list[Seen] = []
    kept: Carry | None = None
    for t in range(unit.first, unit.last):
        view = feed.view(t)
        out_NH, state = advance(model, view, feed.rows(t), carry.state, hold=hold)
        born_N = carry.born_N | view.alive_N
        if not view.all_alive:
            out_NH = torch.where((view.alive_N if hold else born_N)[:, None], out_NH, carry.out_NH)
        carry = Carry(state, out_NH, born_N)
        if t in unit.targets:
            seen.append(Seen(t, carry.out_NH, carry.born_N))
        if t == unit.keep:
            kept = goes_on(model, carry)
    return seen, kept
