"""Runs stand beside each other as they are: medians, spreads, times to a loss, and what cannot be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, stdev

import pytest

from tests.report.fake import Fake
from timeloom.errors import BadConfig
from timeloom.records import EpochEnded, RunDirectory
from timeloom.report.compare import compare, labels_of, seconds_to_loss
from timeloom.report.log import read_log
from timeloom.report.summary import best_baseline, how_to_run_again, is_less_better, margin, summarise


def test_runs_that_differ_in_their_seed_share_a_row(tmp_path: Path) -> None:
    logs = [read_log(Fake(seed=seed).make(tmp_path / f"s{seed}")) for seed in range(3)]
    other = read_log(Fake(system="flare").make(tmp_path / "flare"))
    found = compare([*logs, other])
    assert [row.label for row in found.rows] == ["real", "flare"]
    assert found.rows[0].runs == ("s0", "s1", "s2")
    scores = [summarise(log).score for log in logs]
    assert found.rows[0].score == pytest.approx(mean(scores))
    assert found.rows[0].score_spread == pytest.approx(stdev(scores))
    assert math.isnan(found.rows[1].score_spread)
    assert f"± {stdev(scores):.2g}" in found.cells[0][2]


def small(path: Path, losses: list[float], text: str = "a = 1\n") -> Path:
    with RunDirectory.create(path, text, overwrite=False) as run:
        for epoch, loss in enumerate(losses):
            run.append(EpochEnded(epoch=epoch, loss=loss, learning_rate=0.1, nodes=1, edges=1, seconds=2.0))
    return path


def test_time_to_a_loss_is_counted_to_the_end_of_the_epoch(tmp_path: Path) -> None:
    log = read_log(small(tmp_path / "a", [3.0, math.nan, 1.0, 2.0]))
    assert seconds_to_loss(log, 3.0) == 2.0
    assert seconds_to_loss(log, 1.0) == 6.0
    assert seconds_to_loss(log, 0.9) == math.inf
    assert math.isnan(seconds_to_loss(log, math.nan))
    assert math.isnan(seconds_to_loss(read_log(small(tmp_path / "b", [])), 1.0))


def test_the_loss_that_all_reached_is_the_worst_of_the_best(tmp_path: Path) -> None:
    logs = [
        read_log(small(tmp_path / name, losses, f"model = '{name}'"))
        for name, losses in (("a", [3.0, 1.0]), ("b", [2.0, 1.5, 1.7]))
    ]
    found = compare(logs)
    assert found.target_loss == 1.5
    assert [row.seconds_to_loss for row in found.rows] == [4.0, 4.0]
    assert [row.seconds_to_loss for row in compare(logs, target_loss=1.2).rows] == [4.0, math.inf]
    assert compare(logs, target_loss=1.2).cells[1][4] == "never"


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    first = read_log(Fake().make(tmp_path / "a"))
    second = read_log(Fake(graph="other", ended=False).make(tmp_path / "b"))
    notes = " ".join(compare([first, second]).notes)
    assert "different graphs (drift, other)" in notes
    assert "not at their end: b" in notes
    with pytest.raises(BadConfig, match="no run to compare"):
        compare([])


def test_a_comparison_is_json_and_markdown(tmp_path: Path) -> None:
    logs = [read_log(Fake().make(tmp_path / "a|b")), read_log(small(tmp_path / "c", [1.0]))]
    found = compare(logs)
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["rows"][1]["peak_bytes"] is None
    assert told["rows"][0]["epoch_seconds"] == pytest.approx(summarise(logs[0]).epoch_seconds)
    lines = found.as_markdown().splitlines()
    assert lines[0].count("|") == lines[1].count("|") == len(found.header) + 1
    assert "a\\|b" in lines[2]


def test_labels_are_what_differs(tmp_path: Path) -> None:
    logs = [
        read_log(Fake(system=name, seed=seed).make(tmp_path / f"{name}{seed}"))
        for name, seed in (("real", 0), ("psg", 1))
    ]
    assert labels_of(logs) == ["real, seed 0", "psg, seed 1"]
    assert labels_of(logs, with_seeds=False) == ["real", "psg"]
    assert labels_of(logs[:1]) == ["real0"]
    same = [read_log(Fake().make(tmp_path / where / "run")) for where in ("x", "y")]
    assert len(set(labels_of(same))) == 2, "two folders of one name are told apart"


def test_a_label_is_no_longer_than_it_need_be(tmp_path: Path) -> None:
    names = [("real", 1, 2, 3, 4), ("psg", 5, 6, 7, 8), ("psg", 5, 6, 7, 9)]
    text = "[system]\nname = '{}'\na = {}\nb = {}\nc = {}\nd = {}\n"
    logs = [read_log(small(tmp_path / f"r{at}", [1.0], text.format(*one))) for at, one in enumerate(names)]
    assert labels_of(logs[:2]) == ["real", "psg"], "the name of the system is enough"
    assert labels_of(logs[1:]) == ["d 8", "d 9"]
    assert labels_of(logs) == ["r0", "r1", "r2"], "five settings are too many for a name"


def test_a_summary_is_what_the_records_say(tmp_path: Path) -> None:
    log = read_log(Fake(ranks=2, epochs=3, steps=6).make(tmp_path / "run"))
    found = summarise(log)
    assert found.epoch_bytes == 6 * 26_244 * 2 + 2_500_000 + 128
    assert found.peak_bytes == 440_000_000 + 4_000_000
    assert found.waited_share == pytest.approx(0.07)
    assert found.total_seconds == pytest.approx(sum(epoch.seconds for epoch in log.epochs))
    assert found.imbalance > 1.2
    assert (found.metric, found.ranks, found.best_epoch, found.state) == ("mse", 2, 2, "ended")
    assert found.test is not None
    assert best_baseline(found.test, "mse") == ("persistence", 0.214)


def test_better_has_a_direction() -> None:
    assert is_less_better("mse")
    assert is_less_better("active.mae_all")
    assert not is_less_better("random.mrr")
    assert margin("mse", 0.1, 0.2) == 0.5
    assert margin("mrr", 0.1, 0.2) == -0.5
    assert math.isnan(margin("mse", 0.1, 0.0))


def test_how_to_run_again_is_quoted_and_resumes_what_has_not_ended(tmp_path: Path) -> None:
    log = read_log(Fake(ended=False).make(tmp_path / "my run"))
    told = [command for command, _ in how_to_run_again(log)]
    assert f"timeloom train --config '{tmp_path}/my run/config.toml' --out NEW_RUN" in told
    assert f"timeloom train --resume '{tmp_path}/my run'" in told
    ended = read_log(Fake().make(tmp_path / "ended"))
    assert not any("--resume" in command for command, _ in how_to_run_again(ended))
