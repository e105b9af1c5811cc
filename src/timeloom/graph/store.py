"""What a graph looks like on disk. The only file that knows file names.

A graph is a folder of flat `.npy` arrays and one `manifest.json` that names them, with sizes and checksums. Files are
written once under names never used before; the manifest is replaced last, by one rename. So whatever moment a writer
is killed at, the folder holds the old graph or the new one; files that no manifest names are swept by the next writer.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from timeloom.disk import sync_folder
from timeloom.errors import BadConfig, BadStore, TooLarge, is_disk_full
from timeloom.graph.manifest import is_form_of, problem_of

FORMAT = "timeloom graph"
VERSION = 1
MANIFEST = "manifest.json"
_LOCK = ".lock"
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER_BYTES = 128
_FILE_NAME = re.compile(r"[0-9]{6,}-[a-z0-9_.]+\.npy")
# Whatever a writer makes, with the number of the writer.
_WRITTEN = re.compile(r"([0-9]{6,})-([a-z0-9_.]+\.npy|scratch\..+|manifest\.json)")
_DTYPES = {"<i8", "<i4", "<f8", "<f4", "|u1", "|i1"}
_HASH_BLOCK = 1 << 22
_MOST_MANIFEST_BYTES = 1 << 28

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What the manifest says about one array: its file, type, shape and the checksum of its data."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str

    @property
    def num_bytes(self) -> int:
        """The size of the data, without the header."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return a `.npy` header that always takes the same room, so that it can be written again at the end."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape!r}, }}"
    room = _HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"


class ArrayWriter:
    """One array on its way to disk, block by block; `close` says what the manifest must hold."""

    def __init__(self, path: Path, dtype: str, row_shape: tuple[int, ...] = ()) -> None:
        self._path, self._dtype, self._row_shape = path, dtype, row_shape
        self._hash = xxhash.xxh3_128()
        self.num_rows = 0
        self._file = path.open("xb", buffering=0)
        try:
            self._write(_header(dtype, (0, *row_shape)))
        except OSError:
            self._file.close()
            raise

    def _write(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def write(self, rows: Array) -> None:
        """Append rows."""
        block = np.ascontiguousarray(rows, dtype=self._dtype)
        if block.size:
            data = block.reshape(-1).view(np.uint8).data
            self._hash.update(data)
            self._write(data)
        self.num_rows += len(block)

    def close(self) -> ArrayInfo:
        """Finish the file, force it to disk and return what the manifest must say of it."""
        shape = (self.num_rows, *self._row_shape)
        self._file.seek(0)
        self._write(_header(self._dtype, shape))
        os.fsync(self._file.fileno())
        self._file.close()
        return ArrayInfo(self._path.name, self._dtype, shape, self._hash.hexdigest())

    def abandon(self) -> None:
        """Stop without finishing."""
        self._file.close()


def _digest(manifest: dict[str, Any]) -> str:
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


class Store:
    """A graph's folder opened for reading: the manifest, and arrays mapped when first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_manifest(path)
        self._infos: dict[str, ArrayInfo] = {}
        for name, entry in self.manifest["arrays"].items():
            self._infos[name] = _checked_info(path, name, entry)
        self._mapped: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    @property
    def names(self) -> list[str]:
        """The names of all arrays."""
        return list(self._infos)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays."""
        return sum(info.num_bytes for info in self._infos.values())

    def array(self, name: str) -> Array:
        """Return an array; its pages are read when touched and shared between processes."""
        if name not in self._mapped:
            if name not in self._infos:
                raise BadStore(f"{self.path} has no array {name!r}: the manifest is incomplete; restore it from a copy")
            self._mapped[name] = _map(self.path, name, self._infos[name])
        return self._mapped[name]

    @property
    def files(self) -> frozenset[str]:
        """The names of all files; one that has been written is never written again."""
        return frozenset(info.file for info in self._infos.values())

    def verify(self, known: Collection[str] = ()) -> Iterator[str]:
        """Read every byte but those of ``known`` files; yield one sentence for each array that is not as written."""
        for name, info in self._infos.items():
            if info.file in known:
                continue
            try:
                _map(self.path, name, info)
                if _checksum(self.path / info.file) != info.checksum:
                    yield f"{info.file} ({name}) was altered: its checksum differs from the manifest's"
            except BadStore as error:
                yield str(error)

    def leftovers(self) -> list[str]:
        """Return the files of writers that the manifest does not name: those writers were killed, or are at work."""
        named = {info.file for info in self._infos.values()}
        return sorted(name for name in os.listdir(self.path) if _WRITTEN.fullmatch(name) and name not in named)


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        file.seek(_HEADER_BYTES)
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise BadStore(f"{path} {found}, not a graph: make one with 'timeloom ingest SOURCE --out {path}'")
    try:
        with (path / MANIFEST).open("rb") as file:
            data = file.read(_MOST_MANIFEST_BYTES + 1)
        if len(data) > _MOST_MANIFEST_BYTES:
            raise BadStore(f"{path / MANIFEST} has more than {_MOST_MANIFEST_BYTES} bytes: restore it from a copy")
        manifest = json.loads(data.decode())
    except FileNotFoundError:
        raise BadStore(
            f"{path} has no {MANIFEST}, so it is not a graph, or one whose ingest never ended: "
            "remove it and ingest again"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadStore(f"{path / MANIFEST} cannot be read ({error}): restore it from a copy") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadStore(f"{path / MANIFEST} is not a timeloom manifest: is this the right folder?")
    if manifest.get("version") != VERSION:
        raise BadStore(
            f"{path} has format version {manifest.get('version')!r}, but this timeloom reads version {VERSION}: "
            f"ingest it again, or use the timeloom that wrote it ({manifest.get('writer', 'unknown')})"
        )
    if manifest.get("checksum") != _digest(manifest):
        raise BadStore(f"{path / MANIFEST} was altered: its checksum does not fit; restore it from a copy")
    if problem := problem_of(manifest):
        raise BadStore(f"{path / MANIFEST} is incomplete or altered: it {problem}; restore it from a copy")
    return manifest


def _checked_info(path: Path, name: str, entry: dict[str, Any]) -> ArrayInfo:
    file, dtype, shape, checksum = (entry.get(key) for key in ("file", "dtype", "shape", "checksum"))
    if not isinstance(file, str) or not _FILE_NAME.fullmatch(file):
        raise BadStore(f"{path / MANIFEST} names {file!r} for array {name!r}, which is no file of a graph: refused")
    sizes = shape if isinstance(shape, list) else [-1]
    if str(dtype) not in _DTYPES or not all(isinstance(n, int) and n >= 0 for n in sizes) or not sizes:
        raise BadStore(f"{path / MANIFEST} gives array {name!r} type {dtype!r} and shape {shape!r}: refused")
    if not is_form_of(name, str(dtype), tuple(sizes)):
        raise BadStore(f"{path / MANIFEST} gives array {name!r} type {dtype} and shape {shape}, which it cannot have")
    return ArrayInfo(file, str(dtype), tuple(sizes), str(checksum))


def _map(folder: Path, name: str, info: ArrayInfo) -> Array:
    """Return the array of one file, after checking that the file is as long as the manifest says."""
    path = folder / info.file
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise BadStore(f"{path} ({name}) is a link to {os.readlink(path)}: refused, a graph's files lie inside it")
        if not stat.S_ISREG(status.st_mode):
            raise BadStore(f"{path} ({name}) is no file: refused, a graph is made of files")
        found = status.st_size
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as error:
        raise BadStore(
            f"{path} ({name}) cannot be read ({error.strerror}): if the graph was replaced meanwhile, open it again, "
            "else restore it from a copy"
        ) from None
    expected = _HEADER_BYTES + info.num_bytes
    if found != expected:
        raise BadStore(f"{path} ({name}) holds {found} bytes, not {expected}: it was truncated or altered")
    if header != _header(info.dtype, info.shape):
        raise BadStore(f"{path} ({name}) was altered: its header is not that of {info.dtype} {list(info.shape)}")
    if info.num_bytes == 0:
        return np.empty(info.shape, info.dtype)
    return np.memmap(path, info.dtype, mode="c", offset=_HEADER_BYTES, shape=info.shape).view(np.ndarray)


class StoreWriter:
    """A graph's folder opened for writing, by one process at a time.

    `commit` makes everything written since visible at once; leaving the block without it removes what was written.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, update: bool = False) -> None:
        self.path = path
        self._writers: dict[str, ArrayWriter] = {}
        self._num_scratch = 0
        self._refuse(overwrite=overwrite, update=update)
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        self._lock = self._take_lock()
        try:
            # Another writer may have ended since.
            self._refuse(overwrite=overwrite, update=update)
            self.before = _read_manifest(path) if update else None
            self._number = 1 + max((number for number, _ in self._written()), default=0)
            self._sweep()
        except BaseException:
            self._release()
            raise

    def _refuse(self, *, overwrite: bool, update: bool) -> None:
        """Refuse a folder that is no graph to go on with, or that holds what must not be replaced."""
        if update:
            _read_manifest(self.path)
            return
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise BadConfig(f"{self.path} is a file: give another --out")
        # What a killed writer left is in nobody's way.
        others = {name for name in os.listdir(self.path) if name != _LOCK and not _WRITTEN.fullmatch(name)}
        if others and not overwrite:
            raise BadConfig(f"{self.path} exists already: give another --out, or --overwrite to replace it")
        if others and not (MANIFEST in others and FORMAT in (self.path / MANIFEST).read_text(errors="replace")):
            raise BadConfig(f"{self.path} exists and is no graph: it will not be replaced; give another --out")

    def _take_lock(self) -> int:
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            except OSError as error:
                raise BadConfig(f"{self.path} cannot be written ({error.strerror}): give another --out") from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise BadStore(f"{self.path} is being written by another process: wait for it to end") from None
            # A writer that failed may have removed the folder between these two steps, and the lock with it.
            if (self.path / _LOCK).exists() and os.path.samestat(os.fstat(lock), os.stat(self.path / _LOCK)):
                return lock
            os.close(lock)

    def _written(self) -> Iterator[tuple[int, Path]]:
        """Yield every file that a writer made, with the number of that writer."""
        for name in os.listdir(self.path):
            if found := _WRITTEN.fullmatch(name):
                yield int(found[1]), self.path / name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for writer in self._writers.values():
                writer.abandon()
            self._sweep()
        finally:
            self._release()
        if isinstance(error, OSError) and is_disk_full(error):
            raise TooLarge(f"{self.path}: {error.strerror} while writing; free some disk space or give another --out")

    def _sweep(self) -> None:
        """Remove all files of writers but those that the manifest names: whoever was killed, it tells what counts."""
        try:
            named = {entry.get("file") for entry in _read_manifest(self.path)["arrays"].values()}
            removable = [path for _, path in self._written() if path.name not in named]
        except BadStore:
            # There is no manifest yet, or none that can be read: then only what this writer made is surely useless.
            fresh = not (self.path / MANIFEST).exists()
            removable = [path for number, path in self._written() if fresh or number == self._number]
        for path in removable:
            path.unlink(missing_ok=True)

    def _release(self) -> None:
        """Let others write; a folder that was made for nothing is removed."""
        if self._made and not (self.path / MANIFEST).exists():
            with suppress(OSError):
                (self.path / _LOCK).unlink()
                for folder in self._made:
                    folder.rmdir()
        os.close(self._lock)

    def scratch(self, name: str) -> Path:
        """Return a path inside the folder for a temporary file, removed when the writer ends."""
        self._num_scratch += 1
        return self.path / f"{self._number:06d}-scratch.{name}.{self._num_scratch}"

    def open(self, name: str, dtype: str, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
        """Start an array that is written block by block; it is finished by `commit`."""
        writer = ArrayWriter(self.path / f"{self._number:06d}-{name}.npy", dtype, row_shape)
        self._writers[name] = writer
        return writer

    def put(self, name: str, array: Array) -> None:
        """Write a whole array."""
        assert array.dtype.str in _DTYPES, array.dtype
        self.open(name, array.dtype.str, array.shape[1:]).write(array)

    def commit(self, manifest: dict[str, Any], *, keep: Collection[str] = ()) -> None:
        """Replace the manifest by this one, which names the arrays written now and those of ``keep`` from before."""
        written = {name: writer.close() for name, writer in self._writers.items()}
        self._writers = {}
        kept, before = set(keep), (self.before or {"arrays": {}})["arrays"]
        arrays = {name: entry for name, entry in before.items() if name in kept}
        for name, info in written.items():
            shape = list(info.shape)
            arrays[name] = {"file": info.file, "dtype": info.dtype, "shape": shape, "checksum": info.checksum}
        body = {"format": FORMAT, "version": VERSION, **manifest, "arrays": arrays}
        body["checksum"] = _digest(body)
        aside = self.path / f"{self._number:06d}-{MANIFEST}"
        with aside.open("w", encoding="utf-8") as file:
            json.dump(body, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path)
        os.replace(aside, self.path / MANIFEST)
        for folder in (self.path, *(made.parent for made in self._made)):
            sync_folder(folder)
