"""Buffers that live between steps: lent once at a time, and handed out again."""

from __future__ import annotations

import gc
import resource

import pytest
import torch
from torch import Tensor

from timeloom.kernels import workspace
from timeloom.kernels.workspace import Lease, Pool, keep_memory

CPU = torch.device("cpu")


def take(lease: Lease, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return lease.take(shape, dtype, CPU)


def test_a_tensor_is_what_was_asked_for() -> None:
    lease = Pool().lease()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = take(lease, 3, 5, dtype=dtype)
        assert tensor.shape == (3, 5)
        assert tensor.dtype == dtype
        assert tensor.is_contiguous()
    assert take(lease, 0, 4).shape == (0, 4)


def test_nothing_is_lent_twice_at_once() -> None:
    pool = Pool()
    first, second = pool.lease(), pool.lease()
    tensors = [take(lease, 100) for lease in (first, first, second, second)]
    for place, tensor in enumerate(tensors):
        tensor.fill_(place)
    assert [set(tensor.tolist()) for tensor in tensors] == [{0}, {1}, {2}, {3}]


def test_memory_comes_back_when_the_lease_is_gone_and_no_sooner() -> None:
    pool = Pool()
    lease = pool.lease()
    kept = take(lease, 1000)
    place = kept.data_ptr()
    assert pool.free_bytes == 0
    assert take(pool.lease(), 1000).data_ptr() != place
    del lease
    assert pool.free_bytes >= 8000
    again = pool.lease()
    assert place in {take(again, 1000).data_ptr() for _ in range(2)}
    assert pool.allocations == 2


def test_sizes_that_are_near_each_other_share_memory() -> None:
    pool = Pool()
    take(pool.lease(), 1_000_000)
    take(pool.lease(), 1_000_100)
    assert pool.allocations == 1
    take(pool.lease(), 1_500_000)
    assert pool.allocations == 2


@pytest.mark.parametrize("num_bytes", [0, 1, 64, 65, 1000, 1024, 1025, 2**20 + 1, 10**9 + 7])
def test_a_rounded_size_is_enough_and_at_most_an_eighth_more(num_bytes: int) -> None:
    size = workspace._rounded(num_bytes)
    assert num_bytes <= size <= max(64, num_bytes * 1.125 + 64)
    assert workspace._rounded(size) == size


def test_other_devices_have_their_own_memory() -> None:
    pool = Pool()
    take(pool.lease(), 100)
    assert pool.lease().take((100,), torch.float32, torch.device("meta")).device.type == "meta"
    assert pool.allocations == 2


def test_what_is_not_used_for_long_is_let_go_when_more_is_needed() -> None:
    pool = Pool()
    take(pool.lease(), 10_000)
    for _ in range(workspace._IDLE_LEASES + 1):
        take(pool.lease(), 10)
    assert pool.free_bytes >= 40_000
    take(pool.lease(), 30_000)
    assert pool.free_bytes < 40_000 + 120_000
    assert pool.allocations == 3
    take(pool.lease(), 10_000)
    assert pool.allocations == 4


def test_what_was_used_lately_stays() -> None:
    pool = Pool()
    take(pool.lease(), 10_000)
    take(pool.lease(), 30_000)
    take(pool.lease(), 10_000)
    assert pool.allocations == 2


def test_malloc_keeps_what_is_freed() -> None:
    if not keep_memory():
        pytest.skip("not glibc")
    faults = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(8_000_000).add(1.0)
        gc.collect()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults[2:]) < 200  # 64 MB are 16,000 pages


def test_without_glibc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace.ctypes, "CDLL", lambda name: object())
    assert not keep_memory()
