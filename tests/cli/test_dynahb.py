"""`timeloom train --system dynahb` and its baselines, as one process and as several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.small_runs import drift, of_kind, saved
from timeloom.cli import run
from timeloom.records import Averaged, read

SMALL = [
    "--set", "model.hidden=4", "--set", "train.precision=float64", "--set", "train.device=cpu", "--set",
    "train.threads=1", "--set", "hybrid.cache_mib=64",
]  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph of drifting communities."""
    return drift(tmp_path_factory.mktemp("dynahb") / "drift", num_snapshots=14)


def command(graph: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "timeloom", "train", str(graph), *SMALL, "--out", str(out), *more]


def train(graph: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        command(graph, out, *more), env=clean, capture_output=True, text=True, timeout=110, check=False
    )  # fmt: skip


def rounds_of(path: Path) -> list[tuple[float, ...]]:
    """Return what no clock changes of a run's rounds."""
    return [
        (one.epoch, one.step, one.snapshots, one.nodes, *one.steps, one.loss)
        for one in read(path)
        if isinstance(one, Averaged)
    ]


@pytest.mark.parametrize("system", ["dynahb", "pyd", "dbov", "dbos", "bvr", "adt"])
def test_every_system_of_the_paper_trains_alone(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], system: str
) -> None:
    out = str(tmp_path / "run")
    more = ["--system", system, "--set", "train.epochs=2", "--quiet", "--out", out]
    # ADT has no batches, so it takes no [hybrid].
    chosen = SMALL[:-2] if system == "adt" else SMALL
    assert run(["train", str(graph), *chosen, *more]) == 0, capsys.readouterr().err
    assert run(["evaluate", out]) == 0
    assert run(["predict", out, "--out", str(tmp_path / "next.parquet")]) == 0
    (tested,) = of_kind(tmp_path / "run", "evaluated", split="test")
    told = capsys.readouterr().out
    assert f"{tested['scores']['mse']:.4f}" in told.split("test:")[2], "evaluate says what training said"


def test_a_model_that_no_cache_serves_is_refused_before_a_rank_starts(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for workers in ("1", "2"):
        code = run(["train", str(graph), "--system", "dynahb", "--model", "dcrnn", "--workers", workers, "--out",
                    str(tmp_path / "run")])  # fmt: skip
        assert code == 2
        assert "model dcrnn with system.name=dynahb: it convolves its state" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--set", "hybrid.sync=overlapped"], ["--set", "hybrid.sync=allreduce"]])
def test_processes_that_train_apart_meet_and_end_together(graph: Path, tmp_path: Path, more: list[str]) -> None:
    told = train(graph, tmp_path / "run", "--system", "dynahb", "--workers", "2", "--check-world", "--quiet", "--set",
                 "train.epochs=3", *more)  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "ranks:" in told.stdout
    rounds = rounds_of(tmp_path / "run")
    assert all(sum(one[place] for one in rounds) > 0 for place in (4, 5))
    assert {one["rank"] for one in map(vars_of, read(tmp_path / "run")) if one["kind"] == "traffic"} == {0, 1}


def vars_of(record: object) -> dict[str, object]:
    return {"kind": record.kind, "rank": getattr(record, "rank", -1)}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_full_batch_on_two_processes_is_that_of_one(graph: Path, tmp_path: Path) -> None:
    more = ["--system", "pyd", "--set", "train.epochs=4", "--quiet"]
    for name, extra in (("one", []), ("two", ["--workers", "2"])):
        told = train(graph, tmp_path / name, *more, *extra)
        assert told.returncode == 0, told.stderr
    for kind in ("epoch_ended", "evaluated"):
        for mine, theirs in zip(of_kind(tmp_path / "two", kind), of_kind(tmp_path / "one", kind), strict=True):
            ours, wanted = ((one["loss"] if "loss" in one else one["scores"]["mse"]) for one in (mine, theirs))
            np.testing.assert_allclose(ours, wanted, rtol=1e-9)


@pytest.mark.slow
def test_processes_that_are_stopped_go_on_to_the_same_rounds(graph: Path, tmp_path: Path) -> None:
    sets = (
        "train.epochs=12",
        "train.patience=0",
        "hybrid.sync=allreduce",
        "hybrid.builders=0",
        "hybrid.adjuster=random",
    )
    more = ["--system", "dynahb", "--workers", "2", "--quiet", *(part for one in sets for part in ("--set", one))]
    assert train(graph, tmp_path / "whole", *more).returncode == 0
    process = subprocess.Popen(command(graph, tmp_path / "run", *more), stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 100
    while time.monotonic() < limit and process.poll() is None:
        records = tmp_path / "run" / "records.jsonl"
        if records.exists() and b'"averaged"' in records.read_bytes():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 75, told
    assert 0 < len(rounds_of(tmp_path / "run")) < len(rounds_of(tmp_path / "whole"))
    again = subprocess.run(
        [sys.executable, "-m", "timeloom", "train", "--resume", str(tmp_path / "run"), "--workers", "2", "--quiet"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert rounds_of(tmp_path / "run") == rounds_of(tmp_path / "whole")
    mine, theirs = saved(tmp_path / "run").tensors, saved(tmp_path / "whole").tensors
    assert all(torch.equal(mine[name], value) for name, value in theirs.items() if name.startswith(("now/", "best/")))
