"""Ranks that take stretches of every window, and hand states on, learn what one process learns (ESDG, relay)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import graph_of, random_snapshots
from tests.train.test_systems import NODES, SNAPSHOTS, alone, assert_equal, settings_of, together
from timeloom.graph.dynamic import open_graph
from timeloom.nn.models import MODELS
from timeloom.train.session import open_session

MESSAGES = ("state/",)
SERVED_BY_ALLTOALL = [
    name for name in MODELS if name not in ("tgcn_integrated", "dcrnn", "evolvegcn_o", "evolvegcn_h")
]  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    snapshots = random_snapshots(NODES, 9, SNAPSHOTS)
    snapshots[3] = []
    return graph_of(tmp_path_factory.mktemp("relay") / "graph", snapshots)


def stop_of(settings: Any) -> int:
    return open_session(settings, open_graph(settings.graph)).split.train_stop


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_relay_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}})
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop), MESSAGES)


@pytest.mark.parametrize("model", SERVED_BY_ALLTOALL)
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_alltoall_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}, "system": {"time": "alltoall"}})
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop))
