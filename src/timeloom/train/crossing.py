"""How rows cross from the ranks that own them to those that want them, and what a backward pass must not miss.

Every rank reaches every exchange in the same order: forward because all ranks run the same code over the same units,
backward because the loss is tied to all of them (see `dist/flight.py`).

Shape letters: O own rows, H halo rows, S rows sent, R rows received.
"""

from __future__ import annotations

import torch
from torch import Tensor

from timeloom.dist.collectives import World
from timeloom.dist.flight import Flight, Route, depart, land, tie
from timeloom.dist.halo import Halo, finish_halo, start_halo


class Crossing:
    """The exchanges since the last backward pass."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._stubs: list[Tensor] = []

    def start_halo(self, halo: Halo, own_OF: Tensor, name: str) -> Flight:
        """Collective. Begin to send others the own rows that they want."""
        return start_halo(self.world, halo, _exact(own_OF), name)

    def finish_halo(self, flight: Flight) -> Tensor:
        """Collective. Return the rows of the halo."""
        return self._noted(finish_halo(flight))

    def swap(self, rows_S: Tensor, *, sent: tuple[int, ...], received: tuple[int, ...], name: str) -> Tensor:
        """Collective. Send ``sent[r]`` rows to rank r, in order; return what came, by rank."""
        route = Route(self.world, name, sent, received)
        return self._noted(land(depart(_exact(rows_S), route)))

    def tied(self, loss: Tensor) -> Tensor:
        """Return a loss whose backward pass visits every exchange since this was called last."""
        stubs, self._stubs = self._stubs, []
        return tie(loss, stubs) if stubs else loss

    def forget(self) -> None:
        """Go on as if there had been no exchange: all ranks leave out the backward pass."""
        self._stubs = []

    def _noted(self, rows_R: Tensor) -> Tensor:
        if rows_R.requires_grad:
            # No rows of its own: what is tied to the loss shall not keep the rows in memory.
            self._stubs.append(rows_R.index_select(0, rows_R.new_empty(0, dtype=torch.int64)))
        return rows_R


def _exact(rows: Tensor) -> Tensor:
    """Return rows of single precision at least: under bf16 it depends on a rank's own nodes which rows are shorter."""
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
