"""Training goes on from a checkpoint that is whole, or is refused in one sentence; no kill changes that."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from torch import Tensor

from tests.damaged import damaged
from timeloom.errors import BadRun, TooLarge
from timeloom.train.checkpoint import STATE, TENSORS, Checkpoint, keep, latest, load, name_of, names, save

NAME = name_of(12, 345)
STATE_SAVED: dict[str, Any] = {"epoch": 12, "best": -math.inf, "words": ["ü", None, True], "deep": {"x": 0.1}}
DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
    torch.uint8,
]


def some_tensors() -> dict[str, Tensor]:
    x = torch.arange(24, dtype=torch.float64)
    return {f"t.{dtype}": (x % 3).to(dtype).reshape(2, 3, 4) for dtype in DTYPES} | {
        "scalar": torch.tensor(3.5),
        "flag": torch.tensor(True),
        "empty": torch.empty(0),
        "flat": torch.empty(0, 3, dtype=torch.int64),
        "nan": torch.tensor([math.nan, -0.0, math.inf]),
    }


def equal(left: Tensor, right: Tensor) -> bool:
    same = left.dtype == right.dtype and left.shape == right.shape
    return same and left.contiguous().numpy().tobytes() == right.contiguous().numpy().tobytes()


def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return bfloat16 as int16, since NumPy has it not."""
    return {name: one.view(torch.int16) if one.dtype == torch.bfloat16 else one for name, one in tensors.items()}


def all_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    left, right = plain(left), plain(right)
    return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)


def numbered(number: int, size: int = 50) -> dict[str, Tensor]:
    """Return tensors that all hold one number."""
    return {"a": torch.full((size,), number), "b": torch.tensor(float(number))}


def number_of(checkpoint: Checkpoint) -> int:
    """Return the number that everything in a checkpoint holds."""
    held = {int(value) for tensor in checkpoint.tensors.values() for value in tensor.flatten().tolist()}
    assert held == {checkpoint.state["number"]}
    return held.pop()


def test_what_is_saved_is_loaded_to_the_bit(tmp_path: Path) -> None:
    folder, tensors = tmp_path / "checkpoints", some_tensors()
    save(folder, NAME, tensors, STATE_SAVED)
    found = load(folder, NAME)
    assert NAME == found.name == "epoch-000012-step-000345"
    assert found.state == STATE_SAVED
    assert all_equal(found.tensors, tensors)
    assert {path.name for path in (folder / NAME).iterdir()} == {TENSORS, STATE}
    save(folder, name_of(13, 0), {}, {})
    assert load(folder, name_of(13, 0)) == Checkpoint(name_of(13, 0), {}, {})


def test_tensors_that_share_a_storage_are_saved_apart(tmp_path: Path) -> None:
    x = torch.arange(12.0).reshape(3, 4)
    weight = torch.nn.Parameter(x.clone())
    shared = {"x": x, "same": x, "row": x[1], "turned": x.t(), "wide": x[:1].expand(5, 4), "part": x[:, 1:3]}
    tensors = {**shared, "weight": weight, "tied": weight}
    save(tmp_path, NAME, tensors, {})
    found = load(tmp_path, NAME).tensors
    assert all_equal(found, {name: tensor.detach() for name, tensor in tensors.items()})
    found["x"].zero_()
    assert torch.equal(found["same"], x), "what was loaded can be changed, each for itself"
    alone = torch.arange(1000.0)[10:13]
    save(tmp_path, name_of(13, 0), {"alone": alone}, {})
    assert torch.equal(load(tmp_path, name_of(13, 0)).tensors["alone"], alone)
    assert (tmp_path / name_of(13, 0) / TENSORS).stat().st_size < 200


def refuse_all(folder: Path, count: int, seed: int) -> None:
    save(folder, NAME, some_tensors(), STATE_SAVED)
    rng = np.random.default_rng(seed)
    for turn in range(count):
        path = folder / NAME / (TENSORS, STATE)[turn % 2]
        whole = path.read_bytes()
        path.write_bytes(damaged(whole, rng))
        with pytest.raises(BadRun, match=rf"{path.name} (does not fit|holds).*restore it from a copy"):
            load(folder, NAME)
        path.write_bytes(whole)
    assert load(folder, NAME).state == STATE_SAVED


def test_no_damage_is_accepted(tmp_path: Path) -> None:
    refuse_all(tmp_path, 300, 0)


@pytest.mark.slow
def test_none_of_ten_thousand_damages_is_accepted(tmp_path: Path) -> None:
    refuse_all(tmp_path, 10_000, 1)


@pytest.mark.parametrize("file", [TENSORS, STATE])
def test_a_missing_file_and_one_of_another_checkpoint_are_refused(tmp_path: Path, file: str) -> None:
    for number in (1, 2):
        save(tmp_path, name_of(number, 0), numbered(number), {"number": number})
    path = tmp_path / name_of(2, 0) / file
    path.write_bytes((tmp_path / name_of(1, 0) / file).read_bytes())
    with pytest.raises(BadRun, match=rf"{TENSORS} does not fit its checksum.*--checkpoint {name_of(1, 0)}$"):
        latest(tmp_path)
    path.unlink()
    with pytest.raises(BadRun, match=rf"{file} cannot be read \(No such file.*--checkpoint {name_of(1, 0)}$"):
        latest(tmp_path)


def test_every_byte_of_the_state_counts(tmp_path: Path) -> None:
    save(tmp_path, NAME, {}, STATE_SAVED)
    path = tmp_path / NAME / STATE
    whole = path.read_bytes()
    json.loads(whole)
    for place in range(len(whole)):
        for bit in (0x01, 0x20):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            with pytest.raises(BadRun, match=STATE):
                load(tmp_path, NAME)


def reseal(path: Path, body: bytes) -> None:
    """Write a state with a checksum that fits."""
    seal = b', "checksum": "' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n'
    path.write_bytes(body[:-1] + seal)


def test_a_state_that_was_made_by_another_hand_is_refused(tmp_path: Path) -> None:
    save(tmp_path, NAME, numbered(1), {"number": 1})
    path, tensors = tmp_path / NAME / STATE, tmp_path / NAME / TENSORS
    body = json.loads(path.read_bytes())
    del body["checksum"]
    reseal(path, json.dumps(body).encode())
    assert number_of(load(tmp_path, NAME)) == 1
    for other, sentence in (
        ({**body, "version": 2}, "has version 2, but this timeloom reads version 1"),
        ({**body, "format": "x"}, "is not the state of a timeloom checkpoint"),
        ({**body, "state": [1]}, "is incomplete"),
        ({**body, TENSORS: {"bytes": 1}}, "is incomplete"),
        ({**body, TENSORS: 1}, "is incomplete"),
        ({**body, TENSORS: {**body[TENSORS], "bytes": 1}}, "bytes, not 1"),
        ({**body, TENSORS: {**body[TENSORS], "checksum": "0"}}, "does not fit its checksum"),
    ):
        reseal(path, json.dumps(other).encode())
        with pytest.raises(BadRun, match=sentence):
            load(tmp_path, NAME)
    for text in (b"{]}", b"{" * 100_000 + b"}", b"{\xff}"):
        reseal(path, text)
        with pytest.raises(BadRun, match="is not JSON"):
            load(tmp_path, NAME)
    tensors.write_bytes(b"no tensors")
    entry = {"bytes": 10, "checksum": xxhash.xxh3_128_hexdigest(b"no tensors")}
    reseal(path, json.dumps({**body, TENSORS: entry}).encode())
    with pytest.raises(BadRun, match="is not what this timeloom writes"):
        load(tmp_path, NAME)
    tensors.unlink()
    with pytest.raises(BadRun, match=f"{TENSORS} cannot be read"):
        load(tmp_path, NAME)


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert names(folder) == []
        with pytest.raises(BadRun, match="has no checkpoint to go on from: start the run again"):
            latest(folder)
        with pytest.raises(BadRun, match="there is none"):
            load(folder, NAME)
    save(tmp_path / "c", NAME, {}, {})
    for name in (f"../c/{NAME}", "", name_of(1, 1), f"{NAME}.partial"):
        with pytest.raises(BadRun, match=f"give one of {NAME}"):
            load(tmp_path / "c", name)


def test_names_are_sorted_by_age(tmp_path: Path) -> None:
    ages = [(2, 5), (10**7, 0), (999_999, 0), (2, 10**6), (2, 999_999), (0, 7), (10, 1)]
    for epoch, step in ages:
        save(tmp_path, name_of(epoch, step), {}, {"epoch": epoch})
    (tmp_path / "mine").mkdir()
    (tmp_path / name_of(99, 99)).touch()
    assert names(tmp_path) == [name_of(*age) for age in sorted(ages)]
    assert latest(tmp_path).state == {"epoch": 10**7}


def test_a_broken_newest_checkpoint_is_refused_and_the_newest_whole_one_named(tmp_path: Path) -> None:
    for epoch in range(4):
        save(tmp_path, name_of(epoch, 0), numbered(epoch), {"number": epoch})
    (tmp_path / name_of(3, 0) / TENSORS).write_bytes(b"")
    (tmp_path / name_of(2, 0) / STATE).unlink()
    with pytest.raises(BadRun, match=rf"{name_of(3, 0)}/{TENSORS} holds 0 .*whole is --checkpoint {name_of(1, 0)}$"):
        latest(tmp_path)
    for epoch in range(2):
        (tmp_path / name_of(epoch, 0) / STATE).write_bytes(b"")
    with pytest.raises(BadRun, match=r"no older one is whole: start again$"):
        latest(tmp_path)


def test_only_what_is_wanted_is_kept(tmp_path: Path) -> None:
    for epoch in range(5):
        save(tmp_path, name_of(epoch, 0), numbered(epoch), {"number": epoch})
    (tmp_path / "mine").mkdir()
    (tmp_path / f"{name_of(2, 0)}.partial").mkdir()
    keep(tmp_path, {name_of(1, 0), name_of(4, 0), "unknown"})
    assert names(tmp_path) == [name_of(1, 0), name_of(4, 0)]
    assert sorted(os.listdir(tmp_path)) == [*names(tmp_path), "mine"]
    keep(tmp_path / "none", [])


def test_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    for number in (1, 1, 2):
        save(tmp_path, NAME, numbered(number), {"number": number})
        assert number_of(load(tmp_path, NAME)) == number
        assert os.listdir(tmp_path) == [NAME]


def in_child(work: Callable[[], None]) -> int:
    """Do some work in a process of its own; return how that ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


CALLS = ("fsync", "rename", "unlink", "rmdir", "mkdir", "open")


def killed_at_call(fatal: int, work: Callable[[], None]) -> bool:
    """Do the work in a process that kills itself at the n-th call that changes a folder; say if it came to that."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    def counting() -> None:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        work()

    status = in_child(counting)
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.parametrize("again", [False, True])
def test_killed_at_every_call_a_save_is_done_or_not_begun(tmp_path: Path, again: bool) -> None:
    new = name_of(1, 0) if again else name_of(2, 0)
    seen, fatal, killed = set(), 0, True
    while killed:
        fatal += 1
        folder = tmp_path / str(fatal)
        save(folder, name_of(1, 0), numbered(1), {"number": 1})

        def work(folder: Path = folder) -> None:
            save(folder, new, numbered(2), {"number": 2})

        killed = killed_at_call(fatal, work)
        seen.add(found := number_of(latest(folder)))
        assert found in (1, 2)
        assert [number_of(load(folder, name)) for name in names(folder)] == ([found] if again else [1, 2][:found])
        # The next save sweeps, and loses nothing that could be loaded.
        known = names(folder)
        save(folder, name_of(0, 0), numbered(0), {"number": 0})
        assert sorted(os.listdir(folder)) == names(folder) == [name_of(0, 0), *known]
        assert number_of(latest(folder)) == found
    assert found == 2, "the last save was not killed"
    assert seen == {1, 2}
    assert fatal > 7


def test_killed_at_every_call_nothing_half_removed_looks_whole(tmp_path: Path) -> None:
    fatal, killed = 0, True
    while killed:
        fatal += 1
        folder = tmp_path / str(fatal)
        for number in range(4):
            save(folder, name_of(number, 0), numbered(number), {"number": number})

        def work(folder: Path = folder) -> None:
            keep(folder, [name_of(3, 0)])

        killed = killed_at_call(fatal, work)
        found = [number_of(load(folder, name)) for name in names(folder)]
        assert found == list(range(4 - len(found), 4))
        keep(folder, [name_of(3, 0)])
        assert os.listdir(folder) == [name_of(3, 0)]
    assert fatal > 12


def saving(folder: Path, told: int) -> None:
    """Save numbers without end, every third one twice, and tell each once it is saved."""
    number = number_of(latest(folder))
    while True:
        number += 1
        name = name_of(number // 10, number)
        if number % 3 == 0:
            save(folder, name, numbered(number, 20_000), {"number": number})
        save(folder, name, numbered(number, 20_000), {"number": number})
        os.write(told, f"{number}\n".encode())
        keep(folder, names(folder)[-2:])


def killed_at_random(folder: Path, times: int) -> None:
    """Kill a process that saves, again and again; what it told to be saved must be there."""
    save(folder, name_of(0, 0), numbered(0), {"number": 0})
    rng, most = np.random.default_rng(0), 0
    for _ in range(times):
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                saving(folder, there)
            finally:
                os._exit(1)
        os.close(there)
        time.sleep(float(rng.uniform(0.005, 0.06)))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        with os.fdopen(here) as pipe:
            most = max([most, *map(int, pipe.read().split())])
        found = latest(folder)
        assert number_of(found) in (most, most + 1)
        assert all(number_of(load(folder, name)) <= most + 1 for name in names(folder))
        most = number_of(found)
    assert most > times / 3, "hardly anything was saved between the kills"
    save(folder, name_of(10**6, 0), numbered(9), {"number": 9})
    assert sorted(os.listdir(folder)) == names(folder)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 30)


@pytest.mark.slow
def test_killed_at_many_random_moments(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 400)


def test_on_a_full_disk_the_last_checkpoint_is_whole(tmp_path: Path) -> None:
    save(tmp_path, name_of(1, 0), numbered(1), {"number": 1})

    def work() -> None:
        for limit, state in ((10_000, {}), (100_000, {"long": "x" * 200_000})):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            for name in (name_of(1, 0), name_of(2, 0)):
                with pytest.raises(TooLarge, match="free some disk space, then go on with --resume"):
                    save(tmp_path, name, numbered(2, 5_000), state)
                assert os.listdir(tmp_path) == [name_of(1, 0)]
                assert number_of(latest(tmp_path)) == 1

    assert in_child(work) == 0


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, TooLarge), (errno.EROFS, BadRun), (errno.EIO, BadRun)])
def test_a_save_that_fails_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: type[Exception]
) -> None:
    save(tmp_path, NAME, numbered(1), {"number": 1})

    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in (NAME, name_of(13, 0)):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(kind, match=os.strerror(number)):
                save(tmp_path, name, numbered(2), {"number": 2})
        assert os.listdir(tmp_path) == [NAME]
        assert number_of(latest(tmp_path)) == 1


def test_a_replacement_that_fails_at_the_last_rename_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, NAME, numbered(1), {"number": 1})
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if source.name.endswith(".partial"):
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(BadRun, match="broken"):
            save(tmp_path, NAME, numbered(2), {"number": 2})
    assert os.listdir(tmp_path) == [f"{NAME}.replaced"]
    assert names(tmp_path) == [NAME]
    assert number_of(latest(tmp_path)) == 1
    keep(tmp_path, [NAME])
    assert os.listdir(tmp_path) == [NAME]


def test_a_state_that_json_cannot_say_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save(tmp_path, NAME, {}, {"x": {1, 2}})
    assert os.listdir(tmp_path) == []
    shutil.rmtree(tmp_path)
