"""The system `vertex` as processes that talk over gloo: the same records as of one process (SPEC T15)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.small_runs import drift, history
from timeloom.config import parse_sets
from timeloom.train.runs import train

ROOT = Path(__file__).resolve().parents[2]
EXACT = (
    "model.hidden=4", "model.layers=2", "window.length=3", "train.precision=float64", "train.threads=1",
    "train.epochs=2", "train.device=cpu", "train.log_steps=true", "train.cache_bytes=16777216",
)  # fmt: skip
CASES = [
    ("tgcn_integrated", "degree", ("system.partition.by=random",)),
    ("evolvegcn_h", "links", ("task.num_negatives=5", "window.state=zero", "reuse.cache=off")),
]


def numbers(run: Path) -> list[dict[str, Any]]:
    """Return what was learnt and scored, record by record."""
    kinds = ("stepped", "evaluated", "epoch_ended")
    return [record for record in history(run) if record["kind"] in kinds]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "task", "more"), CASES)
def test_processes_learn_what_one_process_learns(tmp_path: Path, model: str, task: str, more: tuple[str, ...]) -> None:
    drift(tmp_path / "drift", num_nodes=20)
    sets = [*EXACT, *more]
    train(tmp_path / "drift", tmp_path / "one", parse_sets(sets), model=model, task=task)
    flags = [part for one in [*sets, "world.check=true"] for part in ("--set", one)]
    command = [
        sys.executable, "-m", "timeloom", "train", str(tmp_path / "drift"), "--system", "vertex", "--workers", "3",
        "--model", model, "--task", task, "--out", str(tmp_path / "three"), *flags,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    one, three = numbers(tmp_path / "one"), numbers(tmp_path / "three")
    assert [record["kind"] for record in one] == [record["kind"] for record in three]
    assert any(record["kind"] == "stepped" for record in one)
    for wanted, found in zip(one, three, strict=True):
        for name in ("loss", "grad_norm"):
            if name in wanted:
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10)
        for name, score in wanted.get("scores", {}).items():
            np.testing.assert_allclose(found["scores"][name], score, rtol=1e-9, err_msg=name)
