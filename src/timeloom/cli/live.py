"""`timeloom live`: a run that goes on, in a terminal."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from timeloom.errors import BadConfig

if TYPE_CHECKING:
    from rich.console import Console

    from timeloom.report.log import RunLog

_SECONDS_BETWEEN_LINES = 10.0


def live(
    run: Annotated[Path, Parameter(help="The run to watch.")],
    /,
    *,
    every: Annotated[float, Parameter(help="Seconds from one look to the next.")] = 1.0,
    once: Annotated[bool, Parameter(negative="", help="Show how things are now, and end.")] = False,
) -> None:
    """Watch a run in the terminal: how far it is, its loss and scores, what each rank does and waits for.

    It only reads the run's records, so it may be started and ended at any time, also over ssh on another machine that
    sees the folder. It ends when the run ends; Ctrl-C ends it earlier and does not touch the run.

    Examples
    --------
    timeloom live runs/mails
    timeloom live runs/mails --once
    """
    from rich.console import Console

    from timeloom.report.log import read_log, state_of
    from timeloom.report.terminal import ending_of, view_of

    if every <= 0:
        raise BadConfig(f"--every {every:g} is no time: give more than 0 seconds")
    console, log = Console(highlight=False), read_log(run)
    if once or state_of(log) != "running":
        console.print(view_of(log, state_of(log), min(console.width, 100)))
    else:
        log = _on_terminal(log, console, every) if console.is_terminal else _in_lines(log, every)
    if state_of(log) != "running":
        sys.stdout.write(ending_of(log, state_of(log)) + "\n")


def _on_terminal(log: RunLog, console: Console, every: float) -> RunLog:
    """Draw the run over and over until it goes on no more; return all that it told."""
    from rich.live import Live

    from timeloom.report.log import look
    from timeloom.report.terminal import view_of

    with Live(console=console, auto_refresh=False) as screen:
        while True:
            log, state = look(log)
            screen.update(view_of(log, state, min(console.width, 100)), refresh=True)
            if state != "running":
                return log
            time.sleep(every)


def _in_lines(log: RunLog, every: float) -> RunLog:
    """Write a line now and then until the run goes on no more; return all that it told."""
    from timeloom.report.log import look
    from timeloom.report.terminal import line_of

    told = -math.inf
    while True:
        log, state = look(log)
        if state != "running":
            return log
        if time.monotonic() - told >= _SECONDS_BETWEEN_LINES:
            told = time.monotonic()
            sys.stdout.write(line_of(log, state) + "\n")
            sys.stdout.flush()
        time.sleep(every)
