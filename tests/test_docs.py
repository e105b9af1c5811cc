"""What the README and the docs say is true: code runs, commands parse, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from timeloom.cli import app, run
from timeloom.nn.models import MODELS
from timeloom.systems import PRESETS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


# PyTorch Geometric, as it is imported.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), {})


def commands(page: Path) -> list[list[str]]:
    """Return the `timeloom` commands of a page's shell blocks."""
    # Also blocks of no language: those of results.md, which benchmarks/model_table.py writes, and runs.
    text = "\n".join(blocks(page, "(?:sh)?")).replace("\\\n", " ")
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


PATHS = re.compile(r"`((?:src|tests|benchmarks|examples|scripts|docs)/[\w./-]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page: Path) -> None:
    for path in PATHS.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path


def test_from_paper_to_code_names_a_file_for_every_section() -> None:
    text = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    for paper in ("REAL", "DyGNeX", "FlareDTDG", "DynaHB", "DistDy"):
        _, _, below = text.partition(f"\n## {paper}\n")
        rows = [row.split(" | ") for row in below.partition("\n## ")[0].splitlines() if row.startswith("| ")][1:]
        assert len(rows) >= 6, paper
        for section, files, *_ in rows:
            assert PATHS.findall(files), f"{paper}, {section}"
    for name in {preset.split("_")[0] for preset in PRESETS} - {"vertex"}:
        assert f"`{name}" in text or f"systems/{name}.py" in text, f"{name} comes from no paper"


def test_the_guide_names_every_system_that_is_not_a_reference_of_a_paper() -> None:
    text = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
    told = {"psg", "blad", "esdg", "vertex", "flare", "distdy", "dynahb", "real", "dygnex_g"}
    assert told <= set(PRESETS)
    assert [name for name in told if f"`{name}" not in text] == []


def test_the_site_has_every_page() -> None:
    listed = re.findall(r"^[a-z-]+$", "\n".join(blocks(ROOT / "docs/index.md", r"\{toctree\}")), re.MULTILINE)
    assert sorted([*listed, "index"]) == sorted(page.stem for page in PAGES if page.parent.name == "docs")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for name in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(name, reason="make docs installs it")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Choosing a system" in (tmp_path / "site/index.html").read_text(encoding="utf-8")


def test_the_readme_is_short_and_its_first_command_is_the_demo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert blocks(ROOT / "README.md", "sh")[0].startswith("make demo")
    assert "![" in text, "a picture made by the program itself"
    assert len(blocks(ROOT / "README.md", "python")[0].splitlines()) <= 22


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
