"""What is kept, also where two threads ask for it, and what is read ahead."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.train.small_runs import drift, history, saved, small
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.plan.types import Unit
from timeloom.train.kept import AtHand, Kept, Room
from timeloom.train.prefetch import Prefetch
from timeloom.train.runs import train
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings


def test_room_is_taken_to_the_byte_by_several_threads() -> None:
    room = Room(10_000)
    taken: list[bool] = []
    threads = [threading.Thread(target=lambda: taken.extend(room.take(3) for _ in range(1_000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 3_333
    assert room.left == 1


def test_a_thing_that_is_kept_takes_its_room_once() -> None:
    room = Room(10)
    kept = Kept[str, int](room)
    assert kept.offer("a", 1, 6) == 1
    assert kept.offer("a", 1, 6) == 1
    assert kept.offer("b", 2, 6) == 2
    assert (kept.get("a"), kept.get("b"), room.left) == (1, None, 4)


def test_two_threads_make_one_thing_once() -> None:
    near, made, found = AtHand[int, object](2), list[int](), list[object]()

    def make() -> object:
        made.append(1)
        time.sleep(0.05)
        return object()

    threads = [threading.Thread(target=lambda: found.append(near.get(7, make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(set(map(id, found))) == 1


def test_what_could_not_be_made_is_made_again_when_it_is_asked_for_again() -> None:
    near = AtHand[int, int](2)

    def fail() -> int:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        near.get(1, fail)
    assert near.get(1, lambda: 5) == 5


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    near, made = AtHand[int, int](2), list[int]()

    def make(key: int) -> int:
        made.append(key)
        return key

    for key in (1, 2, 1, 3, 1, 2):
        near.get(key, partial(make, key))
    assert made == [1, 2, 3, 2]
    assert len(near) == 2


WITHOUT_ROOM = small({"train": {"cache_bytes": 0, "spans": 2}, "window": {"state": "zero", "stride": 2}})


def test_the_next_step_is_read_ahead_on_a_thread_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room, snapshots are read again and again; in steps after the first the other thread reads them."""
    readers: dict[str, int] = {}
    read = DynamicGraph.snapshot

    def watched(graph: DynamicGraph, t: int) -> object:
        name = threading.current_thread().name
        readers[name] = readers.get(name, 0) + 1
        return read(graph, t)

    graph = drift(tmp_path / "drift", num_snapshots=40)
    train(graph, tmp_path / "kept", small({"window": {"state": "zero", "stride": 2}}))
    monkeypatch.setattr(DynamicGraph, "snapshot", watched)
    train(graph, tmp_path / "ahead", WITHOUT_ROOM)
    assert sum(count for name, count in readers.items() if name.startswith("prefetch")) > 0
    assert history(tmp_path / "ahead")[1:] == history(tmp_path / "kept")[1:]
    for name, value in saved(tmp_path / "kept").tensors.items():
        assert np.array_equal(saved(tmp_path / "ahead").tensors[name].numpy(), value.numpy(), equal_nan=True)


def test_what_cannot_be_read_ahead_is_told_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = open_graph(drift(tmp_path / "drift"))
    session = open_session(RunSettings(graph=str(graph.path)), graph)
    session.feed.room.left = 0
    prefetch = Prefetch(session.feed, 1)

    def fail(self: DynamicGraph, t: int) -> None:
        raise OSError(f"snapshot {t} is gone")

    monkeypatch.setattr(DynamicGraph, "snapshot", fail)
    session.feed._near._made.clear()
    session.feed._snapshots._made.clear()
    session.feed._views._made.clear()
    session.feed._near_views._made.clear()
    prefetch.ask([Unit(first=2, last=4, targets=(3,), fresh=True)])
    with pytest.raises(OSError, match="snapshot 2 is gone"):
        prefetch.ready()
    prefetch.ready()
    prefetch.close()
