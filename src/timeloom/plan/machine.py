"""What kernels cost on this machine: what `timeloom calibrate` measured, or built-in laws. No torch."""

from __future__ import annotations

import json
import platform
from pathlib import Path

from timeloom.cache import cache_home
from timeloom.errors import BadInput
from timeloom.plan.cost import Costs, Law, from_json

# Measured by `timeloom calibrate` with one thread on the machine of benchmarks/RESULTS.md.
BUILT_IN = Costs(
    laws={
        "sum": Law((8e-6, 2e-9, 2.5e-10, 1.5e-9, 4e-11), (8e-6, 2e-9, 5e-10, 2e-9, 1e-10)),
        "step": Law((6e-5, 2e-9, 4e-10, 1.5e-9, 6e-11), (6e-5, 2e-9, 6e-10, 2e-9, 1.5e-10)),
        "attend": Law((2e-5, 1e-8, 1e-9, 2e-8, 4e-10), (2e-5, 1e-8, 1.5e-9, 2e-8, 8e-10)),
        "amend": Law((2.8e-3, 6e-8, 2.3e-9, 1.5e-7, 5.6e-10), (2.8e-3, 5e-8, 9e-9, 1.5e-7, 0.0)),
        "gather": Law((2.5e-5, 1e-9, 3.5e-10, 6.7e-9, 2.3e-10), (2.5e-5, 0.0, 0.0, 2.9e-8, 1.2e-9)),
        "multiply": Law((1e-5, 1e-9, 0.0, 4e-8, 0.0), (1e-5, 1e-9, 0.0, 4e-8, 0.0)),
    },
    threads=1,
)


def costs_path(device: str, threads: int) -> Path:
    """Return where the costs of a kind of device lie, for a number of threads."""
    kept = "".join(sign if sign.isalnum() else "-" for sign in device).strip("-")
    return cache_home() / "costs" / f"{kept}-{threads}.json"


def costs_at(path: Path) -> Costs:
    """Return the costs that were kept in a file, or the built-in ones where there is none."""
    if not path.is_file():
        return BUILT_IN
    try:
        return from_json(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError, BadInput) as error:
        raise BadInput(f"{path}: {error}; remove it or run 'timeloom calibrate'") from None


def processor() -> str:
    """Return what this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2] for line in lines if line.startswith("model name")), platform.machine())
