"""Killed at any moment, a graph is the old one or the new one, and never a third."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.reference import stored
from timeloom.graph.append import Append, append
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.store import Store

GIVEN = Windows(kind="given")
OLD = {"source": [0, 1, 2], "target": [1, 2, 0], "time": [0, 1, 2]}
NEW = {"source": [5, 1, 7], "target": [1, 2, 0], "time": [5, 6, 7]}


def do(graph: Path, work: str) -> None:
    if work == "append":
        append(graph, NEW, Append())
    else:
        ingest(NEW, graph, Ingest(windows=GIVEN, overwrite=True))


def killed_at_call(graph: Path, work: str, fatal: int) -> bool:
    """Do the work in a process that kills itself at its n-th call that touches the disk; say if it came to that."""
    child = os.fork()
    if child == 0:
        count = 0

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*arguments: object) -> Any:
                nonlocal count
                count += 1
                if count == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments)

            return wrapped

        for name in ("fsync", "replace", "unlink", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            do(graph, work)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def fresh(folder: Path) -> Path:
    ingest(OLD, folder, Ingest(windows=GIVEN, life=2, overwrite=True))
    return folder


@pytest.mark.parametrize("work", ["append", "overwrite"])
def test_killed_at_every_call_that_touches_the_disk(tmp_path: Path, work: str) -> None:
    old = stored(open_graph(fresh(tmp_path / "g")))
    do(fresh(tmp_path / "whole"), work)
    new = stored(open_graph(tmp_path / "whole"))
    assert old != new
    seen, fatal = set(), 1
    graph = fresh(tmp_path / "g")
    while killed_at_call(graph, work, fatal):
        assert list(check(graph)) == []
        found = stored(open_graph(graph))
        assert found in (old, new)
        seen.add(found == new)
        append(graph, {"source": [1], "target": [2], "time": [90]}, Append())
        assert Store(graph).leftovers() == []
        assert stored(open_graph(graph))[:-1] == found
        graph, fatal = fresh(tmp_path / "g"), fatal + 1
    assert stored(open_graph(graph)) == new, "the last run was not killed and did all its work"
    assert fatal > 15
    assert seen == {True, False}


def killed_at_random(tmp_path: Path, times: int) -> None:
    """Kill a real `timeloom append` after random delays, and look at what is left."""
    rng = np.random.default_rng(0)
    path, rows = tmp_path / "g", rng.integers(0, 3000, (200_000, 2))
    ingest(
        {"source": rows[:, 0], "target": rows[:, 1], "time": np.arange(200_000) // 2000}, path, Ingest(windows=GIVEN)
    )
    np.savetxt(
        tmp_path / "more.csv", np.column_stack([rows, 1000 + np.arange(200_000) // 2000]), fmt="%d", delimiter=","
    )
    command = [sys.executable, "-m", "timeloom", "append", str(path), str(tmp_path / "more.csv"), "--quiet"]
    whole = {file.name: file.read_bytes() for file in path.iterdir()}
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    lasts = time.monotonic() - began
    counts = {100: 0, 200: 0}
    for delay in rng.uniform(0.2 * lasts, 1.1 * lasts, times):
        for file in path.iterdir():
            file.unlink()
        for name, data in whole.items():
            (path / name).write_bytes(data)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
        assert list(check(path)) == []
        counts[len(open_graph(path))] += 1
    assert sum(counts.values()) == times


def test_killed_at_random_moments(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 8)


@pytest.mark.slow
def test_killed_at_many_random_moments(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 200)
