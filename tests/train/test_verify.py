"""A graph of which a byte was altered is not trained on, not gone on with, and not predicted from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.small_runs import drift, small
from timeloom.cli import run
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import BadStore
from timeloom.graph.append import Append, append
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.train.inference import evaluate, predict
from timeloom.train.runs import resume, train
from timeloom.train.verify import refuse_altered


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    drift(folder / "graph")
    train(folder / "graph", folder / "run", small())
    return folder


@pytest.fixture
def graph(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "graph", tmp_path / "graph")
    return tmp_path / "graph"


def flip(graph: Path, name: str) -> str:
    """Alter one byte of an array, so little that nothing but its checksum can tell; return the file."""
    file = graph / str(open_graph(graph).store.manifest["arrays"][name]["file"])
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    return file.name


CALLS: dict[str, Callable[[Path, Path], object]] = {
    "train": lambda made, graph: train(graph, graph.parent / "new", small()),
    "resume": lambda made, graph: resume(made / "run", {"train": {"epochs": 3}}, graph=graph),
    "evaluate": lambda made, graph: evaluate(made / "run", graph=graph),
    "predict": lambda made, graph: predict(made / "run", graph=graph),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_graph_that_was_altered_is_refused_with_the_file(made: Path, graph: Path, call: str) -> None:
    records = (made / "run" / "records.jsonl").read_bytes()
    file = flip(graph, "s0.statistics")
    with pytest.raises(BadStore, match=rf"{file} \(s0.statistics\) was altered.*timeloom check"):
        CALLS[call](made, graph)
    assert not (graph.parent / "new").exists()
    assert (made / "run" / "records.jsonl").read_bytes() == records


def test_a_graph_too_large_to_read_may_go_unverified(graph: Path, tmp_path: Path) -> None:
    flip(graph, "nodes.degrees")
    with pytest.raises(BadStore):
        train(graph, tmp_path / "run", small())
    assert train(graph, tmp_path / "run", small({"train": {"verify": False}})).scores
    assert resume(tmp_path / "run").scores


def test_every_rank_hears_what_one_found(graph: Path) -> None:
    flip(graph, "nodes.degrees")
    told: list[str] = []

    def work(world: World) -> None:
        with pytest.raises(BadStore) as found:
            refuse_altered(world, open_graph(graph))
        told.append(str(found.value))

    threads.run(3, work)
    assert len(told) == 3
    assert len(set(told)) == 1


def test_an_append_does_not_put_a_good_checksum_on_bad_bytes(tmp_path: Path) -> None:
    rows = {"source": [0, 1, 2], "target": [1, 2, 0], "time": [0, 1, 2]}
    graph = tmp_path / "g"
    ingest(rows, graph, Ingest(windows=Windows(kind="every", amount="1")))
    for name in ("nodes.degrees", "nodes.first_seen", "s0.delta.keys"):
        shutil.copytree(graph, tmp_path / name)
        file = flip(tmp_path / name, name)
        before = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        with pytest.raises(BadStore, match=rf"{file} \({name}\) was altered.*restore it from a copy"):
            append(tmp_path / name, {"source": [4], "target": [5], "time": [9]}, Append())
        assert {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} == before
    append(graph, {"source": [4], "target": [5], "time": [9]}, Append())
    assert list(check(graph)) == []


def test_what_arrives_altered_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"source": [t % 5 for t in range(40)], "target": [(t + 1) % 5 for t in range(40)], "time": list(range(40))}
    graph = tmp_path / "g"
    ingest(rows, graph, Ingest(windows=Windows(kind="every", amount="5")))
    follow = ["follow", str(graph), "--out", str(tmp_path / "run"), "--quiet"]
    sets = ["--set", "model.hidden=4", "--set", "window.length=2", "--set", "live.steps=1", "--set", "live.warmup=0.3"]
    assert run([*follow, *sets, "--until", "8"]) == 0
    append(graph, {"source": [0, 1], "target": [1, 2], "time": [41, 42]}, Append())
    file = flip(graph, "s1.statistics")
    capsys.readouterr()
    assert run([*follow, "--until", "9"]) == 4
    assert f"{file} (s1.statistics) was altered" in capsys.readouterr().err


def test_following_goes_on_from_the_checkpoint_that_is_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"source": [t % 5 for t in range(40)], "target": [(t + 1) % 5 for t in range(40)], "time": list(range(40))}
    graph, out = tmp_path / "g", tmp_path / "run"
    ingest(rows, graph, Ingest(windows=Windows(kind="every", amount="5")))
    follow = ["follow", str(graph), "--out", str(out), "--quiet", "--until", "8"]
    sets = ["--set", "model.hidden=4", "--set", "window.length=2", "--set", "live.steps=1", "--set", "live.warmup=0.3",
            "--set", "train.save_seconds=0", "--set", "train.keep=9"]  # fmt: skip
    assert run([*follow, *sets]) == 0
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    (out / "checkpoints" / names[-1] / "tensors.safetensors").write_bytes(b"")
    capsys.readouterr()
    assert run(follow) == 4
    assert f"the newest that is whole is --checkpoint {names[-2]}" in capsys.readouterr().err
    assert run([*follow, "--checkpoint", names[-2]]) == 0


def test_a_run_is_checked_part_by_part(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    shutil.copytree(made / "run", out)
    assert run(["check", str(out)]) == 0
    assert "all is well" in capsys.readouterr().out
    (name,) = (path.name for path in (out / "checkpoints").iterdir())
    for file in ("config.toml", "records.jsonl", f"checkpoints/{name}/state.json"):
        data = bytearray((out / file).read_bytes())
        data[len(data) // 2] ^= 1
        (out / file).write_bytes(data)
    assert run(["check", str(out)]) == 4
    told = capsys.readouterr()
    assert "is broken in 3 ways" in told.err
    assert [part in line for part, line in zip(("config", "records", "state"), told.out.splitlines(), strict=True)]
    assert run(["check", str(out), "--json"]) == 4
