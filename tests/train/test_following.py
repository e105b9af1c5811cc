"""Following a graph that grows: however snapshots arrive, and whatever is killed in between, the model is the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train.small_runs import columns_of, graph_of, of_kind, same_bits, saved
from timeloom.config import merge
from timeloom.dist import threads
from timeloom.errors import BadConfig
from timeloom.graph.append import Append, append
from timeloom.graph.dynamic import open_graph
from timeloom.graph.upto import UpTo
from timeloom.train import following
from timeloom.train.following import Patience, follow
from timeloom.train.inference import predict
from timeloom.train.runs import resume, train

SMALL: dict[str, Any] = {
    "model": {"hidden": 4, "span": 3, "layers": 1, "heads": 2},
    "window": {"length": 3},
    "live": {"steps": 3, "patience": 2, "held_out": 0.3, "warmup": 0.3},
    "train": {"threads": 1, "device": "cpu", "save_seconds": 1000.0, "precision": "float64"},
}
FAST = Patience(idle_s=0.02, poll_s=0.01)
KNOWN, ALL = 6, 12


def snapshots(count: int = ALL) -> list[list[tuple[int, int]]]:
    """Return snapshots in which nodes are born all the time."""
    rng = np.random.default_rng(3)
    drawn = [rng.integers(0, 6 + 2 * t, (14, 2)).tolist() for t in range(count)]
    return [[(u, v) for u, v in edges if u != v] for edges in drawn]


def grow(path: Path, first: int, last: int) -> None:
    append(path, columns_of(snapshots()[first:last], first), Append())


SAMPLED: dict[str, Any] = {"distdy": {"fanouts": [2]}}


def settings(**more: Any) -> dict[str, Any]:
    return merge(SMALL, more)


def whole_run(tmp_path: Path, system: str | None, chosen: dict[str, Any]) -> Path:
    """Return a run over a graph that grew to its end before anything was followed further."""
    graph, out = graph_of(tmp_path / "all", snapshots(KNOWN)), tmp_path / "whole"
    follow(graph, out, chosen, system=system, patience=Patience(until=KNOWN))
    grow(graph, KNOWN, ALL)
    follow(graph, out, patience=FAST)
    return out


@pytest.mark.parametrize(("model", "task"), [
    ("gcn_gru", "degree"), ("evolvegcn_o", "degree"), ("sage_linear", "links"),
])  # fmt: skip
def test_a_run_that_waits_learns_what_one_does_that_finds_all_there(tmp_path: Path, model: str, task: str) -> None:
    chosen = settings(model={"name": model}, task={"name": task})
    wanted = whole_run(tmp_path, None, chosen)
    graph, out = graph_of(tmp_path / "graph", snapshots(KNOWN)), tmp_path / "run"

    def arrive() -> None:
        for first in range(KNOWN, ALL, 2):
            time.sleep(0.15)
            grow(graph, first, first + 2)

    feeding = threading.Thread(target=arrive)
    feeding.start()
    follow(graph, out, chosen, patience=Patience(until=ALL, poll_s=0.02))
    feeding.join()
    assert same_bits(saved(out).tensors, saved(wanted).tensors)
    assert scores(out) == scores(wanted)


def scores(run: Path) -> dict[Any, Any]:
    """Return the scores of every prediction, and of all of them; those of a later summary replace earlier ones."""
    return {(one["split"], one["epoch"]): (one["scores"], one["baselines"]) for one in of_kind(run, "evaluated")
            if one["split"] == "live" or one["epoch"] == ALL - 1}  # fmt: skip


class _Dead(BaseException):
    """As if the process were gone: nothing is saved any more."""


def dies_at(kind: str, number: int) -> Any:
    """Return what is shown records, and dies at one of them."""
    seen = [0]

    def show(record: Any) -> None:
        if record.kind == kind:
            seen[0] += 1
            if seen[0] == number:
                raise _Dead

    return show


@pytest.mark.parametrize("system", [None, "distdy"])
def test_a_run_that_died_anywhere_ends_like_one_that_did_not(tmp_path: Path, system: str | None) -> None:
    chosen = settings(train={"save_seconds": 0.0}, **(SAMPLED if system else {}))
    wanted = whole_run(tmp_path, system, chosen)
    graph, out = graph_of(tmp_path / "graph", snapshots(KNOWN)), tmp_path / "run"
    # Before the first checkpoint; then in the middle of a snapshot, with more and more of the graph there.
    for kind, number, more in (("started", 1, 0), ("stepped", 2, 1), ("stepped", 5, 2), ("evaluated", 2, 3)):
        with pytest.raises(_Dead):
            follow(graph, out, chosen, system=system, patience=FAST, show=dies_at(kind, number))
        grow(graph, len(open_graph(graph)), min(len(open_graph(graph)) + more, ALL)) if more else None
    assert len(open_graph(graph)) == ALL
    follow(graph, out, patience=Patience(until=ALL))
    assert same_bits(saved(out).tensors, saved(wanted).tensors)
    assert scores(out) == scores(wanted)


def test_ranks_that_follow_learn_what_one_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(tmp_path / "graph", snapshots(ALL))
    chosen = settings(model={"name": "sage_attention"}, task={"name": "links", "num_negatives": 4}, **SAMPLED)
    follow(graph, tmp_path / "one", chosen, system="distdy", patience=Patience(until=ALL))
    wanted = saved(tmp_path / "one").tensors

    def rank(world: Any) -> None:
        follow(graph, tmp_path / "two", chosen, system="distdy", patience=Patience(until=ALL))

    local = threading.local()
    monkeypatch.setattr(following, "joined", lambda settings, seat: _given(local.world))

    def work(world: Any) -> None:
        local.world = world
        rank(world)

    threads.run(2, work, check=True)
    found = saved(tmp_path / "two").tensors
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), rtol=1e-9, atol=1e-11, err_msg=name)
    told = [of_kind(tmp_path / name, "evaluated") for name in ("one", "two")]
    for theirs, mine in zip(*told, strict=True):
        found_scores, wanted_scores = (np.array([*one["scores"].values()], np.float64) for one in (mine, theirs))
        np.testing.assert_allclose(found_scores, wanted_scores, rtol=1e-9)


@contextmanager
def _given(world: Any) -> Iterator[Any]:
    yield world


def test_what_is_done_at_a_snapshot_knows_no_node_that_comes_later(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "graph", snapshots(ALL))
    opened = open_graph(graph)
    early = UpTo(opened, KNOWN)
    seen = {node for edges in snapshots(KNOWN) for edge in edges for node in edge}
    # Ids are numbers of their own order here: those below the largest one seen are there, or absent.
    assert len(seen) <= early.num_nodes <= max(seen) + 1 < opened.num_nodes
    assert len(early) == KNOWN
    for t in range(KNOWN):
        assert early.snapshot(t).num_nodes == early.num_nodes == len(early.snapshot(t).alive)
        np.testing.assert_array_equal(early.snapshot(t).keys, opened.snapshot(t).keys)
        assert early.num_edges(t) == opened.num_edges(t)


def test_it_ends_when_nothing_arrives_and_goes_on_when_something_does(tmp_path: Path) -> None:
    graph, out = graph_of(tmp_path / "graph", snapshots(KNOWN)), tmp_path / "run"
    follow(graph, out, settings(), patience=FAST)
    assert [one["reason"] for one in of_kind(out, "ended")] == ["idle"]
    assert saved(out).state["progress"]["epoch"] == KNOWN - 1
    grow(graph, KNOWN, KNOWN + 2)
    result = follow(graph, out, patience=Patience(until=KNOWN + 2))
    assert [one["reason"] for one in of_kind(out, "ended")] == ["snapshots"]
    assert saved(out).state["progress"]["epoch"] == KNOWN + 1
    assert set(result.baselines) == {"zero", "mean", "persistence"}
    # What was learnt can be asked about the newest snapshot.
    assert len(predict(out)["node"]) == open_graph(graph).num_nodes


def test_it_is_saved_before_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, out = graph_of(tmp_path / "graph", snapshots(KNOWN)), tmp_path / "run"

    def die(seconds: float) -> None:
        raise _Dead

    monkeypatch.setattr("timeloom.train.following.time.sleep", die)
    with pytest.raises(_Dead):
        follow(graph, out, settings(), patience=Patience(poll_s=0.01))
    assert saved(out).state["progress"]["epoch"] == KNOWN - 1


def test_baselines_are_those_of_a_run_over_the_whole_graph(tmp_path: Path) -> None:
    graph = graph_of(tmp_path / "graph", snapshots(ALL))
    chosen = settings(task={"name": "links", "num_negatives": 5}, train={"protocol": "live"})
    follow(graph, tmp_path / "follow", chosen, patience=Patience(until=ALL))
    train(graph, tmp_path / "live", chosen)
    (mine,), (theirs,) = (of_kind(tmp_path / name, "evaluated", split="all") for name in ("follow", "live"))
    for name, told in theirs["baselines"].items():
        np.testing.assert_allclose([*mine["baselines"][name].values()], [*told.values()], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose([*mine["scores"].values()], [*theirs["scores"].values()], rtol=1e-12)


def test_what_cannot_be_gone_on_with_is_refused(tmp_path: Path) -> None:
    graph, out = graph_of(tmp_path / "graph", snapshots(KNOWN)), tmp_path / "run"
    follow(graph, out, settings(), patience=FAST)
    with pytest.raises(BadConfig, match="other settings"):
        follow(graph, out, settings(model={"hidden": 8}), patience=FAST)
    with pytest.raises(BadConfig, match="timeloom follow"):
        resume(out)
    other = graph_of(tmp_path / "other", snapshots(KNOWN))
    with pytest.raises(BadConfig, match="not "):
        follow(other, out, patience=FAST)
    train(graph, tmp_path / "fixed", settings(train={"epochs": 1}))
    with pytest.raises(BadConfig, match="was not begun by"):
        follow(graph, tmp_path / "fixed", patience=FAST)
    with pytest.raises(BadConfig, match="--poll 0"):
        Patience(poll_s=0.0)
