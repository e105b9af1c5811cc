"""On a GPU everything comes to what it comes to on a CPU. Skipped without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import timeloom
from timeloom.nn.models import MODELS
from timeloom.records import EpochEnded, Record

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA")


def losses(device: str, model: str, task: str, folder: Path, precision: str = "float64") -> list[float]:
    told: list[Record] = []
    settings: dict[str, Any] = {
        "train": {"epochs": 3, "device": device, "precision": precision}, "model": {"hidden": 8, "layers": 2},
    }  # fmt: skip
    graph = folder / "drift"
    if not graph.exists():
        timeloom.synth(timeloom.Drift(num_nodes=100, num_edges=400, num_snapshots=12), graph)
    timeloom.train(graph, folder / "run", settings, model=model, task=task, overwrite=True, show=told.append)
    return [record.loss for record in told if isinstance(record, EpochEnded)]


@pytest.mark.parametrize("task", ["degree", "classes", "links", "edge_classes"])
@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_gives_the_losses_of_a_cpu(model: str, task: str, tmp_path: Path) -> None:
    expected = losses("cpu", model, task, tmp_path)
    assert losses("cuda", model, task, tmp_path) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_a_gpu_gives_the_same_bits_again(model: str, tmp_path: Path) -> None:
    first = losses("cuda", model, "degree", tmp_path, "float32")
    assert losses("cuda", model, "degree", tmp_path, "float32") == first
