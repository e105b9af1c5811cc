"""`check` finds what is wrong even where every checksum is right, and says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.damage import add_to, edit_manifest, rewrite, swap
from timeloom.graph.append import Append, append
from timeloom.graph.check import check
from timeloom.graph.dynamic import open_graph
from timeloom.graph.ingest import AttributeOptions, Ingest, Windows, ingest


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph of two segments with keyframes, deltas, weights, types, features and labels."""
    rng = np.random.default_rng(1)
    size = 400
    rows = {
        "source": rng.integers(0, 20, size), "target": rng.integers(0, 20, size), "time": rng.integers(0, 30, size),
        "weight": rng.integers(1, 5, size).astype(float), "type": rng.integers(0, 3, size),
    }  # fmt: skip
    table = "id,team\n" + "".join(f"{node},{'ab'[node % 2]}\n" for node in range(20))
    (tmp_path / "nodes.csv").write_text(table)
    known = AttributeOptions(nodes=tmp_path / "nodes.csv", features="random:2", labels="class:team")
    ingest(rows, tmp_path / "g", Ingest(windows=Windows(kind="given"), life=12, duplicates="last", attributes=known))
    append(tmp_path / "g", {**rows, "time": rows["time"] + 40}, Append())
    assert 0 < open_graph(tmp_path / "g").num_keyframes < 30
    assert list(check(tmp_path / "g")) == []
    return tmp_path / "g"


def last_delta(graph: Path) -> int:
    return int(open_graph(graph).store.array("s0.ends")[-1, 1]) - 1


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("s0.keyframe.keys", lambda keys: swap(keys, 0, 1), "not sorted"),
        ("s0.keyframe.keys", add_to(0, -(2**61)), "not sorted|names node"),
        ("s0.keyframe.keys", add_to(-1, 2**50), "names node"),
        ("s0.keyframe.keys", add_to(0, 200), "a type beyond|not sorted|index says"),
        ("s0.keyframe.weights", add_to(0, float("nan")), "0 or not finite|does not start"),
        ("s0.delta.keys", lambda keys: swap(keys, 0, 1), "not sorted"),
        ("s0.delta.old", add_to(0, 0.5), "does not start from the snapshot before"),
        ("s0.delta.new", add_to(-1, float("inf")), "0 or not finite|does not start"),
        ("s0.statistics", add_to((3, 0), 1), "its index says"),
        ("s1.statistics", add_to((2, 5), 1), "its index says"),
        ("s0.starts", add_to(3, 1), "times do not ascend"),
        ("s0.ends", add_to((-1, 0), 1), "does not fit"),
        ("s0.whole", lambda whole: whole[:-1], "its index says"),
        ("nodes.first_seen", add_to(2, 1), "first snapshots are not those"),
        ("nodes.degrees", add_to((2, 0), 1), "degrees are not those"),
        ("nodes.ids", lambda ids: np.where(ids == 3, 4, ids), "ids, of which 19 differ"),
        ("nodes.ids", lambda ids: ids[:-1], "19 ids"),
        ("labels.fixed", add_to(0, 7), "more than the 2 classes"),
    ],
)
def test_each_kind_of_damage_is_named(graph: Path, name: str, change: Callable[[Any], Any], sentence: str) -> None:
    rewrite(graph, name, change)
    problems = list(check(graph))
    assert problems
    assert any(__import__("re").search(sentence, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m["segments"][1].update(first=5), "begins at snapshot 5"),
        (lambda m: m.update(num_snapshots=3), "the manifest says 3"),
        (lambda m: m["reports"][0].update(kept=1), "does not balance"),
        (lambda m: m["arrays"].pop("nodes.degrees"), "do not fit together|incomplete"),
        (lambda m: m["arrays"].pop("s0.delta.old"), "do not fit together|incomplete"),
        (lambda m: m.update(num_nodes=7), "has 7 nodes"),
    ],
)
def test_a_manifest_that_does_not_fit_is_named(
    graph: Path, change: Callable[[dict[str, Any]], Any], sentence: str
) -> None:
    edit_manifest(graph, change)
    problems = list(check(graph))
    assert any(__import__("re").search(sentence, problem) for problem in problems), problems


def test_damage_of_any_number_becomes_a_sentence_and_no_traceback(graph: Path) -> None:
    rng = np.random.default_rng(5)
    whole = {path: path.read_bytes() for path in graph.iterdir()}
    for _ in range(60):
        store = open_graph(graph).store
        name = str(rng.choice([name for name in store.names if store.array(name).size]))

        def change(array: np.ndarray) -> None:
            flat = array.reshape(-1)
            at = rng.integers(0, len(flat))
            flat[at] = flat[at] + rng.choice([1, -1, 3]) if flat.dtype.kind != "u" else flat[at] ^ 1

        rewrite(graph, name, change)
        for problem in check(graph):
            assert "\n" not in problem
        for path, data in whole.items():
            path.write_bytes(data)
