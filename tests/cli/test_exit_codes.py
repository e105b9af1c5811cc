"""Every command ends with the exit code that docs/reliability.md gives; here each of them is seen once, end to end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.report.fake import Fake
from tests.train.small_runs import drift
from timeloom import errors
from timeloom.cli import run
from timeloom.graph import download
from timeloom.records import RunDirectory

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
QUICK = ["--set", "model.name=gcn_gru", "--set", "model.hidden=4", "--set", "window.length=3", "--set",
         "train.threads=1", "--set", "train.device=cpu", "--quiet"]  # fmt: skip


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return drift(tmp_path / "graph")


def start(*arguments: object, **environ: str) -> subprocess.Popen[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-m", "timeloom", *map(str, arguments)], env={**clean, "OMP_NUM_THREADS": "1", **environ},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return how a command ended, and what it said."""
    try:
        _, told = process.communicate(timeout=90)
    finally:
        process.kill()
    return process.returncode, told


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def seat(rank: int, port: str) -> dict[str, str]:
    """Return what a launcher of two ranks leaves in the environment."""
    return {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip


def watching(tmp_path: Path, number: int) -> int:
    """Return how a command ends that watches a run, and is sent a signal."""
    path = Fake(epochs=1, ended=False).make(tmp_path / "watched")
    with RunDirectory.open(path):
        process = start("report", path, "--watch", "--every", "0.1")
        limit = time.monotonic() + 60
        while not (path / "report.html").exists() and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(number)
        code, told = ended(process)
    assert "what is on disk is whole" in told
    assert "Traceback" not in told
    return code


def all_is_well(graph: Path, tmp_path: Path) -> int:
    return run(["check", str(graph)])


def something_else(graph: Path, tmp_path: Path) -> int:
    # Nothing can be written to a file that was opened for reading.
    with (tmp_path / "o").open("w"), (tmp_path / "o").open() as closed:
        process = subprocess.run(
            [sys.executable, "-m", "timeloom", "info", str(graph)], stdout=closed, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert process.stderr in [f"timeloom: {what}: Bad file descriptor\n" for what in ("the output", "the system")]
    return process.returncode


def an_option(graph: Path, tmp_path: Path) -> int:
    return run(["train", str(graph), "--out", str(tmp_path / "r"), "--set", "model.hiden=3"])


def a_source(graph: Path, tmp_path: Path) -> int:
    (tmp_path / "e.csv").write_text("source,target,time\n1,2,3\n1,2,x\n")
    return run(["ingest", str(tmp_path / "e.csv"), "--as-given", "--out", str(tmp_path / "g"), "--quiet"])


def a_graph(graph: Path, tmp_path: Path) -> int:
    return run(["info", str(tmp_path / "none")])


def memory(graph: Path, tmp_path: Path) -> int:
    return run(["train", str(graph), "--out", str(tmp_path / "r"), "--memory", "1MiB", *QUICK])


def a_download(graph: Path, tmp_path: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        # A proxy that nobody serves: no connection is even tried.
        for name in ("http_proxy", "https_proxy"):
            patch.setenv(name, f"http://127.0.0.1:{free_port()}")
        patch.setenv("TIMELOOM_CACHE", str(tmp_path / "cache"))
        patch.setattr(download.fetch, "__kwdefaults__", {**(download.fetch.__kwdefaults__ or {}), "pauses_s": ()})
        return run(["ingest", "snap:CollegeMsg", "--every", "1d", "--out", str(tmp_path / "g"), "--quiet"])


def a_loss(graph: Path, tmp_path: Path) -> int:
    wild = ["optim.name=sgd", "optim.rate=99", "optim.clip=0", "train.epochs=200", "train.patience=0"]
    sets = [word for one in wild for word in ("--set", one)]
    return run(["train", str(graph), "--out", str(tmp_path / "r"), *QUICK, *sets])


def a_rank_that_does_not_come(graph: Path, tmp_path: Path) -> int:
    arguments = ["train", graph, "--out", tmp_path / "r", "--system", "psg", "--set", "world.first_seconds=2", *QUICK]
    code, told = ended(start(*arguments, **seat(1, free_port())))
    assert "could not meet the others" in told
    return code


def ranks_that_differ(graph: Path, tmp_path: Path) -> int:
    arguments = ["train", graph, "--out", tmp_path / "r", "--system", "psg", *QUICK]
    port = free_port()
    both = [start(*arguments, "--set", f"train.seed={rank}", **seat(rank, port)) for rank in range(2)]
    codes = [ended(process)[0] for process in both]
    assert codes[0] == codes[1]
    return codes[0]


def a_run_that_is_stopped(graph: Path, tmp_path: Path) -> int:
    process = start("train", graph, "--out", tmp_path / "r", *QUICK, "--set", "train.epochs=100000", "--set",
                    "train.patience=0", "--set", "train.save_seconds=0")  # fmt: skip
    limit = time.monotonic() + 60
    while not list((tmp_path / "r").glob("checkpoints/epoch-*")) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, told = ended(process)
    assert f"go on with 'timeloom train --resume {tmp_path / 'r'}'" in told
    return code


def an_interrupt(graph: Path, tmp_path: Path) -> int:
    return watching(tmp_path, signal.SIGINT)


def a_termination(graph: Path, tmp_path: Path) -> int:
    return watching(tmp_path, signal.SIGTERM)


CASES: dict[str, Callable[[Path, Path], int]] = {
    "0": all_is_well, "1": something_else, "2": an_option, "3": a_source, "4": a_graph, "5": memory, "6": a_download,
    "7": a_loss, "8": a_rank_that_does_not_come, "9": ranks_that_differ, "75": a_run_that_is_stopped,
    "130": an_interrupt, "143": a_termination,
}  # fmt: skip


@pytest.mark.parametrize("code", CASES)
def test_each_exit_code_is_what_the_table_says(graph: Path, tmp_path: Path, code: str) -> None:
    assert CASES[code](graph, tmp_path) == int(code)


def documented() -> dict[str, str]:
    """Return the table of exit codes of the page, each with what it says."""
    section = DOCS.read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| ([0-9]+) \| (.+?) \|$", section, re.MULTILINE))


def test_the_table_is_whole() -> None:
    kinds = [errors.TimeloomError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    table = documented()
    assert {*table} == {*CASES}
    assert {str(kind.exit_code) for kind in kinds} <= {*table}
    for kind in kinds:
        assert f"`{kind.__name__}`" in table[str(kind.exit_code)], kind.__name__
