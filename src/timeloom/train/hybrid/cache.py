"""What a rank holds so that it needs nobody: the rows and edges that its own nodes depend on (SPEC D8.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import psutil

from timeloom.graph.keys import Int64s
from timeloom.nn.stack import layers_of
from timeloom.nn.watch import watch
from timeloom.plan.batch.cutout import Cutout
from timeloom.plan.batch.hybrid import Work, make_cache
from timeloom.plan.batch.layered import Levels, levels_of
from timeloom.plan.batch.rows import StoredRows
from timeloom.train.hybrid.inputs import Inputs, read_inputs, row_bytes
from timeloom.train.hybrid.walk import reach_of
from timeloom.train.session import Session

_GATES = 6
"""Numbers that a recurrent cell keeps of a row for each one that it gives: gates, and the state before."""


@dataclass(frozen=True, slots=True)
class Held:
    """A cache with the input rows of its nodes."""

    levels: Levels
    inputs: Inputs
    num_bytes: int
    """What was predicted before it was built."""

    @property
    def cutout(self) -> Cutout:
        """All rows and edges."""
        return self.levels[0]


def hold(session: Session, owned: Int64s, first: int, last: int, *, taken_bytes: int = 0) -> Held:
    """Return the cache of these nodes over snapshots ``first`` to ``last`` (exclusive).

    What it takes is counted first, and refused where it is over what is left of the budget.
    """
    settings, layers = session.settings.hybrid, reach_of(session.model)
    per_row = row_bytes(session.feed, last - first)
    cutout = make_cache(
        StoredRows(session.graph), owned, layers, first=first, last=last, sets=settings.sets,
        both=hears_both_ways(session), row_bytes=per_row, budget_bytes=max(0, budget_bytes(session) - taken_bytes),
    )  # fmt: skip
    num_bytes = cutout.num_bytes + cutout.rows_read * per_row
    # From here on rows are known by their places in the cache, not by the graph's.
    cutout = replace(cutout, places_N=np.arange(cutout.num_nodes, dtype=np.int32))
    inputs = read_inputs(session.settings, session.graph, cutout, session.feed)
    return Held(levels_of(cutout, layers), inputs, num_bytes)


def budget_bytes(session: Session) -> int:
    """Return what a rank's caches may take; ranks of one machine share what is free of its memory."""
    asked = session.settings.hybrid.cache_mib
    if asked:
        return int(asked * 2**20)
    return int(psutil.virtual_memory().available) // (2 * session.world.local_size)


def hears_both_ways(session: Session) -> bool:
    """Say whether a layer of the model also lets messages go against the edges."""
    layers, width = layers_of(session.model)[0], session.feed.num_features
    for layer in layers:
        if True in watch(layer, width).directions:
            return True
        width = layer.out_size
    return False


def work_of(session: Session) -> Work:
    """Return about what training keeps of a row: its features, and for each layer what goes back reads."""
    feed, width = session.feed, session.feed.num_features
    each = []
    for layer in layers_of(session.model)[0]:
        each.append((watch(layer, width).width + _GATES * layer.out_size) * feed.dtype.itemsize)
        width = layer.out_size
    return Work(row_bytes=feed.num_features * feed.dtype.itemsize, layer_bytes=tuple(each))
