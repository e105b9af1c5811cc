"""`timeloom partition` says what the library finds, and refuses what cannot be meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from timeloom.cli import run
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.plan.partition.choose import PartitionSettings, partition
from timeloom.plan.partition.metis import chunks
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


def test_chunks_are_told_beside_their_owners(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ranks", "2", "--by", "hash", "--train-snapshots", "3", "--chunks", "4", "--seed", "1"]
    assert run(["partition", str(graph), *options, "--json"]) == 0
    whole, pieces = json.loads(capsys.readouterr().out)["partitions"]
    opened = open_graph(graph)
    owners = partition(opened, 3, 2, PartitionSettings(by="hash", seed=1))
    made = chunks(opened, 3, owners, 4, seed=1)
    assert pieces["name"] == "4 chunks by metis"
    assert pieces["nodes_R"] == [size for rank in (0, 1) for size in made.sizes_of(rank).tolist()]
    edges = [(u, v) for t in range(5) for u, v in zip(*ends(opened, t), strict=True)]
    chunk = owners.owner_N * 4 + made.chunk_N
    assert sum(pieces["cut_T"]) == sum(chunk[u] != chunk[v] for u, v in edges)
    assert pieces["cut_share"] > whole["cut_share"]
    assert run(["partition", str(graph), *options, "--chunks-by", "random"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("4 chunks by random" in line for line in lines) == 1
    assert [line.split()[0] for line in lines[3:5]] == ["0", "1"]


def ends(graph: DynamicGraph, t: int) -> tuple[list[int], list[int]]:
    return graph.snapshot(t).sources.tolist(), graph.snapshot(t).targets.tolist()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by", "metsi"], "--by metsi is no partition: use hash,"),
        (["--ranks", "0"], "into 0 ranks was asked for: give 1 or more"),
        (["--train-snapshots", "9"], "before 9 was asked for, but there are 5"),
        (["--chunks", "-1"], "--chunks -1 --chunks-by metis: give 0 chunks or more"),
        (["--chunks", "2", "--chunks-by", "halves"], "by metis, hash, random"),
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
