"""A terminal shows how far a run is, and what its ranks do."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.report.fake import Fake
from timeloom.records import RunDirectory
from timeloom.report.log import RunLog, read_log
from timeloom.report.terminal import ending_of, line_of, spark, view_of


def shown(log: RunLog, state: str, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(view_of(log, state, width))
    return out.getvalue()


def test_a_view_tells_place_loss_scores_and_ranks(tmp_path: Path) -> None:
    log = read_log(Fake(epochs=3, ended=False, warning="be [red]careful[/red]").make(tmp_path / "[b]run"))
    told = shown(log, "running")
    for words in (
        "[b]run running",
        "epoch 3 of 3   step 18",
        "edges/s",
        "loss",
        "val mse",
        "persistence 0.214",
        "last told",
    ):
        assert words in told, words
    assert "be [red]careful[/red]" in told, "what a run says is never taken for markup"
    rows = [line.split() for line in told.splitlines() if "█" in line and "kB" not in line and "MB" in line]
    assert [row[1] for row in rows] == ["0", "1"]


@pytest.mark.parametrize("width", [40, 80, 100])
def test_a_view_fits_the_terminal(tmp_path: Path, width: int) -> None:
    log = read_log(Fake(epochs=3, ranks=40).make(tmp_path / "run"))
    told = shown(log, "ended", width)
    assert max(map(len, told.splitlines())) <= width
    if width >= 80:
        assert "and 8 more ranks" in told


def test_a_run_that_told_nothing_yet_can_be_seen(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "", overwrite=False):
        log = read_log(tmp_path / "run")
        assert "none yet" in shown(log, "running")
        assert line_of(log, "running") == "run running: epoch 0, no loss yet, no step yet"


def test_the_last_sentence_says_what_to_do_next(tmp_path: Path) -> None:
    ended, stopped = (read_log(Fake(ended=how).make(tmp_path / str(how))) for how in (True, False))
    assert ending_of(ended, "ended") == f"True ended (epochs) after 8 epochs: timeloom report {ended.path}"
    assert f"timeloom train --resume {stopped.path}" in ending_of(stopped, "stopped")


def test_a_sparkline_goes_from_the_least_to_the_largest() -> None:
    assert spark(np.array([0.0, 1.0, 2.0, 3.5]), 10) == "▁▃▅█"
    assert len(spark(np.arange(1_000.0), 30)) == 30
    assert spark(np.ones(3), 10) == "▁▁▁"
