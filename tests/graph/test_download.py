"""A download ends with the file that was meant, gone on with where it broke off, or with a clear error and nothing."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from timeloom.errors import DownloadFailed, TooLarge
from timeloom.graph.datasets import Dataset, File, fetch_dataset, local_copy
from timeloom.graph.download import fetch
from timeloom.graph.ingest import Ingest, Windows, ingest

CONTENT = bytes(range(256)) * 4_000
OTHER = CONTENT[::-1]
HALF = len(CONTENT) // 2
SHA256 = hashlib.sha256(CONTENT).hexdigest()
AT_ONCE = (0.0, 0.0, 0.0)


@dataclass
class Site:
    """What a small web server serves, how it misbehaves, and what it was asked."""

    content: bytes = CONTENT
    version: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    ranges: bool = True
    """Whether it sends the rest of a file when asked for it."""
    minds_versions: bool = True
    """Whether it sends the whole file when the rest of another version is asked for."""
    says_length: bool = True
    chunked: bool = False
    cuts: list[int] = field(default_factory=list)
    """For each of the first requests: after how many bytes the connection ends."""
    codes: list[int] = field(default_factory=list)
    """For each of the first requests: an error to answer with."""
    moved: str = ""
    """Where every path but /file is redirected to."""
    stalls: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request."""
    over: threading.Event = field(default_factory=threading.Event)


class Answer(BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site = self.site
        site.asked.append(dict(self.headers))
        if site.moved and self.path != "/file":
            self.send_response(302)
            self.send_header("Location", site.moved)
            self.end_headers()
            return
        if site.codes:
            self.send_error(site.codes.pop(0))
            return
        if site.stalls:
            site.over.wait(20)
            return
        self.send_file(site)

    def send_file(self, site: Site) -> None:
        start = self.start(site)
        if start >= len(site.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        for name, value in site.version.items():
            self.send_header(name, value)
        if site.says_length:
            self.send_header("Content-Length", str(len(site.content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(site.content) - 1}/{len(site.content)}")
        if site.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        body = site.content[start:]
        body = body[: site.cuts.pop(0)] if site.cuts else body
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if site.chunked else body)

    def start(self, site: Site) -> int:
        asked = self.headers.get("Range", "")
        same = self.headers.get("If-Range") in site.version.values() or not site.minds_versions
        return int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges and same else 0

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(site: Site) -> Iterator[str]:
    """Serve the site on a free port of this machine; give the address of its file."""
    handler = type(
        "SiteAnswer", (Answer,), {"site": site, "protocol_version": "HTTP/1.1" if site.chunked else "HTTP/1.0"}
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/file"
    finally:
        site.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a proxy of this machine out of what goes on within it."""
    monkeypatch.setenv("no_proxy", "*")


class Place(NamedTuple):
    """Where a test fetches to."""

    file: Path

    @property
    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.file.parent.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "fetched" / "data.bin")


def test_a_file_is_fetched_whole_and_progress_is_told(place: Place) -> None:
    told: list[tuple[int, int]] = []
    with served(Site()) as url:
        fetch(url, place.file, sha256=SHA256, progress=lambda done, total: told.append((done, total)))
    assert place.file.read_bytes() == CONTENT
    assert place.names == ["data.bin"]
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert len(told) > 1
    assert told == sorted(told)


def test_a_cut_connection_is_gone_on_with_from_where_it_ended(place: Place) -> None:
    site = Site(cuts=[HALF])
    with served(site) as url:
        fetch(url, place.file, sha256=SHA256, pauses_s=AT_ONCE)
    assert place.file.read_bytes() == CONTENT
    assert "Range" not in site.asked[0]
    assert [request["Range"] for request in site.asked[1:]] == [f"bytes={HALF}-"]
    assert site.asked[1]["If-Range"] == '"one"'


def test_a_later_call_goes_on_with_what_an_earlier_one_left(place: Place) -> None:
    site = Site(cuts=[HALF], version={"Last-Modified": "Mon, 28 Nov 2016 02:15:13 GMT"})
    with served(site) as url:
        with pytest.raises(
            DownloadFailed, match=rf"{url}.*{HALF} of {len(CONTENT)}.*{HALF} bytes are kept.*--from PATH"
        ):
            fetch(url, place.file, sha256=SHA256, pauses_s=())
        assert place.names == ["data.bin.partial", "data.bin.partial.json"]
        fetch(url, place.file, sha256=SHA256, pauses_s=())
    assert place.file.read_bytes() == CONTENT
    assert place.names == ["data.bin"]
    assert [request.get("Range") for request in site.asked] == [None, f"bytes={HALF}-"]


def test_attempts_that_bring_something_are_not_counted(place: Place) -> None:
    site = Site(cuts=[1000] * 20)
    with served(site) as url:
        fetch(url, place.file, sha256=SHA256, pauses_s=(0.0,))
    assert place.file.read_bytes() == CONTENT
    assert len(site.asked) == 21


def test_a_body_that_is_always_cut_short_is_an_error_in_the_end(place: Place) -> None:
    site = Site(cuts=[HALF, 0, 0, 0, 0])
    with served(site) as url, pytest.raises(DownloadFailed, match=rf"ended after {HALF} of {len(CONTENT)} bytes"):
        fetch(url, place.file, sha256=SHA256, pauses_s=AT_ONCE)
    assert len(site.asked) == 1 + len(AT_ONCE)
    assert not place.file.exists()


def test_a_server_without_ranges_sends_the_file_again(place: Place) -> None:
    site = Site(cuts=[HALF], ranges=False)
    with served(site) as url:
        fetch(url, place.file, sha256=SHA256, pauses_s=AT_ONCE)
    assert place.file.read_bytes() == CONTENT
    assert len(site.asked) == 2


@pytest.mark.parametrize("minds_versions", [True, False])
def test_a_file_that_changed_between_two_attempts_is_begun_again(place: Place, minds_versions: bool) -> None:
    site = Site(content=OTHER, cuts=[HALF], minds_versions=minds_versions)
    with served(site) as url:
        with pytest.raises(DownloadFailed, match="bytes are kept"):
            fetch(url, place.file, sha256=SHA256, pauses_s=())
        site.content, site.version = CONTENT, {"ETag": '"two"'}
        fetch(url, place.file, sha256=SHA256, pauses_s=AT_ONCE)
    assert place.file.read_bytes() == CONTENT


def test_without_a_version_nothing_is_gone_on_with(place: Place) -> None:
    site = Site(cuts=[HALF], version={"ETag": 'W/"weak"'})
    with served(site) as url:
        fetch(url, place.file, sha256=SHA256, pauses_s=AT_ONCE)
    assert place.file.read_bytes() == CONTENT
    assert all("Range" not in request for request in site.asked)


def test_a_file_that_became_shorter_is_begun_again(place: Place) -> None:
    site = Site(cuts=[HALF])
    with served(site) as url:
        with pytest.raises(DownloadFailed):
            fetch(url, place.file, pauses_s=())
        site.content = CONTENT[:1000]
        fetch(url, place.file, pauses_s=AT_ONCE)
    assert place.file.read_bytes() == CONTENT[:1000]


def test_the_wrong_file_leaves_nothing_behind(place: Place) -> None:
    with served(Site(content=OTHER)) as url, pytest.raises(DownloadFailed) as failed:
        fetch(url, place.file, sha256=SHA256)
    assert all(part in str(failed.value) for part in (url, SHA256, hashlib.sha256(OTHER).hexdigest(), "--from PATH"))
    assert place.names == []


def test_a_failure_leaves_the_file_that_was_there(place: Place) -> None:
    place.file.parent.mkdir()
    place.file.write_bytes(b"before")
    with served(Site(content=OTHER)) as url, pytest.raises(DownloadFailed):
        fetch(url, place.file, sha256=SHA256)
    assert place.file.read_bytes() == b"before"


def test_a_missing_file_is_not_asked_for_twice(place: Place) -> None:
    site = Site(codes=[404] * 9)
    with served(site) as url, pytest.raises(DownloadFailed, match=rf"{url}.*404 Not Found.*--from PATH"):
        fetch(url, place.file, pauses_s=AT_ONCE)
    assert len(site.asked) == 1
    assert place.names == []


def test_a_busy_server_is_asked_again(place: Place) -> None:
    site = Site(codes=[503, 429])
    with served(site) as url:
        fetch(url, place.file, sha256=SHA256, pauses_s=AT_ONCE)
    assert place.file.read_bytes() == CONTENT
    assert len(site.asked) == 3


def test_a_server_that_stalls_is_given_up(place: Place) -> None:
    with served(Site(stalls=True)) as url, pytest.raises(DownloadFailed, match="timed out"):
        fetch(url, place.file, timeout_s=0.05, pauses_s=())
    assert place.names == []


def test_no_server_is_a_clear_error(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
    with pytest.raises(DownloadFailed, match=rf"{url}.*refused.*--from PATH"):
        fetch(url, place.file, pauses_s=(0.0,))


def test_a_file_in_chunks_is_fetched(place: Place) -> None:
    with served(Site(chunked=True, says_length=False)) as url:
        fetch(url, place.file, sha256=SHA256)
    assert place.file.read_bytes() == CONTENT


def test_a_file_of_unknown_length_is_refused(place: Place) -> None:
    with served(Site(says_length=False)) as url, pytest.raises(DownloadFailed, match="does not say how long"):
        fetch(url, place.file, pauses_s=AT_ONCE)
    assert not place.file.exists()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/file", "file:///etc/hostname", "data:,x", "/etc/hostname"])
def test_only_http_is_fetched(place: Place, url: str) -> None:
    with pytest.raises(DownloadFailed, match="no http or https address"):
        fetch(url, place.file)


@pytest.mark.parametrize("moved", ["ftp://127.0.0.1:1/file", "file:///etc/hostname"])
def test_a_redirect_to_anything_but_http_is_refused(place: Place, moved: str) -> None:
    site = Site(moved=moved)
    with served(site) as url, pytest.raises(DownloadFailed, match=r"--from PATH"):
        fetch(url.replace("/file", "/old"), place.file, pauses_s=AT_ONCE)
    assert len(site.asked) == 1
    assert place.names == []


def test_a_redirect_to_http_is_followed(place: Place) -> None:
    site = Site(moved="/file")
    with served(site) as url:
        fetch(url.replace("/file", "/old"), place.file, sha256=SHA256)
    assert place.file.read_bytes() == CONTENT


def test_a_file_larger_than_the_disk_is_refused_before_it_is_fetched(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 3, 7))
    told: list[int] = []
    with served(Site()) as url, pytest.raises(TooLarge, match=rf"{len(CONTENT)} bytes more, but .* has 7 free"):
        fetch(url, place.file, progress=lambda done, total: told.append(done))
    assert told == []
    assert place.names == []


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, TooLarge), (errno.EACCES, DownloadFailed)])
def test_a_file_that_cannot_be_written_is_a_clear_error(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def refuse(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with served(Site()) as url, pytest.raises(error, match=url):
        fetch(url, place.file)


def test_two_processes_do_not_fetch_into_one_folder(place: Place) -> None:
    place.file.parent.mkdir()
    lock = os.open(place.file.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with served(Site()) as url, pytest.raises(DownloadFailed, match="another process"):
            fetch(url, place.file)
    finally:
        os.close(lock)


def test_what_was_complete_already_is_only_verified(place: Place) -> None:
    site = Site(cuts=[HALF])
    with served(site) as url, pytest.raises(DownloadFailed):
        fetch(url, place.file, sha256=SHA256, pauses_s=())
    place.file.with_name("data.bin.partial").write_bytes(CONTENT)
    fetch(url, place.file, sha256=SHA256, pauses_s=())
    assert place.file.read_bytes() == CONTENT


def test_the_beginning_of_another_file_is_not_gone_on_with(place: Place) -> None:
    site = Site(content=OTHER, cuts=[HALF])
    with served(site) as url:
        with pytest.raises(DownloadFailed):
            fetch(f"{url}?old", place.file, pauses_s=())
        site.content = CONTENT
        fetch(url, place.file, sha256=SHA256, pauses_s=())
    assert "Range" not in site.asked[1]


def test_a_note_that_cannot_be_read_means_to_begin_again(place: Place) -> None:
    place.file.parent.mkdir()
    place.file.with_name("data.bin.partial").write_bytes(b"leftover")
    place.file.with_name("data.bin.partial.json").write_text("{")
    with served(Site()) as url:
        fetch(url, place.file, sha256=SHA256)
    assert place.file.read_bytes() == CONTENT


def test_fetching_imports_no_slow_library() -> None:
    statement = "import sys, timeloom.graph.download; sys.exit(bool({'numba', 'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", statement], check=False).returncode == 0


EVENTS = b"1 2 0\n2 3 5\n3 1 9\n"


def dataset(url: str, sha256: str | None) -> Dataset:
    """Return a dataset of three events."""
    return Dataset(
        name="test:three",
        title="three events",
        edges=(File(name="three.txt", url=url, sha256=sha256),),
        licence="none",
        preset=Ingest(windows=Windows(kind="given")),
        choice="",
    )


@pytest.mark.parametrize("sha256", [hashlib.sha256(EVENTS).hexdigest(), None])
def test_a_dataset_is_fetched_once_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sha256: str | None
) -> None:
    stages: set[str] = set()
    site = Site(content=EVENTS)
    with served(site) as url, monkeypatch.context() as patch:
        patch.setenv("TIMELOOM_CACHE", str(tmp_path / "cache"))
        three = dataset(url, sha256)
        folder = fetch_dataset(three, lambda stage, done, total, rows: stages.add(stage))
        assert fetch_dataset(three) == folder == tmp_path / "cache" / "data" / "test" / "three"
    assert len(site.asked) == 1
    assert stages == {"fetching three.txt" if sha256 else "fetching three.txt, unverified"}
    copy = local_copy(three, folder)
    assert ingest(copy.source, tmp_path / "g", copy.options).num_snapshots == 3


def test_a_dataset_that_is_published_nowhere_is_asked_for_by_name(tmp_path: Path) -> None:
    nowhere = dataset("", None)
    unpublished = Dataset(
        name=nowhere.name, title="", edges=(File(name="three.txt"),), licence="", preset=nowhere.preset, choice=""
    )
    with pytest.raises(DownloadFailed, match=r"three.txt of test:three is published nowhere.*--from PATH"):
        fetch_dataset(unpublished)
