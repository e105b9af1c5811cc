"""A run that was stopped, killed or given more to do ends as one that was left alone, to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.small_runs import (
    columns_of,
    drift,
    graph_of,
    history,
    of_kind,
    random_snapshots,
    same_bits,
    saved,
    small,
)
from timeloom import cli
from timeloom.config import merge
from timeloom.errors import BadConfig, BadRun, Interrupted
from timeloom.graph.append import Append, append
from timeloom.records import RunDirectory, read
from timeloom.train import checkpoint, loop, runs
from timeloom.train.inference import evaluate, predict
from timeloom.train.runs import MAY_CHANGE, resume, train
from timeloom.train.trainer import Trainer

MODELS: dict[str, dict[str, Any]] = {
    "tgcn": {"name": "tgcn", "layers": 2, "dropout": 0.2},
    "evolvegcn_h": {"name": "evolvegcn_h"},
    "mpnn_lstm": {"name": "mpnn_lstm", "layers": 2, "dropout": 0.3, "batch_norm": True},
    "sage_attention": {"name": "sage_attention", "span": 3, "heads": 2},
    "dcrnn": {"name": "dcrnn", "hops": 1},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"name": "adam", "schedule": "cosine", "warmup_epochs": 1},
    "sgd": {"name": "sgd", "rate": 0.05, "schedule": "plateau", "step_epochs": 1},
}
SHORT: dict[str, Any] = {"train": {"epochs": 3, "keep": 3}, "live": {"steps": 3, "patience": 2}}
NEVER, ALWAYS = {"save_seconds": 1000.0}, {"save_seconds": 0.0}


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 24 nodes."""
    return drift(tmp_path_factory.mktemp("graphs") / "drift", num_snapshots=9)


def equal_runs(one: Path, other: Path) -> None:
    """Check that two runs told the same and learnt the same, to the bit."""
    assert history(one) == history(other)
    left, right = saved(one), saved(other)
    assert left.name == right.name
    assert same_bits(left.tensors, right.tensors)
    progress = [{**found.state["progress"], "seconds": 0.0} for found in (left, right)]
    assert json.dumps(progress[0]) == json.dumps(progress[1])


@contextmanager
def stopped_after(steps: int) -> Iterator[None]:
    """Ask every run in the block to stop once it has made so many steps."""
    count, step = 0, Trainer.step

    def counted(trainer: Trainer, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        return step(trainer, *arguments)

    @contextmanager
    def requests() -> Iterator[Callable[[], bool]]:
        nonlocal count
        count = 0
        yield lambda: count >= steps

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        patch.setattr(runs, "stop_requests", requests)
        yield


def stopped_again_and_again(graph: Path, run: Path, settings: dict[str, Any], steps: int) -> int:
    """Train with a stop after every so many steps, and resume until the end; return how often it was stopped."""
    with stopped_after(steps):
        for stops in range(200):
            try:
                go_on(graph, run, settings)
            except Interrupted:
                continue
            return stops
    raise AssertionError("the run never ends")


@pytest.mark.parametrize("protocol", ["fixed", "live"])
@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize("model", MODELS)
def test_stopped_after_every_step_a_run_ends_as_if_never_stopped(
    drifting: Path, tmp_path: Path, model: str, state: str, protocol: str
) -> None:
    # Every model meets both optimizers, and both ways to save.
    turn = (list(MODELS).index(model) + (state == "zero") + (protocol == "live")) % 2
    changes = {
        "model": MODELS[model], "window": {"state": state, "length": 2}, "optim": OPTIMIZERS[["adam", "sgd"][turn]],
        "train": {"protocol": protocol, **(ALWAYS if turn else NEVER)},
    }  # fmt: skip
    settings = small(SHORT, changes)
    train(drifting, tmp_path / "whole", settings)
    assert stopped_again_and_again(drifting, tmp_path / "run", settings, 1) >= 6
    equal_runs(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("steps", [2, 3, 4, 5, 7])
def test_stopped_after_every_so_many_steps_a_run_ends_as_if_never_stopped(
    drifting: Path, tmp_path: Path, steps: int
) -> None:
    settings = small(SHORT, {"model": MODELS["evolvegcn_h"], "window": {"length": 2}, "train": {"log_steps": True}})
    train(drifting, tmp_path / "whole", settings)
    assert stopped_again_and_again(drifting, tmp_path / "run", settings, steps) == (9 if steps == 1 else 9 // steps)
    equal_runs(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    "changes",
    [
        {"task": {"name": "links", "num_negatives": 5}},
        {"task": {"name": "classes"}, "model": {"layers": 2, "dropout": 0.5}},
        {"task": {"name": "edge_classes"}, "train": {"precision": "bf16"}},
        {"window": {"length": 3, "stride": 1}, "train": {"precision": "float64"}},
        {"window": {"length": 2, "targets": "last"}, "train": {"validate_every": 2}, "optim": {"name": "adamw"}},
        {"train": {"epochs": 9, "patience": 1}, "optim": {"rate": 0.5}},
    ],
)
def test_other_tasks_precisions_and_windows_resume_as_well(
    drifting: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = small(SHORT, changes)
    train(drifting, tmp_path / "whole", settings)
    assert stopped_again_and_again(drifting, tmp_path / "run", settings, 1) > 3
    equal_runs(tmp_path / "run", tmp_path / "whole")


def test_stopped_while_it_is_tested_a_run_is_tested_again(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, asked, true = small(SHORT), False, loop.marks_of
    train(drifting, tmp_path / "whole", settings)

    def mark_then_stop(worker: Any, part: Any, *, most_sampled: int) -> Any:
        nonlocal asked
        asked = part == "test"
        return true(worker, part, most_sampled=most_sampled)

    @contextmanager
    def requests() -> Iterator[Callable[[], bool]]:
        yield lambda: asked

    with monkeypatch.context() as patch:
        patch.setattr(loop, "marks_of", mark_then_stop)
        patch.setattr(runs, "stop_requests", requests)
        with pytest.raises(Interrupted):
            train(drifting, tmp_path / "run", settings)
    assert of_kind(tmp_path / "run", "evaluated", split="test") == []
    resume(tmp_path / "run")
    equal_runs(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_has_ended_ends_the_same_when_it_is_resumed(drifting: Path, tmp_path: Path) -> None:
    first = train(drifting, tmp_path / "run", small(SHORT))
    before = history(tmp_path / "run")
    for _ in range(2):
        assert resume(tmp_path / "run") == first
        assert history(tmp_path / "run") == before


# --- killed


def in_child(work: Callable[[], object]) -> int:
    """Begin some work in a process of its own; return the process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def waited(child: int) -> int:
    """Return how a process ended: its exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def go_on(graph: Path, run: Path, settings: dict[str, Any]) -> None:
    """Resume a run; one that was killed before it was made is made."""
    if (run / "config.toml").exists():
        resume(run)
    else:
        train(graph, run, settings)


def sound(run: Path) -> None:
    """Check that whatever is left of a run can be read."""
    if (run / "config.toml").exists():
        read(run)
        for name in checkpoint.names(run / "checkpoints"):
            checkpoint.load(run / "checkpoints", name)


KILLED: dict[str, Any] = {
    "model": MODELS["mpnn_lstm"],
    "train": {"epochs": 12, "patience": 0, **ALWAYS},
    "window": {"length": 2},
}


def killed_at_random(graph: Path, folder: Path, times: int, settings: dict[str, Any]) -> None:
    """Kill runs after random delays until they have been killed so often, each going on until it ends."""
    train(graph, folder / "whole", settings)
    began = time.monotonic()
    train(graph, folder / "whole", settings, overwrite=True)
    lasts, rng, kills, ended = time.monotonic() - began, np.random.default_rng(0), 0, 0
    run = folder / "run"
    while kills < times or ended == 0:
        child = in_child(lambda: go_on(graph, run, settings))
        if kills < times:
            time.sleep(float(rng.uniform(0.0, 0.5 * lasts)))
            os.kill(child, signal.SIGKILL)
        code = waited(child)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        sound(run)
        if code == 0:
            equal_runs(run, folder / "whole")
            ended += 1
            shutil.rmtree(run)


def test_killed_at_random_instants_a_run_ends_as_if_never_killed(drifting: Path, tmp_path: Path) -> None:
    killed_at_random(drifting, tmp_path, 8, small(KILLED))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fixed", "live"])
@pytest.mark.parametrize("model", MODELS)
def test_killed_at_many_random_instants_a_run_ends_as_if_never_killed(
    drifting: Path, tmp_path: Path, model: str, protocol: str
) -> None:
    changes = {"model": MODELS[model], "train": {"protocol": protocol}}
    killed_at_random(drifting, tmp_path, 60, small(KILLED, changes))


CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "ftruncate")


def killed_at_call(fatal: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that kills itself at the n-th call that changes a folder; say if it came to that."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return wrapped

    def counting() -> None:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        work()

    code = waited(in_child(counting))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def killed_at_calls(graph: Path, folder: Path, every: int) -> None:
    """Kill a run at every so manieth call that changes a folder, once each, and let it end."""
    settings = small({"train": {"epochs": 2, "keep": 1, **ALWAYS}})
    train(graph, folder / "whole", settings)
    fatal, run = 1, folder / "run"
    while killed_at_call(fatal, lambda: go_on(graph, run, settings)):
        sound(run)
        go_on(graph, run, settings)
        equal_runs(run, folder / "whole")
        shutil.rmtree(run)
        fatal += every
    assert fatal > 60


def test_killed_at_calls_that_change_the_folder_a_run_goes_on(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    killed_at_calls(drifting, tmp_path, 9)


@pytest.mark.slow
def test_killed_at_every_call_that_changes_the_folder_a_run_goes_on(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    killed_at_calls(drifting, tmp_path, 1)


def at_step(number: int, do: Callable[[], object]) -> None:
    """Let this process do something in the middle of its n-th step."""
    count, step = 0, Trainer.step

    def counted(trainer: Trainer, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            do()
        return step(trainer, *arguments)

    Trainer.step = counted  # type: ignore[method-assign, assignment]


def test_killed_before_the_first_checkpoint_a_run_begins_anew(drifting: Path, tmp_path: Path) -> None:
    settings = small(SHORT)
    train(drifting, tmp_path / "whole", settings)

    def killed() -> None:
        at_step(4, lambda: os.kill(os.getpid(), signal.SIGKILL))
        train(drifting, tmp_path / "run", settings)

    assert waited(in_child(killed)) == -signal.SIGKILL
    assert checkpoint.names(tmp_path / "run" / "checkpoints") == []
    assert history(tmp_path / "run")[0]["kind"] == "started"
    with pytest.raises(BadRun, match=r"has no checkpoint 'epoch-000000-step-000001': there is none"):
        resume(tmp_path / "run", name="epoch-000000-step-000001")
    resume(tmp_path / "run")
    equal_runs(tmp_path / "run", tmp_path / "whole")


# --- asked to end


def command(folder: Path, arguments: list[str], at: int, sent: list[signal.Signals]) -> tuple[int, str]:
    """Run a command in a child that sends itself signals in a step; return its exit code and what it said."""
    said = folder / "said"

    def work() -> None:
        at_step(at, lambda: list(map(signal.raise_signal, sent)))
        sys.argv, sys.stderr = ["timeloom", *arguments], said.open("w", buffering=1)
        try:
            cli.main()
        except SystemExit as end:
            os._exit(int(end.code or 0))

    return waited(in_child(work)), said.read_text()


@pytest.mark.parametrize("protocol", ["fixed", "live"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_ends_with_75_and_the_run_goes_on(
    drifting: Path, tmp_path: Path, sent: signal.Signals, protocol: str
) -> None:
    settings = small(SHORT, {"train": {"protocol": protocol}})
    train(drifting, tmp_path / "whole", settings)
    (tmp_path / "c.toml").write_text((tmp_path / "whole" / "config.toml").read_text())
    run = tmp_path / "run"
    arguments = ["train", "--config", str(tmp_path / "c.toml"), "--out", str(run), "--quiet"]
    code, said = command(tmp_path, arguments, 4, [sent])
    assert code == 75
    assert said.startswith("timeloom: stopped in epoch ")
    assert said.endswith(f"and saved: go on with 'timeloom train --resume {run}'\n")
    assert said.count("\n") == 1
    # The step under way is done; live, all of its snapshot's are.
    assert saved(run).state["progress"]["step"] == (4 if protocol == "fixed" else 6)
    assert of_kind(run, "ended") == []
    assert cli.run(["train", "--resume", str(run), "--quiet"]) == 0
    equal_runs(run, tmp_path / "whole")


def test_a_second_interrupt_ends_at_once(drifting: Path, tmp_path: Path) -> None:
    settings = small(SHORT, {"train": {"save_seconds": 0.0, "keep": 99}})
    train(drifting, tmp_path / "whole", settings)
    (tmp_path / "c.toml").write_text((tmp_path / "whole" / "config.toml").read_text())
    arguments = ["train", "--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "run"), "--quiet"]
    code, said = command(tmp_path, arguments, 4, [signal.SIGINT, signal.SIGINT])
    assert code == 130
    assert said == "timeloom: interrupted; what is on disk is whole: as it was before, or as it was to be\n"
    assert saved(tmp_path / "run").state["progress"]["step"] == 3, "the fourth step was not done"
    resume(tmp_path / "run")
    equal_runs(tmp_path / "run", tmp_path / "whole")


def test_a_second_signal_of_another_kind_waits_for_the_step(drifting: Path, tmp_path: Path) -> None:
    train(drifting, tmp_path / "whole", small(SHORT))
    (tmp_path / "c.toml").write_text((tmp_path / "whole" / "config.toml").read_text())
    arguments = ["train", "--config", str(tmp_path / "c.toml"), "--out", str(tmp_path / "run"), "--quiet"]
    assert command(tmp_path, arguments, 4, [signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM])[0] == 75


def test_signals_are_again_what_they_were_after_a_run(drifting: Path, tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    train(drifting, tmp_path / "run", small())
    assert [signal.getsignal(number) for number in numbers] == before


def test_the_installed_command_is_stopped_and_goes_on(drifting: Path, tmp_path: Path) -> None:
    settings = small({"train": {"epochs": 100_000, "patience": 0}})
    train(drifting, tmp_path / "one", merge(settings, {"train": {"epochs": 1}}))
    text = (tmp_path / "one" / "config.toml").read_text().replace("epochs = 1\n", "epochs = 100000\n", 1)
    (tmp_path / "c.toml").write_text(text)
    run = tmp_path / "run"
    start = [sys.executable, "-m", "timeloom", "train", "--config", str(tmp_path / "c.toml"), "--out", str(run)]
    with subprocess.Popen([*start, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while '"epoch_ended"' not in (line := process.stdout.readline()):
            assert line, process.stderr.read() if process.stderr else ""
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    epochs = saved(run).state["progress"]["epoch"]
    assert len(of_kind(run, "epoch_ended")) == epochs > 0
    resume(run, {"train": {"epochs": epochs + 1}})
    train(drifting, tmp_path / "whole", merge(settings, {"train": {"epochs": epochs + 1}}))
    equal_runs(run, tmp_path / "whole")


# --- broken, changed, grown


def test_a_broken_newest_checkpoint_is_refused_and_the_older_one_named_works(drifting: Path, tmp_path: Path) -> None:
    settings = small(SHORT, {"train": {**ALWAYS, "keep": 99}})
    train(drifting, tmp_path / "whole", settings)
    with stopped_after(5), pytest.raises(Interrupted):
        train(drifting, tmp_path / "run", settings)
    known = checkpoint.names(tmp_path / "run" / "checkpoints")
    tensors = tmp_path / "run" / "checkpoints" / known[-1] / checkpoint.TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1])
    before = history(tmp_path / "run")
    with pytest.raises(BadRun, match=rf"{known[-1]}.*the newest that is whole is --checkpoint {known[-2]}$"):
        resume(tmp_path / "run")
    assert history(tmp_path / "run") == before
    assert cli.run(["train", "--resume", str(tmp_path / "run"), "--checkpoint", known[-2], "--quiet"]) == 0
    equal_runs(tmp_path / "run", tmp_path / "whole")


def test_from_any_checkpoint_a_run_ends_the_same(drifting: Path, tmp_path: Path) -> None:
    settings = small(SHORT, {"train": {**ALWAYS, "keep": 99}, "model": MODELS["evolvegcn_h"], "window": {"length": 2}})
    train(drifting, tmp_path / "whole", settings)
    known = checkpoint.names(tmp_path / "whole" / "checkpoints")
    assert len(known) > 9
    last = saved(tmp_path / "whole").state["progress"]["step"]
    for name in known:
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        with stopped_after(1):
            ends = name.endswith(f"{last:06d}")
            with nullcontext() if ends else pytest.raises(Interrupted):
                resume(tmp_path / name, {"train": {"keep": 1}}, name=name)
        # Later checkpoints are of a history that is forgotten: the next one that is taken is of this.
        assert len(checkpoint.names(tmp_path / name / "checkpoints")) == 1
        resume(tmp_path / name)
        equal_runs(tmp_path / name, tmp_path / "whole")


@pytest.mark.parametrize("stop", [True, False])
def test_more_epochs_on_resume_are_as_good_as_more_from_the_start(drifting: Path, tmp_path: Path, stop: bool) -> None:
    settings = small({"train": {"epochs": 5, "patience": 0}, "model": MODELS["tgcn"]})
    train(drifting, tmp_path / "whole", settings)
    fewer = merge(settings, {"train": {"epochs": 2}})
    if stop:
        with stopped_after(3), pytest.raises(Interrupted):
            train(drifting, tmp_path / "run", fewer)
    else:
        train(drifting, tmp_path / "run", fewer)
    resume(tmp_path / "run", {"train": {"epochs": 5}})
    equal_runs(tmp_path / "run", tmp_path / "whole")


def test_more_patience_on_resume_is_as_good_as_more_from_the_start(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [3.0, 4.0, 4.0, 4.0, 2.0, 3.0]

    def told(session: Any, part: str) -> dict[str, float]:
        return {"mse": 0.0 if part == "test" else values[len(of_kind(session_run, "epoch_ended"))]}

    monkeypatch.setattr(loop, "evaluate", told)
    settings = small({"train": {"epochs": 6, "patience": 5}})
    session_run = tmp_path / "whole"
    assert train(drifting, session_run, settings).best_epoch == 4
    session_run = tmp_path / "run"
    assert train(drifting, session_run, merge(settings, {"train": {"patience": 2}})).best_epoch == 0
    assert of_kind(session_run, "ended")[0]["epochs"] == 3
    resume(session_run, {"train": {"patience": 2, "epochs": 9}})
    assert of_kind(session_run, "ended")[0]["reason"] == "patience", "its patience was at an end, and still is"
    resume(session_run, {"train": {"patience": 5}})
    equal_runs(session_run, tmp_path / "whole")


def test_fewer_epochs_on_resume_end_the_run_where_it_is(drifting: Path, tmp_path: Path) -> None:
    train(drifting, tmp_path / "run", small({"train": {"epochs": 3}}))
    resume(tmp_path / "run", {"train": {"epochs": 1}})
    assert of_kind(tmp_path / "run", "ended")[0]["epochs"] == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"hidden": 8}}, {"train": {"seed": 1}}, {"train": {"epochs": 9, "precision": "float64"}},
        {"task": {"name": "links"}}, {"window": {"length": 1}}, {"optim": {"rate": 0.5}}, {"split": {"train": 0.5}},
        {"graph": "other"}, {"epochs": 9}, {"live": {"steps": 1}}, {"train": {"protocol": "live"}},
    ],
)  # fmt: skip
def test_what_would_change_the_result_cannot_be_changed_on_resume(
    drifting: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    train(drifting, tmp_path / "run", small())
    before = history(tmp_path / "run")
    with pytest.raises(BadConfig, match=r"cannot be changed in a run that has begun: start a new one; .*train.epochs"):
        resume(tmp_path / "run", changes)
    assert history(tmp_path / "run") == before


def test_what_can_be_changed_on_resume_changes_nothing(drifting: Path, tmp_path: Path) -> None:
    settings = small(SHORT)
    train(drifting, tmp_path / "whole", settings)
    with stopped_after(3), pytest.raises(Interrupted):
        train(drifting, tmp_path / "run", settings)
    others = {"save_seconds": 0.0, "keep": 1, "threads": 1, "cache_bytes": 0, "tensorboard": False, "patience": 7}
    assert set(others) <= set(MAY_CHANGE)
    resume(tmp_path / "run", {"train": others})
    equal_runs(tmp_path / "run", tmp_path / "whole")
    assert len(checkpoint.names(tmp_path / "run" / "checkpoints")) == 1
    with pytest.raises(BadConfig, match=r"train.keep=0 is too small"):
        resume(tmp_path / "run", {"train": {"keep": 0}})
    with pytest.raises(BadConfig, match=r'train.epochs is "many": give a whole number'):
        resume(tmp_path / "run", {"train": {"epochs": "many"}})


def test_a_run_in_use_is_not_resumed(drifting: Path, tmp_path: Path) -> None:
    train(drifting, tmp_path / "run", small())
    with RunDirectory.open(tmp_path / "run"), pytest.raises(BadRun, match="is in use by another process"):
        resume(tmp_path / "run")


def test_records_that_were_altered_are_refused(drifting: Path, tmp_path: Path) -> None:
    train(drifting, tmp_path / "run", small())
    records = tmp_path / "run" / "records.jsonl"
    records.write_text("")
    with pytest.raises(BadRun, match=r"records.jsonl has no line that ends at byte \d+"):
        resume(tmp_path / "run")


def test_records_that_were_altered_before_a_checkpoint_cost_no_later_one(drifting: Path, tmp_path: Path) -> None:
    """What is refused is refused before anything is removed: an older checkpoint still goes on."""
    settings = small({"train": {**ALWAYS, "keep": 99, "log_steps": True}})
    train(drifting, tmp_path / "run", settings)
    records, folder = tmp_path / "run" / "records.jsonl", tmp_path / "run" / "checkpoints"
    known = checkpoint.names(folder)
    size = checkpoint.load(folder, known[1]).state["records_bytes"]
    data = bytearray(records.read_bytes())
    data[size + 20] ^= 1
    records.write_bytes(data)
    with pytest.raises(BadRun, match=r"records.jsonl, line \d+ cannot be read .*--checkpoint NAME"):
        resume(tmp_path / "run")
    assert checkpoint.names(folder) == known
    assert resume(tmp_path / "run", name=known[1]).best_epoch >= 0
    read(tmp_path / "run")


OWN = """
from timeloom import Model, PerNode
import torch
class Own(Model):
    def __init__(self, num_in, settings):
        super().__init__()
        self.out_size = {size}
        self.linear = torch.nn.Linear(num_in, {size})
    def memory(self):
        return (PerNode("h", ({size},)),)
    def encode(self, view, x_NF):
        return (self.linear(x_NF),)
    def recur(self, view, rows, state):
        h = torch.tanh(rows[0] + state[0])
        return h, (h,)
"""


def test_a_model_that_was_changed_since_is_named(drifting: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN.format(size=3))
    train(drifting, tmp_path / "run", small(), model=f"{own}:Own")
    assert resume(tmp_path / "run").best_epoch >= 0
    own.write_text(OWN.format(size=14))
    for call in (resume, evaluate, predict):
        with pytest.raises(
            BadRun, match=r"does not fit the model .*own.py:Own.*was the model's file .* changed since"
        ) as told:
            call(tmp_path / "run")
        assert "\n" not in str(told.value)


GROWING = random_snapshots(12, 30, 12)


def near(mine: dict[str, float], theirs: dict[str, float]) -> None:
    """Check that scores are near each other, but for those that count all nodes."""
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert name.endswith("_all") or mine[name] == pytest.approx(value, rel=1e-3), name


@pytest.mark.parametrize(
    ("task", "names_new"),
    [("degree", False), ("links", False), ("degree", True), ("links", True)],
)
@pytest.mark.parametrize("protocol", ["fixed", "live"])
def test_a_graph_that_has_grown_since_changes_nothing(
    tmp_path: Path, task: str, names_new: bool, protocol: str
) -> None:
    settings = small(SHORT, {"task": {"name": task}, "train": {"protocol": protocol}})
    graph = graph_of(tmp_path / "g", GROWING)
    train(graph, tmp_path / "whole", settings)
    with stopped_after(5), pytest.raises(Interrupted):
        train(graph, tmp_path / "run", settings)
    more = [[(u + 7 * names_new, v) for u, v in edges if u + 7 * names_new != v] for edges in GROWING[4:9]]
    append(graph, columns_of(more, first=len(GROWING)), Append())
    resume(tmp_path / "run")

    if not names_new:
        equal_runs(tmp_path / "run", tmp_path / "whole")
        if protocol == "fixed":
            assert evaluate(tmp_path / "run") == evaluate(tmp_path / "whole")
        return
    # A product of more rows is rounded otherwise, and what is counted over all nodes counts those that joined, too.
    for mine, theirs in zip(history(tmp_path / "run"), history(tmp_path / "whole"), strict=True):
        assert mine["kind"] == theirs["kind"]
        assert (mine.get("loss") or 0.0) == pytest.approx(theirs.get("loss") or 0.0, rel=1e-3)
        assert mine.get("edges") == theirs.get("edges")
        near(mine.get("scores", {}), theirs.get("scores", {}))
    mine, theirs = (saved(tmp_path / run).tensors for run in ("run", "whole"))
    for name, value in theirs.items():
        if name.startswith(("now", "best")):
            torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-4)
