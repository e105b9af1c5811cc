"""Killed at random instants, by power of the tests in `crash.py` and `soak.py`; and what their judges would find."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.cli.crash import CASES
from tests.cli.soak import Growth, Sample, growth_of, verdict
from tests.train.small_runs import drift, small
from tests.train.test_resume import killed_at_call
from timeloom import cli
from timeloom.systems import PRESETS
from timeloom.train.runs import train

ROOT = Path(__file__).resolve().parents[2]


def program(name: str, *arguments: object, limit_s: float) -> str:
    """Run a program of the tests; return what it printed."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environ = {**clean, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", f"tests.cli.{name}", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=limit_s, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_campaign_kills_every_system() -> None:
    assert {case.system for case in CASES.values()} == set(PRESETS)
    assert [case.name for case in CASES.values() if not case.repeats] == ["dynahb"]


def test_two_ranks_that_are_killed_end_as_if_never_killed() -> None:
    told = program("crash", "--cases", "vertex", "--ranks", 2, "--instants", 2, limit_s=110)
    row = [cell.strip() for cell in told.splitlines()[-3].split("|")]
    assert row[1:7] == ["all", "2", "2", "2", "2", "2"], told


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_at_random_instants_every_system_ends_as_if_never_killed(case: str) -> None:
    """Four instants on each of 1, 2 and 3 ranks; `make crash` does the same, and prints the table."""
    program("crash", "--cases", case, "--ranks", 1, 2, 3, "--instants", 4, limit_s=600)


@pytest.mark.slow
def test_nothing_grows_while_runs_are_killed_and_appended_to() -> None:
    told = program("soak", "--minutes", 1.5, limit_s=600)
    assert "ranks and" in told


def samples(memory: Sequence[float], handles: Sequence[int] = ()) -> list[Sample]:
    """Return samples ten seconds apart; memory in MiB."""
    return [
        Sample(10.0 * place, int(mib * 2**20), handles[place] if handles else 20) for place, mib in enumerate(memory)
    ]


def test_the_soak_accepts_what_is_flat_and_finds_what_leaks() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0.0, 3.0, 360)
    flat = [200 + one for one in noise]
    # Caches fill at first, and one sample in twenty is far off.
    filling = [200 + min(place, 60) + 50 * (place % 20 == 7) for place in range(360)]
    leaking = [200 + one + place / 6 for place, one in enumerate(noise)]
    handles = [20 + place // 60 for place in range(360)]
    assert growth_of(samples(flat)).is_flat
    assert growth_of(samples(filling)).is_flat
    assert not growth_of(samples(leaking)).is_flat
    assert not growth_of(samples(flat, handles)).is_flat
    assert growth_of(samples(leaking)).bytes_per_hour == pytest.approx(60 * 2**20, rel=0.1)
    grown = Growth(bytes_per_hour=2.0**40, handles_per_hour=0.0, hours=1.0, samples=9)
    assert [line.partition(" ")[0] for line in verdict({"calm": growth_of(samples(flat)), "leak": grown})] == ["leak"]


def test_a_report_that_is_killed_at_any_call_leaves_the_old_page_or_the_new_one(tmp_path: Path) -> None:
    run, page = tmp_path / "run", tmp_path / "run" / "report.html"
    train(drift(tmp_path / "graph", num_snapshots=6), run, small({"train": {"epochs": 1}}))
    command = ["report", str(run)]
    assert cli.run(command) == 0
    new, old = page.read_bytes(), page.read_bytes() + b"<!-- old -->"
    seen, fatal, went_on = set(), 1, True
    while went_on:
        page.write_bytes(old)
        went_on = killed_at_call(fatal, lambda: cli.run(command))
        found = page.read_bytes()
        assert found in (old, new)
        seen.add(found == new)
        fatal += 1
    assert seen == {True, False}
    assert fatal > 4
    assert cli.run(command) == 0
    assert [path.name for path in run.iterdir() if path.name.endswith(".partial")] == []
