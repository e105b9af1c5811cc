"""What comes of a piece of a window: losses, and the state that goes on; computed once, or a second time going back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from timeloom.plan.batch.pieces import Piece, cut
from timeloom.train.encode import Encoded
from timeloom.train.goals.goal import Draw
from timeloom.train.groups import Groups
from timeloom.train.session import Session
from timeloom.train.walk import Carry


@dataclass(frozen=True, slots=True)
class Gone:
    """What came of a piece."""

    loss: Tensor | None
    """The sum of the losses of its target snapshots, each a mean over its targets (None: there are no targets)."""
    count: int
    """How many of its target snapshots have targets."""
    after: Carry
    """What the next piece of the window goes on from, gradients and all."""
    kept: Carry | None
    """What the next window goes on from, where it does so from a snapshot of this piece."""


def go_over(
    session: Session, piece: Piece, before: Callable[[], Carry], draw: Draw, groups: Groups | None = None
) -> Gone:
    """Take the model over a piece; ``before`` tells what it starts from, once that is needed."""
    if session.settings.system.recompute:
        return _in_stretches(session, piece, before(), draw)
    encoded = session.walker.encode(piece, session.goal.reads, groups)
    return _gone(session, piece, encoded, before(), draw)


def _gone(session: Session, piece: Piece, encoded: Encoded, carry: Carry, draw: Draw) -> Gone:
    walked, losses = session.walker.go(piece, encoded, carry, session.goal.reads), list[Tensor]()
    for seen in walked.seen:
        if (loss := session.goal.loss(session.head, seen, draw)) is not None:
            losses.append(loss.total / loss.count)
    return Gone(torch.stack(losses).sum() if losses else None, len(losses), walked.after, walked.kept)


def _in_stretches(session: Session, piece: Piece, carry: Carry, draw: Draw) -> Gone:
    """Go over a piece in stretches as long as there are of them; each is computed again when its gradient goes back."""
    length = math.isqrt(piece.last - piece.first - 1) + 1
    losses, count, kept = list[Tensor](), 0, None
    for stretch in cut(piece, length):
        gone = (
            _twice(session, stretch, carry, draw) if torch.is_grad_enabled() else _once(session, stretch, carry, draw)
        )
        carry, count = gone.after, count + gone.count
        kept = gone.kept or kept
        if gone.loss is not None:
            losses.append(gone.loss)
    return Gone(torch.stack(losses).sum() if losses else None, count, carry, kept)


def _once(session: Session, stretch: Piece, carry: Carry, draw: Draw) -> Gone:
    encoded = session.walker.encode(stretch, session.goal.reads)
    return _gone(session, stretch, encoded, carry, draw)


def _twice(session: Session, stretch: Piece, carry: Carry, draw: Draw) -> Gone:
    """Go over a stretch without keeping anything; its backward pass goes over it again, with the same random draws."""
    first: list[Gone] = []

    def compute(_anchor: Tensor, out_NH: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        gone = _once(session, stretch, Carry(state, out_NH, carry.born_N), draw)
        if not torch.is_grad_enabled():
            first.append(gone)
        return (out_NH.new_zeros(()) if gone.loss is None else gone.loss), gone.after.out_NH, *gone.after.state

    # What is given must need a gradient, or nothing would go back: the first state of all does not.
    anchor = torch.zeros((), device=carry.out_NH.device, requires_grad=True)
    loss, out_NH, *state = checkpoint(compute, anchor, carry.out_NH, *carry.state, use_reentrant=True)
    # Out of the list: what going back holds must not hold what came of going there.
    told = first.pop()
    after = Carry(tuple(state), out_NH, told.after.born_N)
    return replace(told, loss=None if told.loss is None else loss, after=after)
