"""How rows cross from the ranks that own them to those that want them, and what a backward pass must not miss.

Every rank reaches every exchange in the same order: forward because all ranks run the same code over the same units,
backward because the loss is tied to all of them (see `dist/flight.py`).

Shape letters: O own rows, H halo rows, S rows sent, R rows received.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from timeloom.dist.collectives import World
from timeloom.dist.flight import Flight, Route, depart, land, tie
from timeloom.dist.halo import Halo, finish_halo, start_halo
from timeloom.kernels.attention import attend
from timeloom.kernels.edges import Edges


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


class Ahead:
    """Rows of a halo that a view fetches, sent for when they are asked for or before; known by what is asked with."""

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._begun: dict[tuple[int, bool], tuple[Tensor, Tensor, Flight]] = {}
        self.waited_s = 0.0
        """Seconds that were spent waiting for them."""

    def begin(self, halo: Halo, key: Tensor, rows_NF: Tensor, *, reverse: bool) -> None:
        """Collective. Send for the halo's rows beside these own ones."""
        assert (id(key), reverse) not in self._begun, "an exchange is begun once"
        flight = self._crossing.start_halo(halo, rows_NF, "halo/against" if reverse else "halo/along")
        # The key is kept, so that no other tensor can have its id.
        self._begun[id(key), reverse] = (key, rows_NF, flight)

    def rows(self, halo: Halo, key: Tensor, make: Callable[[], Tensor], *, reverse: bool) -> Tensor:
        """Collective. Return [L, F]: own rows (made now, if they were not sent for before), then those of the halo."""
        if (id(key), reverse) not in self._begun:
            self.begin(halo, key, make(), reverse=reverse)
        _, rows_NF, flight = self._begun.pop((id(key), reverse))
        began = time.perf_counter()
        come = self._crossing.finish_halo(flight)
        self.waited_s += time.perf_counter() - began
        return torch.cat([rows_NF, come])


def packed(value_NHD: Tensor, sent_NH: Tensor) -> Tensor:
    """Return values and how much nodes make of themselves side by side: they travel together."""
    return torch.cat([value_NHD.flatten(1), sent_NH], 1)


def attend_packed(
    edges: Edges, rows_LP: Tensor, received_NH: Tensor, *, alive_N: Tensor | None, slope: float
) -> Tensor:  # fmt: skip
    """Return what own nodes make of packed rows, own ones first; those of ``alive_N`` attend to themselves, too."""
    num_own, heads = received_NH.shape
    beyond = len(rows_LP) - num_own
    value, sent = torch.split(rows_LP, [rows_LP.shape[1] - heads, heads], 1)
    # Nobody sends to the halo, so what it makes of others does not matter.
    received = torch.cat([received_NH, received_NH.new_zeros(beyond, heads)])
    loop = None if alive_N is None else torch.cat([alive_N, alive_N.new_zeros(beyond)])
    value = value.reshape(len(rows_LP), heads, value.shape[1] // heads)
    return attend(edges, value, sent.contiguous(), received, loop_N=loop, slope=slope)[:num_own]


def _exact(rows: Tensor) -> Tensor:
    """Return rows of single precision at least: under bf16 it depends on a rank's own nodes which rows are shorter."""
    return rows.to(torch.promote_types(rows.dtype, torch.float32))
