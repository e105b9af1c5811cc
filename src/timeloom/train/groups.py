"""Several windows of one update: rows that they share are made once, and only one window's graph lives at a time.

What is shared is cut off from the windows: each of them goes backward by itself, its gradient adds up where it was
cut, and at the end that goes on to the parameters, once (SPEC section 5, the memory-light schedule).

Shape letters: T snapshots, N nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from timeloom.kernels.front import Affine
from timeloom.plan.batch.pieces import Piece
from timeloom.train.demand import Wanted
from timeloom.train.encode import Encoded, Encoder


class Groups:
    """The first layer's rows of several windows, or of a rank's pieces of them.

    Where they share nothing they are encoded when they are asked for.
    """

    def __init__(self, encoder: Encoder, pieces: Sequence[Piece], wanted: Sequence[Wanted]) -> None:
        self._encoder, self._wanted = encoder, dict(zip(pieces, wanted, strict=True))
        self._cuts: list[tuple[Tensor, Tensor]] = []
        times = sorted({t for piece in pieces for t in piece.times})
        self._places = {t: place for place, t in enumerate(times)}
        self._shared: Encoded | None = None
        whole = all(mask is None for masks in wanted for mask in masks)
        if whole and encoder.asked.by_node and encoder.mode(tuple(times)) == "versions":
            made = encoder.encode(tuple(times), (None,) * len(times))
            self._shared = replace(
                made,
                parts=tuple(tuple(self._cut(part) for part in rows) for rows in made.parts),
                maps=tuple(self._cut_map(step) for step in made.maps),
            )

    def of(self, piece: Piece) -> Encoded:
        """Return the rows of one window, or of what of it is on this rank."""
        if self._shared is None or self._shared.place_TN is None:
            return self._encoder.encode(piece.times, self._wanted[piece])
        first = self._places[piece.first]
        places = slice(first, first + len(piece.times))
        return replace(
            self._shared, place_TN=self._shared.place_TN[places], nodes_T=self._shared.nodes_T[places]
        )  # fmt: skip

    def go_back(self) -> None:
        """Let the gradients that the windows left go on to what their rows were made of."""
        ready = [(made, leaf.grad) for made, leaf in self._cuts if leaf.grad is not None]
        if ready:
            torch.autograd.backward([made for made, _ in ready], [gradient for _, gradient in ready])

    def _cut(self, made: Tensor) -> Tensor:
        if made.is_leaf:
            return made
        leaf = made.detach().requires_grad_()
        self._cuts.append((made, leaf))
        return leaf

    def _cut_map(self, step: Affine) -> Affine:
        bias = None if step.bias_O is None else self._cut(step.bias_O)
        return Affine(self._cut(step.weight_IO), bias, step.relu)
