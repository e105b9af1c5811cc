"""Which costs a run goes by: those that `timeloom calibrate` measured on this machine, or built-in ones."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from timeloom.plan.cost import Costs, as_json
from timeloom.plan.machine import BUILT_IN, costs_at, costs_path, processor

__all__ = ["BUILT_IN", "costs_file", "read_costs", "write_costs"]


def costs_file(device: torch.device, threads: int) -> Path:
    """Return where the costs of this machine lie, for a kind of device and a number of threads."""
    return costs_path(torch.cuda.get_device_name(device) if device.type == "cuda" else processor(), threads)


def read_costs(device: torch.device, threads: int) -> Costs:
    """Return what was measured on this machine, or what is built in."""
    return costs_at(costs_file(device, threads))


def write_costs(costs: Costs, device: torch.device) -> Path:
    """Keep what was measured on this machine; runs that begin later go by it."""
    path = costs_file(device, costs.threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(as_json(costs), indent=1))
    aside.replace(path)
    return path
