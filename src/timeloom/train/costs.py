"""Which costs a run goes by: those that `timeloom calibrate` measured on this machine, or built-in ones."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch

from timeloom.cache import cache_home
from timeloom.errors import BadInput
from timeloom.plan.cost import Costs, Law, as_json, from_json

# Measured by `timeloom calibrate` with one thread on the machine of benchmarks/RESULTS.md.
BUILT_IN = Costs(
    laws={
        "sum": Law((8e-6, 2e-9, 2.5e-10, 1.5e-9, 4e-11), (8e-6, 2e-9, 5e-10, 2e-9, 1e-10)),
        "step": Law((6e-5, 2e-9, 4e-10, 1.5e-9, 6e-11), (6e-5, 2e-9, 6e-10, 2e-9, 1.5e-10)),
        "attend": Law((2e-5, 1e-8, 1e-9, 2e-8, 4e-10), (2e-5, 1e-8, 1.5e-9, 2e-8, 8e-10)),
        "gather": Law((6e-6, 1e-9, 1e-10, 1e-9, 2e-10), (6e-6, 1e-9, 2e-10, 1e-9, 4e-10)),
        "multiply": Law((1e-5, 1e-9, 0.0, 4e-8, 0.0), (1e-5, 1e-9, 0.0, 4e-8, 0.0)),
    },
    threads=1,
)


def costs_file(device: torch.device, threads: int) -> Path:
    """Return where the costs of this machine lie, for a kind of device and a number of threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    kept = "".join(sign if sign.isalnum() else "-" for sign in name).strip("-")
    return cache_home() / "costs" / f"{kept}-{threads}.json"


def read_costs(device: torch.device, threads: int) -> Costs:
    """Return what was measured on this machine, or what is built in."""
    path = costs_file(device, threads)
    if not path.is_file():
        return BUILT_IN
    try:
        return from_json(json.loads(path.read_text()))
    except (json.JSONDecodeError, BadInput) as error:
        raise BadInput(f"{path}: {error}; remove it or run 'timeloom calibrate'") from None


def write_costs(costs: Costs, device: torch.device) -> Path:
    """Keep what was measured on this machine; runs that begin later go by it."""
    path = costs_file(device, costs.threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(as_json(costs), indent=1))
    aside.replace(path)
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2] for line in lines if line.startswith("model name")), platform.machine())
