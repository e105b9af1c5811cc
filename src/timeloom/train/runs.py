"""How a run is started, gone on with, measured and asked for predictions: what commands and Python programs call."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from timeloom.config import build, dump, flat, merge
from timeloom.errors import BadConfig, Interrupted, TooLarge
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import GraphLike, Part
from timeloom.plan.batch.windows import steps_of
from timeloom.records import Evaluated, Record, RunDirectory, Saved, Started, Stepped, read, read_config
from timeloom.train import checkpoint
from timeloom.train.boards import Board, tensorboard
from timeloom.train.choose import decided_of
from timeloom.train.deviate import exactness_of
from timeloom.train.evaluate import evaluate as evaluate_part
from timeloom.train.evaluate import evaluate_baselines, seen_after
from timeloom.train.goals.goal import Columns
from timeloom.train.goals.values import ValueGoal
from timeloom.train.live import train_live
from timeloom.train.loop import train as train_fixed
from timeloom.train.session import Session, Stopped, open_session, scales_of
from timeloom.train.settings import RunSettings
from timeloom.train.stopping import stop_requests
from timeloom.train.trainer import Trainer, grouped, load_parameters

MAY_CHANGE = ("epochs", "patience", "save_seconds", "keep", "threads", "cache_bytes", "log_steps", "tensorboard")
"""What of [train] a resumed run may be given anew: nothing of it changes what an epoch computes."""
Show = Callable[[Record], None]


def ignore(record: Record) -> None:
    """Do nothing with a record."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    path: Path
    scores: dict[str, float]
    """Of the best parameters, on the test part."""
    baselines: dict[str, dict[str, float]]
    best_epoch: int


def train(
    graph: str | PathLike[str] | DynamicGraph, out: str | PathLike[str], settings: Mapping[str, Any] | None = None,
    *, model: str | None = None, task: str | None = None, overwrite: bool = False, show: Show = ignore,
) -> Result:  # fmt: skip
    """Train a model on a graph, in a new run directory; ``settings`` are nested as in a configuration file.

    ``train("mails", "run", {"model": {"hidden": 64}, "train": {"epochs": 50}}, model="gcn_gru", task="links")``
    """
    opened = graph if isinstance(graph, DynamicGraph) else open_graph(graph)
    named: dict[str, Any] = {"graph": str(opened.path.resolve())}
    named |= {} if model is None else {"model": {"name": model}}
    named |= {} if task is None else {"task": {"name": task}}
    chosen = build(RunSettings, merge(settings or {}, named))
    # The file of one's own model by its whole path, so that the run finds it again.
    chosen = dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, name=_absolute(chosen.model.name)))
    if chosen.train.tensorboard:
        tensorboard()
    with stop_requests() as should_stop:
        session = open_session(chosen, opened, should_stop=should_stop)
        started = _started(session)
        with RunDirectory.create(Path(out), dump(chosen), overwrite=overwrite) as run:
            return _begin(Trainer(session, run), started, show)


def _started(session: Session) -> Started:
    """Return what there is to tell of a run before it begins."""
    return Started(
        graph=session.feed.graph.name, num_parameters=sum(p.numel() for p in session.predictor.parameters()),
        derived=derived_of(session), version=metadata.version("timeloom"),
    )  # fmt: skip


def _begin(trainer: Trainer, started: Started, show: Show) -> Result:
    """Tell that a run begins, and run it to its end."""
    trainer.run.append(started)
    show(started)
    return _drive(trainer, show)


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
    chosen = _changed(_settings_of(path), settings or {})
    with stop_requests() as should_stop, RunDirectory.open(path) as directory:
        if name is None and not checkpoint.names(directory.checkpoints):
            session = open_session(chosen, _graph_of(chosen, graph), should_stop=should_stop)
            directory.truncate(0)
            return _begin(Trainer(session, directory), _started(session), show)
        load = checkpoint.latest if name is None else lambda folder: checkpoint.load(folder, name)
        saved = load(directory.checkpoints)
        trainer = Trainer(_session_of(chosen, saved, graph, should_stop), directory)
        resumed = trainer.restore(saved)
        _extend(trainer)
        directory.append(resumed)
        show(_started(trainer.session))
        show(resumed)
        return _drive(trainer, show)


def _changed(settings: RunSettings, changes: Mapping[str, Any]) -> RunSettings:
    """Return a run's settings with what may be changed when it is resumed."""
    others = [key for key in flat(changes) if key not in {f"train.{one}" for one in MAY_CHANGE}]
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


def _drive(trainer: Trainer, show: Show) -> Result:
    """Run the loop to its end; write its records, and save when it is asked to stop."""
    session, run = trainer.session, trainer.run
    live = session.settings.train.protocol == "live"
    board = Board(run.path) if session.settings.train.tensorboard else None
    tested: Evaluated | None = None
    try:
        for record in train_live(trainer) if live else train_fixed(trainer):
            if not isinstance(record, Saved) and (session.settings.train.log_steps or not isinstance(record, Stepped)):
                run.append(record)
            if board is not None:
                board.add(record)
            show(record)
            if isinstance(record, Evaluated) and record.split == "test":
                tested = record
    except Stopped:
        if not trainer.progress.ended:
            trainer.save()
        raise Interrupted(
            f"stopped in epoch {trainer.progress.epoch}, after step {trainer.progress.step}, and saved: go on with "
            f"'timeloom train --resume {run.path}'"
        ) from None
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not _is_out_of_memory(error):
            raise
        raise TooLarge(_memory_advice(session, error)) from None
    finally:
        if board is not None:
            board.close()
    assert tested is not None, "a run that ends was tested"
    return Result(
        path=run.path, scores=tested.scores, baselines=tested.baselines, best_epoch=trainer.progress.best_epoch
    )  # fmt: skip


def _is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in text or "out of memory" in text


def _memory_advice(session: Session, error: BaseException) -> str:
    settings = session.settings
    found = str(error).splitlines()[0] if str(error) else "no more could be had"
    return (
        f"out of memory ({found}) with {session.feed.graph.num_nodes:,} nodes, window.length={settings.window.length} "
        f"and model.hidden={settings.model.hidden}: lower window.length first (memory grows with it), then "
        "model.hidden, and set train.cache_bytes=0"
    )


def derived_of(session: Session) -> dict[str, str | int | float | bool]:
    """Return every number that follows from the settings and the graph, to be told once."""
    settings, split, feed = session.settings, session.split, session.feed
    live = settings.train.protocol == "live"
    updates = settings.live.steps if live else steps_of(settings.window, split.train_stop)
    goal = (
        {"predicts": "the change" if session.goal.is_residual else "the value"}
        if isinstance(session.goal, ValueGoal)
        else {}
    )
    return {
        **goal,
        "nodes": feed.graph.num_nodes,
        "snapshots for training": split.train_stop,
        "snapshots for validation": split.val_stop - split.train_stop,
        "snapshots for test": split.test_stop - split.val_stop,
        "horizon": split.horizon,
        "inputs": f"{feed.features}, {feed.num_features} numbers a node"
        + (f" ({feed.lags} lags)" if feed.lags else ""),
        "updates an epoch": updates,
        "epochs at most": split.test_stop if live else settings.train.epochs,
        "window stride": settings.window.step,
        "outputs of the model": session.model.out_size,
        "hops": session.model.hops,
        "sums of inputs": "kept, and made first"
        if session.decided.sums_first
        else "kept"
        if session.decided.keeps
        else "made",
        "rows": exactness_of(settings.reuse),
        "chosen by": session.metric,
        "device": str(session.device),
        "threads": torch.get_num_threads(),
    }


def _settings_of(run: Path) -> RunSettings:
    return build(RunSettings, tomllib.loads(read_config(run)))


def _graph_of(settings: RunSettings, graph: str | PathLike[str] | DynamicGraph | None) -> DynamicGraph:
    if isinstance(graph, DynamicGraph):
        return graph
    return open_graph(settings.graph if graph is None else graph)


def _session_of(
    settings: RunSettings, saved: checkpoint.Checkpoint, graph: str | PathLike[str] | DynamicGraph | None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Session:  # fmt: skip
    """Return the session of a checkpoint: the scales and the split of its training, also on a graph that has grown."""
    found, (nodes, snapshots) = _graph_of(settings, graph), (saved.state["num_nodes"], saved.state["num_snapshots"])
    if found.num_nodes < nodes or len(found) < snapshots:
        raise BadConfig(
            f"the run was trained on {nodes:,} nodes and {snapshots:,} snapshots, but {found.name!r} has "
            f"{found.num_nodes:,} and {len(found):,}: give the graph of the run, or that graph grown since"
        )
    return open_session(
        settings, found, num_snapshots=snapshots,
        scales=scales_of(grouped(saved.tensors)["scales"]), decided=decided_of(saved.state["decided"]),
        should_stop=should_stop,
    )  # fmt: skip


def open_run(
    run: str | PathLike[str], *, graph: str | PathLike[str] | DynamicGraph | None = None, name: str | None = None
) -> Session:
    """Return the session of a run with its best parameters, of its last checkpoint or the one named."""
    path = Path(run)
    settings = _settings_of(path)
    folder = path / "checkpoints"
    saved = checkpoint.latest(folder) if name is None else checkpoint.load(folder, name)
    session = _session_of(settings, saved, graph)
    parts = grouped(saved.tensors)
    load_parameters(session, parts.get("best") or parts["now"], saved.name)
    session.predictor.eval()
    return session


def open_untrained(graph: str | PathLike[str], settings: Mapping[str, Any]) -> Session:
    """Return a session whose parameters were never trained."""
    opened = open_graph(graph)
    session = open_session(build(RunSettings, merge(settings, {"graph": str(opened.path.resolve())})), opened)
    session.predictor.eval()
    return session


def evaluate(
    run: str | PathLike[str], part: Part = "test", *, graph: str | PathLike[str] | DynamicGraph | None = None,
    name: str | None = None,
) -> Evaluated:  # fmt: skip
    """Return how good a run's best parameters are on a part of its split, beside the baselines."""
    session = open_run(run, graph=graph, name=name)
    if session.settings.train.protocol == "live":
        raise BadConfig(
            f"{run} followed the live protocol, which has learnt from every label by now: its honest scores are those "
            "in its records, made before each label was known"
        )
    baselines = evaluate_baselines(session, part)
    return Evaluated(
        epoch=-1, split=part, scores=evaluate_part(session, part), baselines=baselines, seconds=0.0
    )  # fmt: skip


def predict(
    run: str | PathLike[str], at: int = -1, *, pairs: tuple[Any, Any] | None = None,
    graph: str | PathLike[str] | DynamicGraph | None = None, name: str | None = None,
) -> Columns:  # fmt: skip
    """Return the predictions after snapshot ``at`` (negative: from the end), with original ids, as columns.

    ``pairs`` are original ids of sources and of targets, for a task about pairs.
    """
    session = open_run(run, graph=graph, name=name)
    source = _graph_of(session.settings, graph)
    if not -len(source) <= at < len(source):
        raise BadConfig(f"snapshot {at} of {source.name!r} was asked for, but it has {len(source)}")
    about_pairs = session.settings.task.name in ("links", "edge_classes")
    if pairs is not None and not about_pairs:
        raise BadConfig(f"pairs were given, but task.name={session.settings.task.name} predicts nodes: leave them out")
    numbers: Int64s | None = None
    if pairs is not None:
        numbers = np.stack([source.ids.index_of(side) for side in pairs])
    columns = predict_after(session, at % len(source), numbers)
    return {name: _originals(source, name, values) for name, values in columns.items()}


def predict_after(session: Session, t: int, pairs: Int64s | None = None) -> Columns:
    """Return the predictions after snapshot t, nodes by their numbers."""
    (seen,) = seen_after(session, t, t + 1)
    with torch.no_grad(), session.computing():
        return session.goal.table(session.head, seen, pairs)


def _originals(graph: GraphLike, name: str, values: Any) -> Any:
    return np.asarray(graph.ids.of(values)) if name in ("node", "source", "target") else values


def result_of(run: str | PathLike[str]) -> Result:
    """Return what a run that has ended came to, from its records."""
    tested = [record for record in read(Path(run)) if isinstance(record, Evaluated) and record.split == "test"]
    if not tested:
        raise BadConfig(f"{run} has not been tested yet: go on with 'timeloom train --resume {run}'")
    last = tested[-1]
    return Result(path=Path(run), scores=last.scores, baselines=last.baselines, best_epoch=last.epoch)
