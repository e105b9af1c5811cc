"""Systems on ranks that are processes: what threads promise in milliseconds, over gloo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.test_systems import alone, graph, settings_of  # noqa: F401
from timeloom.config import dump
from timeloom.dist.launch import Launch, supervise
from timeloom.graph.dynamic import open_graph
from timeloom.train.session import open_session

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "psg": ("psg", {"model": {"name": "gcn_gru"}}),
    "relay": ("esdg", {"model": {"name": "wdgcn", "layers": 2}, "window": {"groups": 2}}),
    "relay of inherited states": ("esdg", {"model": {"name": "dcrnn"}, "window": {"state": "inherit", "stride": 2}}),
    "relay, recomputed": ("esdg", {"model": {"name": "evolvegcn_o"}, "system": {"recompute": True}}),
    "alltoall": ("esdg", {"model": {"name": "gat_lstm", "layers": 2}, "system": {"time": "alltoall"}}),
    "blad": ("blad", {"model": {"name": "gcn_gru", "layers": 2}}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("ranks", "check"), [(2, True), (3, False)])
def test_processes_learn_what_one_process_learns(
    graph: Path, case: str, ranks: int, check: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    system, tables = CASES[case]
    settings = settings_of(graph, system, tables, {"world": {"check": check}})
    (tmp_path / "settings.toml").write_text(dump(settings))
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
    outcome = supervise(Launch(command=(sys.executable, "-m", "tests.train.rank", str(tmp_path)), workers=ranks))
    assert outcome.code == 0, outcome.told
    stop = open_session(settings, open_graph(graph)).split.train_stop
    by_windows = settings.system.divide == "windows"
    wanted = alone(settings, ranks if by_windows else 1, stop)
    for rank in range(ranks):
        found = torch.load(tmp_path / f"rank{rank}")
        np.testing.assert_allclose(found.pop("losses"), wanted.losses, rtol=1e-10)
        np.testing.assert_allclose(found.pop("norms"), wanted.norms, rtol=1e-10)
        for name, value in wanted.parameters.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
