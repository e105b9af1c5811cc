"""Whole runs of FlareDTDG: going on after an interruption, refusals, trials, processes, and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import parameters_of, take_steps
from tests.train.flare_runs import flare_settings_of
from tests.train.small_runs import drift, history
from timeloom.cli import run
from timeloom.config import dump, parse_sets
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig, Diverged, Interrupted, TooLarge
from timeloom.graph.synth import PowerLaw, synth
from timeloom.plan.tune.window import TrialOutcome
from timeloom.records import RunDirectory, Tuned, read, read_config
from timeloom.train import checkpoint
from timeloom.train.choose import decided_of
from timeloom.train.feed import Feed
from timeloom.train.flare import tuning
from timeloom.train.flare.trials import TrialLog, kept_trials
from timeloom.train.runs import on_first, resume, train
from timeloom.train.session import Stopped, open_session, scales_of
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer, grouped

ROOT = Path(__file__).resolve().parents[2]
WHOLE: dict[str, Any] = {"flare": {"alpha": 1.0}}
SETS = (
    "model.hidden=4", "train.precision=float64", "train.threads=1", "train.epochs=2", "train.device=cpu",
    "train.log_steps=true", "flare.chunks=4", "flare.decayed=2", "train.cache_bytes=16777216",
)  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> TinyGraph:
    """Nodes that come and go."""
    return tiny(1, num_nodes=11, num_snapshots=14)


def save_after(settings: RunSettings, graph: TinyGraph, steps: int, *, ranks: int, path: Path) -> None:
    """Let ranks save after some steps, in the middle of an epoch."""

    def work(world: World) -> None:
        directory = None if world.rank else RunDirectory.create(path, dump(settings), overwrite=False)
        trainer = Trainer(open_session(settings, graph, world=world), directory)
        take_steps(trainer, steps)
        trainer.save()
        if directory is not None:
            directory.close()

    threads.run(ranks, work, check=True)


def go_on(settings: RunSettings, graph: TinyGraph, path: Path, *, ranks: int, steps: int) -> list[Any]:
    """Let ranks go on from what was saved; return losses and parameters of each."""

    def work(world: World) -> tuple[list[float], dict[str, Tensor]]:
        saved = checkpoint.latest(path / "checkpoints")
        assert any(key.startswith("carry/") for key in saved.tensors)
        scales, decided = scales_of(grouped(saved.tensors)["scales"]), decided_of(saved.state["decided"])
        session = open_session(settings, graph, scales=scales, decided=decided, world=world)
        trainer = Trainer(session, None)
        trainer.restore(saved)
        return take_steps(trainer, steps)[0], parameters_of(session)

    return threads.run(ranks, work, check=True)


def straight(settings: RunSettings, graph: TinyGraph, *, ranks: int, steps: int) -> list[Any]:
    def work(world: World) -> tuple[list[float], dict[str, Tensor]]:
        session = open_session(settings, graph, world=world)
        return take_steps(Trainer(session, None), steps)[0], parameters_of(session)

    return threads.run(ranks, work, check=True)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "table",
    [
        {},
        {"model": {"name": "wdgcn", "layers": 2}},
        {"flare": {"split": True, "warmup": True}},
        {"model": {"name": "evolvegcn_o"}},
    ],
)
@pytest.mark.parametrize("steps", [3, 9])
def test_a_run_goes_on_to_the_same_bits(
    graph: TinyGraph, tmp_path: Path, ranks: int, table: dict[str, Any], steps: int
) -> None:
    settings = flare_settings_of(table)
    save_after(settings, graph, steps, ranks=ranks, path=tmp_path / "run")
    found = go_on(settings, graph, tmp_path / "run", ranks=ranks, steps=6)
    for (losses, parameters), (wanted, values) in zip(
        found, straight(settings, graph, ranks=ranks, steps=steps + 6), strict=True
    ):
        assert losses == wanted[steps:]
        assert all(torch.equal(parameters[name], value) for name, value in values.items())


@pytest.mark.parametrize("ranks", [1, 3])
def test_kept_states_are_dealt_out_anew_to_another_number_of_ranks(
    graph: TinyGraph, tmp_path: Path, ranks: int
) -> None:
    """Where nothing shrinks every kept state is of one snapshot, so that nothing changes at all."""
    settings = flare_settings_of(WHOLE, {"model": {"name": "wdgcn"}})
    save_after(settings, graph, 5, ranks=2, path=tmp_path / "run")
    wanted, values = straight(settings, graph, ranks=2, steps=12)[0]
    for losses, parameters in go_on(settings, graph, tmp_path / "run", ranks=ranks, steps=7):
        np.testing.assert_allclose(losses, wanted[5:], rtol=1e-10)
        for name, value in values.items():
            torch.testing.assert_close(parameters[name], value, rtol=1e-10, atol=1e-12)


def test_shrunk_windows_go_on_with_another_number_of_ranks(graph: TinyGraph, tmp_path: Path) -> None:
    settings = flare_settings_of({"model": {"name": "wdgcn"}})
    save_after(settings, graph, 5, ranks=2, path=tmp_path / "run")
    told = go_on(settings, graph, tmp_path / "run", ranks=3, steps=7)
    assert all(np.isfinite(losses).all() for losses, _ in told)
    assert all(losses == told[0][0] for losses, _ in told)


def test_a_checkpoint_can_be_written_again_as_it_was_read(graph: TinyGraph, tmp_path: Path) -> None:
    settings = flare_settings_of({"model": {"name": "wdgcn"}})
    save_after(settings, graph, 5, ranks=1, path=tmp_path / "run")
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    session = open_session(settings, graph, scales=scales_of(grouped(saved.tensors)["scales"]))
    trainer = Trainer(session, None)
    trainer.restore(saved)
    assert trainer.carry is not None
    parts = trainer.worker.whole(trainer.carry).tensors()
    wanted = grouped(saved.tensors)["carry"]
    assert all(torch.equal(part, wanted[key]) for part, key in zip(parts, sorted(wanted), strict=True))
    assert any(part.any() for part in parts[:-1])


def test_a_snapshot_is_read_once_an_epoch_and_its_parts_are_kept(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cache inputs of older snapshots are slices of what was kept, not read again."""
    settings = flare_settings_of({"train": {"cache_bytes": 0}})
    session, asked = open_session(settings, graph), list[int]()
    rows = Feed.rows

    def noted(feed: Feed, t: int) -> Tensor:
        asked.append(t)
        return rows(feed, t)

    monkeypatch.setattr(Feed, "rows", noted)
    trainer = Trainer(session, None)
    steps = session.split.train_stop - settings.flare.full + 1
    take_steps(trainer, steps)
    assert sorted(asked) == list(range(session.split.train_stop))


@pytest.mark.parametrize(("sets", "says"), [
    (("window.length=3",), r"\[window\] was set.*\[flare\]"),
    (("train.protocol=live",), "train.protocol=live"),
    (("reuse.mode=delta",), "reuse.mode=delta"),
    (("schedule.scheduler=real_g",), "schedule.scheduler=real_g"),
    (("system.divide=windows",), "ranks divide the nodes"),
    (("flare.loss=blocks", "task.name=links"), "flare.loss=blocks.*flare.loss=last"),
    (("flare.full=60",), "flare.full=60 needs 60 snapshots"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_with_a_way_out(tmp_path: Path, sets: tuple[str, ...], says: str) -> None:
    drift(tmp_path / "g", num_snapshots=12)
    with pytest.raises(BadConfig, match=says):
        train(tmp_path / "g", tmp_path / "run", parse_sets([*SETS, *sets]), system="flare")


def test_settings_of_windows_that_shrink_are_refused_elsewhere(tmp_path: Path) -> None:
    drift(tmp_path / "g", num_snapshots=12)
    with pytest.raises(BadConfig, match=r"\[flare\].*--system flare"):
        train(tmp_path / "g", tmp_path / "run", parse_sets(["flare.alpha=0.5"]))
    with pytest.raises(BadConfig, match=r"--tune.*--system flare"):
        train(tmp_path / "g", tmp_path / "run", {}, tune=True)


def test_trials_choose_the_windows_that_a_run_is_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if losses fell fastest with one full snapshot; weights and memory are as before when the run begins."""
    drift(tmp_path / "g", num_snapshots=16)
    tried = tuning._tried

    def told(session: Any, stores: Any, trial: Any) -> TrialOutcome:
        found = tried(session, stores, trial)
        assert found.seconds > 0
        assert found.peak_bytes >= 0
        return replace(found, loss_before=1.0, loss_after=0.5, seconds=float(trial.flare.full), peak_bytes=1.0)

    monkeypatch.setattr(tuning, "_tried", told)
    sets = parse_sets([*SETS, "tune.epochs=1", "tune.moves=3"])
    train(tmp_path / "g", tmp_path / "tuned", sets, system="flare", tune=True)
    monkeypatch.undo()
    assert "full = 1\n" in read_config(tmp_path / "tuned")
    first = next(iter(read(tmp_path / "tuned")))
    assert isinstance(first, Tuned)
    assert (first.full, first.decayed) == (1, 3)
    assert len(first.trials) >= 3
    again = parse_sets(
        [*SETS, "tune.epochs=1", "tune.moves=3", "flare.full=1", "flare.decayed=3", f"flare.alpha={first.alpha}"]
    )
    train(tmp_path / "g", tmp_path / "plain", again, system="flare")
    assert numbers(tmp_path / "tuned") == numbers(tmp_path / "plain")


TUNE = ("tune.epochs=1", "tune.moves=3")


def as_if(monkeypatch: pytest.MonkeyPatch, *, stop_at: int = 0) -> list[tuple[int, float]]:
    """Let trials come to what depends on nothing but their shape, and one be interrupted; return what was tried."""
    tried = list[tuple[int, float]]()

    def told(_session: Any, _stores: Any, trial: Any) -> TrialOutcome:
        if stop_at and len(tried) == stop_at:
            raise Stopped
        tried.append((trial.flare.full, trial.flare.alpha))
        seconds = 2.0 - 0.1 * trial.flare.full
        return TrialOutcome(loss_before=1.0, loss_after=0.5, seconds=seconds, peak_bytes=1.0)

    monkeypatch.setattr(tuning, "_tried", told)
    return tried


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_a_search_that_was_interrupted_goes_on_with_the_next_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    drift(tmp_path / "g", num_snapshots=16)
    sets = parse_sets([*SETS, *TUNE])
    whole = as_if(monkeypatch)
    train(tmp_path / "g", tmp_path / "whole", sets, system="flare", tune=True)
    before = as_if(monkeypatch, stop_at=stop_at)
    # The first trial of a process is made twice: what it made ready for the others does not count against it.
    assert whole[0] == whole[1]
    with pytest.raises(Interrupted, match=rf"{stop_at - 1} trials are kept: .*--resume {tmp_path / 'run'}"):
        train(tmp_path / "g", tmp_path / "run", sets, system="flare", tune=True)
    after = as_if(monkeypatch)
    resume(tmp_path / "run")
    assert [*before[1:], *after[1:]] == whole[1:]
    assert read_config(tmp_path / "run") == read_config(tmp_path / "whole")
    assert next(iter(read(tmp_path / "run"))) == next(iter(read(tmp_path / "whole")))
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")


def test_a_tuned_run_without_a_checkpoint_begins_anew_and_tries_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(tmp_path / "g", num_snapshots=16)
    as_if(monkeypatch)
    train(tmp_path / "g", tmp_path / "run", parse_sets([*SETS, *TUNE]), system="flare", tune=True)
    told, config, wanted = next(iter(read(tmp_path / "run"))), read_config(tmp_path / "run"), numbers(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    tried = as_if(monkeypatch)
    resume(tmp_path / "run")
    assert tried == []
    assert isinstance(told, Tuned)
    assert next(iter(read(tmp_path / "run"))) == told
    assert (read_config(tmp_path / "run"), numbers(tmp_path / "run")) == (config, wanted)


def test_trials_of_another_number_of_ranks_are_tried_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drift(tmp_path / "g", num_snapshots=16)
    as_if(monkeypatch, stop_at=4)
    with pytest.raises(Interrupted):
        train(tmp_path / "g", tmp_path / "run", parse_sets([*SETS, *TUNE]), system="flare", tune=True)

    def found(world: World) -> tuple[int, Any]:
        with on_first(world, lambda: RunDirectory.open(tmp_path / "run")) as run:
            log = kept_trials(world, run)
            assert log is not None
            return len(log), log.flare

    ((same, flare),) = threads.run(1, found)
    assert (same, flare.decayed, flare.chunks) == (3, 2, 4)
    assert threads.run(2, found) == [(0, flare)] * 2


def test_a_run_that_is_there_is_refused_before_anything_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(tmp_path / "g", num_snapshots=16)
    sets, tried = parse_sets([*SETS, *TUNE]), as_if(monkeypatch)
    train(tmp_path / "g", tmp_path / "run", sets, system="flare")
    with pytest.raises(BadConfig, match="exists already"):
        train(tmp_path / "g", tmp_path / "run", sets, system="flare", tune=True)
    assert tried == []
    train(tmp_path / "g", tmp_path / "run", sets, system="flare", tune=True, overwrite=True)
    assert tried
    # What replaces a run knows nothing of its trials.
    train(tmp_path / "g", tmp_path / "run", sets, system="flare", overwrite=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    tried.clear()
    resume(tmp_path / "run")
    assert tried == []
    assert not isinstance(next(iter(read(tmp_path / "run"))), Tuned)


def test_windows_with_which_a_trial_diverges_are_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drift(tmp_path / "g", num_snapshots=16)
    step = Trainer.step

    def diverging(trainer: Trainer, *step_and_draw: Any) -> Any:
        if trainer.session.settings.flare.full == 2:
            raise Diverged("a loss that is no number")
        return step(trainer, *step_and_draw)

    monkeypatch.setattr(Trainer, "step", diverging)
    train(tmp_path / "g", tmp_path / "run", parse_sets([*SETS, *TUNE]), system="flare", tune=True)
    told = next(iter(read(tmp_path / "run")))
    assert isinstance(told, Tuned)
    assert told.full != 2
    assert [np.isfinite(after) for full, _, _, after, _, _ in told.trials] == [full != 2 for full, *_ in told.trials]


def test_a_budget_that_no_window_fits_is_refused(tmp_path: Path) -> None:
    drift(tmp_path / "g", num_snapshots=16)
    sets = parse_sets([*SETS, "tune.budget_bytes=1000"])
    with pytest.raises(TooLarge, match=r"tune\.budget_bytes"):
        train(tmp_path / "g", tmp_path / "run", sets, system="flare", tune=True)
    assert not (tmp_path / "run").exists()


def test_where_memory_runs_out_settings_of_these_windows_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drift(tmp_path / "g", num_snapshots=16)

    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(Trainer, "step", full)
    for tune in (False, True):
        with pytest.raises(TooLarge, match=r"lower flare\.decayed \(now 2\) and model\.hidden"):
            train(tmp_path / "g", tmp_path / f"{tune}", parse_sets([*SETS, *TUNE]), system="flare", tune=tune)


def test_ranks_go_by_what_the_first_saw_and_by_the_most_memory_of_any(graph: TinyGraph) -> None:
    settings = flare_settings_of()

    def work(world: World) -> TrialOutcome:
        mine = TrialOutcome(
            loss_before=1.0 + world.rank, loss_after=0.5 + world.rank, seconds=2.0 + world.rank,
            peak_bytes=100.0 * (world.rank + 1),
        )  # fmt: skip
        return tuning._agreed(open_session(settings, graph, world=world), mine)

    agreed = TrialOutcome(loss_before=1.0, loss_after=0.5, seconds=2.0, peak_bytes=200.0)
    assert threads.run(2, work, check=True) == [agreed, agreed]


def test_ranks_that_tune_choose_alike(graph: TinyGraph) -> None:
    settings = flare_settings_of({"tune": {"epochs": 1, "moves": 2}})

    def work(world: World) -> Any:
        session = open_session(settings, graph, world=world)
        before = parameters_of(session)
        choice = tuning.tuned(session, TrialLog(settings.flare, ranks=2))
        assert all(torch.equal(before[name], value) for name, value in parameters_of(session).items())
        return choice

    one, two = threads.run(2, work, check=True)
    assert one == two


def numbers(path: Path) -> list[dict[str, Any]]:
    """Return what was learnt and scored, record by record, without seconds."""
    kinds = ("stepped", "evaluated", "epoch_ended")
    return [
        {key: value for key, value in record.items() if key != "seconds"}
        for record in history(path)
        if record["kind"] in kinds
    ]


@pytest.mark.slow
def test_processes_learn_what_one_process_learns(tmp_path: Path) -> None:
    """T20 over gloo: chunks of all owners come out alike where every node is a chunk of its own."""
    drift(tmp_path / "drift", num_nodes=20, num_snapshots=12)
    sets = [*SETS, "flare.alpha=1.0", "model.layers=2"]
    train(tmp_path / "drift", tmp_path / "one", parse_sets(sets), system="flare")
    flags = [part for one in [*sets, "world.check=true"] for part in ("--set", one)]
    command = [
        sys.executable, "-m", "timeloom", "train", str(tmp_path / "drift"), "--system", "flare", "--workers", "2",
        "--out", str(tmp_path / "two"), *flags,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    one, two = numbers(tmp_path / "one"), numbers(tmp_path / "two")
    assert [record["kind"] for record in one] == [record["kind"] for record in two]
    for wanted, found in zip(one, two, strict=True):
        for name in ("loss", "grad_norm"):
            if name in wanted:
                np.testing.assert_allclose(found[name], wanted[name], rtol=1e-9)
        for name, score in wanted.get("scores", {}).items():
            np.testing.assert_allclose(found["scores"][name], score, rtol=1e-8, err_msg=name)


def test_the_command_tunes_trains_and_refuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = str(drift(tmp_path / "g", num_snapshots=16))
    flags = [part for one in SETS for part in ("--set", one)]
    out = ["--out", str(tmp_path / "run")]
    assert run(["train", graph, *flags, *out, "--system", "flare", "--tune", "--set", "tune.moves=1"]) == 0
    assert "tuned in" in capfd.readouterr().err
    assert run(["train", "--resume", str(tmp_path / "run"), "--tune"]) == 2
    assert "--tune cannot be given with --resume" in capfd.readouterr().err
    assert run(["train", graph, "--out", str(tmp_path / "other"), "--tune", "--workers", "2", "--system", "psg"]) == 2
    assert "--system flare" in capfd.readouterr().err
    assert run(["systems"]) == 0
    assert "flare" in capfd.readouterr().out


BUDGET_MIB = 1350
PEAK = """
import sys
from pathlib import Path
from timeloom.config import parse_sets
from timeloom.train.runs import on_first, resume, train
sets = ["flare.decay=public", "flare.chunks=32", "train.epochs=1", "train.cache_bytes=0", "train.threads=1",
        "model.hidden=64", "split.train=0.8", "split.val=0.1", f"flare.history={sys.argv[2]}"]
train(sys.argv[1], Path(sys.argv[1]).with_name(sys.argv[2]), parse_sets(sets), model="gcn_gru", system="flare")
# Not getrusage: its peak survives exec, so that it may be that of the process which runs the tests.
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10)
"""


@pytest.mark.slow
def test_a_graph_whose_whole_windows_do_not_fit_is_trained_on_within_the_memory_stated(tmp_path: Path) -> None:
    """All of a process: its libraries, the graph on disk, chunks by METIS, an epoch, validation and test."""
    law = PowerLaw(num_nodes=50_000, num_edges=100_000, num_snapshots=11, turnover=0.2, first_share=1.0)
    synth(law, tmp_path / "g")
    peaks = {}
    for kind in ("decayed", "full"):
        command = [sys.executable, "-c", PEAK, str(tmp_path / "g"), kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        peaks[kind] = int(done.stdout.split()[-1])
    assert peaks["decayed"] < BUDGET_MIB < peaks["full"], peaks
