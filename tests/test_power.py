"""After a power cut runs go on to the same end, graphs are the old ones or the new ones, and pages are whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.graph.test_kill import LATER, do, first_graph, found_in
from tests.power import Disk, State
from tests.train.small_runs import drift, saved, small
from tests.train.test_resume import equal_runs, go_on, sound
from timeloom.graph.append import Append, append
from timeloom.records import read_config
from timeloom.report.html import page_of, write_page
from timeloom.train import checkpoint
from timeloom.train.runs import train

SETTINGS: dict[str, Any] = {"train": {"epochs": 2, "keep": 1, "save_seconds": 0.0}, "window": {"length": 2}}


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("graphs") / "drift", num_snapshots=6)


def watched(disk: Disk, work: Callable[[], object]) -> list[State]:
    """Do some work; return the states in which a power cut could leave the disk, without those that come twice."""
    save = checkpoint.save

    def promising(folder: Path, name: str, *more: Any) -> None:
        save(folder, name, *more)
        disk.promised.append(name)

    with pytest.MonkeyPatch.context() as patch, disk.watched():
        patch.setattr(checkpoint, "save", promising)
        work()
        disk.promised.append("done")
    return disk.states


def each(states: Iterable[State], folder: Path) -> Iterable[State]:
    """Put one state after the other into a folder."""
    for state in states:
        state.put(folder)
        yield state
        shutil.rmtree(folder)


def kept_promise(run: Path, state: State) -> None:
    """Check that the newest checkpoint is not older than the last one that was told to be saved."""
    told = [name for name in state.promised if name != "done"]
    if told:
        assert saved(run).name >= told[-1]


def runs_go_on(drifting: Path, tmp_path: Path, protocol: str, every: int) -> None:
    settings = small(SETTINGS, {"train": {"protocol": protocol}, "live": {"steps": 2}})
    train(drifting, tmp_path / "whole", settings)
    (tmp_path / "disk").mkdir()
    states = watched(Disk(tmp_path / "disk"), lambda: train(drifting, tmp_path / "disk" / "run", settings))
    assert {state.how for state in states} == {"forced", "torn"}
    assert len(states) > 60
    after = tmp_path / "after"
    for place, state in enumerate(each(states, after)):
        sound(after / "run")
        kept_promise(after / "run", state)
        if place % every == 0 or place + 1 == len(states):
            go_on(drifting, after / "run", settings)
            equal_runs(after / "run", tmp_path / "whole")


def test_after_a_power_cut_a_run_goes_on(drifting: Path, tmp_path: Path) -> None:
    runs_go_on(drifting, tmp_path, "fixed", 11)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fixed", "live"])
def test_after_a_power_cut_at_any_call_a_run_goes_on(drifting: Path, tmp_path: Path, protocol: str) -> None:
    runs_go_on(drifting, tmp_path, protocol, 1)


def test_a_power_cut_while_a_run_is_replaced_leaves_one_that_goes_on(drifting: Path, tmp_path: Path) -> None:
    old, new = (small(SETTINGS, {"train": {"epochs": 1, "seed": seed}}) for seed in (0, 1))
    whole = {}
    for name, settings in (("old", old), ("new", new)):
        train(drifting, tmp_path / name, settings)
        whole[read_config(tmp_path / name)] = tmp_path / name
    shutil.copytree(tmp_path / "old", tmp_path / "disk" / "run")
    run = tmp_path / "disk" / "run"
    states = watched(Disk(tmp_path / "disk"), lambda: train(drifting, run, new, overwrite=True))
    seen = set()
    after = tmp_path / "after"
    for place, state in enumerate(each(states, after)):
        sound(after / "run")
        kept_promise(after / "run", state)
        found = whole[read_config(after / "run")]
        seen.add(found.name)
        if found.name == "old" or place % 7 == 0:
            go_on(drifting, after / "run", old)
            equal_runs(after / "run", found)
    assert seen == {"old", "new"}


@pytest.mark.parametrize("work", ["append", "overwrite", "ingest"])
def test_a_power_cut_leaves_the_old_graph_or_the_new_one(tmp_path: Path, work: str) -> None:
    (tmp_path / "disk").mkdir()
    graph, after = tmp_path / "disk" / "g", tmp_path / "after"
    first_graph(graph, work)
    old = found_in(graph)
    states = watched(Disk(tmp_path / "disk"), lambda: do(graph, work))
    new, seen = found_in(graph), set()
    assert old != new
    for state in each(states, after):
        found = found_in(after / "g")
        assert found in (old, new)
        assert found == new or "done" not in state.promised
        seen.add(found == new)
        if found is not None:
            append(after / "g", LATER, Append())
    assert seen == {True, False}


def test_a_power_cut_leaves_the_old_page_or_the_new_one(tmp_path: Path) -> None:
    old, new = (page_of({"runs": [{"name": name}]}) for name in ("old", "new"))
    (tmp_path / "disk").mkdir()
    page = tmp_path / "disk" / "report.html"
    write_page(page, old)
    states = watched(Disk(tmp_path / "disk"), lambda: write_page(page, new))
    found = [(tmp_path / "after" / "report.html").read_text() for _ in each(states, tmp_path / "after")]
    assert {*found} == {old, new}
    assert found[-1] == found[-2] == new
