"""The examples do what they say: a model of one's own, layers of PyTorch Geometric, the demo."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    assert (tmp_path / "demo/report.html").exists()


def pod() -> dict[str, Any]:
    """Return what a pod of the Kubernetes manifest runs."""
    yaml = pytest.importorskip("yaml", reason="make test installs pyyaml")
    service, job = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert (job["kind"], job["spec"]["completionMode"]) == ("Job", "Indexed")
    assert job["spec"]["completions"] == job["spec"]["parallelism"]
    template = job["spec"]["template"]["spec"]
    assert template["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = template["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in template["volumes"]}
    env = {one["name"]: one["value"] for one in container["env"]}
    assert env["NODES"] == str(job["spec"]["completions"])
    assert env["MASTER"] == f"{job['metadata']['name']}-0.{template['subdomain']}"
    told: dict[str, Any] = container
    return told


def test_the_manifest_runs_the_command_that_the_docs_name() -> None:
    page = (EXAMPLES.parent / "docs/cluster.md").read_text()
    (command,) = re.findall(r'torchrun --nnodes "\$NODES".*?--quiet', page, re.DOTALL)
    script = pod()["command"]
    assert script[:2] == ["sh", "-ec"]
    assert " ".join(command.replace("\\", " ").split()) in " ".join(script[2].replace("\\", " ").split())


@pytest.mark.slow
def test_the_command_of_the_manifest_trains_and_goes_on(drift: Path, tmp_path: Path) -> None:
    container, run = pod(), tmp_path / "run"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if shutil.which("torchrun", path=path) is None:
        pytest.skip("there is no torchrun")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {"NODES": "1", "RANKS": "2", "MASTER": "127.0.0.1", "GRAPH": str(drift), "RUN": str(run), "SYSTEM": "psg"}
    env = {**os.environ, "PATH": path, "JOB_COMPLETION_INDEX": "0", "OMP_NUM_THREADS": "1", **given}
    env["PYTHONPATH"] = str(EXAMPLES.parent / "src")
    script = container["command"][2].replace("29500", str(port))
    short = script.replace("--quiet", "--quiet --set train.epochs=$EPOCHS --set train.threads=1")
    for epochs in ("1", "2"):
        subprocess.run(
            ["sh", "-ec", short], env={**env, "EPOCHS": epochs}, check=True, capture_output=True, timeout=100
        )
    found = timeloom.Run(run).summary
    assert found.ranks == 2
    assert found.epochs == 2, "the second time it went on with the run"
