"""How a file is fetched: gone on with where it broke off, verified, and put in place whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from timeloom.errors import DownloadFailed, TooLarge

_BLOCK_BYTES = 1 << 18
_PAUSES_S = (1.0, 3.0, 9.0)
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_BROKEN = (URLError, HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_ADVICE = "fetch it by hand and name it with --from PATH"

Progress = Callable[[int, int], None]
"""Is told how many bytes are there, and of how many (0: not known)."""


def silent(done_bytes: int, total_bytes: int) -> None:
    """Take no note."""


@dataclass(frozen=True, slots=True)
class _Note:
    """What is written beside a partial file: which file it is the beginning of."""

    url: str
    version: str
    total_bytes: int


def fetch(
    url: str,
    path: Path,
    *,
    sha256: str | None = None,
    progress: Progress = silent,
    timeout_s: float = 30.0,
    pauses_s: Sequence[float] = _PAUSES_S,
) -> None:
    """Make ``path`` the file behind ``url``, whole and with this checksum, or leave ``path`` as it was.

    What came before a connection broke is kept in ``path.partial``. The next attempt, in this call (after each of
    ``pauses_s``) or in a later one, goes on from there if the server still has the same version of the file.
    """
    _refuse_scheme(url)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent, url):
            try:
                _fetch_partial(url, partial, progress, timeout_s=timeout_s, pauses_s=pauses_s)
                _verify(url, partial, sha256)
                os.replace(partial, path)
            finally:
                if not partial.exists() or partial.stat().st_size == 0:
                    _forget(partial)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TooLarge(f"{url} does not fit on the disk of {path.parent}: free some space") from None
        raise DownloadFailed(f"{url} cannot be written to {path}: {error.strerror or error}; {_ADVICE}") from None


def _refuse_scheme(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadFailed(f"{url} is no http or https address, and no other is fetched; {_ADVICE}")


@contextmanager
def _alone(folder: Path, url: str) -> Iterator[None]:
    """Keep other processes from fetching into the same folder; the lock goes with the process."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadFailed(f"{url} is not fetched: another process fetches into {folder}, wait for it") from None
        yield
    finally:
        os.close(lock)


def _fetch_partial(url: str, partial: Path, progress: Progress, *, timeout_s: float, pauses_s: Sequence[float]) -> None:
    """Complete the partial file; attempts that bring something are not counted against the number of pauses."""
    pauses = list(pauses_s)
    while True:
        before = _size_of(partial)
        try:
            _go_on(url, partial, progress, timeout_s)
            return
        except _BROKEN as error:
            if _size_of(partial) > before:
                pauses = list(pauses_s)
            if not pauses:
                kept = f" ({_size_of(partial)} bytes are kept: the same command goes on from there)"
                raise DownloadFailed(
                    f"{url} could not be fetched: {_spoken(error)}{kept if _size_of(partial) else ''}; "
                    f"try again later, or {_ADVICE}"
                ) from None
        time.sleep(pauses.pop(0))


def _go_on(url: str, partial: Path, progress: Progress, timeout_s: float) -> None:
    """Fetch what is missing of the partial file."""
    note, have = _begun(url, partial)
    if note is not None and have == note.total_bytes:
        return
    headers = {"User-Agent": "timeloom", "Accept-Encoding": "identity"}
    if note is not None:
        headers |= {"Range": f"bytes={have}-", "If-Range": note.version}
    with _open(url, headers, timeout_s, partial) as response:
        start, total = _place_of(response, note, have)
        if start is None:
            # The rest of another file than the one that was begun: begin again.
            _forget(partial)
            raise ConnectionError("the file changed while it was fetched")
        _refuse_large(url, partial, total - start)
        _note_path(partial).write_text(json.dumps(asdict(_Note(url, _version_of(response.headers), total))))
        with partial.open("r+b" if partial.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            done = start
            while block := response.read(_BLOCK_BYTES):
                file.write(block)
                done += len(block)
                progress(done, total)
    if total and done != total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")
    if not total and response.headers.get("Transfer-Encoding", "").lower() != "chunked":
        raise DownloadFailed(f"{url}: the server does not say how long the file is; {_ADVICE}")


def _open(url: str, headers: dict[str, str], timeout_s: float, partial: Path) -> HTTPResponse:
    """Return the response to a GET; redirects are followed to http and https addresses only."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(), request.UnknownHandler(), request.HTTPHandler(), request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(), request.HTTPRedirectHandler(), request.HTTPErrorProcessor(),
    ):  # fmt: skip
        opener.add_handler(handler)
    try:
        response = opener.open(request.Request(url, headers=headers), timeout=timeout_s)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            _forget(partial)
        elif error.code not in _PASSING:
            raise DownloadFailed(f"{url} could not be fetched: {_spoken(error)}; {_ADVICE}") from None
        raise
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError) or "unknown url type" in str(error.reason):
            raise DownloadFailed(f"{url} could not be fetched: {_spoken(error)}; {_ADVICE}") from None
        raise
    assert isinstance(response, HTTPResponse)
    if urlsplit(url).scheme == "https" and urlsplit(response.url).scheme != "https":
        response.close()
        raise DownloadFailed(f"{url} leads to {response.url}, which is not https; {_ADVICE}")
    return response


def _place_of(response: HTTPResponse, note: _Note | None, have: int) -> tuple[int | None, int]:
    """Return where in the file the response begins (None: it does not go on with ours), and the size of the file."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdigit() else 0
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    same = note is not None and _version_of(response.headers) in ("", note.version)
    if not found or not same or int(found[1]) != have:
        return None, 0
    return have, 0 if found[2] == "*" else int(found[2])


def _version_of(headers: Message) -> str:
    """Return what tells this version of the file from another (empty: nothing does)."""
    tag = str(headers.get("ETag", ""))
    return tag if tag and not tag.startswith("W/") else str(headers.get("Last-Modified", ""))


def _begun(url: str, partial: Path) -> tuple[_Note | None, int]:
    """Return the note on a partial file and its size, or None and 0 where there is nothing to go on with."""
    try:
        note, have = _Note(**json.loads(_note_path(partial).read_text())), _size_of(partial)
    except (OSError, ValueError, TypeError, RecursionError):
        return None, 0
    usable = note.url == url and note.version and 0 < have <= (note.total_bytes or have)
    return (note, have) if usable else (None, 0)


def _refuse_large(url: str, partial: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(partial.parent).free
    if needed_bytes > free_bytes:
        raise TooLarge(
            f"{url} needs {needed_bytes} bytes more, but {partial.parent} has {free_bytes} free: "
            "free some space, or put the cache elsewhere with TIMELOOM_CACHE"
        )


def _verify(url: str, partial: Path, sha256: str | None) -> None:
    if sha256 is None:
        return
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        _forget(partial)
        raise DownloadFailed(
            f"{url} is not the file that was meant: its sha256 is {found}, expected {sha256}; it was deleted: "
            f"try again, or if the file was replaced by a newer one, {_ADVICE}"
        )


def _note_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _forget(partial: Path) -> None:
    partial.unlink(missing_ok=True)
    _note_path(partial).unlink(missing_ok=True)


def _spoken(error: Exception) -> str:
    """Return what happened in a few words."""
    if isinstance(error, HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
