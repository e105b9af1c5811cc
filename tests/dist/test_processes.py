"""What a world of processes promises beyond what all worlds do: who is missing is said, and nothing is left behind."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from timeloom.dist.launch import Launch, Outcome, supervise
from timeloom.errors import LostRank, RanksDiffer

ROOT = Path(__file__).resolve().parents[2]


def launch(what: str, folder: Path, *, workers: int, max_restarts: int = 0, grace_s: float = 5.0) -> Outcome:
    command = (sys.executable, "-m", "tests.dist.worker", what, str(folder))
    return supervise(Launch(command=command, workers=workers, max_restarts=max_restarts, grace_s=grace_s))


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def told(folder: Path, rank: int) -> str:
    return (folder / f"told{rank}").read_text()


@pytest.mark.parametrize(("workers", "check"), [(3, False), pytest.param(2, True, marks=pytest.mark.slow)])
def test_processes_do_what_all_worlds_do(
    workers: int, check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if check:
        monkeypatch.setenv("TEST_CHECK", "1")
    assert launch("scenarios", tmp_path, workers=workers) == Outcome(0, "", 1)
    assert {path.name for path in tmp_path.iterdir()} == {f"done{rank}" for rank in range(workers)}


@pytest.mark.slow
def test_the_first_rank_too_is_gone_on_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It met the others once; when it dies at its next start, nobody is told where it was seen before that."""
    script = '[ "$RANK$TORCHELASTIC_RESTART_COUNT" = 01 ] && kill -KILL $$; exec "$@"'
    rank = ("sh", "-c", script, "sh", sys.executable, "-m", "tests.dist.worker", "recovering", str(tmp_path))
    assert supervise(Launch(command=rank, workers=2, max_restarts=3, min_workers=1)) == Outcome(0, "", 3)
    assert "rank 1 was ended by SIGKILL (last seen at grad/step 5)" in caplog.messages[0]
    assert "rank 0 was ended by SIGKILL (last seen at its start)" in caplog.messages[1]
    assert caplog.messages[1].endswith("it does not come back: going on with 1")


@pytest.mark.slow
def test_a_killed_rank_is_named_by_the_others_and_by_the_launcher(tmp_path: Path) -> None:
    outcome = launch("killed", tmp_path, workers=3)
    assert outcome == Outcome(137, "rank 1 was ended by SIGKILL (last seen at grad/step 5)", 1)
    for rank in (0, 2):
        assert told(tmp_path, rank) == (
            "LostRank: rank 1 has not reached halo/layer0/step 5 (last seen at grad/step 5; "
            "its process does not answer) (the connection was lost)"
        )


@pytest.mark.slow
@pytest.mark.parametrize(("what", "life"), [("stopped", "does not answer"), ("stuck", "is alive")])
def test_a_rank_that_does_not_come_is_named_within_the_limit(
    what: str, life: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_LIMIT_S", "3")
    began = time.monotonic()
    outcome = launch(what, tmp_path, workers=3, grace_s=3.0)
    assert outcome.code == LostRank.exit_code
    assert outcome.told.endswith("rank 1 did not end and had to be killed")
    for rank in (0, 2):
        assert told(tmp_path, rank) == (
            f"LostRank: rank 1 has not reached halo/layer0/step 5 (last seen at grad/step 5; its process {life}) "
            "(waited 3 s)"
        )
    assert time.monotonic() - began < 60


@pytest.mark.slow
def test_a_rank_that_fails_says_why_through_the_others_too(tmp_path: Path) -> None:
    outcome = launch("raising", tmp_path, workers=3, max_restarts=3)
    # Started again it would read the same row: one attempt.
    assert outcome == Outcome(3, "rank 1 ended with exit code 3 (last seen at grad/step 5)", 1)
    for rank in (0, 2):
        assert told(tmp_path, rank) == (
            "LostRank: rank 1 failed at grad/step 5: BadInput: row 7 is broken (the connection was lost)"
        )


@pytest.mark.slow
def test_a_rank_that_leaves_too_early_is_named(tmp_path: Path) -> None:
    outcome = launch("leaving", tmp_path, workers=2)
    assert outcome.code == LostRank.exit_code
    assert told(tmp_path, 0).startswith(
        "LostRank: rank 1 has not reached halo/layer0/step 5 (last seen at grad/step 5;"
    )


@pytest.mark.slow
def test_fingerprints_find_swapped_reductions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CHECK", "1")
    outcome = launch("differing", tmp_path, workers=2)
    assert outcome.code == RanksDiffer.exit_code
    assert told(tmp_path, 0) == told(tmp_path, 1)
    assert "rank 0 is at grad/a (all_reduce sum torch.float32 (3,), its call 1 of the group)" in told(tmp_path, 0)
    assert "rank 1 is at grad/b (all_reduce sum torch.float32 (3,), its call 1 of the group)" in told(tmp_path, 0)


@pytest.mark.slow
def test_all_ranks_are_started_again_under_a_new_prefix(tmp_path: Path) -> None:
    assert launch("recovering", tmp_path, workers=2, max_restarts=2) == Outcome(0, "", 2)
    assert (tmp_path / "done0").exists()
    assert (tmp_path / "done1").exists()


@pytest.mark.slow
def test_restarts_end(tmp_path: Path) -> None:
    outcome = launch("killed", tmp_path, workers=2, max_restarts=1)
    assert (outcome.code, outcome.attempts) == (137, 2)


@pytest.mark.slow
def test_a_process_leaves_a_world_and_joins_another(tmp_path: Path) -> None:
    assert launch("twice", tmp_path, workers=2).code == 0


@pytest.mark.slow
def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    assert launch("listening", tmp_path, workers=2).code == 0
    for rank in range(2):
        found = (tmp_path / f"listening{rank}").read_text().split()
        assert found, "the store and the ranks listen somewhere"
        assert set(found) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


LAUNCHER = """
import sys
from pathlib import Path
from tests.dist.test_processes import launch
from timeloom.dist.world import end_process
outcome = launch(sys.argv[1], Path(sys.argv[2]), workers=2)
print(outcome.told, flush=True)
end_process(outcome.code)
"""


def started(what: str, folder: Path, files: str) -> subprocess.Popen[str]:
    """Start a launcher of two workers as a process of its own, and wait until both have made a file."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, what, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 60
    while not all((folder / f"{files}{rank}").exists() for rank in range(2)):
        assert time.monotonic() < until
        time.sleep(0.05)
    return launcher


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_reaches_every_rank(number: signal.Signals, tmp_path: Path) -> None:
    with started("asked_to_stop", tmp_path, "ready") as launcher:
        launcher.send_signal(number)
        launcher.communicate(timeout=60)
    if number == signal.SIGTERM:
        assert launcher.returncode == 75
        assert (tmp_path / "stopped0").read_text() == (tmp_path / "stopped1").read_text()
    else:
        assert launcher.returncode == 1
        assert told(tmp_path, 0).startswith("KeyboardInterrupt")


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path: Path) -> None:
    with started("asked_to_stop", tmp_path, "ready") as launcher:
        workers = psutil.Process(launcher.pid).children()
        workers[1].terminate()
        launcher.communicate(timeout=60)
    assert launcher.returncode == 75
    assert (tmp_path / "stopped0").read_text() == (tmp_path / "stopped1").read_text()


@pytest.mark.slow
def test_no_rank_outlives_a_killed_launcher(tmp_path: Path) -> None:
    with started("waiting", tmp_path, "pid") as launcher:
        workers = [psutil.Process(int((tmp_path / f"pid{rank}").read_text())) for rank in range(2)]
        launcher.kill()
        launcher.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=10)
    for worker in alive:
        worker.kill()
    assert not alive


def torchrun(folder: Path, what: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *options, "--nproc-per-node", "2"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "tests.dist.worker", what, str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


@pytest.mark.slow
def test_the_same_command_joins_under_torchrun_and_after_its_restarts(tmp_path: Path) -> None:
    ended = torchrun(tmp_path, "recovering", "--max-restarts", "1")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "done0").exists()
    assert (tmp_path / "done1").exists()


@pytest.mark.slow
def test_the_same_command_joins_under_slurm(tmp_path: Path) -> None:
    """As srun leaves the environment; rank 0 serves the store, on the one address where the ranks meet."""
    step = {
        "SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0",
        "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.dist.worker", "listening", str(tmp_path)],
            cwd=ROOT, env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert set((tmp_path / "listening0").read_text().split()) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_no_collective_pickles() -> None:
    """Names of torch.distributed that pickle, and the module itself, appear nowhere."""
    for path in (ROOT / "src/timeloom/dist").glob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)
                  for alias in node.names}  # fmt: skip
        assert not [name for name in names if "object" in name or "pickle" in name or "rpc" in name]
