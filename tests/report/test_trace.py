"""A trace is what viewers of Chrome's format open: all ranks on one clock, nothing on top of each other."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.report.fake import BEGAN, Fake
from timeloom.errors import BadConfig, BadRun
from timeloom.records import PHASES, Spans, read
from timeloom.report.log import read_log
from timeloom.report.trace import write_trace


def traced(path: Path, **options: Any) -> list[dict[str, Any]]:
    run = Fake(**options).make(path / "run")
    write_trace(read_log(run), path / "trace.json")
    told = json.loads((path / "trace.json").read_text())
    assert told["displayTimeUnit"] == "ms"
    events: list[dict[str, Any]] = told["traceEvents"]
    return events


def test_every_part_is_an_event_at_its_moment(tmp_path: Path) -> None:
    events = traced(tmp_path, ranks=3, epochs=2)
    spans = [record for record in read(tmp_path / "run") if isinstance(record, Spans)]
    expected = sorted(
        (one.rank, phase, one.step, round((one.began + start - BEGAN) * 1e6), round(seconds * 1e6))
        for one in spans for phase, start, seconds in one.parts
    )  # fmt: skip
    found = sorted(
        (one["pid"], one["name"], one["args"]["step"], round(one["ts"]), round(one["dur"]))
        for one in events if one["ph"] == "X"
    )  # fmt: skip
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine[:3] == theirs[:3]
        assert abs(mine[3] - theirs[3]) <= 1
        assert abs(mine[4] - theirs[4]) <= 1


def test_what_a_viewer_needs_is_there(tmp_path: Path) -> None:
    events = traced(tmp_path, ranks=3, epochs=2)
    assert {one["ph"] for one in events} == {"M", "X", "C"}
    for one in events:
        assert {"ph", "name", "pid", "tid"} <= one.keys()
        if one["ph"] in "XC":
            assert one["ts"] >= 0
        if one["ph"] == "X":
            assert one["dur"] >= 0
            assert one["name"] in PHASES
    named = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1", 2: "rank 2"}


def test_in_one_row_nothing_overlaps(tmp_path: Path) -> None:
    rows = defaultdict(list)
    for one in traced(tmp_path, ranks=2, epochs=3):
        if one["ph"] == "X":
            rows[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert len(rows) == 4, "two ranks, each with its work and what goes on beside it"
    for parts in rows.values():
        parts.sort()
        assert all(before[1] <= after[0] + 2.5 for before, after in pairwise(parts))


def test_without_spans_steps_lie_end_to_end_and_this_is_said(tmp_path: Path) -> None:
    run = Fake(spans=False, epochs=2).make(tmp_path / "run")
    found = write_trace(read_log(run), tmp_path / "t.json.gz")
    assert not found.on_clock
    with gzip.open(tmp_path / "t.json.gz") as file:
        steps = [one for one in json.loads(file.read())["traceEvents"] if one["ph"] == "X"]
    assert len(steps) == 12
    for before, after in pairwise(steps):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01)


def test_a_trace_of_nothing_or_over_something_is_refused(tmp_path: Path) -> None:
    run = Fake(steps=0).make(tmp_path / "empty")
    with pytest.raises(BadRun, match=r"no record of a step.*train.log_steps=true"):
        write_trace(read_log(run), tmp_path / "t.json")
    log = read_log(Fake().make(tmp_path / "run"))
    (tmp_path / "t.json").write_text("mine")
    with pytest.raises(BadConfig, match="exists already"):
        write_trace(log, tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "mine"
    assert write_trace(log, tmp_path / "t.json", overwrite=True).on_clock
    with pytest.raises(BadRun, match="cannot be written"):
        write_trace(log, tmp_path / "none" / "t.json")
