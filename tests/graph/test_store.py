"""A graph's folder is refused in one sentence where it is not what was written, and is never half of anything."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.damage import contents, edit_manifest
from timeloom.errors import BadConfig, BadStore, TimeloomError, TooLarge
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.graph.stats import stats
from timeloom.graph.store import MANIFEST, Store, StoreWriter

ROWS = {"source": [0, 1, 2, 0], "target": [1, 2, 0, 2], "time": [0, 0, 1, 2], "weight": [1.0, 2.0, 3.0, 4.0]}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A small graph."""
    ingest(ROWS, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    return tmp_path / "g"


def array_files(graph: Path) -> list[Path]:
    return sorted(graph.glob("*.npy"))


def test_a_folder_that_is_no_graph_is_refused(tmp_path: Path, graph: Path) -> None:
    for path, sentence in (
        (tmp_path / "none", "does not exist"),
        (graph / MANIFEST, "is a file"),
        (tmp_path, "has no manifest"),
    ):
        with pytest.raises(BadStore, match=sentence):
            open_graph(path)


@pytest.mark.parametrize("cut", [0, 1, 64, 127, 128, -1])
def test_a_truncated_file_is_refused_and_named(graph: Path, cut: int) -> None:
    for path in array_files(graph):
        whole = path.read_bytes()
        path.write_bytes(whole[:cut])
        problems = list(check(graph))
        assert len(problems) == (whole[:cut] != whole)
        assert all(path.name in problem for problem in problems)
        path.write_bytes(whole)
    assert list(check(graph)) == []


def test_every_altered_byte_is_found(graph: Path) -> None:
    rng = np.random.default_rng(0)
    for path in array_files(graph):
        whole = path.read_bytes()
        for place in {0, 20, len(whole) - 1, *rng.integers(0, len(whole), 6).tolist()}:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(damaged)
            problems = list(check(graph))
            assert len(problems) == 1
            assert path.name in problems[0]
        path.write_bytes(whole)


def test_every_altered_byte_of_the_manifest_is_refused_or_says_the_same(graph: Path) -> None:
    whole, before = (graph / MANIFEST).read_bytes(), Store(graph).manifest
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 2
        (graph / MANIFEST).write_bytes(damaged)
        try:
            assert Store(graph).manifest == before
        except BadStore:
            continue
    (graph / MANIFEST).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadStore, match="cannot be read"):
        open_graph(graph)


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"file": "../../etc/passwd"}, "refused"), ({"file": "/etc/passwd"}, "refused"), ({"file": 7}, "refused"),
        ({"dtype": "|O"}, "refused"), ({"dtype": ["<i8"]}, "refused"), ({"shape": []}, "refused"),
        ({"shape": 7}, "refused"), ({"shape": [2**32, 2**32]}, "cannot have"), ({"dtype": "O"}, "refused"),
        ({"shape": [-1]}, "refused"), ({"shape": [2**62]}, "holds"),
    ],
)  # fmt: skip
def test_a_manifest_that_names_what_it_should_not_is_refused(
    graph: Path, entry: dict[str, object], sentence: str
) -> None:
    edit_manifest(graph, lambda manifest: manifest["arrays"]["nodes.ids"].update(entry))
    with pytest.raises(BadStore, match=sentence):
        open_graph(graph).ids.all()


def test_another_version_or_format_is_refused(graph: Path) -> None:
    edit_manifest(graph, lambda manifest: manifest.update(version=2))
    with pytest.raises(BadStore, match="has format version 2, but this timeloom reads version 1"):
        open_graph(graph)
    edit_manifest(graph, lambda manifest: manifest.update(format="something else"))
    with pytest.raises(BadStore, match="is not a timeloom manifest"):
        open_graph(graph)
    edit_manifest(graph, lambda manifest: manifest.update(name="x"), sign=False)


def test_a_link_out_of_the_folder_is_refused(graph: Path, tmp_path: Path) -> None:
    file = graph / Store(graph).manifest["arrays"]["nodes.ids"]["file"]
    file.rename(tmp_path / "elsewhere.npy")
    file.symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(BadStore, match="is a link"):
        open_graph(graph)


def test_objects_are_never_unpickled(graph: Path) -> None:
    file = graph / Store(graph).manifest["arrays"]["nodes.first_seen"]["file"]
    np.save(file, np.array([{}, {}, {}], object), allow_pickle=True)
    with pytest.raises(BadStore):
        open_graph(graph)


def test_two_writers_exclude_each_other(graph: Path, tmp_path: Path) -> None:
    with StoreWriter(graph, update=True), pytest.raises(BadStore, match="being written by another process"):
        StoreWriter(graph, update=True)
    with StoreWriter(graph, update=True):
        pass


def test_a_folder_with_something_else_in_it_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"cat")
    for overwrite, sentence in ((False, "exists already"), (True, "is no graph")):
        with pytest.raises(BadConfig, match=sentence):
            ingest(ROWS, tmp_path / "photos", Ingest(windows=Windows(kind="given"), overwrite=overwrite))
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_pages_are_shared_and_writing_to_an_array_changes_no_file(graph: Path) -> None:
    keys = open_graph(graph).store.array("s0.keyframe.keys")
    assert isinstance(keys.base, np.memmap)
    assert keys.base.mode == "c"
    before = contents(graph)
    keys[0] += 1
    assert contents(graph) == before


def test_a_full_disk_leaves_the_old_graph_and_no_other_file(graph: Path) -> None:
    before = contents(graph)
    script = (
        "import resource, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from timeloom.graph.append import Append, append\n"
        "from timeloom.errors import TooLarge\n"
        "rows = {'source': np.arange(90_000), 'target': np.arange(90_000) + 1, 'time': np.full(90_000, 9)}\n"
        "rows['weight'] = np.ones(90_000)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "try:\n"
        "    append(Path(sys.argv[1]), rows, Append())\n"
        "except TooLarge as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(graph)], capture_output=True, text=True, check=True)
    assert "free some disk space" in done.stdout
    assert contents(graph) == before
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_an_error_while_writing_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    if call == "write":
        monkeypatch.setattr("timeloom.graph.store.ArrayWriter._write", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(TooLarge, match="No space left"):
        ingest(ROWS, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    assert not (tmp_path / "g").exists()


def test_an_array_that_is_missing_is_named(graph: Path) -> None:
    with pytest.raises(TimeloomError, match="has no array 'nothing'"):
        Store(graph).array("nothing")
    array_files(graph)[0].unlink()
    assert any("cannot be read" in problem for problem in check(graph))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda m: m.pop("clock"), "clock"), (lambda m: m.update(clock="parsec"), "clock"),
        (lambda m: m.update(end="x"), "end"),
        (lambda m: m.pop("reports"), "reports"), (lambda m: m["reports"][0].pop("kept"), "reports"),
        (lambda m: m.pop("arrays"), "arrays"), (lambda m: m.update(arrays=[]), "arrays"),
        (lambda m: m["arrays"].update({"nodes.ids": 7}), "arrays"), (lambda m: m.update(rules={}), "rules"),
        (lambda m: m["rules"].update(life="x"), "rules"), (lambda m: m.update(segments=["s0"]), "segments"),
        (lambda m: m.update(segments=[]), "segments"), (lambda m: m["segments"][0].update(count=-1), "segments"),
        (lambda m: m["segments"][0].update(more=1), "segments"),
        (lambda m: m["segments"][0].pop("weighted"), "segments"),
        (lambda m: m["layout"].update(type_bits=-1), "layout"), (lambda m: m["layout"].update(node_bits=32), "layout"),
        (lambda m: m["layout"].update(node_bits=10**30), "layout"), (lambda m: m.pop("layout"), "layout"),
        (lambda m: m.update(num_nodes=True), "num_nodes"), (lambda m: m.update(num_snapshots=2**63), "num_snapshots"),
        (lambda m: m.update(features="none"), "features"), (lambda m: m["features"].update(kind=["none"]), "features"),
        (lambda m: m["features"].update(kind="random", num_features=-1, seed=0), "features"),
        (lambda m: m["labels"].update(kind="class"), "labels"), (lambda m: m.update(name=None), "name"),
    ],
)  # fmt: skip
def test_a_manifest_that_says_what_no_graph_has_is_refused(
    graph: Path, change: Callable[[dict[str, Any]], Any], key: str
) -> None:
    edit_manifest(graph, change)
    for read in (open_graph, lambda path: list(check(path))):
        with pytest.raises(BadStore, match=f"it (does not give|gives) '{key}'"):
            read(graph)


def test_a_manifest_nested_without_end_is_refused(graph: Path) -> None:
    (graph / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(BadStore, match="cannot be read"):
        open_graph(graph)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("nodes.degrees", "nodes.first_seen"),
        ("s0.statistics", "s0.ends"),
        ("s0.starts", "s0.whole"),
        ("s0.ends", "s0.starts"),
    ],
)
def test_an_array_of_another_form_is_refused(graph: Path, name: str, other: str) -> None:
    edit_manifest(graph, lambda manifest: manifest["arrays"].update({name: manifest["arrays"][other]}))
    with pytest.raises(BadStore, match=f"gives array '{name}' type"):
        open_graph(graph)


def test_stats_of_fewer_snapshots_than_announced_are_refused(graph: Path) -> None:
    edit_manifest(graph, lambda manifest: manifest.update(num_snapshots=7))
    with pytest.raises(BadStore, match="says it has 7 snapshots, but 3 are counted and 3 begin"):
        stats(open_graph(graph))
