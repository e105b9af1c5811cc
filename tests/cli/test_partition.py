"""`timeloom partition` says what the library finds, and refuses what cannot be meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from timeloom.cli import run
from timeloom.graph.dynamic import open_graph
from timeloom.plan.partition.choose import PartitionSettings, partition
from timeloom.plan.partition.quality import quality


@pytest.fixture
def graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    small = ["--num-nodes", "80", "--num-edges", "300", "--num-snapshots", "5", "--quiet", "--first-share", "0.5"]
    assert run(["synth", "powerlaw", *small, "--out", str(tmp_path / "g")]) == 0
    capsys.readouterr()
    return tmp_path / "g"


def test_the_report_is_what_the_library_finds(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ranks", "3", "--by", "metis, hash", "--train-snapshots", "2", "--seed", "5"]
    assert run(["partition", str(graph), *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["partitions"]
    opened = open_graph(graph)
    for one, by in zip(told, ("metis", "hash"), strict=True):
        owners = partition(opened, 2, 3, PartitionSettings(by=by, seed=5))  # type: ignore[arg-type]
        del one["seconds"]
        assert one == quality(owners, opened).as_json()
    assert run(["partition", str(graph), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "g: 3 ranks"
    (row,) = [line.split() for line in lines if line.split()[:2] == ["hash", "all"]]
    assert [row[2], row[5]] == ["80", f"{told[1]['cut_share']:.3f}"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by", "metsi"], "--by metsi is no partition: use hash,"),
        (["--ranks", "0"], "into 0 ranks was asked for: give 1 or more"),
        (["--train-snapshots", "9"], "before 9 was asked for, but there are 5"),
        (["--seed", "-1"], "partition.seed=-1 was asked for"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(
    graph: Path, options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["partition", str(graph), *options]) == 2
    assert sentence in capsys.readouterr().err


def test_no_torch_is_imported(graph: Path) -> None:
    code = (
        "import sys; from timeloom.cli import run; code = run(sys.argv[1:]); sys.exit(code or 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "partition", str(graph), "--by", "metis"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
