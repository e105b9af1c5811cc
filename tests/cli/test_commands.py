"""Every command does what its help says, ends with the right code, and says what went wrong in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from timeloom.cli import run
from timeloom.cli.options import read_size
from timeloom.errors import BadConfig

CSV = "from,to,when,amount\n" + "".join(f"{n % 9},{n % 7},{1_600_000_000 + 40_000 * n},{n % 3}.5\n" for n in range(200))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A small table of events."""
    path = tmp_path / "trades.csv"
    path.write_text(CSV)
    return path


def ok(*arguments: object) -> None:
    assert run([str(argument) for argument in arguments]) == 0


def test_a_graph_is_made_described_checked_and_written_back(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "trades"
    ok("ingest", table, "--time", "when", "--weight", "amount", "--every", "7d", "--out", graph)
    told = capsys.readouterr().out
    assert "rows read                 200" in told
    assert "self loop" in told
    ok("info", graph)
    shown = capsys.readouterr().out
    assert "change rate" in shown
    assert "rows       200 read, " in shown
    ok("info", graph, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["rules"]["windows"] == {"kind": "every", "amount": "7d"}
    assert found["name"] == "trades"
    ok("check", graph)
    assert "all is well" in capsys.readouterr().out
    ok("export", graph, "--out", tmp_path / "back.parquet")
    assert f"{sum(found['edges']):,} rows" in capsys.readouterr().out


def test_later_events_are_appended(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ok("ingest", table, "--time", "when", "--every", "7d", "--out", tmp_path / "g", "--json")
    before = json.loads(capsys.readouterr().out)
    more = tmp_path / "more.csv"
    more.write_text("from,to,when\n1,2,1700000000\n")
    ok("append", tmp_path / "g", more, "--time", "when", "--json")
    after = json.loads(capsys.readouterr().out)
    assert after["rows_read"] == 1
    ok("info", tmp_path / "g", "--json")
    assert json.loads(capsys.readouterr().out)["num_snapshots"] == before["num_snapshots"] + after["num_snapshots"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["ingest", "{table}", "--time", "when", "--out", "{tmp}/g"], 2, "say how time is cut"),
        (["ingest", "{table}", "--every", "1d", "--snapshots", "3", "--out", "{tmp}/g"], 2, "exclude each other"),
        (["ingest", "{table}", "--every", "1d", "--time", "now", "--out", "{tmp}/g"], 2, "has no such column"),
        (["ingest", "{tmp}/none.csv", "--every", "1d", "--out", "{tmp}/g"], 3, "does not exist"),
        (
            ["ingest", "{table}", "--every", "1d", "--weight", "amount", "--out", "{tmp}/g", "--memory", "5"],
            2,
            "too little",
        ),
        (["ingest", "{table}", "--every", "1d", "--out", "{tmp}/g", "--memory", "lots"], 2, "is no size"),
        (["ingest", "{table}", "--every", "1d", "--out", "{tmp}/g", "--life", "0"], 2, "neither a positive number"),
        (["ingest", "{table}", "--every", "1d", "--out", "{tmp}/g", "--on-bad", "shout"], 2, "use stop or drop"),
        (["ingest", "{table}", "--every", "1d", "--out", "{tmp}/g", "--from", "{tmp}"], 2, "--from goes with the name"),
        (["ingest", "{table}", "--evry", "1d", "--out", "{tmp}/g"], 2, "--every"),
        (["info", "{tmp}/none"], 4, "does not exist"),
        (["info", "{tmp}"], 4, "has no manifest.json"),
        (["check", "{table}"], 4, "is a file"),
        (["append", "{tmp}/none", "{table}"], 4, "does not exist"),
        (["export", "{tmp}/none", "--out", "x"], 4, "does not exist"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    assert run([part.format(table=table, tmp=tmp_path) for part in arguments]) == code
    told = capsys.readouterr()
    assert sentence in told.err
    assert "Traceback" not in told.err
    assert told.err.count("timeloom: ") == 1
    assert not (tmp_path / "g").exists()


def test_a_bad_row_is_named_or_counted_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "e.csv"
    path.write_text("source,target,time\n1,2,3\n1,x,4\n")
    arguments = ["ingest", str(path), "--as-given", "--out", str(tmp_path / "g")]
    assert run([*arguments, "--ids", "integers"]) == 3
    assert "e.csv line 3 column 2: an id is not an integer (found 'x')" in capsys.readouterr().err
    assert run([*arguments, "--ids", "integers", "--on-bad", "drop"]) == 0
    assert "an id is not an integer" in capsys.readouterr().out


def test_a_broken_graph_is_named(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ok("ingest", table, "--time", "when", "--every", "7d", "--out", tmp_path / "g")
    victim = next((tmp_path / "g").glob("*keyframe.keys.npy"))
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    assert run(["check", str(tmp_path / "g")]) == 4
    told = capsys.readouterr()
    assert "was altered" in told.out
    assert "restore it from a copy" in told.err


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("ingest", "append", "info", "check", "export", "synth"):
        ok(command, "--help")
        told = capsys.readouterr().out
        assert f"timeloom {command}" in told
    ok("--version")
    assert capsys.readouterr().out.startswith("timeloom ")


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2**31), ("512M", 2**29), ("1.5g", 3 * 2**29), ("100", 100), ("4 KiB", 4096)]
)
def test_sizes_are_powers_of_two(text: str, size: int) -> None:
    assert read_size(text) == size


def test_a_size_without_a_number_is_refused() -> None:
    with pytest.raises(BadConfig, match="write a number and a unit"):
        read_size("GiB")


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_an_ingest_and_leaves_nothing(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 10**6, (2_000_000, 3))
    np.savetxt(tmp_path / "e.csv", rows, fmt="%d", delimiter=",", header="source,target,time", comments="")
    out = tmp_path / "g"
    command = [
        sys.executable,
        "-m",
        "timeloom",
        "ingest",
        str(tmp_path / "e.csv"),
        "--snapshots",
        "50",
        "--out",
        str(out),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while not (out / ".lock").exists():
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(0.1)
        os.kill(process.pid, sent)
        _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert "what is on disk is whole" in told
    assert not out.exists()


def test_output_may_be_cut_off(table: Path, tmp_path: Path) -> None:
    ok("ingest", table, "--time", "when", "--every", "1d", "--out", tmp_path / "g")
    done = subprocess.run(
        f"{sys.executable} -m timeloom info {tmp_path / 'g'} --json | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_a_bad_time_does_not_change_how_the_others_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("source,target,time\n1,2,1600000000\n3,4,1600100000\n5,4,9x\n")
    ok("ingest", tmp_path / "t.csv", "--every", "1d", "--on-bad", "drop", "--out", tmp_path / "g", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["clock"], told["kept"], told["dropped"]) == ("s", 2, {"a time cannot be read": 1})
    assert run(["ingest", str(tmp_path / "t.csv"), "--every", "1d", "--out", str(tmp_path / "h")]) == 3
    assert "t.csv line 4 column 3: a time cannot be read (found '9x')" in capsys.readouterr().err
    (tmp_path / "empty.csv").write_text("source,target,time\n")
    assert run(["ingest", str(tmp_path / "empty.csv"), "--every", "1d", "--out", str(tmp_path / "h")]) == 3
    assert "no rows" in capsys.readouterr().err
