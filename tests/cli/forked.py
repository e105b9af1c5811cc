"""Commands as forks of a process that has imported everything: starting a rank costs milliseconds, not seconds.

What differs from a shell is how a process begins, and nothing else: the launcher, ranks, sockets, signals and exit
codes are the real ones. `tests/cli/test_ranks.py` does a share of the same with commands that are started as users do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import torch

from timeloom import cli
from timeloom.dist import launch

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Forked:
    """What the launcher uses of `subprocess.Popen`, for a fork that runs ``python -m timeloom ...``."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: int = 0, process_group: int = 0
    ) -> None:
        self._code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, process_group)
            _become(list(command[3:]), os.environ.copy() if env is None else env)

    def poll(self) -> int | None:
        """Return how it ended, as `subprocess` counts; None where it still runs."""
        return self._code if self._code is not None else self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Wait for its end; return how it ended."""
        return cast(int, self._code if self._code is not None else self._waited(0))

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def _waited(self, how: int) -> int | None:
        pid, status = os.waitpid(self.pid, how)
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return self._code


def fork_ranks() -> None:
    """Let the launcher of this process, and of its forks, fork ranks; what they leave behind comes to this process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    torch.set_num_threads(1)
    # Not subprocess.Popen itself: others start other programs with it.
    launch.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=-3)  # type: ignore[assignment]


def begin(arguments: Sequence[object], said: Path, **environ: str) -> Forked:
    """Start a command of timeloom; what it says goes to a file."""
    command = [sys.executable, "-m", "timeloom", *map(str, arguments)]
    return Forked(command, env={**os.environ, **environ, "SAID": str(said)})


def _become(arguments: list[str], environ: Mapping[str, str]) -> NoReturn:
    code = 99
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environ)
        file = os.open(environ["SAID"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv = ["timeloom", *arguments]
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def all_end(limit_s: float) -> float:
    """Wait until no process is left that this one began, or that one of those began; return how long it took."""
    began = time.monotonic()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return time.monotonic() - began
        assert time.monotonic() - began < limit_s, "a process outlived the command that began it"
        if not pid:
            time.sleep(0.005)
