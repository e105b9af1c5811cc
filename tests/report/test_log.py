"""All that a run tells is read, also while it is being told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import get_args

import pytest

from tests.report.fake import Fake
from timeloom.errors import BadRun
from timeloom.records import Ended, Record, Resumed, RunDirectory, is_in_use, read, stream
from timeloom.records.seal import seal_config
from timeloom.report.log import RunLog, look, read_log, read_on, state_of


def shown(log: RunLog) -> tuple[object, ...]:
    return (
        log.started, log.ended, log.epochs, log.evaluated, log.traffic, log.scheduled,
        log.deviated, log.tuned, log.averaged, log.batched, dict(log.placed),
        log.warned, log.saved, log.resumed, log.facts, log.predicted,
        list(log.steps.loss), list(log.steps.step), list(log.parts.began), list(log.parts.phase), log.ranks,
    )  # fmt: skip


def test_reading_on_equals_reading_anew(tmp_path: Path) -> None:
    records = Fake(epochs=4).records()
    with RunDirectory.create(tmp_path / "run", "", overwrite=False) as run:
        log = read_log(tmp_path / "run")
        for number, record in enumerate(records):
            run.append(record)
            if number % 7 == 0:
                log = read_on(log)
                assert shown(log) == shown(read_log(tmp_path / "run"))
        log = read_on(log)
    assert len(log.epochs) == 4
    assert log.ended is not None
    assert shown(log) == shown(read_log(tmp_path / "run"))


@pytest.mark.parametrize("longer", [False, True])
def test_a_run_that_went_back_is_read_anew(tmp_path: Path, longer: bool) -> None:
    run = Fake(epochs=6, ended=False).make(tmp_path / "run")
    log = read_log(run)
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
    with RunDirectory.open(run) as directory:
        directory.append(Resumed(checkpoint="x", epoch=3, step=1))
        for record in Fake(epochs=9 if longer else 1, seed=5).records():
            directory.append(record)
    again = read_on(log)
    assert shown(again) == shown(read_log(run))
    assert len(again.epochs) == len([record for record in read(run) if record.kind == "epoch_ended"])


def test_a_run_that_goes_on_after_its_end_has_not_ended(tmp_path: Path) -> None:
    run = Fake().make(tmp_path / "run")
    assert state_of(read_log(run)) == "ended"
    with RunDirectory.open(run) as directory:
        directory.append(Resumed(checkpoint="x", epoch=3, step=1))
        assert state_of(read_log(run)) == "running"
        directory.append(Ended(reason="epochs", epochs=9, best_epoch=1, seconds=1.0))
        assert state_of(read_log(run)) == "ended"


def test_a_run_is_in_use_while_it_is_open_and_looking_does_not_disturb(tmp_path: Path) -> None:
    run = Fake(ended=False).make(tmp_path / "run")
    hour_ago = time.time() - 3600
    os.utime(run / "records.jsonl", (hour_ago, hour_ago))
    assert not is_in_use(run)
    assert state_of(read_log(run)) == "stopped"
    with RunDirectory.open(run):
        log = read_log(run)
        assert is_in_use(run)
        assert state_of(log) == "running"
    assert state_of(log) == "stopped"
    RunDirectory.open(run).close()


def test_a_run_that_was_seen_in_use_stops_at_once_and_another_within_a_minute(tmp_path: Path) -> None:
    run = Fake(ended=False).make(tmp_path / "run")
    assert state_of(read_log(run)) == "running", "written a moment ago, perhaps by another machine"
    with RunDirectory.open(run):
        log = read_log(run)
        assert state_of(log) == "running"
    assert state_of(log) == "stopped"


@pytest.mark.parametrize("kind", get_args(Record), ids=lambda kind: str(kind.kind))
def test_no_kind_of_record_is_passed_over(tmp_path: Path, kind: type[Record]) -> None:
    every = [*Fake(warning="x").records(), Resumed(checkpoint="x", epoch=1, step=1)]
    told = [record for record in every if type(record) is kind]
    assert told, f"the made-up run tells no {kind.kind}: let it"
    with RunDirectory.create(tmp_path / "run", "", overwrite=False) as run:
        before = shown(read_log(tmp_path / "run"))
        run.append(told[0])
        assert shown(read_log(tmp_path / "run")) != before


def test_an_end_that_is_told_while_one_looks_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Fake(ended=False).make(tmp_path / "run")
    directory = RunDirectory.open(run)
    log, state = look(read_log(run))
    assert state == "running"

    def ends(path: Path) -> bool:
        if not log.ended and read(run)[-1].kind != "ended":
            directory.append(Ended(reason="epochs", epochs=9, best_epoch=1, seconds=1.0))
            directory.close()
        return is_in_use(path)

    monkeypatch.setattr("timeloom.report.log.is_in_use", ends)
    log, state = look(log)
    assert state == "ended"
    assert log.ended is not None
    assert look(log)[1] == "ended"


def test_a_stream_can_begin_at_any_record(tmp_path: Path) -> None:
    run = Fake(epochs=2).make(tmp_path / "run")
    whole = list(stream(run))
    assert [record for record, _ in whole] == read(run)
    _, stop = whole[10]
    assert list(stream(run, stop)) == whole[11:]
    with pytest.raises(BadRun, match="line 12 cannot be read"):
        list(stream(run, stop + 3))


def test_a_configuration_that_is_no_toml_is_named(tmp_path: Path) -> None:
    run = Fake().make(tmp_path / "run")
    (run / "config.toml").write_bytes(seal_config("a = "))
    with pytest.raises(BadRun, match=r"config.toml cannot be read"):
        _ = read_log(run).config
