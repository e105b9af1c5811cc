"""Where bytes come from: plain or compressed files, and the members of archives, as streams of whole lines."""

from __future__ import annotations

import gzip
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray

from timeloom.errors import BadInput
from timeloom.graph.ingest.unpacked import refuse_bomb

BLOCK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 4 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}
_MOST_XZ_BYTES = 1 << 30
_EVERY_OTHER = ([False, True, False, True], [True, False, True, False])
_BROKEN = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    tarfile.TarError,
)
# Broken archives also make these modules compute with nonsense; and zip files may be encrypted (RuntimeError).
_FAILURES = (*_BROKEN, OSError, RuntimeError, ValueError, OverflowError, struct.error, pa.ArrowException)


class Stream(Protocol):
    """Bytes that are read from first to last."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, as many as asked for where there are so many (-1: all)."""
        ...

    def close(self) -> None:
        """Read no further."""
        ...


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


class _Named:
    """A stream whose failures are sentences that name it, and that comes to no more than it may."""

    def __init__(self, where: str, source: Stream, packed_bytes: int) -> None:
        self._where, self._source, self._packed, self._read_bytes = where, source, packed_bytes, 0

    def read(self, size: int = -1, /) -> bytes:
        try:
            found = self._source.read(size)
        except _FAILURES as error:
            raise _broken(self._where, error) from None
        self._read_bytes += len(found)
        refuse_bomb(self._where, self._read_bytes, self._packed)
        return found

    def close(self) -> None:
        self._source.close()


class _Xz:
    """The text of xz streams one after another; unlike `lzma.LZMAFile`, it takes nothing else for their end."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._decoder = _xz_decoder()

    def read(self, size: int = -1, /) -> bytes:
        found = bytearray()
        while len(found) != size and (data := self._next(size - len(found) if size >= 0 else -1)):
            found += data
        return bytes(found)

    def _next(self, size: int) -> bytes:
        while True:
            given = b""
            if self._decoder.eof:
                # Streams may be followed by zeros, and then by another stream.
                given = self._decoder.unused_data.lstrip(b"\0")
                while not given and (given := self._source.read(1 << 16)):
                    given = given.lstrip(b"\0")
                if not given:
                    return b""
                self._decoder = _xz_decoder()
            elif self._decoder.needs_input:
                given = self._source.read(1 << 16)
                if not given:
                    raise EOFError("it ends before its end marker")
            if data := self._decoder.decompress(given, size):
                return data

    def close(self) -> None:
        self._source.close()


def _xz_decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ_BYTES)


class _Forward:
    """A stream that only goes on, in the guise of a file: all that `tarfile` needs where members are read in order."""

    def __init__(self, source: Stream) -> None:
        self._source, self._at = source, 0
        self.last_read = b""

    def read(self, size: int = -1) -> bytes:
        self.last_read = self._source.read(size)
        self._at += len(self.last_read)
        return self.last_read

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> None:
        assert place >= self._at, "a member of an archive is read again"
        while place > self._at and self.read(min(place - self._at, BLOCK_BYTES)):
            pass


def _broken(where: str, error: Exception) -> BadInput:
    if isinstance(error, OSError) and error.errno:
        return BadInput(f"{where} cannot be read: {error.strerror}")
    return BadInput(f"{where} is broken or cut off: {error}; fetch it again")


def _opened(path: Path) -> IO[bytes]:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadInput(f"{path} is a pipe or a device, and a source is read more than once: save it as a file first")
    try:
        return path.open("rb")
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from None


def stream(file: TextFile) -> tuple[Stream, IO[bytes]]:
    """Return the decompressed stream of a file, and the raw file below it, whose position tells the progress."""
    raw = _opened(file.path)
    try:
        return decompressed(
            str(file), zipfile.ZipFile(raw).open(file.member) if file.member else raw, file.size_bytes
        ), raw
    except (*_FAILURES, KeyError) as error:
        raw.close()
        raise _broken(str(file), error) from None


def decompressed(where: str, source: IO[bytes], packed_bytes: int) -> Stream:
    """Return what the first bytes of a stream say: the text that was compressed, or the stream as it is.

    What it may come to goes by the ``packed_bytes`` on disk.
    """
    start = source.peek(6)  # type: ignore[attr-defined]
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "plain")
    if kind == "plain":
        return _Named(where, source, packed_bytes)
    if kind == "xz":
        return _Named(where, _Xz(source), packed_bytes)
    # Arrow refuses streams that are cut off or go on with something else, which Python's modules may pass over.
    return _Named(where, pa.CompressedInputStream(pa.PythonFile(source, mode="r"), kind), packed_bytes)


def lines_of(file: TextFile) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield a file as writable blocks of whole lines, each with how many bytes were read from disk so far."""
    text, raw = stream(file)
    with closing(raw), closing(text):
        yield from whole_lines(str(file), text, raw)


def whole_lines(where: str, text: Stream, raw: IO[bytes]) -> Iterator[tuple[NDArray[np.uint8], int]]:
    """Yield a stream as writable blocks of whole lines, each with how far the raw file below it was read."""
    rest = b""
    for data in _blocks(where, text):
        end = data.rfind(b"\n") + 1
        if end:
            block = bytearray(rest)
            block += memoryview(data)[:end]
            yield np.frombuffer(block, np.uint8), raw.tell()
            rest = data[end:]
        else:
            rest += data
        if len(rest) > LONGEST_LINE_BYTES:
            raise BadInput(f"{where} has a line of more than {LONGEST_LINE_BYTES} bytes: it is no table of text")
    if rest:
        yield np.frombuffer(bytearray(rest), np.uint8), raw.tell()


def _blocks(where: str, text: Stream) -> Iterator[bytes]:
    """Yield a text in blocks, without the mark that some begin with."""
    start = b""
    while len(start) < 4 and (data := text.read(BLOCK_BYTES)):
        start += data
    # Without its mark, UTF-16 shows in every other byte of plain text.
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or [byte == 0 for byte in start[:4]] in _EVERY_OTHER:
        raise BadInput(f"{where} is UTF-16 text: save it as UTF-8")
    if start.startswith(b"PAR1"):
        raise BadInput(f"{where} is a Parquet file: give it the ending .parquet")
    if start.startswith(b"PK\x03\x04"):
        raise BadInput(f"{where} is a zip archive: give it the ending .zip")
    yield start.removeprefix(b"\xef\xbb\xbf")
    while data := text.read(BLOCK_BYTES):
        yield data


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts names as people do: 2 before 10. Different names have different keys."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    numbers = [part.lstrip("0") for part in parts]
    keys = [(1, len(n), n) if part[0] in "0123456789" else (0, 0, part) for part, n in zip(parts, numbers, strict=True)]
    return [*keys, (-1, 0, name)]


def zip_members(path: Path) -> list[str]:
    """Return the names of a zip archive's files, refusing what is no zip."""
    try:
        with _opened(path) as raw, zipfile.ZipFile(raw) as archive:
            return [info.filename for info in archive.infolist() if not info.is_dir()]
    except _FAILURES as error:
        raise _broken(str(path), error) from None


def tar_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the files of a tar archive, compressed or not, one after another; nothing is ever unpacked to disk.

    Each must be read before the next one is asked for.
    """
    with _opened(path) as raw:
        forward = _Forward(decompressed(str(path), raw, path.stat().st_size))
        try:
            archive = tarfile.TarFile(fileobj=cast("IO[bytes]", forward))
            for member in archive:
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is not None:
                    yield member.name, opened
                elif not member.isdir():
                    raise BadInput(
                        f"{path} holds {member.name}, which is a link or no file: unpack it and give the folder"
                    )
        except _FAILURES as error:
            raise _broken(str(path), error) from None
        # To tarfile, a broken header is the end; but the end is zeros. Reading on also checks what was compressed.
        ends = forward.last_read == bytes(tarfile.BLOCKSIZE)
        if not ends or any(any(data) for data in iter(lambda: forward.read(BLOCK_BYTES), b"")):
            raise BadInput(f"{path} is broken or cut off: it does not end with zeros; fetch it again")
