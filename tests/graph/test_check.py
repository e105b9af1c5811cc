"""`check` finds what is wrong even where every checksum is right, and says what it is."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.graph.damage import add_to, edit_manifest, rewrite, swap
from timeloom.errors import BadStore
from timeloom.graph.append import Append, append
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import AttributeOptions, Ingest, Windows, ingest
from timeloom.graph.ingest.attributes import Attributes
from timeloom.graph.ingest.signals import listed_snapshots
from timeloom.graph.snapshot import STATISTICS
from timeloom.graph.store import Store

Change = Callable[[NDArray[Any]], NDArray[Any] | None]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sound graphs: `full`, `names`, `listed`, and one for each policy that keeps events for appending."""
    folder = tmp_path_factory.mktemp("graphs")
    rng = np.random.default_rng(1)
    size = 400
    rows = {
        "source": rng.integers(0, 20, size), "target": rng.integers(0, 20, size), "time": rng.integers(0, 30, size),
        "weight": rng.integers(1, 5, size).astype(float), "type": rng.integers(0, 3, size),
    }  # fmt: skip
    (folder / "nodes.csv").write_text("id,team\n" + "".join(f"{node},{'ab'[node % 2]}\n" for node in range(20)))
    given = Windows(kind="given")
    known = AttributeOptions(nodes=folder / "nodes.csv", features="one-hot:team", labels="class:team")
    ingest(rows, folder / "full", Ingest(windows=given, life=12, duplicates="last", attributes=known))
    append(folder / "full", {**rows, "time": rows["time"] + 40}, Append())
    assert 0 < open_graph(folder / "full").num_keyframes < 30
    pairs = rng.permutation([(u, v) for u in range(15) for v in range(u)])
    ends = np.array([f"é{node:x}" for node in range(15)])[pairs]
    names = {"source": ends[:, 0], "target": ends[:, 1], "time": np.arange(len(pairs)) // 5}
    ingest(names, folder / "names", Ingest(windows=given, life=12, both_directions=True))
    rng.shuffle(rows["time"])
    for policy, life in (("mean", 0), ("max", 0), ("sum", 3), ("max", 3)):
        ingest(rows, folder / f"{policy}{life}", Ingest(windows=given, life=life, duplicates=policy))
    put_listed(folder / "listed")
    for path in folder.iterdir():
        assert path.is_file() or list(check(path)) == []
    return folder


def put_listed(path: Path) -> None:
    """Make a graph of two segments with features and labels by snapshot, and one that lists which nodes are present."""
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    listed = listed_snapshots([[[0], [1]], [[1], [2]]], None, features=values, labels=np.ones((2, 3)))
    np.savez(
        path.with_suffix(".npz"), **listed.columns, x=values, y=np.ones((2, 3)), p_0=np.arange(2), p_1=np.arange(3)
    )
    array = f"{path}.npz"
    options = AttributeOptions(features=f"array:{array}#x", labels=f"values:{array}#y")
    ingest(listed.columns, path, Ingest(windows=Windows(kind="given"), attributes=options))
    later = Attributes(features=np.full((1, 4, 2), 7, np.float32), labels=np.ones((1, 4)))
    append(path, {"source": [0], "target": [3], "time": [2]}, Append(attributes=later))
    here = AttributeOptions(present=f"{array}#p_{{t}}")
    ingest(listed.columns, path.with_name("present"), Ingest(windows=Windows(kind="given"), attributes=here))


@pytest.fixture
def graph(graphs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a copy of a sound graph, to be damaged."""
    return lambda name: Path(shutil.copytree(graphs / name, tmp_path / name))


def set_to(place: tuple[int, ...] | int, value: float) -> Change:
    """Return a change that puts a number at one place."""

    def change(array: NDArray[Any]) -> None:
        array[place] = value

    return change


DAMAGES: list[tuple[str, str, Change, str]] = [
    # Arrays of the wrong type, or with too many or too few rows.
    ("full", "s0.whole", lambda whole: whole[:-1], r"s0\.whole has type \|u1 and shape \[29\], not \|u1 and \[30\]"),
    ("full", "nodes.ids", lambda ids: ids[:-1], r"nodes\.ids has type <i8 and shape \[19\]"),
    ("full", "nodes.degrees", lambda d: d.astype(np.int64), "which it cannot have"),
    ("full", "s0.delta.old", lambda old: old[1:], r"s0\.delta\.old has type"),
    ("full", "s0.statistics", lambda s: s[:, :7].copy(), r"s0\.statistics has type|which it cannot have"),
    ("full", "tail.events", lambda events: events[1:], r"tail\.events has type"),
    ("listed", "s1.features", lambda x: x[0], r"s1\.features' type <f4 and shape \[4, 2\], which it cannot have"),
    ("listed", "s1.labels", lambda y: y.astype(np.int64), r"s1\.labels has type"),
    # The index.
    ("full", "s0.ends", add_to((-1, 0), 1), "index of segment s0 does not fit"),
    ("full", "s0.ends", add_to((0, 1), -10**6), "index of segment s0 does not fit"),
    ("full", "s0.ends", lambda ends: swap(ends, 3, 9), "index of segment s0 does not fit"),
    ("full", "s1.whole", lambda whole: 1 - whole, "gives edges to a delta, or changes to a whole snapshot"),
    ("full", "s1.whole", set_to(0, 7), "gives edges to a delta, or changes to a whole snapshot"),
    ("names", "s0.delta.appears", set_to(0, 2), r"neither 1 \(the edge appears\) nor 0"),
    # Times.
    ("full", "s0.starts", add_to(3, 1), "times do not ascend"),
    ("full", "s1.starts", set_to(0, -5), "times do not ascend"),
    ("full", "s1.starts", set_to(-1, 2**63 - 1), "times do not ascend"),
    # Nodes and edge types.
    ("full", "nodes.ids", lambda ids: np.where(ids == 3, 4, ids), "20 nodes, but 20 ids, of which 19 differ"),
    ("full", "types.ids", set_to(0, 2), "3 edge types, but 3 ids, of which 2 differ"),
    ("full", "types.ids", lambda ids: np.arange(5000), "5000 edge types do not fit into the keys"),
    ("names", "nodes.id_bytes", set_to(5, ord("0")), "15 nodes, but 15 ids, of which 14 differ"),
    ("names", "nodes.id_bytes", set_to(-1, 0xFF), "do not fit together: UnicodeDecodeError"),
    ("names", "nodes.id_ends", set_to(0, 100), "the ids of nodes do not end where their 45 bytes do"),
    ("names", "nodes.id_ends", set_to(-1, 44), "the ids of nodes do not end where their 45 bytes do"),
    ("full", "nodes.first_seen", set_to(2, 1000), "first seen in a snapshot that is not one of the 60"),
    ("full", "nodes.first_seen", set_to(2, -2), "first seen in a snapshot that is not one of the 60"),
    ("full", "nodes.first_seen", add_to(2, 1), "first snapshots are not those of the edges"),
    ("full", "nodes.first_seen", set_to(2, -1), "first snapshots are not those of the edges"),
    ("full", "nodes.degrees", add_to((2, 0), 1), "degrees are not those of the last snapshot"),
    ("present", "nodes.present", set_to((0, 0), 3), "the stays of nodes are not in order"),
    ("present", "nodes.present", set_to((0, 0), -1), "the stays of nodes are not in order"),
    ("present", "nodes.present", set_to((0, 2), 0), "the stays of nodes are not in order"),
    ("present", "nodes.present", set_to((0, 2), 3), "the stays of nodes are not in order"),
    ("present", "nodes.present", lambda stays: np.repeat(stays, 2, axis=0), "the stays of nodes are not in order"),
    # Features and labels.
    ("full", "labels.fixed", add_to(0, 7), r"labels\.fixed names a class that is none of the 2"),
    ("full", "labels.fixed", set_to(0, -2), r"labels\.fixed names a class that is none of the 2"),
    ("full", "labels.fixed", lambda y: np.repeat(y, 2), r"labels\.fixed has 40 rows for 20 nodes"),
    ("full", "features.classes", add_to(0, 7), r"features\.classes names a class that is none of the 2"),
    ("listed", "s0.features", set_to((1, 0, 0), np.nan), r"s0\.features holds a number that is not finite"),
    ("listed", "s1.features", lambda x: x[:, :, :1].copy(), r"\[1, 2\] features in different segments"),
    # Edges and changes.
    ("full", "s0.keyframe.keys", lambda keys: swap(keys, 0, 1), "snapshot 0: its edges are not sorted"),
    ("full", "s0.keyframe.keys", lambda keys: set_to(1, keys[0])(keys), "snapshot 0: .* or occur twice"),
    ("full", "s0.keyframe.keys", set_to(0, -1), "snapshot 0: its edges are not sorted"),
    ("full", "s0.keyframe.keys", add_to(-1, 2**50), "an edge names node"),
    ("full", "s0.keyframe.keys", add_to(0, 200), "a type beyond the 3"),
    ("full", "s0.keyframe.weights", set_to(0, 0), "snapshot 0: a weight is 0 or not finite"),
    ("full", "s0.keyframe.weights", set_to(-1, np.nan), "a weight is 0 or not finite"),
    ("full", "s0.keyframe.weights", add_to(0, 0.5), "does not start from the snapshot before|its index says"),
    ("full", "s0.delta.keys", lambda keys: swap(keys, 0, 1), "its edges are not sorted"),
    ("full", "s0.delta.keys", add_to(0, 1), "does not start from|a type beyond|not sorted|its index says"),
    ("full", "s0.delta.old", add_to(0, 0.5), "its delta does not start from the snapshot before it"),
    ("full", "s0.delta.new", set_to(-1, np.inf), "a weight is 0 or not finite"),
    ("full", "s0.delta.new", lambda new: set_to(0, 99)(new), "does not start from|its index says"),
    ("names", "s0.delta.appears", lambda appears: 1 - appears, "does not start from the snapshot before it"),
    ("names", "s0.keyframe.keys", lambda keys: keys[0] // 2**31 * (2**31 + 1) + keys * 0, "not sorted|to itself"),
    # What is counted.
    *[
        ("full", f"s{t % 2}.statistics", add_to((t, t), 1), f"snapshot .*{STATISTICS[t]}.* but its index says")
        for t in range(1, 8)
    ],
    ("full", "s0.statistics", add_to((3, 0), 1), "but its account differs"),
    ("full", "s0.statistics", lambda rows: swap(rows, 3, 4), "snapshot 3 has"),
    # What is kept for appending.
    ("full", "tail.key", lambda keys: swap(keys, 0, -1), "kept for appending are not in order"),
    ("full", "tail.t", set_to(0, 3), "kept for appending are not in order"),
    ("full", "tail.t", set_to(-1, 60), "kept for appending are not in order"),
    ("full", "tail.events", set_to(0, 0), "kept for appending are not in order"),
    ("full", "tail.value", set_to(-1, 99), "kept for appending are not those of the last snapshot"),
    ("mean0", "tail.events", add_to(0, 1), "kept for appending are not those of the last snapshot"),
    ("mean0", "tail.t", set_to(0, 0), "kept for appending are not in order"),
    ("max0", "tail.value", add_to(5, 1), "kept for appending are not those of the last snapshot"),
    ("max3", "tail.value", set_to(5, 99), "kept for appending are not those of the last snapshot"),
    ("sum3", "tail.value", add_to(5, 1), "kept for appending are not those of the last snapshot"),
    ("sum3", "tail.key", lambda keys: keys + 2**20, "kept for appending are not those of the last snapshot"),
]  # fmt: skip


def problems_of(path: Path) -> list[str]:
    """Return what is wrong with a graph, be it refused when opened or found later."""
    try:
        return list(check(path))
    except BadStore as error:
        return [str(error)]


@pytest.mark.parametrize(("which", "name", "change", "sentence"), DAMAGES)
def test_each_kind_of_damage_is_named(
    graph: Callable[[str], Path], which: str, name: str, change: Change, sentence: str
) -> None:
    path = graph(which)
    rewrite(path, name, change)
    problems = problems_of(path)
    assert any(re.search(sentence, problem) for problem in problems), problems


def test_a_change_that_changes_nothing_is_named(graph: Callable[[str], Path]) -> None:
    path = graph("full")
    store = open_graph(path).store
    old, new, ends = (store.array(f"s0.{name}") for name in ("delta.old", "delta.new", "ends"))
    place = int(np.flatnonzero((old != 0) & (new != 0))[0])
    before, t = old[place], int(np.searchsorted(ends[:, 1], place, side="right"))
    rewrite(path, "s0.delta.new", set_to(place, before))
    assert problems_of(path) == [f"snapshot {t}: its delta does not start from the snapshot before it"]


def test_every_kind_of_array_was_damaged(graphs: Path) -> None:
    stored = {re.sub(r"^s\d", "s0", name) for path in graphs.glob("*/") for name in Store(path).names}
    damaged = {re.sub(r"^s\d", "s0", name) for _, name, _, _ in DAMAGES}
    assert stored == damaged


@pytest.mark.parametrize(
    ("which", "change", "sentence"),
    [
        ("full", lambda m: m["segments"][1].update(first=5), "segment s1 begins at snapshot 5, where .* begins at 30"),
        ("full", lambda m: m["segments"].reverse(), "segment s1 begins at snapshot 30, where segment s0 begins at 0"),
        ("full", lambda m: m["segments"].pop(), "s1.starts belongs to nothing"),
        ("full", lambda m: m["segments"][1].update(weighted=False), r"s1\.delta\.old belongs to nothing"),
        ("full", lambda m: m.update(num_snapshots=3), "segments hold 60 snapshots, the manifest says 3"),
        ("full", lambda m: m["reports"][0].update(kept=1), "account does not balance: 400 rows"),
        ("full", lambda m: m["reports"][0].update(dropped={}), "account does not balance"),
        ("full", lambda m: m["reports"][0].update(dropped_in_all=0), "account does not balance"),
        ("full", lambda m: m["reports"].pop(), "2 segments, but 1 accounts"),
        ("full", lambda m: m["reports"][1].update(num_edges=1), "segment s1 has 30 .* its account differs"),
        ("full", lambda m: m["arrays"].pop("nodes.degrees"), r"the array nodes\.degrees is missing"),
        ("full", lambda m: m["arrays"].pop("s0.delta.old"), r"the array s0\.delta\.old is missing"),
        ("full", lambda m: m["arrays"].pop("tail.key"), r"the array tail\.key is missing"),
        ("full", lambda m: m["rules"].update(life=1), r"the array tail\.key belongs to nothing"),
        ("full", lambda m: m["rules"].update(both_directions=True), "an edge is there in one direction only"),
        ("full", lambda m: m["rules"].update(duplicates="other"), "--duplicates other is unknown"),
        ("full", lambda m: m.update(num_nodes=7), r"nodes\.ids has type <i8 and shape \[20\], not <i8 and \[7\]"),
        ("full", lambda m: m.update(end=3), "times do not ascend"),
        ("full", lambda m: m["layout"].update(node_bits=2), "do not fit into the keys"),
        ("full", lambda m: m["labels"].update(kind="none"), r"labels\.fixed belongs to nothing"),
        ("full", lambda m: m["features"].update(kind="stored"), r"features\.classes belongs to nothing"),
        ("full", lambda m: m["reports"][0].pop("num_edges"), "do not fit together"),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_named(
    graph: Callable[[str], Path], which: str, change: Callable[[dict[str, Any]], Any], sentence: str
) -> None:
    path = graph(which)
    edit_manifest(path, change)
    problems = problems_of(path)
    assert any(re.search(sentence, problem) for problem in problems), problems


def test_self_loops_are_named_where_the_rules_leave_them_out(tmp_path: Path) -> None:
    rows = {"source": [0, 1], "target": [0, 2], "time": [0, 0]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given"), keep_self_loops=True))
    assert list(check(tmp_path / "g")) == []
    edit_manifest(tmp_path / "g", lambda manifest: manifest["rules"].update(keep_self_loops=False))
    assert list(check(tmp_path / "g")) == [
        "snapshot 0: an edge leads from a node to itself, which this graph's rules leave out"
    ]


def test_times_at_both_ends_of_time_ascend(tmp_path: Path) -> None:
    rows = {"source": [0, 1, 2], "target": [1, 2, 0], "time": [-(2**63) + 1, 0, 2**63 - 2]}
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given")))
    assert list(check(tmp_path / "g")) == []


@pytest.mark.parametrize("which", ["full", "names", "listed", "present", "mean0"])
def test_damage_of_any_number_becomes_a_sentence_and_no_traceback(graph: Callable[[str], Path], which: str) -> None:
    path = graph(which)
    rng = np.random.default_rng(5)
    whole = {file: file.read_bytes() for file in path.iterdir()}
    names = [name for name in Store(path).names if Store(path).array(name).size]
    for _ in range(25):

        def change(array: NDArray[Any]) -> NDArray[Any]:
            flat = array.reshape(-1).copy()
            kind = rng.integers(0, 4)
            if kind == 0:
                return rng.permutation(flat).reshape(array.shape)
            if kind == 1:
                return array[: rng.integers(0, len(array))]
            flat[rng.integers(0, len(flat), kind)] = rng.integers(0, 256, flat.dtype.itemsize, np.uint8).view(
                flat.dtype
            )
            return flat.reshape(array.shape)

        rewrite(path, str(rng.choice(names)), change)
        for problem in problems_of(path):
            assert problem
            assert "\n" not in problem
        for file, data in whole.items():
            file.write_bytes(data)
