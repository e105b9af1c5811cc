"""How a run is started and gone on with: what commands and Python programs call."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

from timeloom.config import build, dump, flat, merge
from timeloom.dist.collectives import World
from timeloom.dist.sync import assert_same
from timeloom.errors import BadConfig, Interrupted
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.records import CHECKPOINTS, Evaluated, Record, RunDirectory, Saved, Started, Stepped, is_run, read_config
from timeloom.systems import preset_of
from timeloom.train import checkpoint
from timeloom.train.arrivals import AllThere
from timeloom.train.boards import Board, tensorboard
from timeloom.train.budget import Expected, expect, told_of_memory
from timeloom.train.derived import derived_of, facts_of
from timeloom.train.flare.trials import TrialLog, kept_trials
from timeloom.train.flare.tuning import refuse_tuning, told_of, tuned
from timeloom.train.hybrid.loop import train_apart
from timeloom.train.inference import Result
from timeloom.train.live import first_scored, train_live
from timeloom.train.loop import train as train_fixed
from timeloom.train.ranks import here, joined, refuse_impossible
from timeloom.train.reopen import graph_of, session_of, settings_of_run
from timeloom.train.session import Session, Stopped, open_session
from timeloom.train.settings import RunSettings
from timeloom.train.stopping import stop_requests
from timeloom.train.trainer import Trainer
from timeloom.train.verify import refuse_altered

MAY_CHANGE = (
    "epochs",
    "patience",
    "save_seconds",
    "keep",
    "threads",
    "cache_bytes",
    "memory_bytes",
    "verify",
    "log_steps",
    "tensorboard",
)
"""What of [train] a resumed run may be given anew: nothing of it changes what an epoch computes."""
Show = Callable[[Record], None]


def ignore(record: Record) -> None:
    """Do nothing with a record."""


def train(
    graph: str | PathLike[str] | DynamicGraph, out: str | PathLike[str], settings: Mapping[str, Any] | None = None,
    *, model: str | None = None, task: str | None = None, system: str | None = None, overwrite: bool = False,
    tune: bool = False, show: Show = ignore,
) -> Result:  # fmt: skip
    """Train a model on a graph, in a new run directory; ``settings`` are nested as in a configuration file.

    With ``tune`` trials choose the windows of [flare] first.

    ``train("mails", "run", {"model": {"hidden": 64}, "train": {"epochs": 50}}, model="gcn_gru", task="links")``

    Under a launcher (`timeloom train --workers`, torchrun, SLURM) all ranks call this alike. Ranks that were started
    again after a failure go on with the run that is there.
    """
    opened, seat = graph if isinstance(graph, DynamicGraph) else open_graph(graph), here()
    chosen = settings_for(opened, settings or {}, model=model, task=task, system=system)
    if tune:
        refuse_tuning(chosen)
    if seat is not None and seat.attempt and is_run(Path(out)) and _is_of(Path(out), chosen, tune=tune):
        return resume(out, graph=opened, show=show)
    if chosen.train.tensorboard:
        tensorboard()
    with (
        stop_requests() as should_stop, joined(chosen, seat) as world, ExitStack() as held, told_of_memory(chosen),
    ):  # fmt: skip
        refuse_impossible(chosen, world.size)
        assert_same(world, "the configuration", dump(chosen).encode())
        if chosen.train.verify:
            refuse_altered(world, opened)
        session = open_session(chosen, opened, should_stop=should_stop, world=world)

        def begin(trials: str) -> RunDirectory | None:
            made = partial(RunDirectory.create, Path(out), dump(chosen), overwrite=overwrite, trials=trials)
            return held.enter_context(on_first(world, made))

        if tune:
            return _run_tuned(session, TrialLog(chosen.flare, ranks=world.size, begin=begin), show, Path(out))
        expected = expect(session)
        started = started_of(session, expected)
        return _run(Trainer(session, begin("")), expected, [started], show, Path(out))


def _is_of(run: Path, chosen: RunSettings, *, tune: bool) -> bool:
    """Say whether a run that is there was begun with these settings (where it was tuned: by trials)."""
    if not tune:
        return read_config(run) == dump(chosen)
    return dataclasses.replace(settings_of_run(run), flare=chosen.flare) == chosen


def settings_for(
    graph: DynamicGraph, settings: Mapping[str, Any], *, model: str | None = None, task: str | None = None,
    system: str | None = None,
) -> RunSettings:  # fmt: skip
    """Return the settings of a new run: those given, above those of the system named."""
    named: dict[str, Any] = {"graph": str(graph.path.resolve())}
    named |= {} if model is None else {"model": {"name": model}}
    named |= {} if task is None else {"task": {"name": task}}
    chosen = build(RunSettings, merge({} if system is None else preset_of(system).settings, settings, named))
    # The file of one's own model by its whole path, so that the run finds it again.
    return dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, name=_absolute(chosen.model.name)))


@contextmanager
def on_first(world: World, make: Callable[[], RunDirectory]) -> Iterator[RunDirectory | None]:
    """Give the run directory on the rank that writes it, and None on the others."""
    if world.rank:
        yield None
        return
    with make() as run:
        yield run


def started_of(session: Session, expected: Expected) -> Started:
    """Return what there is to tell of a run before it begins."""
    return Started(
        graph=session.feed.graph.name, num_parameters=sum(p.numel() for p in session.predictor.parameters()),
        derived=derived_of(session, expected.step_bytes), version=metadata.version("timeloom"),
    )  # fmt: skip


def _records(trainer: Trainer) -> Iterator[Record]:
    """Return the loop that the settings name."""
    settings = trainer.session.settings
    if settings.train.protocol == "live":
        return train_live(trainer, AllThere(trainer, first_scored(trainer.session.split)))
    return train_apart(trainer) if settings.system.divide == "batches" else train_fixed(trainer)


def _hint(path: Path) -> str:
    return f"timeloom train --resume {path}"


def _run_tuned(session: Session, log: TrialLog, show: Show, path: Path) -> Result:
    """Collective. Let trials choose the windows, then train."""
    try:
        choice = tuned(session, log)
    except Stopped:
        raise Interrupted(
            f"stopped while windows were tried; {len(log)} trials are kept: go on with '{_hint(path)}'"
        ) from None
    session = dataclasses.replace(session, settings=dataclasses.replace(session.settings, flare=choice.flare))
    if log.run is not None:
        log.run.configure(dump(session.settings))
    expected = expect(session)
    started = started_of(session, expected)
    return _run(Trainer(session, log.run), expected, [told_of(choice), started], show, path)


def _run(trainer: Trainer, expected: Expected, started: list[Record], show: Show, path: Path) -> Result:
    tell_beginning(trainer, started, show)
    return drive(trainer, show, path, records=_records(trainer), hint=_hint(path), expected=expected)


def tell_beginning(trainer: Trainer, started: list[Record], show: Show) -> None:
    """Tell that a run begins."""
    if trainer.run is not None:
        graph = trainer.session.graph
        first = list(started)
        if isinstance(graph, DynamicGraph):
            first.append(facts_of(graph, trainer.session.split))
        for record in first:
            trainer.run.append(record)
            show(record)


def _absolute(model: str) -> str:
    """Return a model's name; the file of one's own by its whole path."""
    file, colon, name = model.rpartition(":")
    return f"{Path(file).resolve()}:{name}" if colon else model


def resume(
    run: str | PathLike[str], settings: Mapping[str, Any] | None = None, *,
    graph: str | PathLike[str] | DynamicGraph | None = None, name: str | None = None, show: Show = ignore,
) -> Result:  # fmt: skip
    """Go on with a run from its last checkpoint, or the one named; it ends as if it had never been interrupted."""
    path = Path(run)
    chosen = changed_settings(path, settings or {})
    if chosen.live.known:
        raise BadConfig(f"{path} follows a graph that grows: go on with 'timeloom follow {chosen.graph} --out {path}'")
    with (
        stop_requests() as should_stop, joined(chosen, here()) as world,
        on_first(world, lambda: RunDirectory.open(path)) as directory, told_of_memory(chosen),
    ):  # fmt: skip
        refuse_impossible(chosen, world.size)
        saved, found = find_checkpoint(world, path / CHECKPOINTS, name), graph_of(chosen, graph)
        if chosen.train.verify:
            refuse_altered(world, found)
        if saved is None:
            log = kept_trials(world, directory)
            if log is not None:
                chosen = dataclasses.replace(chosen, flare=log.flare)
            session = open_session(chosen, found, should_stop=should_stop, world=world)
            if directory is not None:
                directory.truncate(0)
            if log is not None:
                return _run_tuned(session, log, show, path)
            expected = expect(session)
            return _run(Trainer(session, directory), expected, [started_of(session, expected)], show, path)
        trainer = Trainer(session_of(chosen, saved, found, should_stop=should_stop, world=world), directory)
        expected = expect(trainer.session)
        resumed = trainer.restore(saved)
        _extend(trainer)
        if directory is not None:
            directory.append(resumed)
            show(started_of(trainer.session, expected))
            show(resumed)
        return drive(trainer, show, path, records=_records(trainer), hint=_hint(path), expected=expected)


def find_checkpoint(world: World, folder: Path, name: str | None) -> checkpoint.Checkpoint | None:
    """Collective. Return the checkpoint to go on from: the one named, or the newest that is good (None: there is none).

    The first rank finds it; all read it, so the folder is on a disk that all machines share.
    """
    saved: checkpoint.Checkpoint | None = None
    if world.rank == 0 and (name is not None or checkpoint.names(folder)):
        saved = checkpoint.latest(folder) if name is None else checkpoint.load(folder, name)
    told = world.broadcast_bytes(b"" if saved is None else saved.name.encode(), "control/checkpoint").decode()
    return checkpoint.load(folder, told) if told and world.rank else saved


def changed_settings(run: Path, changes: Mapping[str, Any]) -> RunSettings:
    """Return a run's settings with what may be changed when it is resumed."""
    settings = settings_of_run(run)
    may = {f"train.{one}" for one in MAY_CHANGE}
    others = [key for key in flat(changes) if key not in may and not key.startswith("world.")]
    if others:
        raise BadConfig(
            f"{others[0]} cannot be changed in a run that has begun: start a new one; of a resumed run only "
            f"{', '.join(f'train.{key}' for key in MAY_CHANGE)} can be given anew"
        )
    whole = tomllib.loads(dump(settings))
    return build(RunSettings, merge(whole, changes))


def _extend(trainer: Trainer) -> None:
    """Let a run that has ended go on if it was given more epochs, or more patience."""
    progress, settings = trainer.progress, trainer.session.settings.train
    more_epochs = progress.ended == "epochs" and progress.epoch < settings.epochs
    stale = progress.stale * settings.validate_every
    more_patience = progress.ended == "patience" and (not settings.patience or stale < settings.patience)
    if more_epochs or (more_patience and progress.epoch < settings.epochs):
        progress.ended = ""


def drive(
    trainer: Trainer, show: Show, path: Path, *, records: Iterator[Record], hint: str, expected: Expected
) -> Result:  # fmt: skip
    """Run a loop to its end; write its records, and save when it is asked to stop. ``hint`` says how to go on."""
    session, run = trainer.session, trainer.run
    board = Board(path) if session.settings.train.tensorboard and run is not None else None
    tested: Evaluated | None = None
    try:
        with told_of_memory(session.settings, expected):
            for record in records:
                if run is not None:
                    logged = session.settings.train.log_steps or not isinstance(record, Stepped)
                    if logged and not isinstance(record, Saved):
                        run.append(record)
                    show(record)
                if board is not None:
                    board.add(record)
                if isinstance(record, Evaluated) and record.split == "test":
                    tested = record
    except Stopped:
        if not trainer.progress.ended:
            trainer.save()
        raise Interrupted(
            f"stopped in epoch {trainer.progress.epoch}, after step {trainer.progress.step}, and saved: go on with "
            f"'{hint}'"
        ) from None
    finally:
        trainer.close()
        if board is not None:
            board.close()
    assert tested is not None, "a run that ends was tested"
    return Result(
        path=path, scores=tested.scores, baselines=tested.baselines, best_epoch=trainer.progress.best_epoch
    )  # fmt: skip
