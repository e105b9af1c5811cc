"""The commands about runs do what their help says, or say in one sentence why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.train.small_runs import drift, graph_of, history, of_kind, random_snapshots, same_bits, saved, small
from timeloom.cli import run
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.ingest import Columns, Ingest, Reading, Windows, ingest
from timeloom.nn.models import MODELS
from timeloom.records import RunDirectory, from_json, read
from timeloom.train.evaluate import evaluate_baselines
from timeloom.train.goals.links import LinkGoal
from timeloom.train.inference import open_run
from timeloom.train.runs import train

QUICK = ["--set", "model.hidden=4", "--set", "train.epochs=2", "--set", "train.threads=1", "--set", "window.length=3"]
NAMES = [f"node {letter}" for letter in "édcbafghijkl"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the graphs `drift`, `signed` (names, weights) and `plain` (no labels), and with runs and files."""
    home = tmp_path_factory.mktemp("home")
    drift(home / "drift")
    graph_of(home / "plain", random_snapshots(8, 20, 9))
    graph_of(home / "short", random_snapshots(8, 20, 3))
    rng, columns = np.random.default_rng(3), dict[str, list[Any]]()
    for t, edges in enumerate(random_snapshots(12, 30, 12)):
        for u, v in edges:
            row = {"source": NAMES[u], "target": NAMES[v], "time": t, "weight": float(rng.choice([-2.0, 1.0, 3.0]))}
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
    reading = Reading(columns=Columns(weight="weight"))
    ingest(columns, home / "signed", Ingest(windows=Windows(kind="given"), reading=reading))
    for name, task, graph in (
        ("degree", "degree", "drift"), ("links", "links", "drift"), ("classes", "classes", "drift"),
        ("names", "degree", "signed"), ("signs", "edge_classes", "signed"), ("pairs", "links", "signed"),
    ):  # fmt: skip
        train(home / graph, home / name, small({"task": {"name": task}}))
    train(home / "drift", home / "live", small({"train": {"protocol": "live"}, "live": {"steps": 2}}))
    (home / "bad.toml").write_text("[model\n")
    (home / "odd.toml").write_text("[model]\nhiddn = 3\n")
    pq.write_table(pa.table({"source": [1, 99], "target": [2, 3]}), home / "unknown.parquet")
    pq.write_table(pa.table({"source": ["nobody"], "target": [NAMES[0]]}), home / "nobody.parquet")
    pq.write_table(pa.table({"source": [1, None], "target": [2, 3]}), home / "half.parquet")
    pq.write_table(pa.table({"from": [1], "target": [2]}), home / "misnamed.parquet")
    pq.write_table(pa.table({"source": [1], "target": [2]}), home / "fine.parquet")
    (home / "own.py").write_text("from timeloom import Model\nclass Half(Model):\n    pass\n")
    return home


def ok(*arguments: object) -> None:
    assert run([str(argument) for argument in arguments]) == 0


def test_train_tells_what_it_derives_and_scores_beside_the_baselines(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ok("train", folder / "drift", "--model", "gcn_gru", "--task", "degree", "--out", tmp_path / "run", *QUICK)
    told = capsys.readouterr()
    assert "drift: " in told.err
    assert "parameters" in told.err
    assert "snapshots for training   6" in told.err
    assert "epoch 0  loss " in told.err
    lines = told.out.splitlines()
    assert lines[0] == "test:"
    assert lines[1].split() == ["mse", "mae", "mse_all", "mae_all"]
    assert [line.split()[0] for line in lines[2:6]] == ["model", "zero", "mean", "persistence"]
    (tested,) = of_kind(tmp_path / "run", "evaluated", split="test")
    assert [float(cell) for cell in lines[2].split()[1:]] == pytest.approx(list(tested["scores"].values()), abs=1e-4)
    for line, name in zip(lines[6:9], ("zero", "mean", "persistence"), strict=True):
        mine, other = tested["scores"]["mse"], tested["baselines"][name]["mse"]
        word = "better" if mine < other else "WORSE"
        assert line == f"  mse: {abs(other - mine) / other:.1%} {word} than {name}"
    assert lines[-1] == f"{tmp_path / 'run'}: records, settings and checkpoints"


def test_a_quiet_run_shows_its_table_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ok("train", folder / "drift", "--out", tmp_path / "run", "--quiet", *QUICK)
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.startswith("test:\n")


def test_json_lines_are_the_records_and_nothing_else(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ok("train", folder / "drift", "--out", tmp_path / "run", "--json", *QUICK, "--set", "train.log_steps=true")
    told = capsys.readouterr()
    records = [from_json(json.loads(line)) for line in told.out.splitlines()]
    assert told.err == ""
    assert records == read(tmp_path / "run")
    kinds = {"started", "graph_facts", "stepped", "epoch_ended", "evaluated", "spans", "saved", "predicted", "ended"}
    assert {record.kind for record in records} == kinds


def test_a_live_run_shows_all_and_the_test(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "train.protocol=live", "--set", "live.steps=2"]
    ok("train", folder / "drift", "--out", tmp_path / "run", *QUICK, *sets)
    told = capsys.readouterr()
    assert "snapshot 0" not in told.err, "what comes before the first score is not shown as one"
    assert "snapshot 1  loss" in told.err
    assert "live mse" in told.err
    assert [line for line in told.out.splitlines() if line.endswith(":")] == ["all:", "test:"]
    assert run(["evaluate", str(tmp_path / "run")]) == 2
    assert "followed the live protocol" in capsys.readouterr().err


def test_options_come_before_the_file_and_the_file_before_defaults(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'graph = "{folder / "drift"}"\n[model]\nhidden = 5\nname = "dcrnn"\n[train]\nepochs = 1\n')
    ok("train", "--config", config, "--set", "model.hidden=3", "--out", tmp_path / "a", "--quiet")
    text = (tmp_path / "a" / "config.toml").read_text()
    assert 'name = "dcrnn"' in text
    assert "hidden = 3" in text
    assert "epochs = 1\n" in text
    assert "patience = 20" in text
    ok("train", folder / "plain", "--config", config, "--model", "wdgcn", "--out", tmp_path / "b", "--quiet")
    assert of_kind(tmp_path / "b", "started")[0]["graph"] == "plain"
    assert 'name = "wdgcn"' in (tmp_path / "b" / "config.toml").read_text()


@pytest.mark.parametrize("name", ["degree", "links", "classes", "signs", "live"])
def test_the_settings_a_run_keeps_give_the_same_run(folder: Path, tmp_path: Path, name: str) -> None:
    ok("train", "--config", folder / name / "config.toml", "--out", tmp_path / "other", "--quiet")
    assert history(tmp_path / "other") == history(folder / name)
    assert same_bits(saved(tmp_path / "other").tensors, saved(folder / name).tensors)
    assert (tmp_path / "other" / "config.toml").read_text() == (folder / name / "config.toml").read_text()


def test_the_defaults_are_a_run(folder: Path, tmp_path: Path) -> None:
    """Nothing needs to be given but the graph and a folder; what was not given can be read back."""
    ok("train", folder / "plain", "--out", tmp_path / "a", "--quiet", "--set", "train.epochs=1")
    ok("train", "--config", tmp_path / "a" / "config.toml", "--out", tmp_path / "b", "--quiet")
    assert history(tmp_path / "a") == history(tmp_path / "b")


def test_a_run_is_replaced_only_when_asked(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", folder / "drift", "--out", tmp_path / "run", "--quiet", *QUICK]
    ok(*arguments)
    assert run([str(argument) for argument in arguments]) == 2
    assert "exists already: give another folder, or --overwrite to replace it, or --resume" in capsys.readouterr().err
    ok(*arguments, "--overwrite", "--set", "train.epochs=1")
    assert len(of_kind(tmp_path / "run", "epoch_ended")) == 1


def test_a_run_in_use_is_left_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    ok("train", folder / "drift", "--out", path, "--quiet", *QUICK)
    before = history(path)
    with RunDirectory.open(path):
        assert run(["train", "--resume", str(path)]) == 4
        assert run(["train", str(folder / "drift"), "--out", str(path), "--overwrite", "--quiet"]) == 4
        assert capsys.readouterr().err.count("is in use by another process") == 2
        ok("evaluate", path)
        ok("predict", path, "--out", tmp_path / "p.parquet")
    assert history(path) == before


NEW = ["train", "{home}/drift", "--out", "{out}"]
RESUME = ["train", "--resume", "{home}/degree"]
DEGREES, LINKS, PAIRS = (["predict", f"{{home}}/{name}", "--out", "{out}"] for name in ("degree", "links", "pairs"))
MISUSES: list[tuple[list[str], int, str]] = [
    ([*NEW, "--model", "tgn"], 2, "model 'tgn' is unknown: use one of " + ", ".join(MODELS)),
    ([*NEW, "--model", "none.py:M"], 2, "there is no file"),
    ([*NEW, "--model", "{home}/own.py:Whole"], 2, "has no class Whole that is a timeloom.Model; it has Half"),
    ([*NEW, "--model", "{home}/own.py:Half"], 2, "class Half leaves out encode, memory, recur"),
    ([*NEW, "--task", "link"], 2, "did you mean links?"),
    ([*NEW, "--set", "model.hiden=3"], 2, "did you mean model.hidden?"),
    ([*NEW, "--set", "modl.hidden=3"], 2, "did you mean model?"),
    ([*NEW, "--set", "hidden=3"], 2, "hidden is no key of the configuration"),
    ([*NEW, "--set", "train=3"], 2, "train is 3: give a table"),
    ([*NEW, "--set", "train.epochs"], 2, "has no '='"),
    ([*NEW, "--set", "train.epochs=1.5"], 2, "train.epochs is 1.5: give a whole number"),
    ([*NEW, "--set", "train.epochs=0"], 2, "train.epochs=0 is too small: give 1 or more"),
    ([*NEW, "--set", "model.hidden=big"], 2, 'model.hidden is "big": give a whole number'),
    ([*NEW, "--set", "model.skip=1"], 2, "model.skip is 1: give true or false"),
    ([*NEW, "--set", "window.state=keep"], 2, 'give "inherit" or "zero"'),
    ([*NEW, "--set", "window.length=0"], 2, "window.length=0 is too short"),
    ([*NEW, "--set", "window.length=3", "--set", "window.stride=4"], 2, "use a stride of 3 or less"),
    ([*NEW, "--set", "window.length=99", "--set", "window.state=zero"], 2, "needs 99 snapshots to train on"),
    ([*NEW, "--set", "task.horizon=50"], 2, "the graph's 10 snapshots have 0"),
    ([*NEW, "--set", "task.horizon=-1"], 2, "task.horizon=-1 is no number of snapshots"),
    ([*NEW, "--set", "task.horizon=0"], 2, "asks for what the model is shown"),
    (["train", "{home}/short", "--out", "{out}"], 2, "the graph's 3 snapshots have 2"),
    (["train", "{home}/plain", "--out", "{out}", "--task", "classes"], 2, "labels are of kind class, but those of"),
    ([*NEW, "--task", "signal"], 2, "labels are of kind value, but those of 'drift' are of kind class"),
    ([*NEW, "--task", "edge_classes", "--set", "task.edge_class=type"], 2, "have no types"),
    (["train", "{home}/plain", "--out", "{out}", "--set", "inputs.features=graph"], 2, "'plain' has no features"),
    ([*NEW, "--set", "inputs.features=none"], 2, "would be shown nothing"),
    ([*NEW, "--task", "links", "--set", "inputs.lags=2"], 2, "leave lags out"),
    ([*NEW, "--set", "train.metric=mrr"], 2, "use one of mse, mae"),
    ([*NEW, "--set", "train.device=tpu"], 2, "use auto, cpu, cuda or cuda:0"),
    ([*NEW, "--set", "train.device=meta"], 2, "use auto, cpu, cuda or cuda:0"),
    ([*NEW, "--set", "train.precision=float16"], 2, "did you mean float64?"),
    ([*NEW, "--set", "train.seed=-1"], 2, "train.seed=-1 is no seed"),
    ([*NEW, "--set", "train.save_seconds=-1"], 2, "train.save_seconds=-1 is no time"),
    ([*NEW, "--set", "train.cache_bytes=-1"], 2, "train.cache_bytes=-1 is no size"),
    ([*NEW, "--set", "optim.rate=0"], 2, "optim.rate=0 is no learning rate"),
    ([*NEW, "--set", "optim.factor=1.0"], 2, "optim.factor is between 0 and 1"),
    ([*NEW, "--set", "optim.momentum=1.0"], 2, "optim.momentum is from 0 to below 1"),
    ([*NEW, "--set", "split.train=0.9", "--set", "split.val=0.1"], 2, "leave nothing for the test"),
    ([*NEW, "--set", "model.name=gat_lstm", "--set", "model.hidden=6"], 2, "use --set model.hidden=8"),
    ([*NEW, "--set", 'task.negatives=["often"]'], 2, 'task.negatives[0] is "often"'),
    ([*NEW, "--config", "{home}/none.toml"], 2, "none.toml cannot be read"),
    ([*NEW, "--config", "{home}/bad.toml"], 2, "bad.toml is not TOML: "),
    ([*NEW, "--config", "{home}/odd.toml"], 2, "did you mean model.hidden?"),
    ([*NEW, "--checkpoint", "epoch-000001-step-000001"], 2, "goes with --resume RUN"),
    ([*NEW, "surplus"], 2, "surplus"),
    ([*NEW, "--epochs", "3"], 2, "--epochs"),
    (["train", "{home}/drift"], 2, "give --out RUN"),
    (["train", "--out", "{out}"], 2, "a run needs a graph"),
    (["train"], 2, "a run needs a graph"),
    (["train", "{home}/none", "--out", "{out}"], 4, "does not exist"),
    (["train", "{home}/bad.toml", "--out", "{out}"], 4, "bad.toml"),
    (["train", "{home}/drift", "--out", "{home}/degree"], 2, "exists already"),
    (["train", "{home}/drift", "--out", "{home}/plain"], 2, "exists and is no run"),
    (["train", "{home}/drift", "--out", "{home}/plain", "--overwrite"], 2, "exists and is no run"),
    (["train", "{home}/drift", "--out", "{home}/bad.toml"], 2, "is a file"),
    ([*RESUME, "--model", "tgcn"], 2, "--model cannot be given with --resume"),
    ([*RESUME, "--task", "links"], 2, "--task cannot be given with --resume"),
    ([*RESUME, "--out", "{out}"], 2, "--out cannot be given with --resume"),
    ([*RESUME, "--config", "{home}/odd.toml"], 2, "--config cannot be given with --resume"),
    ([*RESUME, "--overwrite"], 2, "--overwrite cannot be given with --resume"),
    (["train", "{home}/drift", "--resume", "{home}/degree"], 2, "GRAPH cannot be given with --resume"),
    ([*RESUME, "--set", "model.hidden=3"], 2, "model.hidden cannot be changed in a run that has begun"),
    ([*RESUME, "--set", "epochs=3"], 2, "epochs cannot be changed"),
    ([*RESUME, "--set", "train=3"], 2, "train cannot be changed"),
    ([*RESUME, "--set", "train.epochs=many"], 2, 'train.epochs is "many"'),
    ([*RESUME, "--checkpoint", "last"], 4, "has no checkpoint 'last': give one of epoch-000002-step-000004"),
    (["train", "--resume", "{home}/none"], 4, "does not exist"),
    (["train", "--resume", "{home}/drift"], 4, "is not a run"),
    (["evaluate", "{home}/none"], 4, "does not exist"),
    (["evaluate", "{home}/drift"], 4, "is not a run"),
    (["evaluate", "{home}/degree", "--part", "all"], 2, "--part"),
    (["evaluate", "{home}/degree", "--checkpoint", "last"], 4, "has no checkpoint 'last'"),
    (["evaluate", "{home}/degree", "--graph", "{home}/none"], 4, "does not exist"),
    (["evaluate", "{home}/degree", "--graph", "{home}/plain"], 2, "trained on 24 nodes and 10 snapshots, but 'plain'"),
    (["evaluate", "{home}/live"], 2, "honest scores"),
    (["predict", "{home}/degree"], 2, "--out"),
    (["predict", "{home}/none", "--out", "{out}"], 4, "does not exist"),
    ([*DEGREES, "--at", "10"], 2, "snapshot 10 of 'drift' was asked for, but it has 10"),
    ([*DEGREES, "--at", "-11"], 2, "snapshot -11"),
    ([*DEGREES, "--at", "last"], 2, "--at"),
    (["predict", "{home}/degree", "--out", "{home}/bad.toml"], 2, "exists already: give another --out, or --overwrite"),
    (["predict", "{home}/degree", "--out", "{home}"], 2, "is a folder"),
    (["predict", "{home}/degree", "--out", "{out}/deep"], 2, "cannot be written"),
    ([*DEGREES, "--pairs", "{home}/fine.parquet"], 2, "predicts nodes: leave them out"),
    ([*LINKS, "--pairs", "{home}/unknown.parquet"], 2, "id 99 is not in this graph"),
    ([*PAIRS, "--pairs", "{home}/nobody.parquet"], 2, "id 'nobody' is not in this"),
    ([*LINKS, "--pairs", "{home}/nobody.parquet"], 2, "ids here are integers"),
    ([*LINKS, "--pairs", "{home}/half.parquet"], 3, "rows without a source or a target"),
    ([*LINKS, "--pairs", "{home}/misnamed.parquet"], 3, "columns source and target"),
    ([*LINKS, "--pairs", "{home}/bad.toml"], 3, "cannot be read"),
    ([*LINKS, "--pairs", "{home}/none.parquet"], 3, "cannot be read"),
    (["check", "{home}/none", "--leak"], 4, "does not exist"),
    (["check", "{home}/drift", "--set", "task.name=links"], 2, "--set goes with --leak"),
    (["check", "{home}/degree", "--leak", "--set", "task.name=links"], 2, "--set cannot be given with the run"),
    (["check", "{home}/drift", "--leak", "--set", "task.nme=links"], 2, "did you mean task.name?"),
    (["check", "{home}/plain", "--leak", "--set", "task.name=classes"], 2, "labels are of kind class"),
    (["models", "tgcn"], 2, "tgcn"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "sentence"), MISUSES)
def test_what_cannot_be_meant_is_said_in_one_sentence_and_leaves_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    before = sorted(str(path) for path in folder.rglob("*") if not path.name.startswith("."))
    out = tmp_path / "out"
    found = run([part.format(home=folder, out=out) for part in arguments])
    told = capsys.readouterr()
    assert (found, told.out) == (code, "")
    assert sentence in told.err
    assert told.err.startswith("timeloom: ")
    assert told.err.count("timeloom: ") == 1
    assert "Traceback" not in told.err
    assert not out.exists()
    assert sorted(str(path) for path in folder.rglob("*") if not path.name.startswith(".")) == before


# --- predictions


def predicted(folder: Path, name: str, tmp_path: Path, at: int, pairs: pa.Table | None = None) -> dict[str, Any]:
    """Return the columns that `timeloom predict` writes."""
    out, more = tmp_path / f"{name}-{at}.parquet", []
    if pairs is not None:
        pq.write_table(pairs, tmp_path / "asked.parquet")
        more = ["--pairs", tmp_path / "asked.parquet"]
    ok("predict", folder / name, "--out", out, "--at", at, *more)
    return {column: np.array(values) for column, values in pq.read_table(out).to_pydict().items()}


def scored(folder: Path, name: str, capsys: pytest.CaptureFixture[str], part: str = "test") -> dict[str, float]:
    """Return what `timeloom evaluate` says."""
    capsys.readouterr()
    ok("evaluate", folder / name, "--part", part, "--json")
    scores: dict[str, float] = json.loads(capsys.readouterr().out)["scores"]
    return scores


def graph_and_moments(folder: Path, name: str, part: Any) -> tuple[DynamicGraph, range]:
    split, home = open_run(folder / name).split, "signed" if name in ("names", "signs", "pairs") else "drift"
    return open_graph(folder / home), range(*split.of(part))


@pytest.mark.parametrize("part", ["test", "val", "train"])
@pytest.mark.parametrize("name", ["degree", "names"])
def test_predicted_values_have_original_ids_and_the_errors_that_evaluate_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, part: str
) -> None:
    graph, moments = graph_and_moments(folder, name, part)
    errors, absolute = [], []
    for t in moments:
        columns = predicted(folder, name, tmp_path, t)
        assert sorted(columns["node"].tolist()) == sorted(graph.ids.all())
        numbers = graph.ids.index_of(columns["node"])
        later = graph.snapshot(t + 1)
        weights = np.abs(later.weights)
        target = np.log1p(np.bincount(later.targets, weights, graph.num_nodes))[numbers]
        active = (graph.snapshot(t).alive | later.alive)[numbers]
        errors.extend((columns["predicted"] - target)[active] ** 2)
        absolute.extend(abs(columns["predicted"] - target)[active])
        now = graph.snapshot(t)
        known = np.log1p(np.bincount(now.targets, np.abs(now.weights), graph.num_nodes))[numbers]
        assert columns["last_known"] == pytest.approx(known)
    scores = scored(folder, name, capsys, part)
    assert scores["mse"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert scores["mae"] == pytest.approx(np.mean(absolute), rel=1e-9)


def test_predicted_classes_have_the_accuracy_that_evaluate_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, moments = graph_and_moments(folder, "classes", "test")
    right = []
    for t in moments:
        columns = predicted(folder, "classes", tmp_path, t)
        labels, numbers = graph.labels.at(t), graph.ids.index_of(columns["node"])
        counts = graph.snapshot(t).alive[numbers] & (labels[numbers] >= 0)
        names = np.array(graph.labels.classes)[labels[numbers]]
        right.extend((columns["predicted"] == names)[counts])
        shares = np.stack([columns[f"p_{kind}"] for kind in graph.labels.classes], 1)
        assert shares.sum(1) == pytest.approx(np.ones(24))
        assert (np.array(graph.labels.classes)[shares.argmax(1)] == columns["predicted"]).all()
    assert scored(folder, "classes", capsys)["accuracy"] == pytest.approx(np.mean(right))


def test_predicted_signs_of_named_pairs_have_the_accuracy_that_evaluate_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, moments = graph_and_moments(folder, "signs", "test")
    right = []
    for t in moments:
        coming = graph.snapshot(t + 1)
        asked = {"source": list(graph.ids.of(coming.sources)), "target": list(graph.ids.of(coming.targets))}
        columns = predicted(folder, "signs", tmp_path, t, pa.table(asked))
        assert columns["source"].tolist() == asked["source"]
        assert columns["target"].tolist() == asked["target"]
        names = np.where(coming.weights < 0, "negative", "0 or more")
        right.extend(columns["predicted"] == names)
    assert scored(folder, "signs", capsys)["accuracy"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize("name", ["links", "pairs"])
def test_predicted_links_have_the_ranks_that_evaluate_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    graph, moments = graph_and_moments(folder, name, "test")
    session = open_run(folder / name)
    evaluate_baselines(session, "test")
    assert isinstance(session.goal, LinkGoal)
    size, inverse = graph.num_nodes, []
    ids = list(graph.ids.all())
    every = {"source": np.repeat(ids, size).tolist(), "target": ids * size}
    for t in moments:
        columns = predicted(folder, name, tmp_path, t, pa.table(every))
        score = np.full((size, size), np.nan)
        score[graph.ids.index_of(columns["source"]), graph.ids.index_of(columns["target"])] = columns["probability"]
        assert (np.diff(columns["probability"]) <= 0).all(), "the likeliest come first"
        trial = session.goal._trials[t]
        drawn = trial.against["random"]
        for u, v, others, valid in zip(
            trial.sources_P, trial.targets_P, drawn.targets_PK, drawn.valid_PK, strict=True
        ):  # fmt: skip
            against = score[u, others[valid]]
            rank = ((against > score[u, v]).sum() + (against >= score[u, v]).sum()) / 2 + 1
            inverse.append(1 / rank)
    assert scored(folder, name, capsys)["random.mrr"] == pytest.approx(np.mean(inverse), rel=1e-9)


def test_without_pairs_all_that_were_linked_so_far_are_predicted(folder: Path, tmp_path: Path) -> None:
    graph = open_graph(folder / "signed")
    for at in (0, 4, -1):
        columns = predicted(folder, "pairs", tmp_path, at)
        linked = {
            (source, target)
            for t in range(at % len(graph) + 1)
            for source, target in zip(
                graph.ids.of(graph.snapshot(t).sources), graph.ids.of(graph.snapshot(t).targets), strict=True
            )
        }
        assert set(zip(columns["source"].tolist(), columns["target"].tolist(), strict=True)) == linked
        assert len(columns["source"]) == len(linked)


def test_what_evaluate_says_is_what_the_run_recorded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("degree", "links", "classes", "signs"):
        (tested,) = of_kind(folder / name, "evaluated", split="test")
        assert scored(folder, name, capsys) == pytest.approx(tested["scores"], rel=1e-12)
        best = of_kind(folder / name, "evaluated", split="val")[tested["epoch"]]
        assert scored(folder, name, capsys, "val") == pytest.approx(best["scores"], rel=1e-12)
        ok("evaluate", folder / name)
        table = capsys.readouterr().out.splitlines()
        assert table[0] == "test:"
        assert float(table[2].split()[1]) == pytest.approx(next(iter(tested["scores"].values())), abs=1e-4)


def test_the_newest_snapshot_is_predicted_from_unless_told(folder: Path, tmp_path: Path) -> None:
    ok("predict", folder / "degree", "--out", tmp_path / "newest.parquet")
    newest, ninth = pq.read_table(tmp_path / "newest.parquet"), predicted(folder, "degree", tmp_path, 9)
    assert newest["predicted"].to_pylist() == ninth["predicted"].tolist()
    ok("predict", folder / "degree", "--out", tmp_path / "newest.parquet", "--overwrite", "--at", "8")
    assert pq.read_table(tmp_path / "newest.parquet")["predicted"].to_pylist() != ninth["predicted"].tolist()


def test_models_are_listed_with_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    ok("models")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*MODELS, "FILE.py:Class"]
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", ["degree", "links", "classes", "signs", "pairs", "live"])
def test_a_run_does_not_leak(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    ok("check", folder / name, "--leak")
    assert capsys.readouterr().out == f"{folder / name}: nothing that is predicted depends on the future\n"
    ok("check", folder / name, "--leak", "--json")
    assert json.loads(capsys.readouterr().out) == {"path": str(folder / name), "leaks": []}


def test_a_graph_with_an_untrained_model_does_not_leak(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ok("check", folder / "drift", "--leak", "--set", "task.name=links", "--set", "model.name=evolvegcn_h")
    assert "nothing that is predicted depends on the future" in capsys.readouterr().out


def test_a_leak_is_named_and_ends_with_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from timeloom.train.feed import Feed

    true = Feed.raw
    # The inputs of a snapshot are those of the next one.
    monkeypatch.setattr(Feed, "raw", lambda feed, t: true(feed, min(t + 1, len(feed.graph) - 1)))
    assert run(["check", str(folder / "degree"), "--leak"]) == 2
    told = capsys.readouterr()
    assert "the inputs of snapshot" in told.out
    assert "its scores cannot be trusted" in told.err


def test_every_command_about_runs_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "evaluate", "predict", "models"):
        ok(command, "--help")
        assert f"timeloom {command}" in capsys.readouterr().out
