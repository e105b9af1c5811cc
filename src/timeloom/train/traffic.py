"""What an epoch cost in messages, waiting and memory, rank by rank."""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from timeloom.dist.collectives import World
from timeloom.records import Traffic


def traffic(world: World, epoch: int) -> Iterator[Traffic]:
    """Collective. Yield what the collectives of every rank came to since this was asked last."""
    if world.size == 1:
        return
    told = json.dumps(_here(world)).encode()
    for rank, data in enumerate(world.gather_bytes(told, "control/traffic")):
        yield Traffic(rank=rank, epoch=epoch, **json.loads(data))


def _here(world: World) -> dict[str, Any]:
    sums: dict[str, Counter[str]] = {what: Counter() for what in ("calls", "sent_bytes", "received_bytes", "waited_s")}
    for name, tally in world.take_tallies().items():
        for what, value in asdict(tally).items():
            sums[what][name.partition("/")[0]] += value
    device = torch.cuda.max_memory_allocated(world.device) if world.device.type == "cuda" else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**sums, "peak_bytes": peak, "peak_device_bytes": device}
