"""What a checkpoint of ranks that train apart holds beside their parameters, rank by rank.

After an average parameters are the same everywhere; an optimizer's moments, the batches that are kept and the length
of a round are each rank's own, and the adjuster is the first one's.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from timeloom.plan.tune import adjuster
from timeloom.train.hybrid.apart import Apart
from timeloom.train.hybrid.worker import HybridWorker
from timeloom.train.optim import optimizer_tensors, restore_optimizer
from timeloom.train.trainer import Beside, Trainer

_MOMENTS, _ADJUSTER = "moments/", "adjuster/"


def saved_beside(trainer: Trainer, apart: Apart, worker: HybridWorker) -> Beside:
    """Collective. Return what all ranks have to save."""
    world = trainer.session.world
    mine: dict[str, Any] = {"worker": worker.saved(), "rounds": apart.rounds.save()}
    tensors = {_MOMENTS + name: part for name, part in optimizer_tensors(trainer.optimizer).items()}
    if apart.adjuster is not None:
        told = apart.adjuster.save()
        mine["adjuster"] = dict(told.told)
        tensors |= {_ADJUSTER + name: torch.from_numpy(np.array(part)) for name, part in told.arrays.items()}
    data = bytes_of({name: part.detach().cpu().contiguous() for name, part in tensors.items()})
    states = [json.loads(one) for one in world.gather_bytes(json.dumps(mine).encode(), "control/beside")]
    arrays = world.gather_bytes(data, "control/beside/tensors")
    each = [torch.from_numpy(np.frombuffer(bytearray(one), np.uint8)) for one in arrays]
    return Beside({f"rank{rank:05d}": part for rank, part in enumerate(each)}, {"ranks": states})


def restore_beside(beside: Beside, trainer: Trainer, apart: Apart, worker: HybridWorker) -> None:
    """Go on from what was saved; on another number of ranks batches begin anew, with the first rank's moments."""
    world, states = trainer.session.world, beside.state["ranks"]
    same = len(states) == world.size
    place = world.rank if same else 0
    tensors = tensors_of(beside.tensors[f"rank{place:05d}"].cpu().numpy().tobytes())
    restore_optimizer(trainer.optimizer, _under(_MOMENTS, tensors))
    apart.rounds.load(states[place]["rounds"])
    worker.action = states[0]["worker"]["action"]
    if same:
        worker.restore(states[place]["worker"])
    if apart.adjuster is not None and "adjuster" in states[0]:
        arrays = {name: part.numpy() for name, part in _under(_ADJUSTER, tensors).items()}
        apart.adjuster.load(adjuster.Saved(states[0]["adjuster"], arrays))


def _under(folder: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(folder): part for name, part in tensors.items() if name.startswith(folder)}
