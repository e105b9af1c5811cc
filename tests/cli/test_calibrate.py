"""`timeloom calibrate` measures, keeps what it measured, and runs that begin later go by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from timeloom.cli import run
from timeloom.plan import machine
from timeloom.plan.cost import KERNELS, from_json
from timeloom.train import calibrate
from timeloom.train.costs import costs_file, read_costs


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and small cases."""
    monkeypatch.setattr(machine, "cache_home", lambda: tmp_path)
    monkeypatch.setattr(calibrate, "NODES", (50, 200))
    monkeypatch.setattr(calibrate, "WIDTHS", (4, 8))
    torch.set_num_threads(1)
    return tmp_path


def test_what_is_measured_is_kept_for_this_machine_and_these_threads(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "--threads", "1"]) == 0
    told = capsys.readouterr()
    path = costs_file(torch.device("cpu"), 1)
    assert path.is_relative_to(quick)
    assert str(path) in told.out
    assert [line.split()[0] for line in told.out.splitlines()[:-1]] == list(KERNELS)
    assert "measuring attend" in told.err
    kept = read_costs(torch.device("cpu"), 1)
    assert kept == from_json(json.loads(path.read_text()))
    # More work takes longer, and nothing takes less than nothing.
    for kernel in KERNELS:
        assert (
            0
            < kept.seconds(kernel, rows=200, edges=2000, width=8)
            <= kept.seconds(kernel, rows=2000, edges=20_000, width=8)
        )


def test_costs_are_printed_as_json(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", "--threads", "1", "--json", "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert from_json(json.loads(told.out)) == read_costs(torch.device("cpu"), 1)


@pytest.mark.parametrize(("given", "sentence"), [
    (["--threads", "-1"], "--threads -1 is too small"),
    (["--device", "tpu"], "is no device"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(
    quick: Path, given: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", *given]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(quick.iterdir())
