"""The help of every command shows an example that parses, what it ends with, and what goes with it; shells complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from timeloom import errors
from timeloom.cli import app, run
from timeloom.cli.manual import CODES, MANUALS, examples_of

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("drift", "powerlaw", "delete", "sizes")
COMMANDS = [*([name] for name in MANUALS), *(["synth", kind] for kind in KINDS)]


def names_in(help_text: str) -> list[str]:
    return re.findall(r"^│ ([a-z]+) ", help_text, re.MULTILINE)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    # A console remembers how wide it was when it was made, and another test may have made this one.
    monkeypatch.setattr(app, "console", Console(width=200))


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert run([*command, "--help"]) == 0
    return capsys.readouterr().out


def test_every_command_has_a_manual(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(names_in(help_of(capsys))) == sorted(MANUALS)
    assert sorted(names_in(help_of(capsys, "synth"))) == sorted(KINDS)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_shows_examples_that_parse(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, *command)
    examples = [line.strip() for line in shown.partition("Examples:")[2].partition("Exit codes:")[0].splitlines()]
    examples = [example for example in examples if example]
    assert any(example.startswith(f"timeloom {' '.join(command)}") for example in examples)
    for example in examples:
        words = shlex.split(example)
        if "--help" not in words:
            app.parse_args(words[words.index("timeloom") + 1 :], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_says_what_it_ends_with_and_what_goes_with_it(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    last = help_of(capsys, *command).partition("Exit codes:")[2]
    codes, _, also = last.partition("See also:")
    assert "0 done" in codes
    manual = MANUALS[command[0]]
    for code in manual.codes:
        assert f"{code} {CODES[code]}" in " ".join(codes.split())
    for name in manual.also:
        assert name in MANUALS
        assert f"timeloom {name}" in " ".join(also.split())
    assert (ROOT / "docs" / manual.page).exists()


def test_every_code_of_an_error_has_a_meaning() -> None:
    every = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.TimeloomError)]
    assert {one.exit_code for one in every} <= set(CODES)
    page = (ROOT / "docs/shell.md").read_text()
    told = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE) for code in row.split(",")}
    assert told == set(CODES)


def test_a_flag_has_no_opposite_unless_a_preset_may_have_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(capsys, "train").partition("Examples:")[0]
    assert "--no-" not in shown
    assert "--empty-" not in shown
    shown = help_of(capsys, "ingest")
    assert set(re.findall(r"--no-[a-z-]+", shown)) == {"--no-bipartite", "--no-both-directions", "--no-keep-self-loops"}


def test_no_example_is_none() -> None:
    assert examples_of(None) == []
    assert examples_of("One line.") == []
    assert examples_of("One line.\n\n    Examples\n    --------\n    timeloom a\n    timeloom b\n    ") == [
        "timeloom a", "timeloom b",
    ]  # fmt: skip


def completed(script: Path, line: str) -> set[str]:
    """Return what bash offers at the end of a line."""
    words = line.split(" ")
    asked = "\n".join([
        f"source {shlex.quote(str(script))}",
        f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}",
        f"COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}",
        "$(complete -p timeloom | sed 's/.*-F \\([^ ]*\\) .*/\\1/')",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ])  # fmt: skip
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    return {offered.strip() for offered in done.stdout.splitlines()}


def test_bash_completes_commands_and_options_after_one_command(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash", "PYTHONPATH": str(ROOT / "src")}
    for name in ("XDG_DATA_HOME", "BASH_COMPLETION_USER_DIR"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "timeloom", "--install-completion", "--shell", "bash"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    scripts = [path for path in tmp_path.rglob("*") if path.is_file() and "complete -" in path.read_text()]
    (script,) = [path for path in scripts if path.name != ".bashrc"]
    assert script.name in told.replace("\n", "")
    assert str(script) in (tmp_path / ".bashrc").read_text()
    assert completed(script, "timeloom co") == {"compare"}
    assert completed(script, "timeloom train --sy") == {"--system"}
    assert completed(script, "timeloom synth dr") == {"drift"}
