"""Compiled loops are kept apart by everything that went into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from timeloom.graph.ingest import fields, tokens
from timeloom.jit import Kernel, kernel, sources_of


def add_all(values: np.ndarray) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def test_a_kernel_runs_and_its_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMELOOM_CACHE", str(tmp_path))
    summed: Kernel[float] = kernel("float64(float64[::1])")(add_all)
    assert summed(np.arange(4.0)) == 6.0
    assert list(tmp_path.rglob("*.nbc"))


def test_a_machine_without_a_place_to_write_compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TIMELOOM_CACHE", str(tmp_path / "file"))
    assert kernel("float64(float64[::1])")(add_all)(np.ones(3)) == 3.0


def test_code_depends_on_the_files_that_its_constants_come_from() -> None:
    assert fields.__file__ is not None
    assert tokens.__file__ is not None
    used = sources_of(fields.read_fields._function)
    for file in (fields.__file__, tokens.__file__):
        assert Path(file).read_bytes() in used
