"""Does asking for help, or importing timeloom, stay free of the libraries that take long to import?"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

SLOW_TO_IMPORT = frozenset({"numba", "pyarrow", "torch"})
CEILING_S = 1.0  # CPU seconds of the whole process; help took 0.16 when this was written
PROBE = """
import contextlib, io, json, sys, time
shown, code = io.StringIO(), 0
with contextlib.redirect_stdout(shown):
    try:
        {statement}
    except SystemExit as end:
        code = end.code
print(json.dumps([code, shown.getvalue(), list(sys.modules), time.process_time()]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    what: str
    code: int | str | None
    shown: str
    modules: frozenset[str]
    cpu_s: float

    def complaints(self) -> list[str]:
        """What is wrong with this run, in sentences."""
        slow = sorted(SLOW_TO_IMPORT & self.modules)
        return [
            *([f"{self.what}: exit status {self.code}\n{self.shown}"] if self.code else []),
            *([f"{self.what}: imports {', '.join(slow)}; import it inside the command instead"] if slow else []),
            *([f"{self.what}: {self.cpu_s:.2f} CPU s, allowed {CEILING_S}"] if self.cpu_s >= CEILING_S else []),
        ]


def probe(what: str, statement: str) -> Probed:
    """Run the statement in a fresh interpreter; return what it showed, imported and cost."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-c", PROBE.format(statement=statement)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, f"{what}:\n{ended.stderr}"
    code, shown, modules, cpu_s = json.loads(ended.stdout)
    return Probed(what=what, code=code, shown=shown, modules=frozenset(modules), cpu_s=cpu_s)


def help_of(*command: str) -> Probed:
    arguments = ["timeloom", *command, "--help"]
    return probe(" ".join(arguments), f"sys.argv = {arguments}; from timeloom.cli import main; code = main()")


def commands_in(shown: str) -> list[str]:
    """The names in the help's panel of commands: lower-case words at the start of a line inside a frame."""
    panel = shown.partition("─ Commands ─")[2].partition("╰")[0]
    return re.findall(r"^│ ([a-z][a-z0-9-]*)", panel, flags=re.MULTILINE)


def helps(*command: str) -> Iterator[Probed]:
    """The help of a command, then of every command below it."""
    probed = help_of(*command)
    yield probed
    for name in commands_in(probed.shown):
        yield from helps(*command, name)


def test_help_of_every_command_imports_nothing_slow() -> None:
    probed = list(helps())
    assert len(probed) > 1, f"no command was found in this help:\n{probed[0].shown}"
    complaints = [complaint for one in probed for complaint in one.complaints()]
    assert not complaints, "\n".join(complaints)


def test_importing_timeloom_imports_nothing_slow() -> None:
    assert not probe("import timeloom", "import timeloom").complaints()


def test_the_probe_sees_a_slow_import() -> None:
    probed = probe("made up", "import numba; sys.exit(3)")
    assert any("imports numba" in complaint for complaint in probed.complaints())
    assert any("exit status 3" in complaint for complaint in probed.complaints())


def test_commands_are_read_from_the_help() -> None:
    shown = "Usage: timeloom\n╭─ Commands ──╮\n│ ingest  Read │\n│         more │\n│ --help  Show │\n╰──────╯\n│ gap │"
    assert commands_in(shown) == ["ingest"]
