"""How training is saved so that it can go on from there, whatever happens.

A checkpoint is a folder `NAME/` with `tensors.safetensors` and `state.json`, which holds the checksums of both. It is
written as `NAME.partial/` and renamed, so a folder called NAME is whole. Where NAME is there already, that one is
called `NAME.replaced/` until the new one is in its place; killed in between, it is NAME for whoever reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from timeloom.disk import sync_folder
from timeloom.errors import BadRun, TooLarge, is_disk_full

FORMAT = "timeloom checkpoint"
VERSION = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
_PARTIAL, _REPLACED = ".partial", ".replaced"
_NAME = re.compile(r"epoch-([0-9]{6,})-step-([0-9]{6,})")
_ALTERED = "it was truncated or altered; restore it from a copy, or go on from another with --checkpoint NAME"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved: tensors on the CPU, and a state of what JSON can say."""

    name: str
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def name_of(epoch: int, step: int) -> str:
    """Return the name of the checkpoint that is saved after this epoch and step."""
    return f"epoch-{epoch:06d}-step-{step:06d}"


def save(folder: Path, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write a checkpoint; on return it is on disk, until then what was there before is whole.

    The state is what JSON can say, plus inf and nan: keys that are text, lists but no tuples.
    """
    assert _NAME.fullmatch(name), name
    assert "__metadata__" not in tensors, "safetensors keeps this name for itself"
    data = bytes_of(_apart(tensors))
    entry = {"bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
    body = {"format": FORMAT, "version": VERSION, "state": dict(state), TENSORS: entry}
    text = _sealed(json.dumps(body, indent=1).encode())
    with _writing(folder):
        made = [missing for missing in (folder, *folder.parents) if not missing.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for missing in made:
            sync_folder(missing.parent)
        _sweep(folder)
        partial = folder / (name + _PARTIAL)
        try:
            partial.mkdir()
            _write(partial / TENSORS, data)
            _write(partial / STATE, text)
            sync_folder(partial)
            _put_in_place(partial, folder / name)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def load(folder: Path, name: str) -> Checkpoint:
    """Return a checkpoint after checking every byte of it."""
    if name not in (known := names(folder)):
        there = f"give one of {', '.join(known)}" if known else "there is none, start the run again"
        raise BadRun(f"{folder} has no checkpoint {name!r}: {there}")
    home = folder / name if (folder / name).is_dir() else folder / (name + _REPLACED)
    body = _body(home / STATE)
    path, entry = home / TENSORS, body[TENSORS]
    data = _read(path)
    if len(data) != entry["bytes"]:
        raise BadRun(f"{path} holds {len(data)} bytes, not {entry['bytes']}: {_ALTERED}")
    if xxhash.xxh3_128_hexdigest(data) != entry["checksum"]:
        raise BadRun(f"{path} does not fit its checksum in {STATE}: {_ALTERED}")
    try:
        return Checkpoint(name, tensors_of(data), body["state"])
    except (SafetensorError, ValueError, KeyError) as error:
        raise BadRun(f"{path} is not what this timeloom writes ({error}): {_ALTERED}") from None


@contextmanager
def fitting(name: str) -> Iterator[None]:
    """Refuse a checkpoint that is whole, but does not hold what a run asks of it."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, AssertionError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadRun(
            f"checkpoint {name} does not hold what this run needs ({why}): another timeloom or another hand wrote it; "
            "use the timeloom that wrote it, or go on from another with --checkpoint NAME"
        ) from None


def names(folder: Path) -> list[str]:
    """Return the names of all checkpoints, the oldest first."""
    if not folder.is_dir():
        return []
    found = {path.name.removesuffix(_REPLACED) for path in folder.iterdir() if path.is_dir()}
    return sorted((name for name in found if _NAME.fullmatch(name)), key=_age)


def latest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint; if it is broken, refuse it and name the newest that is not."""
    known = names(folder)
    if not known:
        raise BadRun(f"{folder} has no checkpoint to go on from: start the run again without --resume")
    try:
        return load(folder, known[-1])
    except BadRun as error:
        good = next((name for name in reversed(known[:-1]) if _is_good(folder, name)), None)
        # To go on from an older one in silence would do work again that a person counts on.
        advice = f"the newest that is whole is --checkpoint {good}" if good else "no older one is whole: start again"
        raise BadRun(f"{error}; {advice}") from None


def keep(folder: Path, wanted: Collection[str]) -> None:
    """Remove all other checkpoints."""
    with _writing(folder):
        _sweep(folder)
        for name in names(folder):
            if name not in wanted:
                _remove(folder / name)
        if folder.is_dir():
            sync_folder(folder)


def _age(name: str) -> tuple[int, int, str]:
    epoch, step = name.split("-")[1::2]
    return int(epoch), int(step), name


def _is_good(folder: Path, name: str) -> bool:
    try:
        load(folder, name)
    except BadRun:
        return False
    return True


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, contiguous and no two in one storage, which safetensors would refuse."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        one = tensor.detach().cpu().contiguous()
        if one.untyped_storage().data_ptr() in seen:
            one = one.clone()
        seen.add(one.untyped_storage().data_ptr())
        apart[name] = one
    return apart


def _sealed(body: bytes) -> bytes:
    """Return a JSON object with one more key: the checksum of all bytes before it, spaces included."""
    return body[:-1] + b', "checksum": "' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n'


_SEAL_BYTES = len(_sealed(b"{}")) - 1


def _body(path: Path) -> dict[str, Any]:
    """Return what a state file says, after checking that it is what was written."""
    data = _read(path)
    text = data[:-_SEAL_BYTES] + b"}"
    if _sealed(text) != data:
        raise BadRun(f"{path} does not fit its own checksum: {_ALTERED}")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRun(f"{path} is not JSON ({error}): {_ALTERED}") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise BadRun(f"{path} is not the state of a timeloom checkpoint: {_ALTERED}")
    if body.get("version") != VERSION:
        raise BadRun(
            f"{path} has version {body.get('version')!r}, but this timeloom reads version {VERSION}: "
            "use the timeloom that wrote it, or start the run again"
        )
    entry = body.get(TENSORS)
    if not isinstance(body.get("state"), dict) or not isinstance(entry, dict) or not {"bytes", "checksum"} <= {*entry}:
        raise BadRun(f"{path} is incomplete: {_ALTERED}")
    return body


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRun(f"{path} cannot be read ({error.strerror}): {_ALTERED}") from None


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(partial: Path, path: Path) -> None:
    """Give a whole checkpoint its name, in place of one that has it."""
    replaced = path.with_name(path.name + _REPLACED)
    if path.exists():
        os.rename(path, replaced)
    os.rename(partial, path)
    sync_folder(path.parent)
    if replaced.exists():
        _remove(replaced)


def _remove(path: Path) -> None:
    """Remove a checkpoint; killed on the way, it leaves nothing that looks whole."""
    partial = path.with_name(path.name.removesuffix(_REPLACED) + _PARTIAL)
    os.rename(path, partial)
    shutil.rmtree(partial)


def _sweep(folder: Path) -> None:
    """Finish or undo what a killed process began."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        name = path.name.removesuffix(_PARTIAL).removesuffix(_REPLACED)
        if not _NAME.fullmatch(name):
            continue
        if path.name == name + _PARTIAL:
            shutil.rmtree(path)
        elif path.name == name + _REPLACED and (folder / name).exists():
            _remove(path)
        elif path.name == name + _REPLACED:
            os.rename(path, folder / name)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise TooLarge(
                f"{folder}: {error.strerror} while saving a checkpoint; the ones before are whole: "
                "free some disk space, then go on with --resume"
            ) from None
        raise BadRun(f"{folder} cannot be written ({error.strerror}): make it writable, then --resume") from None
