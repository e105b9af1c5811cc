"""A graph's folder is refused in one sentence where it is not what was written, and is never half of anything."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.damage import contents, edit_manifest
from timeloom.errors import BadConfig, BadInput, BadStore, TimeloomError, TooLarge
from timeloom.graph.append import Append, append
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


def test_files_that_no_writer_made_are_left_alone(graph: Path) -> None:
    strange = ["123456-notes.txt", "000009-x.npy.bak", "notes", "000009-Big.npy"]
    ours = ["000009-scratch.log.1", "000123-s9.starts.npy", "000004-manifest.json"]
    for name in (*strange, *ours):
        (graph / name).write_bytes(b"x")
    assert Store(graph).leftovers() == sorted(ours)
    append(graph, {**ROWS, "time": [7, 7, 8, 9]}, Append())
    assert Store(graph).leftovers() == []
    assert all((graph / name).exists() for name in strange)
    # Numbers that were given once are not given again while their files are there.
    assert min(int(path.name[:6]) for path in graph.glob("*-s1.*.npy")) == 124


def test_what_a_killed_first_ingest_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    for name in (".lock", "000001-s0.keyframe.keys.npy", "000001-scratch.log.1"):
        (tmp_path / "g" / name).write_bytes(b"x")
    ingest(ROWS, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    assert list(check(tmp_path / "g")) == []
    assert Store(tmp_path / "g").leftovers() == []
    with pytest.raises(BadConfig, match="exists already"):
        ingest(ROWS, tmp_path / "g", Ingest(windows=Windows(kind="given")))


def test_what_is_no_graph_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / MANIFEST).write_text('{"name": "a web page"}')
    for name, overwrite, sentence in (
        ("file", False, "is a file"), ("file", True, "is a file"), ("site", False, "exists already"),
        ("site", True, "is no graph"),
    ):  # fmt: skip
        with pytest.raises(BadConfig, match=sentence):
            ingest(ROWS, tmp_path / name, Ingest(windows=Windows(kind="given"), overwrite=overwrite))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", MANIFEST, "site"]


def test_a_graph_whose_manifest_is_broken_can_be_replaced(graph: Path) -> None:
    (graph / MANIFEST).write_text((graph / MANIFEST).read_text() + "x")
    before = contents(graph)
    bad = {**ROWS, "source": [-1, 0, 1, 2]}
    with pytest.raises(BadInput, match="is negative"):
        ingest(bad, graph, Ingest(windows=Windows(kind="given"), overwrite=True))
    assert contents(graph) == before
    ingest(ROWS, graph, Ingest(windows=Windows(kind="given"), overwrite=True))
    assert list(check(graph)) == []
    assert Store(graph).leftovers() == []


def test_folders_that_were_made_for_nothing_are_removed(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with pytest.raises(BadInput, match="is negative"):
        ingest({**ROWS, "source": [-1, 0, 1, 2]}, tmp_path / "here/a/b/g", Ingest(windows=Windows(kind="given")))
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_an_error_after_the_manifest_was_replaced_leaves_the_new_graph(
    graph: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    replace = os.replace

    def replace_and_fail(*paths: Path) -> None:
        replace(*paths)
        raise error

    monkeypatch.setattr(os, "replace", replace_and_fail)
    with pytest.raises(type(error)):
        append(graph, {**ROWS, "time": [7, 7, 8, 9]}, Append())
    assert len(open_graph(graph)) == 6
    assert list(check(graph)) == []
    assert Store(graph).leftovers() == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_error_before_the_manifest_is_replaced_leaves_the_old_graph(
    graph: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    before = contents(graph)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="Input/output error"):
        append(graph, {**ROWS, "time": [7, 7, 8, 9]}, Append())
    assert contents(graph) == before


def test_another_process_that_writes_is_waited_for(graph: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom timeloom.graph.store import StoreWriter\n"
        "with StoreWriter(Path(sys.argv[1]), update=sys.argv[2] == 'update'):\n    print('locked', flush=True)\n"
        "    input()\n"
    )
    for path, work in ((graph, "update"), (tmp_path / "new", "new")):
        command = [sys.executable, "-c", script, str(path), work]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "locked\n"
            for overwrite in (False, True):
                with pytest.raises(TimeloomError, match=r"being written by another process|exists already"):
                    ingest(ROWS, path, Ingest(windows=Windows(kind="given"), overwrite=overwrite))
            other.communicate("\n")
        assert other.returncode == 0
    assert not (tmp_path / "new").exists()
    assert list(check(graph)) == []


def test_a_lock_that_was_removed_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another writer fails, and takes its folder away, between our opening its lock and taking it.
    flock, path = fcntl.flock, tmp_path / "g"
    calls = 0

    def flock_late(lock: int, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (path / ".lock").unlink()
            path.rmdir()
            path.mkdir()
            (path / ".lock").touch()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    ingest(ROWS, path, Ingest(windows=Windows(kind="given")))
    assert calls == 2
    assert list(check(path)) == []


def test_a_graph_that_another_writer_made_meanwhile_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, path = fcntl.flock, tmp_path / "g"

    def flock_late(lock: int, how: int) -> None:
        monkeypatch.undo()
        ingest(ROWS, path, Ingest(windows=Windows(kind="given")))
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with pytest.raises(BadConfig, match="exists already"):
        ingest({**ROWS, "source": [9, 9, 9, 9]}, path, Ingest(windows=Windows(kind="given")))
    assert open_graph(path).num_nodes == 3


def test_what_is_no_file_is_refused(graph: Path) -> None:
    file = graph / Store(graph).manifest["arrays"]["s0.starts"]["file"]
    file.unlink()
    os.mkfifo(file)
    assert any("is no file: refused" in problem for problem in check(graph))
    file.unlink()
    file.mkdir()
    assert any("is no file: refused" in problem for problem in check(graph))


def test_a_reader_of_a_graph_that_is_replaced_is_told_to_open_it_again(graph: Path) -> None:
    reader = Store(graph)
    ingest(ROWS, graph, Ingest(windows=Windows(kind="given"), overwrite=True))
    with pytest.raises(BadStore, match="was replaced meanwhile, open it again"):
        reader.array("s0.starts")


def shared_and_own(pid: int, file: Path) -> tuple[int, int]:
    """Return how many KiB of a mapped file a process shares with others, and how many it has for itself alone."""
    smaps = Path(f"/proc/{pid}/smaps").read_text().split(str(file), 1)[1].split("VmFlags", 1)[0]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in smaps.splitlines()[1:] if line.endswith("kB")}
    return kib["Shared_Clean"], kib["Private_Clean"] + kib["Private_Dirty"]


def test_two_processes_share_the_pages_that_they_read(tmp_path: Path) -> None:
    count = 200_000
    rows = {"source": np.arange(count), "target": np.arange(count) + 1, "time": np.zeros(count, int)}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    script = (
        "import sys\nfrom timeloom.graph.dynamic import open_graph\n"
        "keys = open_graph(sys.argv[1]).store.array('s0.keyframe.keys')\nprint(int(keys.sum()), flush=True)\ninput()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "g")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as one, subprocess.Popen(command, **pipes, text=True) as two:  # type: ignore[call-overload]
        assert one.stdout.readline() == two.stdout.readline()
        file = tmp_path / "g" / Store(tmp_path / "g").manifest["arrays"]["s0.keyframe.keys"]["file"]
        for process in (one, two):
            shared, own = shared_and_own(process.pid, file)
            assert shared >= count * 8 // 1024
            assert own <= 8
        one.communicate("\n")
        two.communicate("\n")


def test_a_graph_of_ten_thousand_snapshots_opens_in_milliseconds(tmp_path: Path) -> None:
    rows = {"source": np.arange(10_000), "target": np.arange(10_000) + 1, "time": np.arange(10_000)}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert len(open_graph(tmp_path / "g")) == 10_000
        took.append(time.perf_counter() - began)
    assert min(took) < 0.02
