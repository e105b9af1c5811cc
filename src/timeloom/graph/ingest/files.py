"""Where bytes come from: plain or compressed files, and the members of archives, as streams of whole lines."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import zstandard
from numpy.typing import NDArray

from timeloom.errors import BadInput

BLOCK_BYTES = 4 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_BROKEN = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    tarfile.TarError,
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of text, or a member of an archive (`member`)."""

    path: Path
    member: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def size_bytes(self) -> int:
        """The size on disk; an archive's for each of its members."""
        return self.path.stat().st_size


def stream(file: TextFile) -> tuple[IO[bytes], IO[bytes]]:
    """Return the decompressed stream of a file, and the raw file below it, whose position tells the progress."""
    raw = _opened(file.path)
    if file.member:
        with zipfile.ZipFile(raw) as archive:
            return archive.open(file.member), raw
    start = raw.read(6)
    raw.seek(0)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "plain")
    if kind == "gzip":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)), raw
    if kind == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True), raw
    if kind == "bzip2":
        return cast("IO[bytes]", bz2.BZ2File(raw)), raw
    if kind == "xz":
        return cast("IO[bytes]", lzma.LZMAFile(raw)), raw
    return raw, raw


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def lines_of(file: TextFile) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield a file as writable blocks of whole lines, each with how many bytes were read from disk so far."""
    try:
        decompressed, raw = stream(file)
        with closing(raw), closing(decompressed):
            yield from whole_lines(str(file), decompressed, raw)
    except _BROKEN as error:
        raise BadInput(f"{file} is broken or cut off: {error}; fetch it again") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error}") from None


def whole_lines(file: str, decompressed: IO[bytes], raw: IO[bytes]) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield a stream as writable blocks of whole lines, each with how far the raw file below it was read."""
    rest, first = b"", True
    while data := decompressed.read(BLOCK_BYTES):
        if first:
            _refuse_wide_text(file, data)
            data, first = data.removeprefix(b"\xef\xbb\xbf"), False
        end = data.rfind(b"\n") + 1
        if end:
            yield np.frombuffer(bytearray(rest + data[:end]), np.uint8), raw.tell()
            rest = data[end:]
        else:
            rest += data
        if len(rest) > BLOCK_BYTES:
            raise BadInput(f"{file} has a line of more than {BLOCK_BYTES} bytes: it is no table of text")
    if rest:
        yield np.frombuffer(bytearray(rest), np.uint8), raw.tell()


def _refuse_wide_text(file: str, data: bytes) -> None:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput(f"{file} is UTF-16 text: save it as UTF-8")
    if data.startswith(b"PAR1"):
        raise BadInput(f"{file} is a Parquet file: give it the ending .parquet")


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names as people do: 2 before 10."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts if part]


def zip_members(path: Path) -> list[str]:
    """Return the names of a zip archive's files, refusing what is no zip."""
    try:
        with _opened(path) as raw, zipfile.ZipFile(raw) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise BadInput(f"{path} is broken or cut off: {error}; fetch it again") from None


def tar_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the regular files of a tar archive one after another; nothing is ever unpacked to disk."""
    try:
        with _opened(path) as raw, tarfile.open(fileobj=raw, mode="r:*") as archive:
            for member in archive:
                if member.isfile():
                    opened = archive.extractfile(member)
                    assert opened is not None
                    yield member.name, opened
    except _BROKEN as error:
        raise BadInput(f"{path} is broken or cut off: {error}; fetch it again") from None
