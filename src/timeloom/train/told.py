"""What an epoch cost in time, messages, waiting and memory, rank by rank: gathered for the records."""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from timeloom.dist.collectives import World
from timeloom.records import Record, Spans, Traffic, as_json, from_json
from timeloom.train.profile import Part
from timeloom.train.trainer import Trainer


def told_by_ranks(trainer: Trainer) -> Iterator[Record]:
    """Collective. Yield what every rank spent steps on, and what its collectives came to, since this was asked last."""
    world, epoch = trainer.session.world, trainer.progress.epoch
    spans, trainer.spans = trainer.spans, []
    tells = trainer.worker.tell(epoch)
    mine = {
        "traffic": _traffic(world), "records": [as_json(record) for record in tells.records],
        "spans": [
            (step, began - trainer.ahead, (*parts, *_beside(began, parts, tells.threads)))
            for step, began, parts in spans
        ],
    }  # fmt: skip
    for rank, data in enumerate(world.gather_bytes(json.dumps(mine).encode(), "control/told")):
        told = json.loads(data)
        for step, began, parts in told["spans"]:
            yield Spans(rank=rank, epoch=epoch, step=step, began=began, parts=tuple((a, b, c) for a, b, c in parts))
        if world.size > 1:
            yield Traffic(rank=rank, epoch=epoch, **told["traffic"])
        yield from map(from_json, told["records"])


def _beside(began: float, parts: Sequence[Part], threads: Sequence[Part]) -> Iterator[Part]:
    """Yield what threads did during a step, as parts of it: what they did before and after is cut off."""
    lasted = max((start + seconds for _, start, seconds in parts), default=0.0)
    for phase, at, seconds in threads:
        start, stop = max(at - began, 0.0), min(at + seconds - began, lasted)
        if start < stop:
            yield phase, round(start, 6), round(stop - start, 6)


def _traffic(world: World) -> dict[str, Any]:
    sums: dict[str, Counter[str]] = {what: Counter() for what in ("calls", "sent_bytes", "received_bytes", "waited_s")}
    for name, tally in world.take_tallies().items():
        for what, value in asdict(tally).items():
            sums[what][name.partition("/")[0]] += value
    device = torch.cuda.max_memory_allocated(world.device) if world.device.type == "cuda" else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**sums, "peak_bytes": peak, "peak_device_bytes": device}
