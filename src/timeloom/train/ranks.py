"""How a run becomes several ranks: started here, or joined where torchrun or SLURM started this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from timeloom.dist.collectives import Limits, World
from timeloom.dist.launch import Launch, Outcome, supervise
from timeloom.dist.seat import Seat, seat_from
from timeloom.dist.world import alone, end_process, join
from timeloom.errors import BadConfig
from timeloom.parent import end_with
from timeloom.train.serves import refuse_model
from timeloom.train.settings import RunSettings

__all__ = ["end_process", "here", "joined", "launch"]


def here() -> Seat | None:
    """Return this process's seat among the ranks of a launcher; None where it was started on its own."""
    return seat_from(os.environ)


def launch(command: Sequence[str], *, workers: int, max_restarts: int, min_workers: int) -> Outcome:
    """Run a command as so many ranks on this machine, to its end."""
    return supervise(
        Launch(command=tuple(command), workers=workers, max_restarts=max_restarts, min_workers=min_workers)
    )  # fmt: skip


@contextmanager
def joined(settings: RunSettings, seat: Seat | None) -> Iterator[World]:
    """Give the world that this process's launcher made, or that of one rank; others hear why this one fails."""
    device = device_of(settings.train.device, local_rank=0 if seat is None else seat.local_rank)
    if seat is None or seat.size == 1:
        if seat is not None and seat.parent:
            end_with(seat.parent)
        yield alone(device)
        return
    limits = Limits(first_s=settings.world.first_seconds, step_s=settings.world.step_seconds)
    world = join(seat, device=device, limits=limits, check=settings.world.check, trusted=settings.world.trusted)
    try:
        yield world
        world.close()
    except BaseException as error:
        world.fail(error)
        raise


def device_of(name: str, *, local_rank: int = 0) -> torch.device:
    """Return the device that a setting names; ranks of one machine take its GPUs in turn."""
    if name == "auto":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return torch.device("cuda", local_rank % count) if count else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise BadConfig(f"train.device={name} is no device: use auto, cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadConfig(f"train.device={name}: this machine, or this build of torch, has no CUDA; use cpu")
    return device


def refuse_impossible(settings: RunSettings, num_ranks: int) -> None:
    """Refuse what so many ranks cannot do."""
    if settings.schedule.scheduler != "in_order" and settings.window.state == "inherit":
        raise BadConfig(
            f"window.state=inherit lets windows follow each other, so that schedule.scheduler="
            f"{settings.schedule.scheduler} has no choice: use --set window.state=zero, or schedule.scheduler=in_order"
        )
    if num_ranks == 1:
        if settings.system.divide in ("batches", "targets"):
            refuse_model(settings)
        return
    if settings.system.name == "none":
        raise BadConfig(
            f"{num_ranks} ranks need a system that divides the work: give --system, such as psg; 'timeloom systems' "
            "lists them"
        )
    if settings.train.protocol == "live" and settings.system.divide != "targets":
        raise BadConfig(
            f"train.protocol=live learns from one snapshot after the other, which {num_ranks} ranks cannot divide as "
            f"system.name={settings.system.name} does: use one worker, --system distdy, or --set train.protocol=fixed"
        )
    if settings.system.divide == "windows" and settings.window.state == "inherit":
        raise BadConfig(
            "window.state=inherit lets windows follow each other, so that ranks cannot take different ones "
            "(system.divide=windows): use --set window.state=zero, or a system that divides time or nodes"
        )
    refuse_model(settings)
