"""What a run is made of: the graph, the split, the goal, the model, put together from the settings."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from timeloom.dist.collectives import World
from timeloom.dist.sync import share
from timeloom.dist.world import alone
from timeloom.errors import BadConfig
from timeloom.graph.tasks import GraphLike, Split, split_by_time
from timeloom.kernels.workspace import keep_memory
from timeloom.nn.heads import Head
from timeloom.nn.model import Model, Shared
from timeloom.nn.models import make_model
from timeloom.nn.stack import layers_of
from timeloom.plan.batch.pieces import Piece
from timeloom.plan.types import Unit
from timeloom.train.choose import Decided, decided_of
from timeloom.train.feed import Feed, Scales
from timeloom.train.goals import make_goal
from timeloom.train.goals.goal import Draw, Goal
from timeloom.train.holding import HOLDS_ALL, Holding, divided
from timeloom.train.profile import Profile
from timeloom.train.ranks import device_of
from timeloom.train.serves import hops_of, refuse_model
from timeloom.train.settings import RunSettings
from timeloom.train.walk import Walker
from timeloom.train.ways import decide, make_walker

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}
_WEIGHTS_STREAM, _UNIT_STREAM = 11, 12
# Rows of so few numbers take longer to share between threads than to compute; on a busy machine fifty times longer.
_SMALL = 1 << 18
# Torch's generator belongs to the process, and ranks may be threads of one.
_DRAWING = threading.Lock()


class Stopped(BaseException):
    """Somebody asked the run to stop; raised between units of work, where nothing is half done."""


class Predictor(nn.Module):
    """All that is learnt: the model, and the head that turns its rows into predictions."""

    def __init__(self, model: Model, head: Head) -> None:
        super().__init__()
        self.model = model
        self.head = head


@dataclass(frozen=True)
class Session:
    """A run, ready to train or to predict."""

    settings: RunSettings
    world: World
    graph: GraphLike
    """All of it, whatever of it is on this rank."""
    feed: Feed
    split: Split
    goal: Goal
    predictor: Predictor
    walker: Walker
    decided: Decided
    profile: Profile
    device: torch.device
    should_stop: Callable[[], bool]

    @property
    def model(self) -> Model:
        """The model."""
        return self.predictor.model

    @property
    def head(self) -> Head:
        """What turns its rows into predictions."""
        return self.predictor.head

    @property
    def restarts(self) -> bool:
        """Whether a part of the model's state starts anew in every window."""
        return any(isinstance(slot, Shared) for slot in self.model.memory())

    @property
    def metric(self) -> str:
        """The metric that validation goes by."""
        return self.settings.train.metric or self.goal.metrics[0]

    def check_stop(self) -> None:
        """Leave here if somebody asked the run to stop; one of several ranks leaves together with the others only."""
        if self.world.size == 1 and self.should_stop():
            raise Stopped

    def computing(self) -> torch.autocast:
        """Return the context in which models run: products in bfloat16 if that was asked for."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.train.precision == "bf16")


def open_session(
    settings: RunSettings,
    graph: GraphLike,
    *,
    num_snapshots: int | None = None,
    scales: Scales | None = None,
    decided: Decided | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    world: World | None = None,
) -> Session:
    """Put a run together. A graph that has grown since training is split as it was then (``num_snapshots``).

    ``scales`` and ``decided`` are those of an earlier session of the same run. Collective in a ``world`` of several
    ranks.
    """
    device = device_of(settings.train.device) if world is None else world.device
    world = world or alone(device)
    small = graph.num_nodes * settings.model.hidden < _SMALL
    if settings.train.threads or small:
        torch.set_num_threads(settings.train.threads or 1)
    if device.type == "cpu":
        keep_memory()
    split = _split(settings, len(graph) if num_snapshots is None else num_snapshots)
    feed = _feed(settings, graph, split, world)
    if scales is None:
        feed.measure(split.train_stop)
    feed.scales = scales or feed.scales
    goal = make_goal(feed, settings.task, split, settings.split, settings.train.seed)
    predictor = _predictor(settings, feed, goal, world)
    decided = decided or decide(settings, feed, layers_of(predictor.model)[0][0], split)
    # Costs are those of a machine: ranks on several of them go by those of the first.
    decided = decided_of(json.loads(world.broadcast_bytes(json.dumps(decided.as_json()).encode(), "control/decided")))
    profile = Profile()
    walker = make_walker(settings, feed, predictor.model, decided, profile)
    session = Session(
        settings, world, graph, feed, split, goal, predictor, walker, decided, profile, device, should_stop
    )  # fmt: skip
    if session.metric not in goal.metrics:
        raise BadConfig(
            f"train.metric={session.metric} is no metric of task.name={settings.task.name}: use one of "
            f"{', '.join(goal.metrics)}"
        )
    return session


def _predictor(settings: RunSettings, feed: Feed, goal: Goal, world: World) -> Predictor:
    """Collective. Return what is to be learnt, with the first rank's first weights."""
    with _DRAWING:
        if world.size > 1 or settings.system.divide in ("batches", "targets"):
            refuse_model(settings)
        with keyed_torch(settings.train.seed, _WEIGHTS_STREAM):
            model = make_model(feed.num_features, settings.model)
            predictor = Predictor(model, goal.head(model.out_size, settings.model.dropout))
    predictor = predictor.to(_DTYPES[settings.train.precision]).to(world.device)
    share(world, predictor.state_dict())
    return predictor


def grown(session: Session, graph: GraphLike, num_snapshots: int) -> Session:
    """Collective. Return the session of the same run on a graph that has grown: the same model, scales and decisions.

    Its parts stay those of the beginning, and the last one reaches to the label of the newest snapshot.
    """
    settings = session.settings
    split = dataclasses.replace(session.split, test_stop=num_snapshots - session.split.horizon)
    feed = _feed(settings, graph, split, session.world)
    feed.scales = session.feed.scales
    goal = make_goal(feed, settings.task, split, settings.split, settings.train.seed)
    walker = make_walker(settings, feed, session.model, session.decided, session.profile)
    return dataclasses.replace(session, graph=graph, feed=feed, split=split, goal=goal, walker=walker)


def _feed(settings: RunSettings, graph: GraphLike, split: Split, world: World) -> Feed:
    """Collective. Return what a model is fed of the part of a graph that is on this rank."""
    return Feed(
        graph, settings.task, settings.inputs, dtype=_DTYPES[settings.train.precision], device=world.device,
        cache_bytes=_cache_bytes(settings, world), at_hand=_at_hand(settings),
        reuse=settings.reuse, holding=_holding(settings, graph, split, world),
    )  # fmt: skip


def _split(settings: RunSettings, num_snapshots: int) -> Split:
    """Return the split; under the live protocol training alone is only what comes before the first scores."""
    split = split_by_time(settings.split, num_snapshots, settings.task.ahead)
    if settings.train.protocol == "fixed":
        return split
    return dataclasses.replace(
        split, train_stop=max(1, min(round(settings.live.warmup * split.test_stop), split.train_stop))
    )


def _holding(settings: RunSettings, graph: GraphLike, split: Split, world: World) -> Holding:
    """Collective. Return what of the graph is on this rank."""
    if world.size == 1 or settings.system.divide not in ("nodes", "batches"):
        return HOLDS_ALL
    system = settings.system
    if system.partition.by == "load" and not system.partition.layers:
        # What a node costs as a target follows from how far the model's rows hear (DynaHB 4.2).
        partition = dataclasses.replace(system.partition, layers=max(1, hops_of(settings.model)))
        system = dataclasses.replace(system, partition=partition)
    return divided(graph, split.train_stop, system, world)


def _at_hand(settings: RunSettings) -> int:
    """Return how many snapshots are kept whatever the size: those that a window goes over again and again.

    Windows that shrink keep what they need of older snapshots themselves, and stores a window's parts: what is at hand
    is then the newest snapshot and the one before, from which changes are found.
    """
    if settings.system.divide == "targets":
        return 1 if settings.task.ahead <= 1 else 2
    length = 1 if settings.system.unit == "trapezoid" else settings.window.length
    return length + settings.task.ahead + 2


def _cache_bytes(settings: RunSettings, world: World) -> int:
    """Return the room for what is kept; ranks of one machine share what is free of its memory."""
    asked = settings.train.cache_bytes
    if asked is None and settings.system.divide == "targets":
        # Stores hold what is needed; whole snapshots are read and let go.
        return 0
    if asked is not None:
        return asked
    quarter, most = int(psutil.virtual_memory().available) // (4 * world.local_size), settings.train.memory_bytes
    return quarter if most is None else min(quarter, most // 4)


@contextlib.contextmanager
def keyed_torch(*key: int) -> Iterator[None]:
    """Let torch draw from a generator that depends on the key alone; the global one is as it was afterwards.

    Layers of other libraries draw from torch's global generator, so it is the one that must be keyed.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_available() else []):
        torch.manual_seed(int(np.random.SeedSequence(list(key)).generate_state(2, np.uint32).view(np.uint64)[0] >> 1))
        yield


@contextlib.contextmanager
def unit_randomness(session: Session, draw: Draw, unit: Unit, *more: int) -> Iterator[None]:
    """Key torch's draws (dropout) by seed, epoch and window: the same in a resumed run, and on whatever rank.

    Ranks that go over the same window, each its own nodes' rows, draw apart; ``more`` is what else they go by.
    """
    apart = () if session.feed.holding.holds_all else (session.world.rank,)
    apart = (*more, *apart, *([unit.batch] if unit.batch else []))
    with keyed_torch(session.settings.train.seed, _UNIT_STREAM, draw.epoch, unit.first, unit.last, *apart):
        yield


@contextlib.contextmanager
def piece_randomness(session: Session, draw: Draw, piece: Piece) -> Iterator[None]:
    """Key torch's draws for a piece of a window; pieces draw otherwise than each other, and than one whole window."""
    window = piece.window
    key = (session.settings.train.seed, _UNIT_STREAM, draw.epoch, window.first, window.last, piece.first)
    with keyed_torch(*key):
        yield


def scale_tensors(scales: Scales) -> dict[str, Tensor]:
    """Return the scales as tensors, for a checkpoint."""
    return {
        "mean": torch.from_numpy(scales.mean_F),
        "deviation": torch.from_numpy(scales.deviation_F),
        "target": torch.tensor(
            [scales.target_mean, scales.target_deviation, scales.change_deviation], dtype=torch.float64
        ),
    }


def scales_of(tensors: dict[str, Tensor]) -> Scales:
    """Return the scales that were saved."""
    mean, deviation, change = tensors["target"].tolist()
    return Scales(tensors["mean"].numpy(), tensors["deviation"].numpy(), mean, deviation, change)
