"""What of a run is no number, and where: what it reads of the graph, its parameters, their gradients.

A rank that finds such an input goes on to the end of the step, in which all ranks agree; then all stop together, with
the same words. Were it to stop at once, the others would wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from timeloom.dist.collectives import World
from timeloom.graph.snapshot import Snapshot


class Faults:
    """The first input that was found to be no number. Two threads may look at once."""

    def __init__(self) -> None:
        self.first = ""
        """A sentence, or nothing."""

    def look(self, what: str, t: int, values: NDArray[Any], *, unknown: bool = False) -> None:
        """Look at the numbers of a snapshot's nodes; with ``unknown`` NaN says that one is not known."""
        if self.first or values.dtype.kind != "f" or _within(values, float(np.finfo(values.dtype).max)):
            return
        bad = np.isinf(values) if unknown else ~np.isfinite(values)
        if bad.any():
            place = tuple(np.argwhere(bad)[0].tolist())
            self.first = (
                f"{what} of snapshot {t} held {values[place]} (of row {place[0]}, and {int(bad.sum()) - 1} more)"
            )

    def note(self, what: str) -> None:
        """Take note of something that is no number, if it is the first."""
        self.first = self.first or f"{what} was no number"

    def look_at_weights(self, snapshot: Snapshot, most: float) -> None:
        """Look at the weights of a snapshot's edges; beyond ``most`` they are infinite to the model."""
        weights = snapshot.stored_weights
        if self.first or weights is None or _within(weights, most):
            return
        place = int(np.flatnonzero(~(np.abs(weights) <= most))[0])
        key = snapshot.keys[place : place + 1]
        edge = f"{int(snapshot.layout.sources(key)[0])} -> {int(snapshot.layout.targets(key)[0])}"
        self.first = f"the weights of snapshot {snapshot.t} held {weights[place]} (of the edge {edge})"


def _within(values: NDArray[Any], most: float) -> bool:
    """Say whether no number is beyond ``most``, and none is NaN. Two passes, and no memory."""
    return bool(-most <= values.min(initial=0.0) and values.max(initial=0.0) <= most)


def named(faults: Faults, learnt: nn.Module) -> str:
    """Return what is no number on this rank, in words: an input, else a parameter, else a gradient."""
    if faults.first:
        return faults.first
    for kind in ("", "the gradient of "):
        tensors = ((name, parameter.grad if kind else parameter) for name, parameter in learnt.named_parameters())
        bad = [name for name, tensor in tensors if tensor is not None and not torch.isfinite(tensor).all()]
        if bad:
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            return f"{kind}{bad[0]}{more} was no number"
    return ""


def named_by_all(world: World, faults: Faults, learnt: nn.Module) -> str:
    """Collective. Return what is no number on any rank, the same words on all of them."""
    told = [one.decode() for one in world.gather_bytes(named(faults, learnt).encode(), "control/faults")]
    if world.size == 1 or len(set(told)) == 1:
        return told[0]
    return "; ".join(f"on rank {rank} {one}" for rank, one in enumerate(told) if one)
