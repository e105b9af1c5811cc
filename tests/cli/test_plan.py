"""`timeloom plan` and `timeloom simulate` tell what would be, without torch, and refuse what cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from timeloom.cli import run
from timeloom.graph.dynamic import open_graph
from timeloom.graph.sizes import sizes_of, write_sizes
from timeloom.graph.synth import Drift, PowerLaw, synth

QUICK = ["--num-snapshots", "60", "--devices", "2,8", "--search-s", "0.05"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("graphs") / "drifting"
    synth(Drift(num_nodes=100, num_edges=300, num_snapshots=20, seed=1), path)
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([str(argument) for argument in arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("system", ["psg", "real", "real_g", "real_l", "type_2", "dygnex", "dygnex_g", "dygnex_l"])
def test_every_system_is_planned(graph: Path, system: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", graph, "--system", system, "--devices", 3, "--search-s", 0.1, "--json")
    found = json.loads(told(capsys, *arguments))
    # 19 labels, 13 of them for training, groups of 4.
    assert found["groups"] == 10
    assert sorted(group for step in found["steps"] for groups in step for group in groups) == list(range(10))
    assert found["epoch_s"] >= found["bound_s"] > 0
    assert found["memory_bytes"] > 0
    if system in ("psg", "dygnex", "dygnex_g", "dygnex_l"):
        assert found["kept"] == pytest.approx(0, abs=1e-12)


def test_a_plan_is_shown_as_a_table_and_a_picture(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = told(capsys, "plan", graph, "--devices", 2, "--search-s", 0.1, "--svg", tmp_path / "plan.svg")
    for word in (
        "10 groups of 4 snapshots",
        "imbalance",
        "memory",
        "device 0",
        "device 1",
        "█",
        "over the lower bound",
    ):
        assert word in shown
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")


def test_a_plan_says_who_found_it(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", graph, "--system", "real_l", "--search-s")
    assert json.loads(told(capsys, *arguments, 1e-6, "--json"))["by"] == "real_g"
    assert "by real_g, since real_l did not come to an end (see --search-s)" in told(capsys, *arguments, 1e-6)
    assert json.loads(told(capsys, "plan", graph, "--search-s", 0.1, "--json"))["by"] == "best"


def test_a_plan_predicts_what_the_settings_of_reuse_allow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Snapshots of a group share rows in every system, as they do in training; groups only where they may."""
    path = tmp_path / "g"
    synth(PowerLaw(num_nodes=4000, num_edges=40_000, num_snapshots=16, turnover=0.001), path)

    def planned(system: str, *sets: str) -> dict[str, Any]:
        flags = [part for one in ("model.norm=mean", *sets) for part in ("--set", one)]
        return dict(
            json.loads(
                told(capsys, "plan", path, "--system", system, "--devices", 1, "--search-s", 0.1, "--json", *flags)
            )
        )

    shared, full = planned("psg"), planned("psg", "reuse.mode=full")
    assert shared["epoch_s"] < full["epoch_s"]
    real, apart = planned("real"), planned("real", "reuse.between_windows=false")
    assert real["kept"] > 0
    assert apart["kept"] == planned("real", "reuse.mode=full")["kept"] == 0
    assert real["epoch_s"] < apart["epoch_s"]


def test_windows_and_models_are_set_as_in_training(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ("--set", "window.length=6", "--set", "model.hidden=64", "--set", "window.stride=2")
    wide = json.loads(told(capsys, "plan", graph, "--search-s", 0.1, "--json", *sets))
    assert wide["groups"] == 4
    assert "did you mean" in refused(capsys, "plan", graph, "--set", "window.lenght=6")


def test_what_cannot_be_planned_is_said(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--system flare is unknown" in refused(capsys, "plan", graph, "--system", "flare")
    assert "--devices 0" in refused(capsys, "plan", graph, "--devices", 0)
    assert "nothing to schedule" in refused(capsys, "plan", graph, "--set", "window.state=inherit")
    assert "use --set window.length=13" in refused(capsys, "plan", graph, "--set", "window.length=14")
    assert "cannot be written" in refused(capsys, "plan", graph, "--svg", "/nowhere/at/all.svg", "--search-s", 0.1)


def test_a_simulation_is_a_table_of_devices_and_schedulers(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "simulate", *QUICK)
    assert "57 groups" in shown
    for word in ("in_order", "pair_consecutive", "dygnex_g", "real_g", "best", "efficiency", "imbalance"):
        assert word in shown
    rows = json.loads(told(capsys, "simulate", *QUICK, "--json"))["rows"]
    assert [(row["devices"], row["scheduler"]) for row in rows[:2]] == [(2, "in_order"), (2, "pair_consecutive")]
    assert len(rows) == 10
    for few in (rows[:5], rows[5:]):
        assert min(row["epoch_s"] for row in few) == pytest.approx(few[-1]["epoch_s"])


def test_greedy_schedulers_of_many_groups_say_that_they_try_fewer_targets(capsys: pytest.CaptureFixture[str]) -> None:
    many = ["--num-snapshots", "1500", "--devices", "64", "--schedulers", "real_g"]
    shown = told(capsys, "simulate", *many)
    assert "real_g/178" in shown
    assert "not all as published" in shown


def test_sizes_of_a_graph_are_simulated(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sizes(sizes_of(open_graph(graph)), tmp_path / "sizes.json")
    quick = ("--devices", 2, "--schedulers", "in_order", "--json")
    first = json.loads(told(capsys, "simulate", "--graph", graph, *quick))
    second = json.loads(told(capsys, "simulate", "--sizes", tmp_path / "sizes.json", *quick))
    assert first["groups"] == second["groups"] == 17
    assert first["rows"][0]["epoch_s"] == second["rows"][0]["epoch_s"]


def test_what_cannot_be_simulated_is_said(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give one" in refused(capsys, "simulate", "--graph", graph, "--sizes", graph)
    assert "--devices 4;8" in refused(capsys, "simulate", "--devices", "4;8")
    assert "--devices 0" in refused(capsys, "simulate", "--devices", "0")
    assert "--schedulers magic is unknown" in refused(capsys, "simulate", "--num-snapshots", 9, "--schedulers", "magic")
    assert "--search-s 0" in refused(capsys, "simulate", "--num-snapshots", 9, "--search-s", 0)
    assert "curve" in refused(capsys, "simulate", "--curve", "round")


def test_neither_imports_torch(graph: Path) -> None:
    commands = [["plan", str(graph), "--search-s", "0.05"], ["simulate", *QUICK]]
    statement = f"import sys; from timeloom.cli import run; assert not any([run(c) for c in {commands}]); "
    statement += "sys.exit(any(name.split('.')[0] == 'torch' for name in sys.modules))"
    ended = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
