"""The commands that show runs: report, trace, live, compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.report.fake import Fake
from timeloom.cli import run
from timeloom.records import RunDirectory


def ok(*arguments: object) -> None:
    assert run([str(argument) for argument in arguments]) == 0


def old(path: Path) -> Path:
    """Return the run as if it was last written to an hour ago."""
    hour_ago = time.time() - 3600
    os.utime(path / "records.jsonl", (hour_ago, hour_ago))
    return path


def test_a_report_lies_in_its_run_and_one_of_several_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = (Fake(system=name).make(tmp_path / name) for name in ("a", "b"))
    ok("report", a)
    assert "a/report.html" in capsys.readouterr().out
    assert (a / "report.html").exists()
    ok("report", a, b)
    assert (tmp_path / "report.html").exists()
    ok("report", a, b, "--out", tmp_path / "c.html", "--figures", tmp_path / "figures")
    assert "44 figures" in capsys.readouterr().out
    assert (tmp_path / "figures/a-loss.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["report", "none"], 4, "does not exist"),
        (["report", "run", "--out", "mine.html"], 2, "did not make"),
        (["report", "run", "--every", "0"], 2, "--every 0 is no time"),
        (["report"], 2, "RUNS"),
        (["trace", "run", "--out", "mine.html"], 2, "exists already"),
        (["trace", "none", "--out", "x"], 4, "does not exist"),
        (["live", "none"], 4, "does not exist"),
        (["live", "run", "--every", "-1"], 2, "--every -1 is no time"),
        (["compare", "run", "none"], 4, "does not exist"),
        (["compare", "run", "--json", "--markdown"], 2, "give one of them"),
    ],
)
def test_what_cannot_be_meant_ends_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], code: int, sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Fake(epochs=1).make(tmp_path / "run")
    (tmp_path / "mine.html").write_text("mine")
    assert run(arguments) == code
    assert sentence in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text() == "mine"


def test_a_broken_record_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Fake(epochs=1).make(tmp_path / "run")
    with (path / "records.jsonl").open("a") as file:
        file.write("{}\n")
    assert run(["report", str(path)]) == 4
    assert "records.jsonl, line" in capsys.readouterr().err


def test_a_trace_says_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ok("trace", Fake(epochs=1).make(tmp_path / "run"), "--out", tmp_path / "t.json")
    told = capsys.readouterr().out
    assert "events of 2 ranks, on one clock" in told
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    ok("trace", Fake(epochs=1, spans=False, ranks=1).make(tmp_path / "one"), "--out", tmp_path / "o.json")
    assert "events of 1 rank, steps laid end to end" in capsys.readouterr().out


def test_runs_are_compared_in_three_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [Fake(system=name, slow=slow).make(tmp_path / name) for name, slow in (("real", 1.0), ("psg", 2.0))]
    ok("compare", *runs, "--loss", "0.5")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run ")
    assert "time to loss 0.5" in lines[0]
    assert [line.split()[0] for line in lines[1:3]] == ["real", "psg"]
    ok("compare", *runs, "--markdown")
    assert capsys.readouterr().out.startswith("| run | seeds |")
    ok("compare", *runs, "--json")
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows[1]["epoch_seconds"] > 1.5 * rows[0]["epoch_seconds"]


def test_live_shows_a_run_that_has_ended_or_stopped_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ok("live", Fake().make(tmp_path / "done"))
    told = capsys.readouterr().out
    assert "epoch 8 of 8" in told
    assert "done ended (epochs)" in told
    ok("live", old(Fake(ended=False).make(tmp_path / "half")))
    assert "--resume" in capsys.readouterr().out


def in_turn(path: Path, opened: threading.Event) -> None:
    """Write a run record by record, as training does."""
    with RunDirectory.create(path, "a = 1\n", overwrite=False) as directory:
        opened.set()
        for number, record in enumerate(Fake(epochs=3).records()):
            directory.append(record)
            if number % 10 == 0:
                time.sleep(0.05)


@pytest.mark.parametrize("command", [["live", "--every", "0.1"], ["report", "--watch", "--every", "0.1"]])
def test_watching_ends_when_the_run_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    opened = threading.Event()
    writer = threading.Thread(target=in_turn, args=(tmp_path / "run", opened))
    writer.start()
    opened.wait()
    ok(command[0], tmp_path / "run", *command[1:])
    writer.join()
    told = capsys.readouterr()
    if command[0] == "live":
        assert "run running: epoch" in told.out
        assert "run ended (epochs)" in told.out
    else:
        assert "run running: epoch" in told.err
        page = (tmp_path / "run/report.html").read_text()
        assert '"every_s":0.0' in page, "the last page holds still"
        assert '"state":"ended"' in page


def test_on_a_terminal_live_draws_over_itself(tmp_path: Path) -> None:
    run_path = old(Fake(ended=False, epochs=2).make(tmp_path / "run"))
    script = (
        "import sys, threading, time\n"
        "from pathlib import Path\n"
        "from rich import console\n"
        "from timeloom.cli import run\n"
        "from timeloom.records import Ended, RunDirectory\n"
        "directory = RunDirectory.open(Path(sys.argv[1]))\n"
        "def end():\n"
        "    time.sleep(0.6)\n"
        "    directory.append(Ended(reason='epochs', epochs=2, best_epoch=1, seconds=1.0))\n"
        "    directory.close()\n"
        "threading.Thread(target=end).start()\n"
        "sys.exit(run(['live', sys.argv[1], '--every', '0.1']))\n"
    )
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "90"}
    done = subprocess.run(
        [sys.executable, "-c", script, run_path],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    assert done.stdout.count("epoch 2 of 2") > 2, "drawn more than once"
    assert "run ended (epochs)" in done.stdout
