"""`timeloom synth` offers exactly the options of each kind, with the defaults it says."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from timeloom.cli import run
from timeloom.cli.synth import DeleteFlags, DriftFlags, PowerLawFlags, SizesFlags
from timeloom.graph.check import check
from timeloom.graph.synth import Delete, Drift, PowerLaw, SizesOptions

ELSEWHERE = {"name", "graph", "edges_by_snapshot"}


@pytest.mark.parametrize(
    ("flags", "kind", "command"),
    [
        (DriftFlags, Drift, "drift"),
        (PowerLawFlags, PowerLaw, "powerlaw"),
        (DeleteFlags, Delete, "delete"),
        (SizesFlags, SizesOptions, "sizes"),
    ],
)
def test_options_and_defaults_are_those_of_the_kind(
    flags: type, kind: type, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {field.name: field.default for field in fields(kind) if field.name not in ELSEWHERE}
    assert {field.name for field in fields(flags)} == set(known)
    assert run(["synth", command, "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, default in known.items():
        assert f"--{name.replace('_', '-')}" in told
        assert default is not MISSING
        assert f"(default {default})" in told or f"(default {default}:" in told, name


def test_every_kind_makes_a_sound_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--num-nodes", "60", "--num-edges", "200", "--num-snapshots", "5", "--quiet"]
    for kind in ("drift", "powerlaw"):
        more = ["--turnover", "0.5"] if kind == "drift" else ["--first-share", "0.5"]
        assert run(["synth", kind, *small, *more, "--out", str(tmp_path / kind)]) == 0
        assert list(check(tmp_path / kind)) == []
    delete = [
        "synth",
        "delete",
        str(tmp_path / "powerlaw"),
        "--edges",
        "10,20,40",
        "--out",
        str(tmp_path / "delete"),
        "--json",
    ]
    capsys.readouterr()
    assert run(delete) == 0
    assert json.loads(capsys.readouterr().out)["num_edges"] == 70
    assert list(check(tmp_path / "delete")) == []
    assert run(["synth", "sizes", "--num-snapshots", "100", "--out", str(tmp_path / "sizes.json")]) == 0
    assert "100 snapshots" in capsys.readouterr().out


def test_a_wrong_option_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["synth", "powerlaw", "--turnover", "2", "--out", str(tmp_path / "g")]) == 2
    assert "turnover=2 was asked for" in capsys.readouterr().err
    assert run(["synth", "delete", str(tmp_path), "--edges", "a,b", "--out", str(tmp_path / "g")]) == 2
    assert "is no list of whole numbers" in capsys.readouterr().err
