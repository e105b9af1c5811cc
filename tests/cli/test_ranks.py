"""`timeloom train --workers`: what a person sees where a rank dies, hangs or fails, and how a run goes on after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.train.small_runs import drift, of_kind, same_bits, saved
from timeloom.cli import run
from timeloom.errors import Interrupted, LostRank
from timeloom.records import is_run
from timeloom.train import checkpoint

ROOT = Path(__file__).resolve().parents[2]
# So many epochs that a run is still on when something happens to it.
SETS = (
    "model.name=gcn_gru", "model.hidden=4", "window.length=3", "train.threads=1", "train.patience=0",
    "train.epochs=20000", "train.device=cpu", "train.validate_every=5",
)  # fmt: skip
OWN_MODEL = """
import os
from pathlib import Path
from timeloom.nn.gcn_gru import GcnGru
from timeloom.kernels.norms import Norm


class Failing(GcnGru):
    def __init__(self, num_in, settings):
        super().__init__(num_in, settings.hidden, Norm("sym", True))

    def cell(self):
        if os.environ.get("RANK") == "1" and Path(__file__).with_name("fail").exists():
            raise ValueError("a mistake of one's own")
        return super().cell()
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("ranks") / "drift")


def command(*arguments: object, sets: tuple[str, ...] = ()) -> list[str]:
    chosen = [word for one in sets for word in ("--set", one)]
    return [sys.executable, "-m", "timeloom", "train", *map(str, arguments), "--quiet", *chosen]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}


@contextmanager
def begun(
    out: Path, *arguments: object, sets: tuple[str, ...] = (), saves: bool = True, **environ: str
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """Start a run and wait until it has made some epochs, and a checkpoint where it saves on the way."""
    with subprocess.Popen(
        command(*arguments, sets=sets), cwd=ROOT, env=environment() | environ, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            until = time.monotonic() + 90
            while not is_under_way(out, saves=saves):
                assert job.poll() is None, job.communicate()[1]
                assert time.monotonic() < until, "the run does not begin"
                time.sleep(0.05)
            yield job
        finally:
            for one in psutil.Process(job.pid).children() if job.poll() is None else ():
                one.kill()
            job.kill()


def is_under_way(out: Path, *, saves: bool) -> bool:
    if not is_run(out) or (saves and not checkpoint.names(out / "checkpoints")):
        return False
    return (out / "records.jsonl").read_text().count('"epoch_ended"') > 3


def rank_of(job: subprocess.Popen[str], rank: int) -> psutil.Process:
    return next(one for one in psutil.Process(job.pid).children() if one.environ().get("RANK") == str(rank))


def ended(job: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and what was said, of a run that must end soon."""
    _, told = job.communicate(timeout=150)
    return job.returncode, told


@pytest.mark.slow
@pytest.mark.parametrize("system", ["psg", "esdg"])
def test_a_killed_rank_is_named_and_all_end(graph: Path, system: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with begun(
        out, graph, "--out", out, "--system", system, "--workers", 2, sets=(*SETS, "train.save_seconds=0")
    ) as job:
        rank_of(job, 1).kill()
        code, told = ended(job)
    assert code == 137
    assert "timeloom: rank 1 was ended by SIGKILL (last seen at " in told
    assert "timeloom: rank 1 has not reached " in told or "timeloom: rank 1 was lost in " in told


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_within_the_limit(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    sets = (*SETS, "train.save_seconds=0", "world.step_seconds=5")
    with begun(out, graph, "--out", out, "--system", "psg", "--workers", 2, sets=sets) as job:
        rank_of(job, 1).suspend()
        began = time.monotonic()
        code, told = ended(job)
    assert time.monotonic() - began < 30
    assert code == LostRank.exit_code
    assert "timeloom: rank 1 has not reached " in told
    assert "its process does not answer) (waited 5 s)" in told
    assert "rank 1 did not end and had to be killed" in told


@pytest.mark.slow
def test_a_rank_that_fails_says_why_and_so_do_the_others(graph: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "run", tmp_path / "own.py"
    model.write_text(OWN_MODEL)
    sets = (*SETS[1:], "train.save_seconds=0", f"model.name={model}:Failing")
    with begun(out, graph, "--out", out, "--system", "psg", "--workers", 2, sets=sets) as job:
        (tmp_path / "fail").touch()
        code, told = ended(job)
    assert code == 1
    assert "ValueError: a mistake of one's own" in told
    assert "timeloom: rank 1 failed at " in told, "the other rank tells it, too"
    assert "timeloom: rank 1 ended with exit code 1 (last seen at " in told


@pytest.mark.slow
@pytest.mark.parametrize(("system", "window"), [("psg", "zero"), ("esdg", "inherit")])
def test_a_run_is_started_again_by_itself_and_ends_as_if_undisturbed(
    graph: Path, system: str, window: str, tmp_path: Path
) -> None:
    sets = (*SETS, "train.epochs=30", "train.save_seconds=0.05", f"window.state={window}", "window.stride=0")
    out, plain = tmp_path / "run", tmp_path / "plain"
    given = ("--system", system, "--workers", 2)
    with begun(out, graph, "--out", out, *given, "--max-restarts", 1, sets=sets) as job:
        rank_of(job, 1).kill()
        code, told = ended(job)
    assert code == 0, told
    assert "rank 1 was ended by SIGKILL" in told
    assert not of_kind(out, "epoch_ended", epoch=30)
    assert len(of_kind(out, "epoch_ended")) == 30
    done = subprocess.run(
        command(graph, "--out", plain, *given, sets=sets), cwd=ROOT, env=environment(), capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert same_bits(saved(out).tensors, saved(plain).tensors)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["psg", "esdg"])
def test_a_run_that_is_told_to_stop_is_saved_and_goes_on_with_any_number_of_ranks(
    graph: Path, system: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    sets = (
        *SETS,
        "train.save_seconds=1000",
        *(["window.state=inherit", "window.stride=0"] if system == "esdg" else []),
    )
    with begun(out, graph, "--out", out, "--system", system, "--workers", 2, sets=sets, saves=False) as job:
        job.send_signal(signal.SIGTERM)
        code, told = ended(job)
    assert code == Interrupted.exit_code, told
    assert f"and saved: go on with 'timeloom train --resume {out}'" in told
    before = saved(out).state["progress"]
    epochs = before["epoch"] + 3
    for workers in (3, 1):
        done = subprocess.run(
            command("--resume", out, "--workers", workers, sets=(f"train.epochs={epochs}",)), cwd=ROOT,
            env=environment(), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert saved(out).state["progress"]["epoch"] == epochs
        epochs += 2


def test_a_model_that_a_system_cannot_serve_is_refused_before_any_rank_starts(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "train",
        str(graph),
        "--out",
        str(tmp_path / "run"),
        "--system",
        "esdg",
        "--workers",
        "2",
        "--model",
        "dcrnn",
    ]
    assert run([*given, "--set", "system.time=alltoall"]) == 2
    told = capsys.readouterr().err
    assert "model dcrnn on several ranks with system.name=esdg" in told
    assert "use --set system.time=relay" in told
    assert not (tmp_path / "run").exists()


def test_systems_lists_what_serves_which_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["systems"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("psg ", "esdg ", "blad "))] == ["psg", "esdg", "blad"]
    (head,) = [line for line in lines if line.startswith("on several ranks")]
    at = head.index("esdg system.time=alltoall")
    cells = {line.split()[0]: line[at : at + 3].strip() for line in lines if line[at : at + 3].strip() in ("yes", "no")}
    assert cells["dcrnn"] == cells["evolvegcn_o"] == "no"
    assert cells["gcn_gru"] == cells["sage_attention"] == "yes"
    assert any(
        line.startswith("tgcn_integrated, dcrnn with esdg system.time=alltoall: its memory reads") for line in lines
    )
