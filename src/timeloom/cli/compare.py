"""`timeloom compare`: one table of several runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from timeloom.cli.options import Set
from timeloom.cli.show import print_json
from timeloom.cli.trials import TrialFlags, trials
from timeloom.errors import BadConfig
from timeloom.records import is_run

if TYPE_CHECKING:
    from timeloom.report.compare import Comparison


def compare(
    runs: Annotated[list[Path], Parameter(help="The runs to compare; or one graph, on which --systems are run first.")],
    /,
    *,
    trial: TrialFlags = TrialFlags(),
    set_: Set = None,
    loss: Annotated[
        float | None, Parameter(help="Tell the time to this loss (default: the lowest that every run reached).")
    ] = None,
    report: Annotated[
        Path | None,
        Parameter(help="Also write these runs side by side as one HTML file (with --systems: OUT/compare.html)."),
    ] = None,
    markdown: Annotated[bool, Parameter(negative="", help="Print the table as Markdown.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print everything as JSON.")] = False,
) -> None:
    """Print one table of several runs: score, time per epoch, time to a loss, bytes, waiting, imbalance, memory.

    Runs that differ in their seed alone share a row, with the mean and the standard deviation of their scores. With
    --systems every system is first trained on one graph with every seed, all else alike; given again after an
    interruption, the same command goes on where it was and trains nothing twice.

    Examples
    --------
    timeloom compare runs/real runs/flare
    timeloom compare runs/real-0 runs/real-1 runs/real-2 --loss 0.3 --markdown
    timeloom compare runs/real runs/flare --report both.html
    timeloom compare mails --systems real,psg,vertex --model tgcn --workers 2 --seeds 0,1,2 --out runs/compared
    """
    from timeloom.report.compare import compare as compare_logs
    from timeloom.report.content import content_of
    from timeloom.report.html import page_of, refuse_in_the_way, write_page
    from timeloom.report.log import read_log

    if markdown and json:
        raise BadConfig("--markdown and --json are two ways to print one table: give one of them")
    if trial.systems is not None or trial.out is not None:
        if len(runs) != 1 or is_run(runs[0]):
            raise BadConfig("--systems and --out run systems on one graph: give the folder of a graph, and no runs")
        report = report or (None if trial.out is None else trial.out / "compare.html")
        if report is not None:
            # Before hours of training, not after them.
            refuse_in_the_way(report)
        runs = list(trials(runs[0], trial, set_ or []))
    logs = [read_log(run) for run in runs]
    found = compare_logs(logs, target_loss=loss)
    if report is not None:
        write_page(report, page_of(content_of(logs, target_loss=loss)))
    if json:
        print_json(found.as_json())
    elif markdown:
        sys.stdout.write(found.as_markdown())
    else:
        show_comparison(found)
        if report is not None:
            sys.stdout.write(f"{report}: all of it side by side, opens in any browser\n")


def show_comparison(found: Comparison) -> None:
    """Print a comparison as a table for people."""
    rows = [found.header, *found.cells]
    kept = [place for place in range(len(found.header)) if place < 2 or any(row[place] for row in found.cells)]
    widths = [max(len(row[place]) for row in rows) for place in kept]
    for row in rows:
        cells = [row[kept[0]].ljust(widths[0])]
        cells += [row[place].rjust(width) for place, width in zip(kept[1:], widths[1:], strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    for note in found.notes:
        sys.stdout.write(f"  note: {note}\n")
