"""Preemption: signals save and end with 75 within a stated time, and examples/slurm.sh goes on where a job was."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_ranks import SETS, begun, ended, rank_of
from tests.train.small_runs import drift, history, of_kind, same_bits, saved
from timeloom.errors import Interrupted

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "slurm.sh"
STOPS_WITHIN_S = 10.0
"""From a signal to the end of the command, where a step takes milliseconds (docs/reliability.md)."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("preempted") / "drift")


def cluster(home: Path, timeloom: str, run: Path, *, tasks: int, sent: Sequence[str]) -> dict[str, str]:
    """Make a cluster of commands in a folder; return the environment in which they are found first."""
    (home / "bin").mkdir(parents=True)
    fake = shlex.join([sys.executable, str(Path(__file__).with_name("fake_slurm.py"))])
    programs = {name: f'{fake} {name} "$@"' for name in ("sbatch", "srun", "scontrol")} | {"timeloom": timeloom}
    for name, line in programs.items():
        program = home / "bin" / name
        program.write_text(f"#!/bin/sh\nexec {line}\n")
        program.chmod(0o755)
    plan = {"job": str(random.randrange(10**6)), "tasks": tasks, "sent": list(sent)}
    (home / "plan.json").write_text(json.dumps(plan | {"records": str(run / "records.jsonl")}))
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {
        **clean, "FAKE_SLURM": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip


def submitted(environ: dict[str, str], *arguments: object) -> list[dict[str, Any]]:
    """Submit the script; return what came of each of its lives."""
    subprocess.run(["sbatch", str(SCRIPT), *map(str, arguments)], env=environ, check=False, timeout=170)
    told: list[dict[str, Any]] = json.loads((Path(environ["FAKE_SLURM"]) / "told.json").read_text())
    return told


@pytest.mark.parametrize(
    ("codes", "lives"), [([75, 75, 0], 3), ([0], 1), ([4], 1), ([137], 1)], ids=lambda one: str(one)
)  # fmt: skip
def test_a_job_is_queued_again_where_it_was_saved_and_only_there(tmp_path: Path, codes: list[int], lives: int) -> None:
    """Here a rank is a program that makes a run directory, says what it was asked, and ends with the next code."""
    run, said = tmp_path / "run", tmp_path / "said"
    (tmp_path / "codes").write_text("\n".join(map(str, codes)))
    rank = tmp_path / "rank"
    rank.write_text(
        f'mkdir -p {run}; touch {run}/config.toml; echo "$SLURM_PROCID $*" >> {said}; sleep 0.1\n'
        f"exit $(sed -n $((${{SLURM_RESTART_COUNT:-0}} + 1))p {tmp_path}/codes)\n"
    )
    environ = cluster(tmp_path / "slurm", f'sh {rank} "$@"', run, tasks=2, sent=["", "", ""])
    told = submitted(environ, "mails", run, "--system", "psg")
    assert [life["code"] for life in told] == codes[:lives]
    asked = said.read_text().splitlines()
    first, later = f"train mails --out {run} --system psg --quiet", f"train --resume {run} --quiet"
    assert sorted(asked[:2]) == [f"{rank} {first}" for rank in range(2)]
    assert sorted(asked[2:4]) == [f"{rank} {later}" for rank in range(2)][: len(asked) - 2]
    assert len(asked) == 2 * lives


def test_a_job_without_a_graph_says_how_it_is_submitted(tmp_path: Path) -> None:
    environ = cluster(tmp_path / "slurm", "false", tmp_path, tasks=1, sent=[])
    told = subprocess.run(["bash", str(SCRIPT), "mails"], env=environ, capture_output=True, text=True, check=False)
    assert (told.returncode, "usage: sbatch" in told.stderr) == (2, True)


@pytest.mark.slow
def test_a_job_that_meets_its_limit_and_is_preempted_ends_as_if_undisturbed(graph: Path, tmp_path: Path) -> None:
    run, plain = tmp_path / "run", tmp_path / "plain"
    python = shlex.join([sys.executable, "-m", "timeloom"])
    environ = cluster(tmp_path / "slurm", f'{python} "$@"', run, tasks=2, sent=["limit", "preempted"])
    sets = [word for one in (*SETS, "train.epochs=150", "train.save_seconds=1000") for word in ("--set", one)]
    told = submitted(environ, graph, run, "--system", "psg", *sets)
    assert [life["code"] for life in told] == [75, 75, 0], told
    assert all(life["seconds"] < STOPS_WITHIN_S for life in told[:2]), told
    assert [one["epoch"] for one in of_kind(run, "epoch_ended")] == list(range(150))
    command = [sys.executable, "-m", "timeloom", "train", str(graph), "--out", str(plain), "--system", "psg"]
    subprocess.run([*command, "--workers", "2", "--quiet", *sets], env=environ, check=True, timeout=100)
    assert same_bits(saved(run).tensors, saved(plain).tensors)
    assert history(run) == history(plain)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("to", ["command", "rank"])
def test_a_signal_to_the_command_or_to_one_rank_saves_in_time(
    graph: Path, tmp_path: Path, sent: signal.Signals, to: str
) -> None:
    out = tmp_path / "run"
    sets = (*SETS, "train.save_seconds=1000")
    with begun(out, graph, "--out", out, "--system", "psg", "--workers", 2, sets=sets, saves=False) as job:
        began = time.monotonic()
        if to == "command":
            job.send_signal(sent)
        else:
            rank_of(job, 1).send_signal(sent)
        code, told = ended(job)
    assert code == Interrupted.exit_code, told
    assert time.monotonic() - began < STOPS_WITHIN_S
    assert f"and saved: go on with 'timeloom train --resume {out}'" in told
    progress = saved(out).state["progress"]
    assert len(of_kind(out, "epoch_ended")) == progress["epoch"] > 3, "no epoch that was told is lost"
