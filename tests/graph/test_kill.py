"""Killed at any moment, a graph is the old one or the new one; asked to end, a writer leaves no trace."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.damage import contents
from tests.graph.reference import Edges, stored
from timeloom import cli
from timeloom.graph.append import Append, append
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.ingest.build import Builder
from timeloom.graph.ingest.gather import Gatherer
from timeloom.graph.ingest.rules import Budget
from timeloom.graph.store import MANIFEST, ArrayWriter, Store

GIVEN = Windows(kind="given")
OLD = {"source": [0, 1, 2], "target": [1, 2, 0], "time": [0, 1, 2]}
NEW = {"source": [5, 1, 7], "target": [1, 2, 0], "time": [5, 6, 7]}
LATER = {"source": [1], "target": [2], "time": [9_000_000]}


def do(graph: Path, work: str) -> None:
    if work == "append":
        append(graph, NEW, Append())
    else:
        ingest(NEW, graph, Ingest(windows=GIVEN, overwrite=work == "overwrite"))


def prepare(graph: Path, files: dict[str, bytes] | None) -> None:
    """Put a folder back as it was (None: there was none)."""
    shutil.rmtree(graph, ignore_errors=True)
    if files is not None:
        graph.mkdir(parents=True)
        for name, data in files.items():
            (graph / name).write_bytes(data)


def first_graph(graph: Path, work: str) -> dict[str, bytes] | None:
    """Make what the work begins with, and return its files."""
    if work == "ingest":
        return None
    ingest(OLD, graph, Ingest(windows=GIVEN, life=2))
    return contents(graph)


def found_in(graph: Path) -> list[Edges] | None:
    """Return the snapshots of a sound graph (None: there is none)."""
    if not (graph / MANIFEST).exists():
        return None
    assert list(check(graph)) == []
    return stored(open_graph(graph))


CALLS = [(os, name) for name in ("fsync", "replace", "unlink", "rmdir", "open", "mkdir")] + [(fcntl, "flock")]
MORE_CALLS = [*CALLS, (os, "write"), (os, "ftruncate"), (ArrayWriter, "_write")]


def killed_at_call(graph: Path, work: str, fatal: int, calls: list[tuple[Any, str]]) -> bool:
    """Do the work in a process that kills itself at the n-th of these calls; say whether it came to that."""
    child = os.fork()
    if child == 0:
        count = 0

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **named)

            return wrapped

        for home, name in calls:
            setattr(home, name, counted(getattr(home, name)))
        try:
            do(graph, work)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def killed_at_every_call(tmp_path: Path, work: str, calls: list[tuple[Any, str]]) -> None:
    graph = tmp_path / "g"
    first = first_graph(graph, work)
    old = found_in(graph)
    do(graph, work)
    new = found_in(graph)
    assert old != new
    prepare(graph, first)
    seen, fatal = set(), 1
    while killed_at_call(graph, work, fatal, calls):
        found = found_in(graph)
        assert found in (old, new)
        seen.add(found == new)
        if found is None:
            ingest(OLD, graph, Ingest(windows=GIVEN))
            found = found_in(graph)
        append(graph, LATER, Append())
        kept = {entry["file"] for entry in Store(graph).manifest["arrays"].values()}
        assert {path.name for path in graph.iterdir()} == {MANIFEST, ".lock", *kept}
        assert stored(open_graph(graph))[:-1] == found
        prepare(graph, first)
        fatal += 1
    assert found_in(graph) == new, "the last run was not killed and did all its work"
    assert fatal > 15
    assert seen == {True, False}


@pytest.fixture
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("work", ["append", "overwrite", "ingest"])
def test_killed_at_every_call_that_changes_the_folder(tmp_path: Path, work: str) -> None:
    killed_at_every_call(tmp_path, work, CALLS)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_waiting")
@pytest.mark.parametrize("work", ["append", "overwrite", "ingest"])
def test_killed_at_every_call_that_writes_where_there_are_scratch_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr(Budget, "share", lambda self, part: 16 if part != 0.25 else 4000)
    killed_at_every_call(tmp_path, work, MORE_CALLS)


def put_table(path: Path, first: int) -> Path:
    """Write a table of a hundred snapshots."""
    rng = np.random.default_rng(first)
    rows = rng.integers(0, 3000, (8_000, 2)).tolist()
    path.write_text("".join(f"{u},{v},{first + place // 80}\n" for place, (u, v) in enumerate(rows)))
    return path


def killed_at_random(tmp_path: Path, times: int) -> None:
    """Kill `timeloom append` and `timeloom ingest --overwrite` after delays spread over the time they take."""
    graph, early, late = tmp_path / "g", put_table(tmp_path / "a.csv", 0), put_table(tmp_path / "b.csv", 1000)
    ingest(early, graph, Ingest(windows=GIVEN))
    whole = contents(graph)
    works = [["append", str(graph), str(late)], ["ingest", str(late), "--out", str(graph), "--overwrite", "--as-given"]]
    for work in works:
        began = time.monotonic()
        assert cli.run([*work, "--quiet", "--json"]) == 0
        lasts, done = time.monotonic() - began, found_in(graph)
        seen = set()
        for delay in np.linspace(0, 1.2 * lasts, times):
            prepare(graph, whole)
            before = found_in(graph)
            assert before != done
            child = os.fork()
            if child == 0:
                os.close(1)
                cli.run([*work, "--quiet", "--json"])
                os._exit(0)
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found = found_in(graph)
            assert found in (before, done)
            seen.add(found == done)
            append(graph, LATER, Append())
            assert Store(graph).leftovers() == []
            assert (found_in(graph) or [])[:-1] == found
        assert False in seen
        prepare(graph, whole)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 13)


@pytest.mark.slow
def test_killed_at_many_random_moments(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 100)


def wait(*arguments: object, **named: object) -> None:
    """Say that the moment has come, and wait."""
    os.write(1, b"here\n")
    time.sleep(60)


MOMENTS = {"gather": (Gatherer, "_take"), "build": (Builder, "build"), "commit": (os, "fsync")}


def command_in_child(arguments: list[str], moment: str, said: Path) -> int:
    """Run a command in a process that waits at a moment; return the process once it waits."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(there, 1)
        sys.argv, sys.stderr = ["timeloom", *arguments], said.open("w", buffering=1)
        setattr(*MOMENTS[moment], wait)
        try:
            cli.main()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(99)
    os.close(there)
    with os.fdopen(here) as pipe:
        assert pipe.readline() == "here\n"
    return child


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("work", ["append", "overwrite", "ingest"])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_asked_to_end_changes_nothing(
    tmp_path: Path, work: str, moment: str, sent: signal.Signals, code: int
) -> None:
    graph, table, said = tmp_path / "folder" / "g", put_table(tmp_path / "b.csv", 1000), tmp_path / "said"
    before = first_graph(graph, work)
    arguments = ["append", str(graph), str(table)]
    if work != "append":
        arguments = ["ingest", str(table), "--out", str(graph), "--as-given", *["--overwrite"] * (work == "overwrite")]
    child = command_in_child([*arguments, "--quiet"], moment, said)
    os.kill(child, sent)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == code
    word = "terminated" if code == 143 else "interrupted"
    assert said.read_text() == f"timeloom: {word}; what is on disk is whole: as it was before, or as it was to be\n"
    assert (contents(graph) if graph.exists() else None) == before
    assert (tmp_path / "folder").exists() == (before is not None)
