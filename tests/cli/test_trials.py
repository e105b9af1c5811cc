"""`timeloom compare GRAPH --systems ...`: systems run alike, then compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_runs import drift
from timeloom.cli import run
from timeloom.records import Ended, read

SMALL = [
    "--model", "gcn_gru", "--set", "model.hidden=4", "--set", "window.length=3", "--set", "train.epochs=2",
    "--set", "train.device=cpu", "--set", "train.threads=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph of drifting communities."""
    return drift(tmp_path_factory.mktemp("trials") / "drift", num_snapshots=14)


def test_systems_are_run_alike_and_what_has_ended_is_not_run_again(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compared"
    asked = ["compare", str(graph), "--systems", "none,psg", "--workers", "2", "--seeds", "0,1", "--out", str(out)]
    assert run([*asked, *SMALL, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    runs = [out / name for name in ("none-0", "none-1", "psg-0", "psg-1")]
    assert sorted(out.iterdir()) == [out / "compare.html", *runs]
    assert len(told["rows"]) == 2, "runs that differ in their seed alone share a row"
    assert all(isinstance(read(path)[-1], Ended) for path in runs)
    before = {path: (path / "records.jsonl").stat().st_mtime_ns for path in runs}
    assert run([*asked, *SMALL]) == 0
    assert {path: (path / "records.jsonl").stat().st_mtime_ns for path in runs} == before
    page = content_in(out / "compare.html")
    assert [one["name"] for one in page["runs"]] == ["none-0", "psg-0", "none-1", "psg-1"]
    header, rows = page["comparison"]["header"], page["comparison"]["rows"]
    for wanted in ("seeds", "test mse", "time per epoch", "time to loss", "sent per epoch", "imbalance", "peak memory"):
        assert any(cell.startswith(wanted) for cell in header), wanted
    assert len(rows) == 2
    assert all("±" in row[2] for row in rows), "scores with their spread over seeds"


def content_in(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_a_table_can_come_with_a_page_that_tells_the_same_times(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compared"
    assert run(["compare", str(graph), "--systems", "none", "--seeds", "0,1", "--out", str(out), *SMALL]) == 0
    asked = ["compare", str(out / "none-0"), str(out / "none-1"), "--loss", "0.25"]
    assert run([*asked, "--report", str(tmp_path / "both.html")]) == 0
    assert "both.html" in capsys.readouterr().out
    page = content_in(tmp_path / "both.html")
    assert "time to loss 0.25" in page["comparison"]["header"]
    assert not (out / "both.html").exists()
    (tmp_path / "mine.html").write_text("mine")
    assert run([*asked, "--report", str(tmp_path / "mine.html")]) == 2
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_page_that_is_in_the_way_is_told_before_anything_is_trained(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    out.mkdir()
    (out / "compare.html").write_text("mine")
    assert run(["compare", str(graph), "--systems", "none", "--out", str(out), *SMALL]) == 2
    assert sorted(out.iterdir()) == [out / "compare.html"]


def test_a_run_that_was_stopped_is_gone_on_with(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compared"
    asked = ["compare", str(graph), "--systems", "none", "--out", str(out)]
    assert run([*asked, *SMALL]) == 0
    records = out / "none-0" / "records.jsonl"
    whole = read(out / "none-0")
    # As if it had been killed before it was tested: the last checkpoint is there, what followed is not.
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:-2]))
    assert run([*asked, *SMALL]) == 0
    assert [record.kind for record in read(out / "none-0")][-2:] == [record.kind for record in whole][-2:]


@pytest.mark.parametrize(("more", "says"), [
    (["--systems", "psg"], "--out"),
    (["--out", "x"], "--systems"),
    (["--systems", "psg,psg", "--out", "x"], "twice"),
    (["--systems", ",", "--out", "x"], "names nothing"),
    (["--systems", "psg", "--out", "x", "--seeds", "one"], "'one' is no seed"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    more: list[str], says: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run(["compare", str(graph), *more]) == 2
    assert says in capsys.readouterr().err


def test_a_system_that_cannot_be_run_ends_with_its_own_exit_code(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(graph), "--systems", "pgs", "--out", str(tmp_path / "x")]) == 2
    assert "ended with exit code 2" in capsys.readouterr().err
