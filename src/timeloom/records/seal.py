"""How a byte of a run's files that was altered is noticed: lines of the records, and the settings, carry checksums.

The checksum of a line begins with that of the line before it, so that no line can be altered, left out, put in or
moved. Only an end that is cut off cannot be told from a process that was killed there; a checkpoint knows better.
"""

from __future__ import annotations

import xxhash

FIRST = 1
"""What the first line's checksum begins with: the version of the format."""
_MARK = b', "seal": "'
_END = b'"}\n'
_DIGITS = 16
_SEAL_BYTES = len(_MARK) + _DIGITS + len(_END)
_CONFIG_MARK = b"\n# The settings of a run are not changed once it has begun; checksum "
_CONFIG_BYTES = len(_CONFIG_MARK) + 2 * _DIGITS + 1


class Altered(ValueError):
    """A line, or a text, that is not what was written."""


def seal_line(body: bytes, before: int) -> tuple[bytes, int]:
    """Return the line of a JSON object with its checksum, and that checksum, which the next line begins with."""
    seal = xxhash.xxh3_64_intdigest(body, seed=before)
    return b"%s%s%016x%s" % (body[:-1], _MARK, seal, _END), seal


def open_line(line: bytes, before: int | None) -> tuple[bytes, int]:
    """Return the JSON object of a line, and its checksum; ``before`` is that of the line before (None: it has none)."""
    seal, body = seal_of(line), line[:-_SEAL_BYTES] + b"}"
    if seal is None:
        raise Altered("it has no checksum: an older timeloom wrote it, or it was altered")
    if before is None or xxhash.xxh3_64_intdigest(body, seed=before) != seal:
        raise Altered("it does not fit its checksum: it or the line before was altered, left out or put in")
    return body, seal


def seal_of(end: bytes) -> int | None:
    """Return the checksum of the line that some bytes end with (None: they do not end with one)."""
    mark, digits, last = end[-_SEAL_BYTES:][: len(_MARK)], end[-_DIGITS - len(_END) : -len(_END)], end[-len(_END) :]
    if len(end) < _SEAL_BYTES or mark != _MARK or last != _END or digits != digits.lower():
        return None
    try:
        return int(digits, 16) if digits.isalnum() else None
    except ValueError:
        return None


def seal_config(text: str) -> bytes:
    """Return a configuration with a last line that holds the checksum of all before it."""
    data = text.encode()
    return data + _CONFIG_MARK + xxhash.xxh3_128_hexdigest(data).encode() + b"\n"


def open_config(data: bytes) -> str:
    """Return the configuration that was sealed."""
    text, last = data[:-_CONFIG_BYTES], data[-_CONFIG_BYTES:]
    if not last.startswith(_CONFIG_MARK):
        raise Altered("its last line is no checksum: an older timeloom wrote it, or it was altered")
    if data != seal_config(text.decode()):
        raise Altered("it does not fit the checksum in its last line: it was altered")
    return text.decode()
