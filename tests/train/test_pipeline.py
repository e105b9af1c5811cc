"""Two windows at a time on each rank, one's structure beside the other's time, learn what one process learns (BLAD)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.test_systems import alone, assert_equal, graph, settings_of, together  # noqa: F401
from timeloom.graph.dynamic import open_graph
from timeloom.nn.models import MODELS
from timeloom.train.session import open_session


def stop_of(settings: Any) -> int:
    return open_session(settings, open_graph(settings.graph)).split.train_stop


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_blad_learns_what_one_process_learns(graph: Path, model: str, ranks: int) -> None:  # noqa: F811
    settings = settings_of(graph, "blad", {"model": {"name": model}})
    one = settings_of(graph, "psg", {"model": {"name": model}, "window": {"groups": 2}})
    stop = stop_of(settings)
    assert_equal(together(settings, ranks, stop), alone(one, ranks, stop))
