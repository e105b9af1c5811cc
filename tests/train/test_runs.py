"""Everything that `import timeloom` promises is there, and does in Python what the commands do."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import timeloom
from tests.train.small_runs import GIVEN, columns_of, drift, history, of_kind, random_snapshots, saved, small
from timeloom.errors import BadConfig
from timeloom.records import Ended, Evaluated, GraphFacts, Record, Started, Stepped
from timeloom.train.derived import derived_of
from timeloom.train.inference import Result, open_run, open_untrained, result_of
from timeloom.train.runs import train


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 24 nodes."""
    return drift(tmp_path_factory.mktemp("graphs") / "drift")


@pytest.fixture(scope="module")
def run(drifting: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on it."""
    path = tmp_path_factory.mktemp("runs") / "run"
    timeloom.train(drifting, path, small())
    return path


def test_every_public_name_is_what_its_home_calls_so() -> None:
    for name in timeloom.__all__:
        value = getattr(timeloom, name)
        if name not in ("__version__", "train"):
            module, attribute = timeloom._HOMES[name]
            assert value is getattr(importlib.import_module(module), attribute)
            assert value.__doc__, name
    # The name of the function is the name of its package, too.
    assert callable(timeloom.train)
    assert getattr(timeloom.train, "__call__", None) is train  # noqa: B004
    assert sorted(timeloom.__all__) == sorted([*timeloom._HOMES, "__version__"])
    assert timeloom.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="module 'timeloom' has no attribute 'trian'"):
        _ = timeloom.trian


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, timeloom; print(sorted({'torch', 'numpy', 'numba', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_graph_is_made_opened_trained_on_measured_and_asked_in_a_few_lines(tmp_path: Path) -> None:
    timeloom.ingest(columns_of(random_snapshots(9, 20, 10)), tmp_path / "g", timeloom.Ingest(windows=GIVEN))
    graph = timeloom.open(tmp_path / "g")
    assert isinstance(graph, timeloom.DynamicGraph)
    shown: list[Record] = []
    result = timeloom.train(graph, tmp_path / "run", small(), model="dcrnn", task="links", show=shown.append)
    assert [type(record) for record in shown[:3]] == [Started, GraphFacts, Stepped]
    assert isinstance(shown[-1], Ended)
    assert isinstance(result, Result)
    assert result.path == tmp_path / "run"
    measured = timeloom.evaluate(tmp_path / "run")
    assert isinstance(measured, Evaluated)
    assert measured.scores == result.scores
    assert measured.baselines == result.baselines
    assert set(result.baselines) == {"edgebank", "persistence"}
    columns = timeloom.predict(tmp_path / "run", pairs=([0, 1], [2, 3]))
    assert {*zip(columns["source"].tolist(), columns["target"].tolist(), strict=True)} == {(0, 2), (1, 3)}
    assert timeloom.resume(tmp_path / "run") == result
    assert result_of(tmp_path / "run") == result


def test_names_beside_the_settings_come_before_them(drifting: Path, tmp_path: Path) -> None:
    settings = small({"model": {"name": "wdgcn"}, "task": {"name": "classes"}, "graph": "elsewhere"})
    timeloom.train(drifting, tmp_path / "run", settings, model="tgcn", task="degree")
    text = (tmp_path / "run" / "config.toml").read_text()
    assert text.startswith(f'graph = "{drifting}"\n')
    assert 'name = "tgcn"' in text
    assert 'name = "degree"' in text
    assert settings["model"]["name"] == "wdgcn", "what was given is not changed"


def test_a_relative_graph_is_found_again_from_another_folder(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "from timeloom.nn.gcn_gru import GcnGru\nfrom timeloom import Norm\nclass Mine(GcnGru):\n"
    (drifting.parent / "mine.py").write_text(
        own + "    def __init__(self, num_in, settings):\n        super().__init__(num_in, settings.hidden, Norm())\n"
    )
    monkeypatch.chdir(drifting.parent)
    timeloom.train("drift", tmp_path / "run", small(), model="mine.py:Mine")
    timeloom.train("drift", tmp_path / "same", small({"model": {"name": "mine.py:Mine"}}))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "same"):
        assert timeloom.evaluate(name).scores == timeloom.resume(name).scores
    timeloom.train(drifting, "ours", small())
    assert of_kind(tmp_path / "ours", "epoch_ended") == of_kind(tmp_path / "run", "epoch_ended")


def test_a_graph_that_moved_is_given_anew(run: Path, drifting: Path, tmp_path: Path) -> None:
    moved = drift(tmp_path / "moved")
    for graph in (moved, str(moved), timeloom.open(moved)):
        assert timeloom.evaluate(run, graph=graph) == timeloom.evaluate(run)
        assert (
            timeloom.predict(run, 3, graph=graph)["predicted"].tolist()
            == timeloom.predict(run, 3)["predicted"].tolist()
        )
        assert timeloom.resume(run, graph=graph) == result_of(run)
    other = drift(tmp_path / "other", num_snapshots=9)
    for call in (timeloom.evaluate, timeloom.predict, timeloom.resume):
        with pytest.raises(
            BadConfig, match=r"trained on 24 nodes and 10 snapshots, but 'drift' has 24 and 9: give the"
        ):
            call(run, graph=other)
    fewer = drift(tmp_path / "fewer", num_nodes=20, num_edges=50)
    with pytest.raises(BadConfig, match=r"24 nodes and 10 snapshots, but 'drift' has 20 and 10"):
        timeloom.evaluate(run, graph=fewer)


def test_predictions_count_from_either_end(run: Path) -> None:
    for at in range(10):
        ours, theirs = timeloom.predict(run, at), timeloom.predict(run, at - 10)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
        assert set(ours) == {"node", "predicted", "last_known"}
    for at in (10, -11):
        with pytest.raises(BadConfig, match=rf"snapshot {at} of 'drift' was asked for, but it has 10"):
            timeloom.predict(run, at)


def test_a_named_checkpoint_is_the_one_that_is_taken(drifting: Path, tmp_path: Path) -> None:
    settings = small({"train": {"epochs": 4, "save_seconds": 0.0, "keep": 99}, "optim": {"rate": 0.05}})
    timeloom.train(drifting, tmp_path / "run", settings)
    vals = [record["scores"]["mse"] for record in of_kind(tmp_path / "run", "evaluated", split="val")]
    for epoch in range(1, 5):
        name = f"epoch-{epoch:06d}-step-{2 * epoch:06d}"
        measured = timeloom.evaluate(tmp_path / "run", "val", name=name)
        assert measured.scores["mse"] == pytest.approx(min(vals[:epoch]), rel=1e-12)


def test_a_result_is_read_from_a_run_that_has_ended(run: Path, drifting: Path, tmp_path: Path) -> None:
    (tested,) = of_kind(run, "evaluated", split="test")
    found = result_of(run)
    assert (found.scores, found.best_epoch) == (tested["scores"], tested["epoch"])
    (run / "records.jsonl").rename(tmp_path / "kept")
    (run / "records.jsonl").write_text("".join((tmp_path / "kept").read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(BadConfig, match=r"has not been tested yet: go on with 'timeloom train --resume"):
        result_of(run)
    (tmp_path / "kept").replace(run / "records.jsonl")


def test_what_is_derived_is_told_once_and_right(run: Path) -> None:
    (started,) = of_kind(run, "started")
    derived = started["derived"]
    assert {"epochs at most": 2, **derived} == {**derived_of(open_run(run), None), "threads": 1}
    assert derived["snapshots for training"] + derived["snapshots for validation"] == 8
    assert derived["snapshots for test"] == 1
    assert derived["nodes"] == 24
    assert derived["updates an epoch"] == 2
    assert derived["window stride"] == 3
    assert derived["chosen by"] == "mse"
    assert derived["device"] == "cpu"
    assert started["num_parameters"] == sum(
        value.numel() for name, value in saved(run).tensors.items() if name.startswith("now/")
    )


def test_an_untrained_session_has_the_weights_a_run_begins_with(drifting: Path, tmp_path: Path) -> None:
    timeloom.train(drifting, tmp_path / "run", small({"optim": {"rate": 1e-30}}))
    before = open_untrained(drifting, small()).predictor.state_dict()
    after = {name[4:]: value for name, value in saved(tmp_path / "run").tensors.items() if name.startswith("now/")}
    assert before.keys() == after.keys()
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0.0, atol=1e-20)


def test_in_another_thread_a_run_trains_the_same(run: Path, drifting: Path, tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: timeloom.train(drifting, tmp_path / "run", small()))
    thread.start()
    thread.join()
    assert history(tmp_path / "run") == history(run)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": {"hiden": 3}}, "did you mean model.hidden"),
        ({"train": {"epochs": "many"}}, 'train.epochs is "many": give a whole number'),
        ({"window": {"length": 50, "state": "zero"}}, "window.length=50 needs 50 snapshots"),
    ],
)
def test_what_cannot_be_meant_leaves_no_folder(
    drifting: Path, tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadConfig, match=sentence):
        timeloom.train(drifting, tmp_path / "run", settings)
    assert os.listdir(tmp_path) == []


def test_an_overwritten_run_keeps_nothing_of_the_old_one(drifting: Path, tmp_path: Path) -> None:
    settings = small({"train": {"save_seconds": 0.0, "keep": 99}})
    timeloom.train(drifting, tmp_path / "run", settings)
    with pytest.raises(BadConfig, match="exists already"):
        timeloom.train(drifting, tmp_path / "run", small())
    timeloom.train(drifting, tmp_path / "run", small({"train": {"epochs": 1}}), overwrite=True)
    timeloom.train(drifting, tmp_path / "new", small({"train": {"epochs": 1}}))
    assert history(tmp_path / "run") == history(tmp_path / "new")
    assert len(os.listdir(tmp_path / "run" / "checkpoints")) == 1
