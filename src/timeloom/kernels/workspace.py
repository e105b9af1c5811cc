"""Where large buffers live between steps, so that no step pays for fresh pages.

A fresh tensor of tens of megabytes costs as much as reading it from memory: the kernel hands out zeroed pages one fault
at a time. A pool hands the same memory out again; `keep_memory` makes plain torch temporaries do likewise.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS = 8  # a size is rounded up to one of so many steps between two powers of two
_IDLE_LEASES = 512  # a free buffer not used for so many leases is let go when another one has to be made
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h


@dataclass(frozen=True, slots=True)
class _Free:
    buffer: Tensor
    returned: int
    """How many leases there had been when it came back."""


class Pool:
    """Buffers that are lent and come back; none is lent twice at once."""

    def __init__(self) -> None:
        self.allocations = 0
        self._leases = 0
        self._free: dict[tuple[int, torch.device], list[_Free]] = {}

    def lease(self) -> Lease:
        """Return an empty lease, which takes buffers one by one."""
        return Lease(self)

    @property
    def free_bytes(self) -> int:
        """The memory that is held and not lent."""
        return sum(len(free.buffer) for stack in self._free.values() for free in stack)

    def _take(self, num_bytes: int, device: torch.device) -> Tensor:
        size = _rounded(num_bytes)
        self._leases += 1
        try:
            return self._free[size, device].pop().buffer
        except (KeyError, IndexError):
            self._let_go_of_idle()
            self.allocations += 1
            return torch.empty(size, dtype=torch.uint8, device=device)

    def _give_back(self, buffers: list[Tensor]) -> None:
        # Runs when a graph is freed, in whatever thread that happens; append and pop are atomic.
        for buffer in buffers:
            self._free.setdefault((buffer.numel(), buffer.device), []).append(_Free(buffer, self._leases))

    def _let_go_of_idle(self) -> None:
        since = self._leases - _IDLE_LEASES
        for key, stack in list(self._free.items()):
            self._free[key] = [free for free in stack if free.returned >= since]


class Lease:
    """Buffers that one call has taken; they go back to the pool when nothing refers to the lease any more.

    A tensor of it must not outlive it: keep the lease beside what uses its tensors, for example on an autograd context.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._buffers: list[Tensor] = []

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a tensor with whatever numbers it held before."""
        numel = math.prod(shape)
        buffer = self._pool._take(numel * dtype.itemsize, device)
        self._buffers.append(buffer)
        return buffer[: numel * dtype.itemsize].view(dtype).view(shape)

    def __del__(self) -> None:
        self._pool._give_back(self._buffers)


def _rounded(num_bytes: int) -> int:
    step = max(64, (1 << max(0, num_bytes - 1).bit_length()) // (2 * _STEPS))
    return max(step, -(-num_bytes // step) * step)


def keep_memory() -> bool:
    """Make malloc keep what is freed, large blocks too; return whether that is possible here (glibc only)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018 (another libc's mallopt may mean something else)
    except (AttributeError, OSError, TypeError):
        return False
    wanted = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(option, value) == 1 for option, value in wanted)
