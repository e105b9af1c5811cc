"""Sums that no parameter changes are made once, and kept within what memory and disk were given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.small_runs import drift, history, small
from tests.train.test_reuse import graph_of
from timeloom.graph.tasks import TaskSettings
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.types import Unit
from timeloom.train.aggregates import Aggregates
from timeloom.train.kept import Room
from timeloom.train.runs import train
from timeloom.train.session import Session, open_session
from timeloom.train.settings import ReuseSettings, RunSettings, TrainSettings
from timeloom.train.walk import first_carry


def rows(value: float, count: int = 10) -> Tensor:
    return torch.full((count, 4), value)


def aggregates(memory: int, disk: int) -> Aggregates:
    return Aggregates(room=Room(memory), disk_bytes=disk, keeps=True, comes_first=False)


def test_memory_is_filled_first_then_disk_and_then_nothing_is_kept() -> None:
    kept, made = aggregates(160 + 40, 320), list[int]()

    def ask(key: int) -> Tensor:
        def make() -> Tensor:
            made.append(key)
            return rows(float(key))

        return kept.get(key, make)

    for sweep in range(3):
        for key in range(4):
            assert torch.equal(ask(key), rows(float(key))), (sweep, key)
    # One table of 160 bytes in memory, two on disk, and the fourth is made every time.
    assert made == [0, 1, 2, 3, 3, 3]
    assert (kept.memory_bytes, kept.disk_bytes) == (160, 320)
    assert (kept.found, kept.computed) == (6, 6)


def test_a_file_has_no_name_and_can_be_written_to_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = aggregates(0, 1000)
    kept.get("a", lambda: rows(1.0))
    assert kept.disk_bytes == 160
    assert os.listdir(tmp_path) == []
    assert torch.equal(kept.get("a", lambda: rows(2.0)), rows(1.0))


def test_tables_without_rows_are_never_mapped() -> None:
    kept = aggregates(-1, 1000)
    assert len(kept.get("a", lambda: rows(1.0, 0))) == 0
    assert kept.disk_bytes == 0


def test_what_is_kept_has_no_gradient() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    assert not aggregates(1000, 0).get("a", lambda: rows(1.0) @ weight).requires_grad


def session_of(features: Any, **reuse: Any) -> Session:
    settings = RunSettings(
        graph="", model=ModelSettings(name="gcn_gru", hidden=4), task=TaskSettings(name="degree"),
        window=WindowSettings(length=3), reuse=ReuseSettings(**{"mode": "full", **reuse}),
        train=TrainSettings(precision="float64", device="cpu", cache_bytes=reuse.pop("memory", 1 << 20)),
    )  # fmt: skip
    return open_session(settings, graph_of(features))


@pytest.mark.parametrize("features", ["fixed", "stored", "log"])
def test_from_the_second_epoch_on_no_first_layer_sum_is_made(features: str) -> None:
    session = session_of(features)
    kept, carry = session.walker.encoder.aggregates, first_carry(session.model, session.feed)
    for epoch in range(3):
        for first in (0, 3):
            session.walker.walk(Unit(first=first, last=first + 3, targets=(first + 2,), fresh=True), carry)
        assert (kept.computed, kept.found) == (6, 6 * epoch)
    assert session_of(features, cache="off").walker.encoder.aggregates.keeps is False


def test_memory_disk_and_no_cache_give_the_same_run(tmp_path: Path) -> None:
    graph = drift(tmp_path / "g")
    ways = {"kept": {}, "mapped": {"train": {"cache_bytes": 0}, "reuse": {"disk_bytes": 1 << 20}}}
    for name, options in ways.items():
        train(graph, tmp_path / name, small({"train": {"log_steps": True}}, options))
    assert history(tmp_path / "kept")[1:] == history(tmp_path / "mapped")[1:]
