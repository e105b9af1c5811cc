"""`timeloom train --workers`: the same command as several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.train.small_runs import drift, of_kind, saved
from timeloom.cli import run
from timeloom.records import Traffic, read

SMALL = [
    "--model", "gcn_gru", "--set", "model.hidden=4", "--set", "window.length=3", "--set", "train.epochs=2",
    "--set", "train.precision=float64", "--set", "train.device=cpu", "--set", "train.threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph of drifting communities."""
    return drift(tmp_path_factory.mktemp("workers") / "drift", num_snapshots=14)


def train(graph: Path, out: Path, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    command = [sys.executable, "-m", "timeloom", "train", str(graph), *SMALL, "--out", str(out), *more]
    # A launcher of the tests themselves is none of theirs.
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(command, env=clean | environ, capture_output=True, text=True, timeout=110, check=False)


def test_two_processes_learn_what_one_learns_from_the_same_windows(graph: Path, tmp_path: Path) -> None:
    two = train(graph, tmp_path / "two", "--system", "psg", "--workers", "2", "--check-world")
    assert two.returncode == 0, two.stderr
    assert run(["train", str(graph), *SMALL, "--system", "psg", "--set", "window.groups=2", "--quiet", "--out",
                str(tmp_path / "one")]) == 0  # fmt: skip
    for kind, names in (("epoch_ended", ("loss", "nodes", "edges")), ("evaluated", ("scores",))):
        for mine, theirs in zip(of_kind(tmp_path / "two", kind), of_kind(tmp_path / "one", kind), strict=True):
            for name in names:
                ours, wanted = (one[name] if name != "scores" else list(one[name].values()) for one in (mine, theirs))
                np.testing.assert_allclose(ours, wanted, rtol=1e-9)
    found, wanted = saved(tmp_path / "two").tensors, saved(tmp_path / "one").tensors
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-12)


def test_what_ranks_sent_and_waited_for_is_told_at_the_end_and_recorded(graph: Path, tmp_path: Path) -> None:
    told = train(graph, tmp_path / "run", "--system", "psg", "--workers", "2", "--quiet")
    assert told.returncode == 0, told.stderr
    assert "ranks:" in told.stdout
    assert told.stdout.count("test:") == 1, "only the first rank talks"
    traffic = [record for record in read(tmp_path / "run") if isinstance(record, Traffic)]
    assert {(one.rank, one.epoch) for one in traffic} == {(rank, epoch) for rank in (0, 1) for epoch in (0, 1)}
    for one in traffic:
        assert one.sent_bytes["grad"] > 0
        assert one.peak_bytes > 1 << 20


@pytest.mark.parametrize(("more", "says"), [
    (["--workers", "2"], "2 ranks need a system"),
    (["--workers", "2", "--system", "pgs"], "did you mean psg"),
    (["--workers", "2", "--system", "psg", "--set", "window.state=inherit"], "window.state=inherit"),
    (["--workers", "2", "--system", "psg", "--set", "train.protocol=live"], "train.protocol=live"),
    (["--workers", "0", "--system", "psg"], "workers=0"),
    (["--workers", "2", "--system", "psg", "--max-restarts", "-1"], "max_restarts=-1"),
    (["--workers", "2", "--system", "psg", "--resume", "."], "--resume"),
])  # fmt: skip
def test_what_ranks_cannot_do_is_refused_once_and_before_any_starts(
    graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert run(["train", str(graph), *SMALL, "--out", str(tmp_path / "run"), *more]) == 2
    told = capfd.readouterr().err
    assert says in told
    assert told.count("timeloom: ") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_is_not_replaced_by_several_ranks(
    graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("mine")
    assert run(["train", str(graph), *SMALL, "--out", str(tmp_path / "run"), "--system", "psg", "--workers", "2"]) == 2
    assert "will not be replaced" in capfd.readouterr().err


def test_a_rank_of_a_launcher_does_not_start_ranks_of_its_own(graph: Path, tmp_path: Path) -> None:
    seat = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    told = train(graph, tmp_path / "run", "--system", "psg", "--workers", "3", **seat)
    assert told.returncode == 2
    assert "--workers 3 starts ranks" in told.stderr


def test_systems_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["systems"]) == 0
    assert capsys.readouterr().out.startswith("psg ")
