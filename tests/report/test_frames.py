"""In a notebook a run is frames, figures and a page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib.patches import Rectangle

import timeloom
from tests.report.fake import Fake
from timeloom.errors import BadConfig, BadRun
from timeloom.records import RunDirectory
from timeloom.report.frames import TABLES


@pytest.fixture
def run(tmp_path: Path) -> timeloom.Run:
    """A run of two ranks that has ended."""
    return timeloom.Run(Fake(epochs=3, steps=4).make(tmp_path / "run"))


SIZES = {
    "epochs": 3,
    "steps": 12,
    "scores": 24,
    "parts": 168,
    "traffic": 18,
    "schedule": 8,
    "graph": 60,
    "predictions": 400,
    "deviations": 3,
}


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_a_frame_of_either_library(run: timeloom.Run, table: str) -> None:
    polars, pandas = run.frame(table, "polars"), run.frame(table, "pandas")
    assert isinstance(polars, pl.DataFrame)
    assert isinstance(pandas, pd.DataFrame)
    assert polars.shape == pandas.shape
    assert len(polars) == SIZES[table]
    assert polars.columns == list(pandas.columns)


def test_frames_hold_what_was_told(run: timeloom.Run) -> None:
    epochs = run.frame("epochs")
    assert epochs["loss"].to_list() == [epoch.loss for epoch in run.log.epochs]
    traffic = run.frame("traffic")
    assert traffic.filter(pl.col("kind") == "halo")["sent_bytes"].max() == 1_300_000
    scores = run.frame("scores")
    test = scores.filter((pl.col("split") == "test") & (pl.col("who") == "model") & (pl.col("metric") == "mse"))
    assert test["value"].to_list() == [run.summary.score]


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name in names:
            raise ImportError(name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_pandas_is_taken_where_polars_is_missing(run: timeloom.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(run.frame("epochs"), pl.DataFrame)
    without(monkeypatch, "polars")
    assert isinstance(run.frame("epochs"), pd.DataFrame)
    with pytest.raises(BadConfig, match="needs polars, which is not installed"):
        run.frame("epochs", "polars")
    without(monkeypatch, "polars", "pandas")
    with pytest.raises(BadConfig, match="needs polars or pandas"):
        run.frame("epochs")


def test_a_table_that_is_none_is_named(run: timeloom.Run) -> None:
    with pytest.raises(BadConfig, match="no table 'losses': it has epochs, steps"):
        run.frame("losses")


def test_every_figure_is_drawn_and_shows_what_was_told(run: timeloom.Run) -> None:
    assert run.figure_names == [
        "loss", "metric", "timeline", "time", "utilisation", "imbalance", "bytes", "memory",
        "schedule", "graph", "predictions",
    ]  # fmt: skip
    for name in run.figure_names:
        run.figure(name).canvas.draw_idle()
    steps, epochs = run.figure("loss").axes[0].lines
    assert np.asarray(steps.get_ydata()).tolist() == list(run.log.steps.loss)
    assert np.asarray(epochs.get_xdata()).tolist() == [4, 8, 12]
    bars = [patch.get_height() for patch in run.figure("bytes").axes[0].patches if isinstance(patch, Rectangle)]
    assert sum(bars) == pytest.approx(sum(sum(record.sent_bytes.values()) for record in run.log.traffic) / 1e6)


def test_figures_are_files_and_the_same_ones_again(run: timeloom.Run, tmp_path: Path) -> None:
    figures = importlib.import_module("timeloom.report.figures")
    written = figures.save_all([run.log], tmp_path / "one")
    assert len(written) == 22
    assert (tmp_path / "one/loss.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "one/loss.svg").read_text()
    figures.save_all([run.log], tmp_path / "two")
    for path in written:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    with pytest.raises(BadRun, match="cannot be written"):
        figures.save_all([run.log], run.path / "config.toml")


def test_a_figure_for_which_too_little_was_told_is_refused(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "", overwrite=False):
        run = timeloom.Run(tmp_path / "run")
    assert run.figure_names == []
    with pytest.raises(BadRun, match="not told enough for the figure 'loss'"):
        run.figure("loss")
    with pytest.raises(BadConfig, match="no figure 'los'"):
        run.figure("los")


def test_without_matplotlib_a_figure_says_how_to_get_it(run: timeloom.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "timeloom.report.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(BadConfig, match=r"pip install 'timeloom\[figures\]'"):
        run.figure("loss")


def test_a_notebook_shows_a_run_and_nothing_of_it_as_markup(tmp_path: Path) -> None:
    run = timeloom.Run(Fake(epochs=2).make(tmp_path / "<b>run"))
    shown = run._repr_html_()
    assert "&lt;b&gt;run" in shown
    assert "<b>run" not in shown
    assert "Run(" in repr(run)
    assert "ended, 2 epochs" in shown


def test_a_run_refreshes_and_reports(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunDirectory.create(path, "a = 1", overwrite=False) as directory:
        run = timeloom.Run(path)
        assert run.config == {"a": 1}
        for record in Fake(epochs=2).records():
            directory.append(record)
        assert run.summary.epochs == 0
        assert run.refresh().summary.epochs == 2
    assert run.state == "ended"
    assert run.report() == path / "report.html"
    assert run.report(tmp_path / "other.html").exists()
