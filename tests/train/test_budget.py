"""A run that would not stay within its memory is refused before its first step; one that runs out says why."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.small_runs import drift, of_kind, small
from timeloom.cli import run
from timeloom.config import build, merge
from timeloom.errors import BadConfig, TooLarge
from timeloom.graph.dynamic import open_graph
from timeloom.systems import preset_of
from timeloom.train import budget
from timeloom.train.budget import available_bytes, expect, told_of_memory
from timeloom.train.rehearse import lent_bytes
from timeloom.train.runs import resume, train
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings

needs_glibc = pytest.mark.skipif(lent_bytes() is None, reason="memory is watched by glibc's malloc")


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drift(tmp_path_factory.mktemp("graphs") / "drift")


@needs_glibc
def test_a_run_beyond_its_memory_is_refused_before_its_first_step(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(budget, "_held_bytes", lambda: 1 << 30)
    arguments = ["train", str(drifting), "--out", str(tmp_path / "run"), "--quiet", "--set", "window.length=3"]
    assert run([*arguments, "--memory", "1GiB"]) == 5
    told = capsys.readouterr().err
    assert told.startswith("timeloom: train.memory_bytes=1,073,741,824 is too little: 1,073,741,824 bytes are held")
    assert "a step is predicted to hold" in told
    assert "lower window.length (now 3) and model.hidden (now 32), or allow" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists(), "the same command works with more"
    assert run([*arguments, "--memory", "2GiB", "--set", "train.epochs=1"]) == 0
    assert of_kind(tmp_path / "run", "started")[0]["derived"]["memory of a step"].endswith("(predicted)")


@needs_glibc
def test_what_is_kept_is_cut_to_the_room_that_is_left(drifting: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def session(**options: int | None) -> object:
        settings = build(RunSettings, merge({"graph": str(drifting)}, small({"train": options})))
        return open_session(settings, open_graph(drifting))

    monkeypatch.setattr(budget, "_held_bytes", lambda: 1 << 30)
    monkeypatch.setattr(budget, "predicted_bytes", lambda session, always: 1 << 20)
    most = (1 << 30) + (1 << 20) + 12_345
    cut = session(memory_bytes=most)
    assert expect(cut).step_bytes == 1 << 20  # type: ignore[arg-type]
    assert cut.feed.room.left <= 12_345  # type: ignore[attr-defined]
    with pytest.raises(TooLarge, match=r"train.cache_bytes=20,000 more are to be kept: lower train.cache_bytes"):
        expect(session(memory_bytes=most, cache_bytes=20_000))  # type: ignore[arg-type]
    expect(session(memory_bytes=most, cache_bytes=10_000))  # type: ignore[arg-type]


def test_memory_is_a_size_and_changes_no_result(drifting: Path, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"train\.memory_bytes=0 is no size"):
        train(drifting, tmp_path / "run", small({"train": {"memory_bytes": 0}}))
    train(drifting, tmp_path / "free", small())
    train(drifting, tmp_path / "bound", small({"train": {"memory_bytes": 1 << 40}}))
    assert of_kind(tmp_path / "free", "epoch_ended") == of_kind(tmp_path / "bound", "epoch_ended")
    with pytest.raises(TooLarge):
        resume(tmp_path / "free", {"train": {"memory_bytes": 1 << 20, "epochs": 3}})


@pytest.mark.parametrize(("system", "names"), [
    ("none", "window.length (now 6) and model.hidden"), ("flare", "flare.decayed (now 6) and model.hidden"),
    ("dynahb", "hybrid.snapshot_shares and model.hidden"), ("distdy", "distdy.fanouts (now [10, 10]) and model.hidden"),
])  # fmt: skip
def test_the_two_settings_that_memory_grows_with_are_those_of_the_system(system: str, names: str) -> None:
    own = {} if system == "none" else preset_of(system).settings
    settings = build(RunSettings, merge(own, {"graph": "g"}, {} if system != "none" else {"window": {"length": 6}}))
    first, _, rest = names.partition(" (now")
    with pytest.raises(TooLarge) as found, told_of_memory(settings):
        raise MemoryError
    assert f"lower {first}" in str(found.value)
    assert "and model.hidden (now" in str(found.value)
    assert f"and {available_bytes() // 10**12:,}"[:4] in str(found.value)
    assert rest is not None


RUN = """
import resource, sys
import psutil, torch
from timeloom.cli import run
from timeloom.train import runs
torch.set_num_threads(1)
true = runs.tell_beginning
def limited(*arguments):
    # From here on there is room for a hundred megabytes, and a step takes more.
    most = psutil.Process().memory_info().vms + (100 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    true(*arguments)
runs.tell_beginning = limited
sys.exit(run(sys.argv[1:]))
"""


@needs_glibc
def test_out_of_memory_tells_what_was_predicted_and_what_was_available(tmp_path: Path) -> None:
    graph = drift(tmp_path / "g", num_nodes=40_000, num_edges=80_000)
    ended = subprocess.run(
        [sys.executable, "-c", RUN, "train", str(graph), "--out", str(tmp_path / "run"), "--quiet", "--set",
         "model.hidden=160", "--set", "window.length=6", "--set", "train.threads=1", "--set", "train.device=cpu",
         "--set", "train.cache_bytes=0"],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert ended.returncode == 5, ended.stderr
    assert ended.stderr.startswith("timeloom: out of memory (")
    assert ended.stderr.count("\n") == 1
    told = ended.stderr.replace(",", "")
    found = re.search(r"a step was predicted to hold (\d+) bytes and (\d+) bytes were available when it failed", told)
    assert found, ended.stderr
    predicted, available = map(int, found.groups())
    assert available < 100 << 20 < predicted
    assert "lower window.length (now 6) and model.hidden (now 160)" in told
