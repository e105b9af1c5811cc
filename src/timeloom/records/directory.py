"""The run directory: made, gone on with, written by one process, read by any.

config.toml     what was asked; written last, so a folder with it is a run
records.jsonl   what happened, a line each; both are sealed (`seal.py`)
checkpoints/    what training can go on from
trials.json     what was tried before training, where trials choose the windows
report.html     made later from the records
.lock           held by the one process that trains
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self

from timeloom.disk import sync_folder
from timeloom.errors import BadConfig, BadRun, TooLarge, is_disk_full
from timeloom.records.kinds import Record
from timeloom.records.seal import FIRST, Altered, open_config, open_line, seal_config, seal_line, seal_of
from timeloom.records.wire import as_json, from_json

CONFIG, RECORDS, CHECKPOINTS, REPORT = "config.toml", "records.jsonl", "checkpoints", "report.html"
_TRIALS = "trials.json"
_LOCK = ".lock"
_ASIDE, _REPLACED = "config.toml.partial", "checkpoints.partial"
_LONGEST_LINE_BYTES, _LARGEST_CONFIG_BYTES = 1 << 28, 1 << 20
_SEAL_ROOM = 64
_BEGINNING = b'{"kind": "'
_RESTORE = "restore it from a copy, or go on from a checkpoint of before with --resume RUN --checkpoint NAME"


def read(path: Path) -> list[Record]:
    """Return the records of a run, also of one that is in use; a last line that has no end was never written."""
    return [record for record, _ in stream(path)]


def stream(path: Path, start: int = 0) -> Iterator[tuple[Record, int]]:
    """Yield the records that begin at byte ``start``, each with the byte where the next one begins."""
    _refuse_no_run(path)
    stop = start
    with _reading(path / RECORDS), (path / RECORDS).open("rb") as file:
        seal = _seal_before(file, start)
        while line := file.readline(_LONGEST_LINE_BYTES + 1):
            try:
                if not line.endswith(b"\n"):
                    _refuse_altered_end(line, seal)
                    return
                stop += len(line)
                body, seal = open_line(line, seal)
                data = _DECODER.decode(body.decode())
                if not isinstance(data, dict):
                    raise ValueError("it is no JSON object")
                record = from_json(data)
            except (ValueError, RecursionError, BadRun) as error:
                number = (path / RECORDS).read_bytes()[:stop].count(b"\n") + (not line.endswith(b"\n"))
                raise _unreadable(path, number, error) from None
            yield record, stop


def _unreadable(path: Path, line: int, error: Exception) -> BadRun:
    return BadRun(f"{path / RECORDS}, line {line} cannot be read ({error}): {_RESTORE}")


def _seal_before(file: IO[bytes], start: int) -> int | None:
    """Return the checksum that the line at this byte begins with; the file is left there."""
    if start == 0:
        return FIRST
    file.seek(max(0, start - _SEAL_ROOM))
    return seal_of(file.read(min(start, _SEAL_ROOM)))


def _refuse_altered_end(line: bytes, seal: int | None) -> None:
    """Refuse a last line that nobody began: one that is whole but for its end, too long, or no record's beginning."""
    if len(line) > _LONGEST_LINE_BYTES:
        raise Altered(f"it has more than {_LONGEST_LINE_BYTES} bytes, the most that is read")
    # After a power cut, what was not written yet may read as zeros.
    if not (line.startswith(_BEGINNING) or _BEGINNING.startswith(line.rstrip(b"\0"))):
        raise Altered("it is no record's beginning")
    with suppress(Altered):
        open_line(line[:-1] + b"\n", seal)
        raise ValueError("its end was altered")


def is_in_use(path: Path) -> bool:
    """Say whether a process on this machine trains this run. Nothing is locked to find out."""
    try:
        inode = (path / _LOCK).stat().st_ino
        held = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    # By the inode alone: layered file systems tell another device here than in /proc/locks.
    return any("FLOCK" in line and "->" not in line and f":{inode} " in line for line in held)


def read_config(path: Path) -> str:
    """Return the configuration of a run as TOML, also of one that is in use."""
    _refuse_no_run(path)
    with _reading(path / CONFIG), (path / CONFIG).open("rb") as file:
        data = file.read(_LARGEST_CONFIG_BYTES + 1)
    if len(data) > _LARGEST_CONFIG_BYTES:
        raise BadRun(f"{path / CONFIG} has more than {_LARGEST_CONFIG_BYTES} bytes: restore it from a copy")
    try:
        return open_config(data)
    except ValueError as error:
        raise BadRun(
            f"{path / CONFIG} cannot be read ({error}): restore it from a copy, or start a new run with --config"
        ) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# Made once: json.loads would make one for every line.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class RunDirectory:
    """A run that this process, and no other, writes to; leaving the block lets others.

    Make one with `create` or `open`.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self._path, self._lock = path, lock
        self._config_text = read_config(path)
        with _writing(path):
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            sync_folder(path)
            shutil.rmtree(path / _REPLACED, ignore_errors=True)
            (path / _ASIDE).unlink(missing_ok=True)
            self._file = (path / RECORDS).open("ab", buffering=0)
            # What a killed process began to write would become a broken line as soon as another one follows.
            torn = len((path / RECORDS).read_bytes().rpartition(b"\n")[2])
            self._file.truncate(os.fstat(self._file.fileno()).st_size - torn)
        self._seal = self._last_seal()

    @classmethod
    def create(cls, path: Path, config_text: str, *, overwrite: bool, trials: str = "") -> Self:
        """Make a run with this configuration; with ``overwrite`` in place of one that is there.

        ``trials`` is what `read_trials` returns of it.
        """
        refuse_in_the_way(path, overwrite=overwrite)
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        with _writing(path):
            path.mkdir(parents=True, exist_ok=True)
            for folder in made:
                sync_folder(folder.parent)
        lock = _take_lock(path)
        try:
            # Another process may have made a run since.
            refuse_in_the_way(path, overwrite=overwrite)
            with _writing(path):
                _make(path, config_text, trials)
            return cls(path, lock)
        except BaseException:
            _undo(path, made)
            os.close(lock)
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Go on with a run."""
        _refuse_no_run(path)
        lock = _take_lock(path)
        try:
            return cls(path, lock)
        except BaseException:
            os.close(lock)
            raise

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @property
    def config_text(self) -> str:
        """The configuration, as TOML."""
        return self._config_text

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self._path / CHECKPOINTS

    def configure(self, config_text: str) -> None:
        """Give the run another configuration: trials have chosen a part of it."""
        self._replace(CONFIG, seal_config(config_text))
        self._config_text = config_text

    def read_trials(self) -> str:
        """Return what was tried before training ("": nothing, or nothing was to be tried)."""
        if not (self._path / _TRIALS).exists():
            return ""
        with _reading(self._path / _TRIALS):
            return (self._path / _TRIALS).read_text()

    def write_trials(self, text: str) -> None:
        """Keep what was tried so far; killed at any instant, this leaves what was there or all of the new."""
        self._replace(_TRIALS, text.encode())

    def _replace(self, name: str, data: bytes) -> None:
        with _writing(self._path):
            _write(self._path / _ASIDE, data)
            os.replace(self._path / _ASIDE, self._path / name)
            sync_folder(self._path)

    def append(self, record: Record) -> None:
        """Write a line; whoever reads the file from now on finds it."""
        if self._seal is None:
            raise BadRun(f"{self._path / RECORDS} ends with a line that has no checksum: {_RESTORE}")
        sealed, seal = seal_line(json.dumps(as_json(record), allow_nan=False).encode(), self._seal)
        line, before = memoryview(sealed), os.fstat(self._file.fileno()).st_size
        try:
            with _writing(self._path):
                while line:
                    line = line[self._file.write(line) :]
        except BaseException:
            # Half a line must not stay: the next record would be written behind it.
            self._file.truncate(before)
            raise
        self._seal = seal

    def records(self) -> list[Record]:
        """Return all records."""
        return read(self._path)

    def size(self) -> int:
        """Force all records to disk and return how many bytes they take, for a later `truncate`."""
        with _writing(self._path):
            os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def check(self, size: int) -> None:
        """Refuse records whose first so many bytes are not whole lines, as they were written."""
        if not 0 <= size <= os.fstat(self._file.fileno()).st_size:
            self._refuse_size(size)
        seal, stop, number = FIRST, 0, 0
        with _reading(self._path / RECORDS), (self._path / RECORDS).open("rb") as file:
            while stop < size:
                line = file.readline(_LONGEST_LINE_BYTES + 1)
                stop, number = stop + len(line), number + 1
                try:
                    _, seal = open_line(line, seal)
                except Altered as error:
                    raise _unreadable(self._path, number, error) from None
        if stop != size:
            self._refuse_size(size)

    def _refuse_size(self, size: int) -> NoReturn:
        raise BadRun(
            f"{self._path / RECORDS} has no line that ends at byte {size}, where the checkpoint was saved: "
            f"the file was altered; {_RESTORE}"
        )

    def truncate(self, size: int) -> None:
        """Forget what was recorded since there were so many bytes: the work is going to be done again."""
        self.check(size)
        with _writing(self._path):
            self._file.truncate(size)
            os.fsync(self._file.fileno())
        self._seal = self._last_seal()

    def _last_seal(self) -> int | None:
        """Return the checksum that the next line begins with."""
        with _reading(self._path / RECORDS), (self._path / RECORDS).open("rb") as file:
            return _seal_before(file, os.fstat(file.fileno()).st_size)

    def close(self) -> None:
        """Let other processes write."""
        self._file.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else "") or error
        raise BadRun(f"{path} cannot be read ({why}): restore it from a copy") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise TooLarge(f"run {path}: {error.strerror} while writing; free some disk space and try again") from None
        raise BadRun(
            f"run {path} cannot be written ({error.strerror}): make it writable, or use another folder"
        ) from None


def is_run(path: Path) -> bool:
    """Say whether there is a run in this folder."""
    return all((path / name).is_file() for name in (CONFIG, RECORDS))


def _refuse_no_run(path: Path) -> None:
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise BadRun(f"run {path} {found}: give the folder of a run, or start one")
    for name in (CONFIG, RECORDS):
        if not (path / name).is_file():
            raise BadRun(f"{path} has no {name}, so it is not a run: give the folder of a run, or start one")


def refuse_in_the_way(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds what must not be replaced; what a killed `create` left is in nobody's way."""
    if not path.exists():
        return
    if not path.is_dir():
        raise BadConfig(f"run {path} is a file: give another folder")
    with _reading(path):
        found = set(os.listdir(path))
    if {CONFIG, RECORDS} <= found:
        if not overwrite:
            raise BadConfig(
                f"run {path} exists already: give another folder, or --overwrite to replace it, or --resume"
            )
        return
    empty = not any((path / name).stat().st_size for name in {RECORDS} & found)
    if not (found <= {_LOCK, _ASIDE, RECORDS, _TRIALS} and empty):
        raise BadConfig(f"{path} exists and is no run: it will not be replaced; give another folder")


def _make(path: Path, config_text: str, trials: str) -> None:
    """Write a new run; of one that was there the records, the checkpoints and the report are removed first."""
    shutil.rmtree(path / _REPLACED, ignore_errors=True)
    if (path / CHECKPOINTS).exists():
        # Killed while it removes them, this leaves no folder in which some checkpoints are half there.
        os.rename(path / CHECKPOINTS, path / _REPLACED)
        # A power cut must not leave checkpoints of records that are gone.
        sync_folder(path)
    (path / REPORT).unlink(missing_ok=True)
    (path / _TRIALS).unlink(missing_ok=True)
    _write(path / RECORDS, b"")
    if trials:
        _write(path / _TRIALS, trials.encode())
    _write(path / _ASIDE, seal_config(config_text))
    sync_folder(path)
    os.replace(path / _ASIDE, path / CONFIG)
    sync_folder(path)


def _undo(path: Path, made: list[Path]) -> None:
    """Remove what a run left that could not be made, and the folders that were made for it."""
    with suppress(OSError):
        (path / _ASIDE).unlink(missing_ok=True)
        if made and not (path / CONFIG).exists():
            for name in (RECORDS, _LOCK):
                (path / name).unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _take_lock(path: Path) -> int:
    with _writing(path):
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise BadRun(f"run {path} is in use by another process: wait for it to end, or end it") from None
        raise BadRun(f"run {path} cannot be locked ({error.strerror}): use a folder on a local disk") from None
    return lock
