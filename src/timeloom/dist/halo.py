"""Where the rows come from that a rank needs and does not own.

Shape letters: O own rows, H halo rows, S rows that others want of mine, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.dist.collectives import World
from timeloom.dist.flight import Flight, Route, depart, land


@dataclass(frozen=True, slots=True)
class Halo:
    """Which rows go where in every exchange of one plan."""

    rows_S: Tensor
    """The own rows that others want, by rank; a row that several want is there several times."""
    sent: tuple[int, ...]
    received: tuple[int, ...]
    num_own: int

    @property
    def num_halo(self) -> int:
        """How many rows come from others."""
        return sum(self.received)


def plan_halo(world: World, wanted: Sequence[Tensor], name: str, *, num_own: int) -> Halo:
    """Collective. Tell every rank which of its rows are wanted here; ``wanted[r]`` are places among rank r's own rows.

    Halo rows will lie in the order of ``wanted``, rank by rank.
    """
    assert len(wanted) == world.size, f"{name}: {len(wanted)} lists for {world.size} ranks"
    each = (1,) * world.size
    received = tuple(len(rows) for rows in wanted)
    counts = torch.tensor(received, device=world.device)
    sent = tuple(world.all_to_all(counts, f"{name}/counts", sent=each, received=each).tolist())
    asked = torch.cat([rows.to(torch.int64) for rows in wanted]).to(world.device)
    rows_S = world.all_to_all(asked, f"{name}/rows", sent=received, received=sent)
    outside = rows_S[(rows_S < 0) | (rows_S >= num_own)]
    assert not len(outside), f"{name}: row {int(outside[0])} is wanted of {num_own}"
    return Halo(rows_S, sent, received, num_own)


def start_halo(world: World, halo: Halo, own_OF: Tensor, name: str) -> Flight:
    """Collective. Begin to send others the rows they want of ``own_OF``, and their gradients back later."""
    assert len(own_OF) == halo.num_own, f"{name}: {len(own_OF)} rows, planned for {halo.num_own}"
    # index_select, forward and backward, adds in a fixed order; indexing does not (STACK 2, point 10).
    return depart(own_OF.index_select(0, halo.rows_S), Route(world, name, halo.sent, halo.received))


def finish_halo(flight: Flight) -> Tensor:
    """Collective. Return the [H, F] rows that came, in the order in which they were wanted."""
    return land(flight)


def fetch_halo(world: World, halo: Halo, own_OF: Tensor, name: str) -> Tensor:
    """Collective. Return the [H, F] rows of others that are wanted here, and wait for them."""
    return land(start_halo(world, halo, own_OF, name))
