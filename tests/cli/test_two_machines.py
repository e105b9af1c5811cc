"""A run on two "machines": network namespaces of this one, joined by a cable, a rank on each (scripts/two-machines)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.small_runs import drift, same_bits, saved

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "two-machines")
SETS = ("model.hidden=4", "window.length=3", "train.threads=1", "train.device=cpu", "train.patience=0")


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def options(out: Path, *sets: str) -> list[str]:
    return [
        "--system", "psg", "--out", str(out), "--quiet",
        *(word for one in (*SETS, *sets) for word in ("--set", one)),
    ]  # fmt: skip


def namespaces() -> set[str]:
    told = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in told.splitlines()}


@pytest.fixture
def _namespaces() -> None:
    """Skip where this machine, or this user, has no network namespaces."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    name = f"timeloom-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not allowed here")
    subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.slow
@pytest.mark.usefixtures("_namespaces")
def test_two_machines_learn_what_two_ranks_of_one_do(tmp_path: Path) -> None:
    graph, before = drift(tmp_path / "drift"), namespaces()
    apart = subprocess.run(
        [SCRIPT, str(graph), *options(tmp_path / "apart", "train.epochs=3")], env=environment(), capture_output=True,
        text=True, timeout=200, check=False,
    )  # fmt: skip
    assert apart.returncode == 0, apart.stderr
    assert namespaces() == before
    here = subprocess.run(
        [sys.executable, "-m", "timeloom", "train", str(graph), "--workers", "2",
         *options(tmp_path / "here", "train.epochs=3")], env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert here.returncode == 0, here.stderr
    assert same_bits(saved(tmp_path / "apart").tensors, saved(tmp_path / "here").tensors)


@pytest.mark.slow
@pytest.mark.usefixtures("_namespaces")
def test_a_script_that_is_stopped_saves_and_cleans_up(tmp_path: Path) -> None:
    graph, before, out = drift(tmp_path / "drift"), namespaces(), tmp_path / "run"
    sets = ("train.epochs=100000", "train.save_seconds=1000")
    with subprocess.Popen([SCRIPT, str(graph), *options(out, *sets)], env=environment()) as script:
        until = time.monotonic() + 90
        while not (out.exists() and '"epoch_ended"' in (out / "records.jsonl").read_text()):
            assert time.monotonic() < until, "the run does not begin"
            assert script.poll() is None
            time.sleep(0.1)
        assert namespaces() - before == {f"timeloom-{script.pid}-0", f"timeloom-{script.pid}-1"}
        script.send_signal(signal.SIGTERM)
        assert script.wait(90) == 143
    assert namespaces() == before
    assert saved(out).state["progress"]["step"] > 0


def test_without_root_one_sentence_says_so() -> None:
    if os.geteuid():
        asked = subprocess.run([SCRIPT, "graph"], capture_output=True, text=True, check=False)
    else:
        asked = subprocess.run([SCRIPT, "graph"], capture_output=True, text=True, check=False, user=65534, group=65534)
    assert asked.returncode == 2
    assert asked.stderr.startswith("two-machines: making network namespaces needs root, but this is user ")
    assert asked.stderr.count("\n") == 1


def test_nothing_to_train_is_said() -> None:
    asked = subprocess.run([SCRIPT], capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr.count("\n")) == (2, 1)
    assert "GRAPH --system psg --out RUN" in asked.stderr
