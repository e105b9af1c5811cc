"""Which rows of a window somebody reads: the others are not computed.

A layer's output is read by the loss, by the layer above, and by the next window, for which every node's last row is
kept; its state is read by its own next snapshots. What is left out changes no number that is asked for.

Shape letters: T snapshots of a window, N nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from timeloom.kernels.versions import Bools, Heard, asked_for
from timeloom.nn.model import Model, PerNode
from timeloom.nn.watch import Asked
from timeloom.plan.types import Unit
from timeloom.train.holding import Holding

Reads = Callable[[int], Bools | None]
"""Which nodes' rows are read after a snapshot (None: all)."""
Wanted = tuple[Bools | None, ...]
"""For each snapshot of a window, which nodes' rows are read (None: all)."""
_NEARLY_ALL = 0.8


def read_outputs(unit: Unit, alive_T: Sequence[Bools], reads: Reads | None, *, hold: bool) -> Wanted:
    """Return which of a model's output rows are read: by the loss (``reads``; None: all) and by the next window.

    With ``hold`` an absent node shows the row it had last, so that one is read, too.
    """
    found: list[Bools | None] = []
    pending = np.zeros_like(alive_T[0])
    for t in reversed(range(unit.first, unit.last)):
        if t in unit.targets:
            mask = None if reads is None else reads(t)
            pending = np.ones_like(pending) if mask is None else pending | mask
        if t == unit.keep:
            pending = np.ones_like(pending)
        here = alive_T[t - unit.first]
        found.append(_or_all(pending & here if hold else pending, here))
        pending = pending & ~here if hold else np.zeros_like(pending)
    return tuple(reversed(found))


def read_by_any(outputs: Wanted, holding: Holding) -> Wanted:
    """Collective. Return all rows of each snapshot of which some rank reads any, and no row of the others.

    Sums over neighbours are made by all ranks together, so what one of them needs all of them compute.
    """
    some = np.array([mask is None or bool(mask.any()) for mask in outputs], np.float64)
    nobody = np.zeros(holding.count(0), np.bool_)
    return tuple(None if count else nobody for count in holding.total(some, "demand"))


def encoded_rows(layer: Model, outputs: Wanted, unit: Unit) -> Wanted:
    """Return which rows of a layer's encoding are read, given which of its outputs are.

    Where every node has a state of its own, the rows of a node that is read at some time are read at all times before.
    """
    if layer.mixes_states:
        return (None,) * len(outputs)
    if not any(isinstance(slot, PerNode) for slot in layer.memory()):
        return outputs
    if unit.keep >= 0:
        return (None,) * len(outputs)
    union: Bools | None = None
    for mask in outputs:
        if mask is None:
            return (None,) * len(outputs)
        union = mask if union is None else union | mask
    return (union,) * len(outputs)


def rows_below(
    asked: Asked, wanted: Wanted, heard: Callable[[int], Sequence[Heard]], alive_T: Sequence[Bools]
) -> Wanted:
    """Return which rows a layer's encoding reads of the layer below it; ``heard`` tells whom nodes hear."""
    if not asked.by_node:
        return (None,) * len(wanted)
    found: list[Bools | None] = []
    for t, mask in enumerate(wanted):
        if mask is not None and mask.any():
            mask = _or_all(asked_for(heard(t), mask, asked.hops) > 0, alive_T[t])
        found.append(mask)
    return tuple(found)


def _or_all(mask_N: Bools, alive_N: Bools) -> Bools | None:
    """Return a mask, or None where it leaves out so few nodes that choosing costs more than computing them."""
    return None if int(mask_N.sum()) > _NEARLY_ALL * int(alive_N.sum()) else mask_N
