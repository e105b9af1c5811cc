"""How much memory a stretch of work takes on this rank: the most that was resident, above what there was before.

On a GPU torch tells. On Linux the kernel does, and can be told to begin anew; where neither does, nothing is known.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Counts from the moment it is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self._before: float | None = float(torch.cuda.memory_allocated(device))
            return
        self._before = _resident("VmRSS") if _give_back() and _begin_anew() else None

    @property
    def num_bytes(self) -> float | None:
        """The most that was taken at once since then; None where the machine does not tell."""
        if self._before is None:
            return None
        if self._device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self._device)) - self._before
        return _resident("VmHWM") - self._before


def _resident(what: str) -> float:
    return float(_STATUS.read_text().split(f"{what}:")[1].split()[0]) * 1024


def _give_back() -> bool:
    """Let the memory go that is free, so that it is not taken for granted; say whether this can be done here."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True


def _begin_anew() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True
