"""A run in a notebook: its records as frames, its figures, its page."""

from __future__ import annotations

import html
import importlib
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from timeloom.errors import BadConfig
from timeloom.records import PHASES, Evaluated
from timeloom.report.compare import compare
from timeloom.report.content import content_of
from timeloom.report.html import page_of, write_page
from timeloom.report.log import RunLog, read_log, read_on, state_of
from timeloom.report.show import seconds_of
from timeloom.report.summary import Summary, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Library = Literal["auto", "polars", "pandas"]
Columns = dict[str, list[Any]]
TABLES = ("epochs", "steps", "scores", "parts", "traffic", "schedule", "graph", "predictions", "deviations")


class Run:
    """What a run has told so far. ``refresh()`` reads on in a run that is going on."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._log = read_log(Path(path))

    @property
    def path(self) -> Path:
        """The folder."""
        return self._log.path

    @property
    def log(self) -> RunLog:
        """The records themselves."""
        return self._log

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, nested as in the file."""
        return self._log.config

    @property
    def state(self) -> str:
        """'ended', 'running' or 'stopped'."""
        return state_of(self._log)

    @property
    def summary(self) -> Summary:
        """The run in a dozen numbers."""
        return summarise(self._log)

    def refresh(self) -> Run:
        """Read what was told since, and return the run."""
        self._log = read_on(self._log)
        return self

    def columns(self, table: str) -> Columns:
        """Return one of `TABLES` as lists by name."""
        if table not in TABLES:
            raise BadConfig(f"a run has no table {table!r}: it has {', '.join(TABLES)}")
        return _COLUMNS[table](self._log)

    def frame(self, table: str, library: Library = "auto") -> Any:
        """Return one of `TABLES` as a frame of polars or of pandas, whichever is installed (polars first)."""
        columns = self.columns(table)
        for name in ("polars", "pandas") if library == "auto" else (library,):
            try:
                return importlib.import_module(name).DataFrame(columns)
            except ImportError:
                continue
        asked = "polars or pandas" if library == "auto" else library
        raise BadConfig(f"a frame needs {asked}, which is not installed: pip install {asked.split()[0]}")

    def figure(self, name: str) -> Figure:
        """Return a figure of matplotlib; names are those of `figure_names`."""
        figure: Figure = figures_module().draw(self._log, name)
        return figure

    @property
    def figure_names(self) -> list[str]:
        """The figures for which this run has told enough."""
        names: list[str] = figures_module().names(self._log)
        return names

    def report(self, out: str | PathLike[str] | None = None) -> Path:
        """Write the page of this run (by default into its folder) and return where it is."""
        path = self.path / "report.html" if out is None else Path(out)
        write_page(path, page_of(content_of([self._log])))
        return path

    def __repr__(self) -> str:
        found = self.summary
        return f"Run({str(self.path)!r}, {found.state}, {found.epochs} epochs, test {found.metric} {found.score:.4g})"

    def _repr_html_(self) -> str:
        found = compare([self._log])
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(cell)}</td></tr>"
            for name, cell in zip(found.header, found.cells[0], strict=True)
            if cell
        )
        state = f"{self.state}, {self.summary.epochs} epochs, {seconds_of(self.summary.total_seconds)}"
        return f"<b>{html.escape(self._log.name)}</b> ({html.escape(state)})<table>{cells}</table>"


def figures_module() -> Any:
    """Return the module that draws, which needs matplotlib."""
    try:
        return importlib.import_module("timeloom.report.figures")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise BadConfig("figures need matplotlib, which is not installed: pip install 'timeloom[figures]'") from None


def _epochs(log: RunLog) -> Columns:
    names = ("epoch", "loss", "learning_rate", "nodes", "edges", "seconds")
    return {name: [getattr(record, name) for record in log.epochs] for name in names}


def _steps(log: RunLog) -> Columns:
    names = ("epoch", "step", "loss", "grad_norm", "nodes", "edges", "seconds")
    return {name: list(getattr(log.steps, name)) for name in names}


def _scores(log: RunLog) -> Columns:
    """Return a row for each score of the model and of each baseline."""
    rows = [row for record in log.evaluated for row in _score_rows(record)]
    names = ("epoch", "split", "who", "metric", "value")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _score_rows(record: Evaluated) -> list[tuple[int, str, str, str, float]]:
    every = {"model": record.scores, **record.baselines}
    return [
        (record.epoch, record.split, who, metric, value)
        for who, scores in every.items()
        for metric, value in scores.items()
    ]


def _parts(log: RunLog) -> Columns:
    parts = log.parts
    return {
        "rank": list(parts.rank), "epoch": list(parts.epoch), "step": list(parts.step),
        "phase": [PHASES[place] for place in parts.phase], "began": list(parts.began), "seconds": list(parts.seconds),
    }  # fmt: skip


def _traffic(log: RunLog) -> Columns:
    """Return a row for each kind of collective of each rank in each epoch."""
    rows = [(record, kind) for record in log.traffic for kind in record.calls]
    return {
        "rank": [r.rank for r, _ in rows], "epoch": [r.epoch for r, _ in rows], "kind": [kind for _, kind in rows],
        "calls": [r.calls[kind] for r, kind in rows], "sent_bytes": [r.sent_bytes.get(kind, 0) for r, kind in rows],
        "received_bytes": [r.received_bytes.get(kind, 0) for r, kind in rows],
        "waited_s": [r.waited_s.get(kind, 0.0) for r, kind in rows],
        "peak_bytes": [r.peak_bytes for r, _ in rows], "peak_device_bytes": [r.peak_device_bytes for r, _ in rows],
    }  # fmt: skip


def _schedule(log: RunLog) -> Columns:
    rows = [(record.epoch, record.by, *unit) for record in log.scheduled for unit in record.units]
    names = ("epoch", "by", "step", "rank", "first", "last", "predicted_s")
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _graph(log: RunLog) -> Columns:
    facts = log.facts[-1:]
    return {
        "t": [t for one in facts for t in range(len(one.edges))], "edges": [v for one in facts for v in one.edges],
        "active": [v for one in facts for v in one.active], "overlap": [v for one in facts for v in one.overlap],
    }  # fmt: skip


def _predictions(log: RunLog) -> Columns:
    rows = [
        (record.split, record.what, truth, predicted)
        for record in log.predicted
        for truth, predicted in zip(record.truth, record.predicted, strict=True)
    ]
    return {name: [row[place] for row in rows] for place, name in enumerate(("split", "what", "truth", "predicted"))}


def _deviations(log: RunLog) -> Columns:
    return {name: [getattr(record, name) for record in log.deviated] for name in ("epoch", "what", "deviation")}


_COLUMNS = {
    "epochs": _epochs, "steps": _steps, "scores": _scores, "parts": _parts, "traffic": _traffic,
    "schedule": _schedule, "graph": _graph, "predictions": _predictions,
    "deviations": _deviations,
}  # fmt: skip
