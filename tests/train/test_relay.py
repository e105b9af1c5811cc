"""Ranks that take stretches of every window learn what one process learns, both ways (ESDG; T13, T16)."""

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
ALLTOALL = {"system": {"time": "alltoall"}}
SERVED_BY_ALLTOALL = [
    name for name in MODELS if name not in ("tgcn_integrated", "dcrnn", "evolvegcn_o", "evolvegcn_h")
]  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    snapshots = random_snapshots(NODES, 9, SNAPSHOTS)
    # With two empty ones there is a snapshot after which there is nothing to predict.
    snapshots[3] = snapshots[4] = []
    return graph_of(tmp_path_factory.mktemp("esdg") / "graph", snapshots)


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
    settings = settings_of(graph, "esdg", {"model": {"name": model}}, ALLTOALL)
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop))


# Windows of 5 snapshots on 2 and 3 ranks are uneven; on 7 ranks some have no snapshot at all.
VARIANTS: dict[str, dict[str, Any]] = {
    "two layers": {"model": {"layers": 2}},
    "two windows a step": {"window": {"groups": 2}},
    "three windows a step": {"window": {"groups": 3}, "reuse": {"mode": "versions"}},
    "five snapshots": {"window": {"length": 5}},
    "one snapshot": {"window": {"length": 1}},
    "the last one's targets": {"window": {"length": 5, "targets": "last"}, "model": {"layers": 2}},
    "inherited": {"window": {"length": 3, "state": "inherit", "stride": 0}},
    "inherited from within": {"window": {"length": 5, "state": "inherit", "stride": 2}, "model": {"layers": 2}},
    "nobody holds": {"model": {"absent": "run"}},
    "links": {"task": {"name": "links"}},
    "versions": {"reuse": {"mode": "versions"}, "model": {"layers": 2}},
    "nothing kept": {"reuse": {"mode": "full", "cache": "off"}},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("model", "ranks"), [("gcn_gru", 2), ("gcn_gru", 7), ("wdgcn", 3), ("evolvegcn_o", 3), ("dcrnn", 2)]
)
def test_a_relay_is_exact_whatever_the_windows(graph: Path, model: str, ranks: int, variant: str) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}}, VARIANTS[variant])
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop), MESSAGES)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("model", "ranks"), [("gcn_gru", 2), ("gcn_gru", 7), ("wdgcn", 3), ("mpnn_lstm", 3), ("gat_lstm", 2)]
)
def test_an_alltoall_is_exact_whatever_the_windows(graph: Path, model: str, ranks: int, variant: str) -> None:
    settings = settings_of(graph, "esdg", {"model": {"name": model}}, ALLTOALL, VARIANTS[variant])
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(settings, 1, stop))
