"""How parameters stay the same on all ranks: equal at the start, and moved by gradients that all ranks agree on.

Gradients are added in flat buckets, one reduction each, all of them begun before the first is waited for. The last
bucket also carries what else must be agreed on in every step, so that nothing of it costs a collective: the weight of
each rank, what it wants to say (`Flags`), and which parameters have a gradient at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor
from torch.nn import Parameter

from timeloom.dist.collectives import World
from timeloom.errors import RanksDiffer

BUCKET_BYTES = 8 << 20
_SAID = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What one rank wants all to know about this step."""

    stop: bool = False
    """It was asked to stop."""
    non_finite: bool = False
    """Its loss or its gradient is no number."""
    error: bool = False
    """It could not do its part, for example for want of memory."""
    save: bool = False
    """It is time to save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all ranks know after a step."""

    weight: float
    """The sum of all ranks' weights, by which the gradients were divided (in single precision exact up to 2^24)."""
    stop: int
    """How many ranks were asked to stop."""
    non_finite: int
    error: int
    save: int
    loss: float
    """The sum of all ranks' losses, divided by the sum of all weights."""
    learnt: bool
    """A parameter has a gradient on some rank."""


@dataclass(frozen=True, slots=True)
class _Bucket:
    flat: Tensor
    """The gradients of its parameters, one after the other; what is left of it is the last bucket's load."""
    places: tuple[int, ...]
    """Which parameters."""

    def views(self, parameters: Sequence[Parameter]) -> list[Tensor]:
        """Return, for each of its parameters, where its gradient lies."""
        sizes = [parameters[place].numel() for place in self.places]
        parts = torch.split(self.flat[: sum(sizes)], sizes)
        return [part.view_as(parameters[place]) for part, place in zip(parts, self.places, strict=True)]


class Gradients:
    """The buckets of some parameters, which must be the same and in the same order on all ranks."""

    def __init__(self, world: World, parameters: Sequence[Parameter], *, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._world = world
        self._parameters = list(parameters)
        self._load = _SAID + len(self._parameters)
        self._buckets = _cut(self._parameters, bucket_bytes, self._load, world.device)

    def agree(self, weight: float, flags: Flags, *, loss: float = 0.0) -> Agreement:
        """Collective. Replace every ``.grad`` by the sum over all ranks, divided by the sum of all weights.

        Before, ``.grad`` is the gradient of ``loss``, the sum of what this rank's units (or targets) say, and ``weight``
        their number, which may be 0. A parameter without a gradient counts as zeros, unless no rank has one: then it keeps none. Afterwards
        gradients are the same on all ranks to the bit, so whoever looks at them needs not ask again.
        """
        has = [parameter.grad is not None for parameter in self._parameters]
        said = [weight, loss, flags.stop, flags.non_finite, flags.error, flags.save, *has]
        self._buckets[-1].flat[-self._load :] = torch.tensor(said, dtype=torch.float64)
        pending = []
        for place, bucket in enumerate(self._buckets):
            self._pack(bucket)
            pending.append(self._world.start_all_reduce(bucket.flat, f"grad/bucket{place}"))
        for flight in pending:
            flight.finish()
        told = self._buckets[-1].flat[-self._load :].tolist()
        for bucket in self._buckets:
            if told[0]:
                bucket.flat.div_(told[0])
            self._unpack(bucket, [count > 0 for count in told[_SAID:]])
        weight, loss, *counts = told[:_SAID]
        stop, non_finite, error, save = map(round, counts)
        return Agreement(
            weight=weight, stop=stop, non_finite=non_finite, error=error, save=save,
            loss=loss / weight if weight else math.nan, learnt=any(told[_SAID:]),
        )  # fmt: skip

    def _pack(self, bucket: _Bucket) -> None:
        for place, view in zip(bucket.places, bucket.views(self._parameters), strict=True):
            grad = self._parameters[place].grad
            if grad is None:
                view.zero_()
            else:
                view.copy_(grad)

    def _unpack(self, bucket: _Bucket, has: list[bool]) -> None:
        for place, view in zip(bucket.places, bucket.views(self._parameters), strict=True):
            parameter = self._parameters[place]
            if has[place]:
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(view)


def _cut(parameters: Sequence[Parameter], bucket_bytes: int, load: int, device: torch.device) -> list[_Bucket]:
    """Return buckets of about ``bucket_bytes``, a kind of number each; the last has room for the load."""
    # Half precision is added up in single precision.
    kinds = [torch.promote_types(parameter.dtype, torch.float32) for parameter in parameters]
    cut: list[tuple[torch.dtype, list[int], int]] = []
    for kind in dict.fromkeys(kinds):
        room = -1
        for place, parameter in enumerate(parameters):
            if kinds[place] != kind:
                continue
            if parameter.numel() > room:
                room = bucket_bytes // kind.itemsize
                cut.append((kind, [], 0))
            room -= parameter.numel()
            _, members, size = cut[-1]
            members.append(place)
            cut[-1] = (kind, members, size + parameter.numel())
    if not cut:
        cut.append((torch.float64, [], 0))
    loads = [0] * (len(cut) - 1) + [load]
    return [
        _Bucket(torch.zeros(size + extra, dtype=kind, device=device), tuple(members))
        for (kind, members, size), extra in zip(cut, loads, strict=True)
    ]


def assert_same(world: World, what: str, data: bytes) -> None:
    """Collective. Raise `RanksDiffer` where ``data`` is not the same on all ranks."""
    digests = world.gather_bytes(xxhash.xxh3_128_digest(data), "control/same")
    odd = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if odd:
        raise RanksDiffer(
            f"{what} of rank{'s' * (len(odd) > 1)} {', '.join(map(str, odd))} is not that of rank 0: "
            "start all ranks with the same command, files and versions"
        )


def share(world: World, tensors: Mapping[str, Tensor]) -> None:
    """Collective. Replace parameters and buffers by those of rank 0, after all agreed on their names and shapes."""
    shapes = [f"{name} {x.dtype} {tuple(x.shape)}" for name, x in tensors.items()]
    assert_same(world, "the list of parameters", "\n".join(shapes).encode())
    for kind in dict.fromkeys(x.dtype for x in tensors.values()):
        members = [x.detach() for x in tensors.values() if x.dtype == kind]
        flat = torch.cat([x.reshape(-1) for x in members])
        world.broadcast(flat, "grad/start")
        for x, part in zip(members, torch.split(flat, [x.numel() for x in members]), strict=True):
            x.copy_(part.view_as(x))
