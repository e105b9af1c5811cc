"""The command `timeloom`: one file per command, and the way every command ends."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from timeloom.cli.append import append
from timeloom.cli.calibrate import calibrate
from timeloom.cli.check import check
from timeloom.cli.compare import compare
from timeloom.cli.export import export
from timeloom.cli.follow import follow
from timeloom.cli.info import info
from timeloom.cli.ingest import ingest
from timeloom.cli.live import live
from timeloom.cli.manual import MANUALS, examples_of
from timeloom.cli.options import GIVEN
from timeloom.cli.partition import partition
from timeloom.cli.plan import plan
from timeloom.cli.report import report, trace
from timeloom.cli.simulate import simulate
from timeloom.cli.synth import synth
from timeloom.cli.systems import systems
from timeloom.cli.train import evaluate, models, predict, train
from timeloom.errors import BadConfig, TimeloomError, TooLarge, is_disk_full


def _version() -> str:
    from importlib.metadata import version

    return f"timeloom {version('timeloom')}"


app = App(
    name="timeloom",
    help="Graph neural networks on graphs that change over time.",
    version=_version,
    # A flag that is off unless given needs no second one that says so.
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)
for _command in (
    ingest, append, info, check, export, train, follow, evaluate, predict, models, systems, calibrate, report,
    trace, live, compare, partition, plan, simulate,
):  # fmt: skip
    app.command(_command, help_epilogue=MANUALS[_command.__name__].epilogue(examples_of(_command.__doc__)))
app.command(synth)
app.register_install_completion_command(help="Make the shell complete commands and options (bash, zsh, fish).")


_WHOLE = "what is on disk is whole: as it was before, or as it was to be"


class _Terminated(BaseException):
    """SIGTERM or SIGUSR1, as an exception, so that what is half done is cleaned up on the way out."""


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


def run(arguments: list[str]) -> int:
    """Run one command; return its exit code (see `timeloom.errors`)."""
    try:
        GIVEN.set(tuple(arguments))
        # A command that ran as other processes returns their exit code.
        code: int | None = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        _flush()
    except CycloptsError as error:
        _say(str(error))
        return BadConfig.exit_code
    except TimeloomError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say(f"interrupted; {_WHOLE}")
        return 130
    except _Terminated:
        _say(f"terminated; {_WHOLE}")
        return 143
    except BrokenPipeError:
        # The reader of our output has gone: that is its right.
        sys.stdout = None
        return 0
    except OSError as error:
        _say(f"{error.filename or 'the system'}: {error.strerror or error}")
        return TooLarge.exit_code if is_disk_full(error) else TimeloomError.exit_code
    except MemoryError:
        _say("out of memory: lower --memory, or close other programs")
        return 5
    return code or 0


def _flush() -> None:
    """Write what is left of the output now, while there is still somebody to hear that it cannot be written."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            # What cannot be written is not tried again when the process ends.
            sys.stdout = None
            raise OSError(error.errno, error.strerror, "the output") from None


def _say(sentence: str) -> None:
    rank = os.environ.get("RANK", "0")
    sys.stderr.write(f"timeloom: {sentence}\n" if rank == "0" else f"timeloom: rank {rank}: {sentence}\n")


def main() -> NoReturn:
    """Run the command line and exit."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _terminate)
    code = run(sys.argv[1:])
    if (ranks := sys.modules.get("timeloom.train.ranks")) is not None and ranks.here() is not None:
        ranks.end_process(code)
    sys.exit(code)
