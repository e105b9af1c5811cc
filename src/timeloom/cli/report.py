"""`timeloom report` and `timeloom trace`: runs as a page to look at, and as a trace."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from timeloom.report.log import RunLog

Runs = Annotated[list[Path], Parameter(help="The runs to show, side by side if there are several.")]


def report(
    runs: Runs,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="The HTML file (default: report.html in the run; with several runs, here).")
    ] = None,
    figures: Annotated[
        Path | None, Parameter(help="Also write every figure as PNG and SVG into this folder (needs matplotlib).")
    ] = None,
    watch: Annotated[
        bool,
        Parameter(negative="", help="Write the page anew until all runs have ended; it reloads itself."),
    ] = False,
    every: Annotated[float, Parameter(help="Seconds from one page to the next, with --watch.")] = 5.0,
) -> None:
    """Write one HTML file of one or several runs: scores, curves, ranks, traffic, memory, schedule, graph, settings.

    The file needs nothing else and asks no server for anything: it opens from a disk, a mail or a web page. It may be
    made of a run that is still going.

    Examples
    --------
    timeloom report runs/mails
    timeloom report runs/real runs/flare --out side-by-side.html
    timeloom report runs/mails --figures figures
    timeloom report runs/mails --watch
    """
    from timeloom.report.html import refuse_in_the_way
    from timeloom.report.log import look, read_log

    if every <= 0:
        raise BadConfig(f"--every {every:g} is no time: give more than 0 seconds")
    path = (runs[0] if len(runs) == 1 else Path()) / "report.html" if out is None else out
    refuse_in_the_way(path)
    logs = [read_log(run) for run in runs]
    while watch:
        looks = [look(log) for log in logs]
        logs = [log for log, _ in looks]
        if all(state != "running" for _, state in looks):
            break
        _write(logs, path, every)
        sys.stderr.write(f"{path}: {_how_far(looks)}\n")
        time.sleep(every)
    size = _write(logs, path, 0.0)
    told = f"{path}: {size / 1e3:,.0f} kB, opens in any browser\n"
    if figures is not None:
        told += _figures(logs, figures)
    sys.stdout.write(told)


def _write(logs: list[RunLog], path: Path, every_s: float) -> int:
    from timeloom.report.content import content_of
    from timeloom.report.html import page_of, write_page

    text = page_of(content_of(logs, every_s=every_s))
    write_page(path, text)
    return len(text)


def _how_far(looks: list[tuple[RunLog, str]]) -> str:
    from timeloom.report.terminal import line_of

    return "; ".join(line_of(log, state) for log, state in looks)


def _figures(logs: list[RunLog], folder: Path) -> str:
    from timeloom.report.frames import figures_module

    written = figures_module().save_all(logs, folder)
    return f"{folder}: {len(written)} figures, as PNG and as SVG\n"


def trace(
    run: Annotated[Path, Parameter(help="The run to trace.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The file to write: trace.json, or trace.json.gz to have it compressed.")],
    overwrite: Annotated[bool, Parameter(negative="", help="Replace the file that is there.")] = False,
) -> None:
    """Write what every rank did, on one clock, as a trace that ui.perfetto.dev and chrome://tracing open.

    Examples
    --------
    timeloom trace runs/mails --out mails-trace.json
    """
    from timeloom.report.log import read_log
    from timeloom.report.trace import write_trace

    found = write_trace(read_log(run), out, overwrite=overwrite)
    how = "on one clock" if found.on_clock else "steps laid end to end, for no rank told when it did what"
    ranks = "1 rank" if found.ranks == 1 else f"{found.ranks} ranks"
    sys.stdout.write(f"{out}: {found.events:,} events of {ranks}, {how}; open it at https://ui.perfetto.dev\n")
