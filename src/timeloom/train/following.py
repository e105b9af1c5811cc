"""A run on a graph that grows: every snapshot is predicted and learnt from as it arrives, restarts included.

What is done at a snapshot depends on the graph up to its label alone (`graph/upto.py`), and on what a checkpoint holds:
so it does not matter when snapshots arrive, how many at a time, or how often the run was killed in between.
"""

from __future__ import annotations

import dataclasses
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from timeloom.config import build, dump, merge, parse_toml
from timeloom.dist.collectives import World
from timeloom.errors import BadConfig, BadStore
from timeloom.graph.dynamic import DynamicGraph, open_graph
from timeloom.graph.upto import UpTo
from timeloom.records import CHECKPOINTS, CONFIG, RunDirectory, is_run, read_config, refuse_in_the_way
from timeloom.train.arrivals import Arrivals
from timeloom.train.budget import expect, told_of_memory
from timeloom.train.checkpoint import fitting
from timeloom.train.choose import decided_of
from timeloom.train.goals.goal import Marks
from timeloom.train.inference import Result
from timeloom.train.live import first_scored, train_live
from timeloom.train.ranks import here, joined, refuse_impossible
from timeloom.train.runs import (
    Show,
    drive,
    find_checkpoint,
    ignore,
    on_first,
    settings_for,
    started_of,
    tell_beginning,
)
from timeloom.train.session import Session, Stopped, grown, open_session, scales_of
from timeloom.train.settings import RunSettings
from timeloom.train.stopping import stop_requests
from timeloom.train.trainer import Trainer, grouped, whole_number
from timeloom.train.verify import refuse_altered


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When to look for more, and when to end."""

    until: int = 0
    """End when the graph's first so many snapshots are done (0: go on)."""
    idle_s: float = 0.0
    """End when nothing has arrived for so long (0: wait for ever)."""
    poll_s: float = 1.0
    """Look at the graph so often."""

    def __post_init__(self) -> None:
        if self.until < 0 or self.idle_s < 0 or not self.poll_s > 0:
            raise BadConfig(
                f"--until {self.until}, --idle {self.idle_s:g} and --poll {self.poll_s:g}: give 0 or more, and more "
                "than 0 seconds between two looks"
            )


class Following(Arrivals):
    """The snapshots of a graph to which another process appends."""

    def __init__(self, graph: DynamicGraph, patience: Patience) -> None:
        self._graph, self._patience = graph, patience
        self._told: dict[str, dict[str, object]] = {}
        self.ended = "snapshots"

    def waits(self, trainer: Trainer) -> bool:
        """Say whether the next snapshot, or its label, has yet to arrive."""
        return len(self._graph) < self._needed(trainer) and not self._is_done(trainer)

    def _needed(self, trainer: Trainer) -> int:
        return trainer.progress.epoch + trainer.session.split.horizon + 1

    def _is_done(self, trainer: Trainer) -> bool:
        return 0 < self._patience.until < self._needed(trainer)

    def ready(self, trainer: Trainer) -> bool:
        """Collective. Wait for the next snapshot and its label, and go on with the graph up to there."""
        if self._is_done(trainer):
            self.ended = "snapshots"
            return False
        needed, since = self._needed(trainer), time.monotonic()
        while len(self._graph) < needed:
            before = len(self._graph)
            if not self._arrive(trainer.session, since):
                self.ended = "idle"
                return False
            since = time.monotonic() if len(self._graph) > before else since
        session = self.move(trainer, needed)
        t = trainer.progress.epoch
        if t >= first_scored(session.split):
            self._told = {name: marks.as_json() for name, marks in session.goal.baselines("test", t, t + 1).items()}
        return True

    def move(self, trainer: Trainer, count: int) -> Session:
        """Collective. Let the trainer go on with the first so many snapshots; return its session."""
        session = grown(trainer.session, UpTo(self._graph, count), count)
        if trainer.session.graph.num_edge_types != session.graph.num_edge_types and (
            session.settings.task.name == "edge_classes"
        ):
            raise BadConfig(
                f"{self._graph.name!r} has {session.graph.num_edge_types} edge types now, but the run began to tell "
                f"{trainer.session.graph.num_edge_types} apart: start a new run"
            )
        trainer.move_to(session)
        return session

    def _arrive(self, session: Session, since: float) -> bool:
        """Collective. Look whether there is more; say no when nothing came for too long."""
        world, patience = session.world, self._patience
        known = len(self._graph)
        fresh = open_graph(self._graph.path) if world.rank == 0 else self._graph
        idle = 0 < patience.idle_s <= time.monotonic() - since
        told = torch.tensor([int(session.should_stop()), int(idle and world.rank == 0), len(fresh)])
        stop, idle_now, length = world.all_reduce(told, "control/arrivals", "max").tolist()
        if stop:
            raise Stopped
        if length > known:
            before, self._graph = self._graph.store.files, _opened(fresh, length)
            if session.settings.train.verify:
                refuse_altered(world, self._graph, before)
            return True
        if idle_now:
            return False
        time.sleep(patience.poll_s)
        return True

    def told(self, trainer: Trainer) -> dict[str, dict[str, object]]:
        """Return what came of the baselines after the snapshot that was predicted."""
        return self._told

    def baselines(self, trainer: Trainer, first: int) -> dict[str, Marks]:
        """Return how good they were, by what was told."""
        found: dict[str, Marks] = {}
        for entry in trainer.progress.live:
            for name, told in entry["baselines"].items() if entry["t"] >= first else ():
                found.setdefault(name, Marks()).take_in(told)
        return found


def _opened(graph: DynamicGraph, length: int) -> DynamicGraph:
    """Return the graph with so many snapshots, which the first rank has seen; a shared disk may show them later."""
    until = time.monotonic() + 60.0
    while len(graph) < length:
        if time.monotonic() > until:
            raise BadStore(
                f"{graph.path} has {length} snapshots for the first rank, but {len(graph)} here: put it on a disk that "
                "all ranks share"
            )
        time.sleep(0.1)
        graph = open_graph(graph.path)
    return graph


def follow(
    graph: str | PathLike[str], out: str | PathLike[str], settings: Mapping[str, Any] | None = None, *,
    model: str | None = None, task: str | None = None, system: str | None = None, patience: Patience | None = None,
    name: str | None = None, show: Show = ignore,
) -> Result:  # fmt: skip
    """Train on a graph as it grows, in a run directory that is made, or gone on with where it is there.

    A run that is there goes on from its last checkpoint, or the one named. Under a launcher all ranks call this alike.
    """
    opened, path, seat = open_graph(graph), Path(out), here()
    given = merge(settings or {}, {"train": {"protocol": "live"}})
    chosen = settings_for(opened, given, model=model, task=task, system=system)
    named = bool(settings) or any(name is not None for name in (model, task, system))
    with stop_requests() as should_stop, joined(chosen, seat) as world, told_of_memory(chosen):
        chosen = _agreed(world, path, chosen, opened, named=named)
        refuse_impossible(chosen, world.size)
        known = chosen.live.known
        if len(opened) < known:
            raise BadConfig(
                f"{path} began with {known} snapshots of {opened.path}, which has {len(opened)} now: give the graph "
                "that it followed"
            )
        if chosen.train.verify:
            refuse_altered(world, opened)
        following = Following(opened, patience or Patience())
        with on_first(world, lambda: _directory(path, chosen)) as directory:
            saved = find_checkpoint(world, path / CHECKPOINTS, name)
            scales, decided, arrived = None, None, known
            if saved is not None:
                with fitting(saved.name):
                    scales, decided = scales_of(grouped(saved.tensors)["scales"]), decided_of(saved.state["decided"])
                    arrived = whole_number(saved.state["num_snapshots"])
            session = open_session(
                chosen, UpTo(opened, known), should_stop=should_stop, world=world, scales=scales, decided=decided
            )  # fmt: skip
            trainer, expected = Trainer(session, directory), expect(session)
            records, hint = train_live(trainer, following), f"timeloom follow {graph} --out {path}"
            if saved is None:
                if directory is not None:
                    directory.truncate(0)
                tell_beginning(trainer, [started_of(session, expected)], show)
                return drive(trainer, show, path, records=records, hint=hint, expected=expected)
            following.move(trainer, arrived)
            resumed = trainer.restore(saved)
            trainer.progress.ended = ""
            if directory is not None:
                directory.append(resumed)
                show(resumed)
            return drive(trainer, show, path, records=records, hint=hint, expected=expected)


def _agreed(world: World, path: Path, chosen: RunSettings, graph: DynamicGraph, *, named: bool) -> RunSettings:
    """Collective. Return the settings of the run that is there, or of a new one; the first rank looks."""
    told = ""
    if world.rank == 0:
        live = dataclasses.replace(chosen.live, known=chosen.live.known or len(graph))
        chosen = dataclasses.replace(chosen, live=live)
        told = dump(chosen)
        if is_run(path):
            told = _of_run(path, chosen, named=named)
    return build(RunSettings, tomllib.loads(world.broadcast_bytes(told.encode(), "control/settings").decode()))


def _of_run(path: Path, chosen: RunSettings, *, named: bool) -> str:
    """Return the configuration of a run that is there, if it may go on like this."""
    there = read_config(path)
    before = build(RunSettings, parse_toml(there, f"{path / CONFIG}"))
    if not before.live.known:
        raise BadConfig(f"{path} was not begun by 'timeloom follow': give another --out")
    again = dataclasses.replace(chosen, live=dataclasses.replace(chosen.live, known=before.live.known))
    if named and again != before:
        raise BadConfig(
            f"{path} follows {before.graph} with other settings than those given: leave them out to go on with its "
            "own, or give another --out"
        )
    if again.graph != before.graph:
        raise BadConfig(f"{path} follows {before.graph}, not {again.graph}: give another --out")
    return there


def _directory(path: Path, chosen: RunSettings) -> RunDirectory:
    return RunDirectory.open(path) if is_run(path) else RunDirectory.create(path, dump(chosen), overwrite=False)


def check(
    graph: str | PathLike[str], out: str | PathLike[str], settings: Mapping[str, Any], *, model: str | None,
    task: str | None, system: str | None, workers: int,
) -> None:  # fmt: skip
    """Refuse, before any rank starts, what all of them would refuse."""
    chosen = settings_for(
        open_graph(graph), merge(settings, {"train": {"protocol": "live"}}), model=model, task=task, system=system
    )  # fmt: skip
    path = Path(out)
    if is_run(path):
        named = bool(settings) or any(name is not None for name in (model, task, system))
        chosen = build(RunSettings, tomllib.loads(_of_run(path, chosen, named=named)))
    else:
        refuse_in_the_way(path, overwrite=False)
    refuse_impossible(chosen, workers)
