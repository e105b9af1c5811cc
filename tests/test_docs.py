"""What the README and the docs say is true: code runs, commands parse, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from timeloom.cli import app, run
from timeloom.nn.models import MODELS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})


def commands(page: Path) -> list[list[str]]:
    """Return the `timeloom` commands of a page's shell blocks."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith("timeloom ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_options_that_exist(page: Path) -> None:
    for command in commands(page):
        if "KIND" not in command:
            app.parse_args(command, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_is_short_and_its_first_command_is_the_demo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert blocks(ROOT / "README.md", "sh")[0].startswith("make demo")


def test_the_account_shown_in_the_readme_is_what_the_command_prints(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert run(["ingest", str(shared_data / "small/CollegeMsg.txt.gz"), "--every", "1d", "--out", "gg"]) == 0
    told = capsys.readouterr().out.splitlines()[:-1]
    assert "\n".join(told) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_of_settings_says_what_the_sources_say() -> None:
    spec = importlib.util.spec_from_file_location("settings_page", ROOT / "scripts/settings_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs/settings.md").read_text(encoding="utf-8") == module.page()
    rows = [line for line in module.page().splitlines() if line.startswith("| `")]
    assert rows
    assert not [row for row in rows if row.rstrip().endswith("|  |")], "a setting without a meaning"


def test_the_page_of_models_names_them_all() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert [name for name in MODELS if f"`{name}`" not in text] == []


def test_architecture_names_every_file_of_training() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    files = [*(ROOT / "src/timeloom/train").glob("*.py"), *(ROOT / "src/timeloom/kernels").glob("*.py")]
    assert [path.name for path in files if not path.name.startswith("__") and f"{path.name}`" not in text] == []


def test_architecture_names_every_file_of_the_data_layer() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    graph = ROOT / "src/timeloom/graph"
    for path in [*graph.glob("*.py"), *(graph / "ingest").glob("*.py"), *(ROOT / "src/timeloom").glob("*.py")]:
        if not path.name.startswith("__"):
            assert f"`{path.name}`" in text, f"docs/architecture.md does not mention {path.name}"
