"""The examples do what they say: a model of one's own, layers of PyTorch Geometric, the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import timeloom

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph of drifting communities."""
    path = tmp_path_factory.mktemp("examples") / "drift"
    timeloom.synth(timeloom.Drift(num_nodes=150, num_edges=600, num_snapshots=20), path)
    return path


@pytest.mark.parametrize("name", ["my_model.py:Leaky", "pyg_layers.py:GatGru"])
def test_a_model_of_ones_own_learns_as_ours_do(name: str, drift: Path, tmp_path: Path) -> None:
    if name.startswith("pyg"):
        pytest.importorskip("torch_geometric")
    settings = {"train": {"epochs": 12, "threads": 1}, "model": {"hidden": 16}}
    result = timeloom.train(drift, tmp_path / "run", settings, model=f"{EXAMPLES / name}", task="degree")
    assert result.scores["mse"] < result.baselines["persistence"]["mse"]
    # A run finds its model again: by the file's whole path.
    assert timeloom.evaluate(tmp_path / "run").scores == result.scores


@pytest.mark.slow
def test_the_demo_beats_its_baselines(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [EXAMPLES / "demo.sh", tmp_path / "demo"], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert "better than persistence" in done.stdout
    assert "better than zero" in done.stdout
    assert "WORSE" not in done.stdout
    assert "nothing that is predicted depends on the future" in done.stdout
