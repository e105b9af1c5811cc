"""Ranks that are slow, and ranks that do not come back: the run goes on, slower or with fewer of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.cli.test_ranks import ROOT, SETS, begun, command, ended, environment, rank_of
from tests.train.small_runs import drift, of_kind, same_bits, saved
from timeloom.cli import run
from timeloom.records import Resumed, Traffic, read

# Python runs this file first, whatever it is to do then.
GONE = """
import os, signal
from pathlib import Path
if os.environ.get("RANK") == "1" and Path(__file__).with_name("gone").exists():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("odd") / "drift")


def undisturbed(graph: Path, out: Path, *given: object, sets: tuple[str, ...]) -> Path:
    """Train without any fault; return the run."""
    done = subprocess.run(
        command(graph, "--out", out, *given, sets=sets), cwd=ROOT, env=environment(), capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def stop_for(rank: psutil.Process, seconds: float) -> None:
    """Stop a rank once, for so long."""
    rank.suspend()
    time.sleep(seconds)
    rank.resume()


def throttle_for(rank: psutil.Process, seconds: float) -> None:
    """Let a rank run for a fifth of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stop_for(rank, 0.04)
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "seconds"), [(stop_for, 20.0), (throttle_for, 8.0)], ids=["stopped", "throttled"])
@pytest.mark.parametrize("system", ["psg", "vertex"])
def test_a_slow_rank_only_slows_the_run(
    graph: Path, tmp_path: Path, system: str, slow: Callable[[psutil.Process, float], None], seconds: float
) -> None:
    out, given = tmp_path / "run", ("--system", system, "--workers", 2)
    sets = (*SETS, "train.epochs=300", "train.save_seconds=0.5")
    with begun(out, graph, "--out", out, *given, sets=sets) as job:
        slow(rank_of(job, 1), seconds)
        code, told = ended(job)
    assert code == 0, told
    plain = undisturbed(graph, tmp_path / "plain", *given, sets=sets)
    assert same_bits(saved(out).tensors, saved(plain).tensors)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["esdg", "vertex"])
def test_a_run_goes_on_without_a_rank_that_does_not_come_back(graph: Path, tmp_path: Path, system: str) -> None:
    """Both systems compute the same with any number of ranks, so what it comes to is that of two."""
    out, given = tmp_path / "run", ("--system", system, "--workers", 2)
    (tmp_path / "sitecustomize.py").write_text(GONE)
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    sets = (*SETS, "train.epochs=60", "train.save_seconds=0", "train.precision=float64")
    more = ("--max-restarts", 3, "--min-workers", 1)
    with begun(out, graph, "--out", out, *given, *more, sets=sets, PYTHONPATH=path) as job:
        (tmp_path / "gone").touch()
        rank_of(job, 1).kill()
        code, told = ended(job)
    assert code == 0, told
    assert "rank 1 was ended by SIGKILL" in told
    assert "rank 1 was ended by SIGKILL (last seen at its start); " in told
    assert "; it does not come back: going on with 1\n" in told
    assert [one["epoch"] for one in of_kind(out, "epoch_ended")] == list(range(60))
    assert sum(isinstance(record, Resumed) for record in read(out)) == 1
    later = {record.rank for record in read(out) if isinstance(record, Traffic) and record.epoch == 59}
    assert later == set(), "one rank alone has no traffic"
    plain = undisturbed(graph, tmp_path / "plain", *given, sets=sets)
    losses, wanted = ([one["loss"] for one in of_kind(path, "epoch_ended")] for path in (out, plain))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


@pytest.mark.slow
def test_a_single_rank_too_ends_with_the_command_that_started_it(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sets = (*SETS, "train.save_seconds=0.5")
    with begun(out, graph, "--out", out, "--system", "psg", "--max-restarts", 1, sets=sets) as job:
        rank = rank_of(job, 0)
        job.kill()
        assert psutil.wait_procs([rank], timeout=10)[1] == []


@pytest.mark.parametrize(("more", "says"), [
    (["--workers", "2", "--min-workers", "3", "--max-restarts", "1"], "min_workers=3 of workers=2"),
    (["--workers", "2", "--min-workers", "1"], "give --max-restarts, too"),
    (["--min-workers", "1"], "give --max-restarts, too"),
])  # fmt: skip
def test_numbers_of_ranks_that_contradict_each_other_are_refused(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert run(["train", str(graph), "--out", str(tmp_path / "run"), "--system", "psg", *more]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
