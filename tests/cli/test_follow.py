"""`timeloom follow`: a process that trains while others append to its graph, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.train.small_runs import same_bits, saved
from timeloom.cli import run
from timeloom.records import Traffic, read
from timeloom.train import checkpoint

SMALL = [
    "--set", "model.hidden=4", "--set", "model.layers=1", "--set", "window.length=3",
    "--set", "live.warmup=0.3", "--set", "live.steps=4", "--set", "train.precision=float64", "--set",
    "train.device=cpu", "--set", "train.threads=1", "--set", "train.save_seconds=0",
]  # fmt: skip
SAMPLED = ["--system", "distdy", "--set", "distdy.fanouts=[3]"]
KNOWN, ALL = 6, 14


def write(path: Path, first: int, last: int) -> str:
    rng = np.random.default_rng(first)
    rows = [
        f"{u},{v},{t * 10 + 1}" for t in range(first, last) for u, v in rng.integers(0, 8 + 2 * t, (15, 2)) if u != v
    ]
    path.write_text("\n".join(["source,target,time", *rows]) + "\n")
    return str(path)


def ingest(tmp_path: Path, name: str) -> str:
    graph = str(tmp_path / name)
    assert run(["ingest", write(tmp_path / "first.csv", 0, KNOWN), "--every", "10", "--out", graph, "--quiet"]) == 0
    return graph


def append(tmp_path: Path, graph: str, first: int, last: int) -> None:
    """Let another process append."""
    command = [
        sys.executable,
        "-m",
        "timeloom",
        "append",
        graph,
        write(tmp_path / f"{first}.csv", first, last),
        "--quiet",
    ]
    subprocess.run(command, check=True, capture_output=True)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-m", "timeloom", "follow", *arguments],
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ends_well(process: subprocess.Popen[bytes]) -> None:
    told = process.communicate(timeout=100)
    assert process.returncode == 0, told


def wait_for(out: Path, epoch: int, process: subprocess.Popen[bytes]) -> None:
    """Wait for a checkpoint after so many snapshots."""
    until = time.monotonic() + 100.0
    while not any(int(name.split("-")[1]) >= epoch for name in checkpoint.names(out / "checkpoints")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "nothing is saved"
        time.sleep(0.02)


def killed_and_gone_on_with(tmp_path: Path, *arguments: str) -> None:
    """Follow a graph that is appended to, kill with SIGKILL twice, go on, and compare with a run left alone."""
    grown, alone = ingest(tmp_path, "alone"), tmp_path / "left-alone"
    for first in range(KNOWN, ALL, 4):
        append(tmp_path, grown, first, first + 4)
    command = [*SMALL, "--quiet", "--poll", "0.05", *arguments]
    ends_well(start(grown, *command, "--out", str(alone), "--until", str(ALL), "--set", f"live.known={KNOWN}"))
    graph, out = ingest(tmp_path, "graph"), tmp_path / "run"
    for place, more in enumerate(range(KNOWN, ALL, 4)):
        process = start(graph, *command, "--out", str(out), "--set", f"live.known={KNOWN}")
        wait_for(out, KNOWN - 2 + 4 * place, process)
        append(tmp_path, graph, more, more + 4)
        wait_for(out, KNOWN + 4 * place, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    last = start(graph, *command, "--out", str(out), "--until", str(ALL), "--set", f"live.known={KNOWN}")
    ends_well(last)
    assert same_bits(saved(out).tensors, saved(alone).tensors)


@pytest.mark.slow
def test_a_follower_that_is_killed_ends_with_the_model_of_one_that_was_not(tmp_path: Path) -> None:
    killed_and_gone_on_with(tmp_path, "--task", "links")


@pytest.mark.slow
def test_two_followers_that_are_killed_end_with_the_model_of_those_that_were_not(tmp_path: Path) -> None:
    killed_and_gone_on_with(tmp_path, *SAMPLED, "--workers", "2")


@pytest.mark.slow
def test_two_processes_of_distdy_learn_what_one_learns(tmp_path: Path) -> None:
    graph = ingest(tmp_path, "graph")
    append(tmp_path, graph, KNOWN, ALL)
    command = ["train", graph, *SMALL, *SAMPLED, "--set", "train.epochs=2", "--quiet"]
    assert run([*command, "--out", str(tmp_path / "one")]) == 0
    two = [
        sys.executable,
        "-m",
        "timeloom",
        *command,
        "--out",
        str(tmp_path / "two"),
        "--workers",
        "2",
        "--check-world",
    ]
    subprocess.run(two, check=True, capture_output=True, timeout=110)
    found, wanted = saved(tmp_path / "two").tensors, saved(tmp_path / "one").tensors
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-11)
    traffic = [record for record in read(tmp_path / "two") if isinstance(record, Traffic)]
    assert all(one.received_bytes["fetch"] > 0 for one in traffic)


def test_a_follower_tells_its_scores_when_nothing_more_arrives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, out = ingest(tmp_path, "graph"), str(tmp_path / "run")
    assert run(["follow", graph, *SMALL, "--out", out, "--idle", "0.05", "--poll", "0.02", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "test" in told
    assert out in told
    # The same command without its settings goes on.
    assert run(["follow", graph, "--out", out, "--idle", "0.05", "--poll", "0.02", "--quiet"]) == 0


@pytest.mark.parametrize(("more", "says"), [
    (["--poll", "0"], "--poll 0"),
    (["--until", "-1"], "--until -1"),
    (["--workers", "2"], "need a system"),
    (["--workers", "2", "--system", "psg"], "use one worker, --system distdy"),
    (["--workers", "2", *SAMPLED, "--model", "tgcn"], "neighbours are sampled for layers of means"),
])  # fmt: skip
def test_what_cannot_be_followed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    graph = ingest(tmp_path, "graph")
    assert run(["follow", graph, "--out", str(tmp_path / "run"), *SMALL, *more]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
