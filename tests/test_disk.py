"""A disk that is full, or read-only, gives one sentence and leaves what was there as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.train.small_runs import drift, history, small
from timeloom.cli import run
from timeloom.graph.check import check
from timeloom.graph.ingest import Ingest, Windows, ingest
from timeloom.records import read
from timeloom.train import checkpoint
from timeloom.train.runs import resume, train

Command = Callable[[Path], list[str]]
QUICK = ("--set=model.name=gcn_gru", "--set=model.hidden=4", "--set=window.length=3", "--set=train.threads=1",
         "--set=train.device=cpu", "--set=train.epochs=2", "--quiet")  # fmt: skip
LIVE = (*QUICK[:-2], "--set=live.steps=2", "--quiet")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    if os.geteuid():
        pytest.skip("needs root, to mount a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("this container may not mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("graphs") / "drift")


def make(disk: Path, drifting: Path) -> None:
    """Put a graph, a table that goes on with it, a run and a run that follows onto a disk."""
    rows = {"source": [0, 1, 2, 0], "target": [1, 2, 0, 2], "time": [0, 1, 2, 3]}
    ingest(rows, disk / "graph", Ingest(windows=Windows(kind="every", amount="1")))
    (disk / "more.csv").write_text("source,target,time\n" + "".join(f"{n},{n + 1},{n}\n" for n in range(4, 2000)))
    train(drifting, disk / "run", small())


def fill(disk: Path, left: int) -> None:
    """Leave so many bytes on a disk."""
    room = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(max(room.f_bavail * room.f_frsize - left, 0)))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, but for locks, which are empty."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.endswith((".lock", "ballast"))}


COMMANDS: dict[str, tuple[Command, int, int]] = {
    # What is run, and how it ends on a full disk and on one that is read-only.
    "ingest": (lambda d: ["ingest", f"{d}/more.csv", "--every", "1", "--out", f"{d}/new", "--quiet"], 5, 2),
    "append": (lambda d: ["append", f"{d}/graph", f"{d}/more.csv", "--quiet"], 5, 2),
    "train": (lambda d: ["train", f"{d}/../graph", "--out", f"{d}/new", *QUICK], 5, 4),
    "resume": (lambda d: ["train", "--resume", f"{d}/run", "--set", "train.epochs=9", "--quiet"], 5, 4),
    "follow": (lambda d: ["follow", f"{d}/../graph", "--out", f"{d}/live", "--until", "9", *LIVE], 5, 4),
    "report": (lambda d: ["report", f"{d}/run"], 5, 4),
    "trace": (lambda d: ["trace", f"{d}/run", "--out", f"{d}/trace.json"], 5, 4),
    "export": (lambda d: ["export", f"{d}/graph", "--out", f"{d}/back.parquet"], 5, 2),
    "predict": (lambda d: ["predict", f"{d}/run", "--out", f"{d}/next.parquet"], 5, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_gives_one_sentence_and_changes_nothing(
    disk: Path, drifting: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    command, code, _ = COMMANDS[name]
    make(disk, drifting)
    (disk.parent / "graph").symlink_to(drifting)
    before = contents(disk)
    capsys.readouterr()
    fill(disk, 0)
    assert run(command(disk)) == code
    told = capsys.readouterr().err
    assert told.startswith("timeloom: ")
    assert told.count("\n") == 1
    assert "No space left on device" in told
    after = {path: data for path, data in contents(disk).items() if data}
    if name == "resume":
        # What came after the last checkpoint is done again, and told again.
        del after["run/records.jsonl"], before["run/records.jsonl"]
        assert read(disk / "run")
    assert after == before
    assert not [path for path in disk.rglob("*") if "partial" in path.name or "scratch" in path.name]
    (disk / "ballast").unlink()
    assert list(check(disk / "graph")) == []
    assert run(command(disk)) == 0, "with room, the same command does its work"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_read_only_disk_gives_one_sentence_and_changes_nothing(
    disk: Path, drifting: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    command, _, code = COMMANDS[name]
    make(disk, drifting)
    (disk.parent / "graph").symlink_to(drifting)
    before = contents(disk)
    capsys.readouterr()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert run(command(disk)) == code
    told = capsys.readouterr().err
    assert told.startswith("timeloom: ")
    assert told.count("\n") == 1
    assert "Read-only file system" in told
    assert contents(disk) == before
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


def test_a_disk_that_fills_up_while_a_run_saves_leaves_the_checkpoint_before(disk: Path, drifting: Path) -> None:
    train(drifting, disk / "whole", small({"train": {"epochs": 6}}))
    train(drifting, disk / "run", small())
    names = checkpoint.names(disk / "run" / "checkpoints")
    size = sum(path.stat().st_size for path in (disk / "run" / "checkpoints" / names[-1]).iterdir())
    for left in range(0, 5 * size, 4096):
        fill(disk, left)
        if run(["train", "--resume", str(disk / "run"), "--set", "train.epochs=6", "--quiet"]) == 0:
            break
        (disk / "ballast").unlink()
        good = checkpoint.latest(disk / "run" / "checkpoints")
        assert good.name >= names[-1]
        assert not list((disk / "run" / "checkpoints").glob("*.partial"))
    (disk / "ballast").unlink(missing_ok=True)
    resume(disk / "run", {"train": {"epochs": 6}})
    assert history(disk / "run") == history(disk / "whole")


def test_output_that_cannot_be_written_is_said(drifting: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "timeloom", "info", str(drifting)], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert ended.returncode == 5
    assert ended.stderr in [f"timeloom: {what}: No space left on device\n" for what in ("the output", "the system")]
