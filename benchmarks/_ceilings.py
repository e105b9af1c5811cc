"""What this machine can do at most, measured in the same run as what is held against it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

Work = Callable[[], object]
_BLOCK, _HIDDEN = 2048, 64


def seconds_of(work: Work) -> float:
    """Return how long it takes: of one thread in processor seconds, as others may work on this machine too."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    work()
    return clock() - began


@dataclass(frozen=True)
class Ceilings:
    """Rates, of all threads together."""

    flops: dict[torch.dtype, float]
    """Of products of a block that stays in cache."""
    copied: float
    """Bytes read and written a second by a copy that no cache holds."""
    read: float
    """Bytes read a second."""

    def __str__(self) -> str:
        single, short = (self.flops[kind] / 1e9 for kind in (torch.float32, torch.bfloat16))
        return (
            f"products {single:.0f} GF/s (bf16 {short:.0f}), copies {self.copied / 1e9:.1f} GB/s, "
            f"reads {self.read / 1e9:.1f} GB/s"
        )


def ceilings() -> Ceilings:
    """Measure, with as many threads as torch has now, the best of some."""
    threads = torch.get_num_threads()
    flops = {kind: threads * _product_flops(kind, threads) for kind in (torch.float32, torch.bfloat16)}
    a, b = torch.zeros(50_000_000), torch.zeros(50_000_000)
    copied = 2 * 4 * len(a) / min(seconds_of(lambda: a.copy_(b)) for _ in range(7))
    return Ceilings(flops, copied, 4 * len(a) / min(seconds_of(b.sum) for _ in range(7)))


def _product_flops(kind: torch.dtype, threads: int) -> float:
    """Return one thread's rate while so many of them multiply, each a block of its own."""

    def work(_: int) -> float:
        torch.set_num_threads(1)
        x, w = torch.randn(_BLOCK, _HIDDEN).to(kind), torch.randn(_HIDDEN, 3 * _HIDDEN).to(kind)
        out = torch.empty(_BLOCK, 3 * _HIDDEN, dtype=kind)
        best = min(seconds_of(lambda: [torch.mm(x, w, out=out) for _ in range(50)]) for _ in range(20)) / 50
        return 2 * x.numel() * 3 * _HIDDEN / best

    with ThreadPoolExecutor(threads) as pool:
        rates = list(pool.map(work, range(threads)))
    torch.set_num_threads(threads)
    return sum(rates) / threads
