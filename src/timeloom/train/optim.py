"""How parameters move: the optimizer, the learning rate of an epoch, the clipping of gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from timeloom.train.settings import OptimSettings


def make_optimizer(parameters: Iterable[nn.Parameter], settings: OptimSettings) -> torch.optim.Optimizer:
    """Return the optimizer; its rate is set anew in every epoch."""
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, settings.rate, momentum=settings.momentum, weight_decay=settings.weight_decay
        )  # fmt: skip
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(parameters, settings.rate, weight_decay=settings.weight_decay)


def rate_in(settings: OptimSettings, epoch: int, num_epochs: int, drops: int) -> float:
    """Return the learning rate of an epoch (the first is 0); ``drops``: how often validation came to a standstill."""
    rate = settings.rate
    if epoch < settings.warmup_epochs:
        return rate * (epoch + 1) / (settings.warmup_epochs + 1)
    since, span = epoch - settings.warmup_epochs, max(num_epochs - settings.warmup_epochs, 1)
    if settings.schedule == "cosine":
        return rate * 0.5 * (1.0 + math.cos(math.pi * since / span))
    if settings.schedule == "step":
        return rate * settings.factor ** (since // settings.step_epochs)
    return rate * settings.factor**drops


def gradient_norm(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Return the norm of all gradients; scale them down to ``most`` where they are larger (0: never)."""
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    return nn.utils.clip_grad_norm_(with_gradient, most if most > 0 else math.inf)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return everything the optimizer remembers, by parameter and name."""
    state: dict[int, dict[str, object]] = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value
        for number, entry in state.items()
        for name, value in entry.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer back what it remembered."""
    whole = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        like = parameters[int(number)]
        if value.dim() and value.shape != like.shape:
            raise ValueError(f"{key} has shape {list(value.shape)}, its parameter {list(like.shape)}")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**whole, "state": state})
