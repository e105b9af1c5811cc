"""All that can be chosen of a run. No torch here, so that a command can read it in an instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from timeloom.errors import BadConfig
from timeloom.graph.tasks import SplitSettings, TaskSettings
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.hybrid_settings import HybridSettings
from timeloom.plan.batch.sample import DistdySettings
from timeloom.plan.batch.windows import WindowSettings
from timeloom.plan.partition.online import OnlineSettings
from timeloom.plan.schedule.choose import ScheduleSettings
from timeloom.plan.tune.window import TuneSettings
from timeloom.train.system import SystemSettings, WorldSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """What a model is shown of each node."""

    features: Literal["auto", "graph", "degree", "log_degree", "none"] = "auto"
    """graph: the graph's own; degree, log_degree: in- and out-degree of the snapshot. auto: the graph's own if it has
    any, else nothing beside the lags of a signal, else log_degree."""
    lags: int | None = None
    """How many of the last known labels are features too (default: 4 for signal, else 0)."""
    scale: Literal["standard", "none"] = "standard"
    """standard: mean 0 and deviation 1, by the nodes and snapshots of training alone (as the targets of degree and
    signal always are)."""

    def __post_init__(self) -> None:
        if self.lags is not None and not 0 <= self.lags <= 1_000:
            raise BadConfig(f"inputs.lags={self.lags} is no number of snapshots: give 0 to 1000")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimSettings:
    """How parameters are learnt."""

    name: Literal["adam", "adamw", "sgd"] = "adam"  # the optimizer
    rate: float = 1e-2  # the learning rate
    weight_decay: float = 0.0  # adamw: apart from the gradient; adam and sgd: added to it
    momentum: float = 0.9  # sgd
    clip: float = 1.0
    """The largest norm of the gradient; a larger one is scaled down (0: never)."""
    schedule: Literal["constant", "cosine", "step", "plateau"] = "constant"
    """cosine: down to 0 at the last epoch. step: times `factor` every `step_epochs`. plateau: times `factor` when
    validation has not improved for `step_epochs` epochs."""
    warmup_epochs: int = 0  # the rate grows evenly over the first so many epochs
    factor: float = 0.3  # see schedule
    step_epochs: int = 20  # see schedule

    def __post_init__(self) -> None:
        if not 0.0 < self.rate < 100.0:
            raise BadConfig(f"optim.rate={self.rate:g} is no learning rate: give more than 0, such as 0.01")
        if self.clip < 0 or self.weight_decay < 0 or not 0.0 <= self.momentum < 1.0:
            raise BadConfig("optim.clip and optim.weight_decay are 0 or more, and optim.momentum is from 0 to below 1")
        if not 0.0 < self.factor < 1.0 or self.step_epochs < 1 or self.warmup_epochs < 0:
            raise BadConfig(
                "optim.factor is between 0 and 1, optim.step_epochs 1 or more, optim.warmup_epochs 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """The live protocol (ROLAND): every snapshot is predicted first, then trained on."""

    steps: int = 20  # updates a snapshot, at most
    patience: int = 5  # stops after so many updates without improvement on the targets held out
    held_out: float = 0.1  # the share of a snapshot's targets that only decides when to stop
    warmup: float = 0.1
    """The share of the snapshots, the earliest, that is learnt from and not scored; scales are made of them alone."""
    known: int = 0
    """Snapshots that there were when `timeloom follow` began, which writes it down: shares are those of these
    snapshots (0: the run does not follow a graph)."""

    def __post_init__(self) -> None:
        if not 0.0 < self.warmup < 1.0:
            raise BadConfig(f"live.warmup={self.warmup:g} is no share: give more than 0 and less than 1")
        if self.steps < 1 or self.patience < 1 or not 0.0 < self.held_out < 1.0:
            raise BadConfig("live.steps and live.patience are 1 or more, and live.held_out is between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How long, how exactly and how safely."""

    protocol: Literal["fixed", "live"] = "fixed"
    """fixed: train on the earliest part, choose by the next, test on the last. live: see [live]."""
    epochs: int = 100  # passes over the training part, at most
    patience: int = 20
    """Stops after so many epochs without improvement in validation (0: never)."""
    metric: str = ""
    """What validation goes by (default: mse, accuracy, or mrr against the first kind of negatives)."""
    validate_every: int = 1  # epochs from one validation to the next
    seed: int = 0
    """The same seed gives the same run, to the bit; it draws first weights, dropout, negatives and node splits."""
    precision: Literal["float32", "float64", "bf16"] = "float32"
    """bf16: products in bfloat16, parameters, states between windows and losses in float32."""
    device: str = "auto"
    """auto: a GPU if there is one, else cpu."""
    threads: int = 0  # torch's threads (0: one for a small graph, else as torch chooses)
    cache_bytes: int | None = None
    """Snapshots are kept in memory up to this size, the rest is read again (default: a quarter of what is free)."""
    memory_bytes: int | None = None
    """The most memory that each rank may take. It is checked before the first step, which is rehearsed on small graphs
    for it (default: no limit)."""
    verify: bool = True
    """Before the first step every byte of the graph is read, once on each machine, and compared with its checksum;
    false for a graph so large that reading it takes too long."""
    save_seconds: float = 10.0
    """A checkpoint is written when the last one is this old, and at the end (0: after every step)."""
    keep: int = 2
    """How many checkpoints are kept; each holds the best parameters so far, too."""
    spans: int = 3
    """Of so many steps of every epoch it is recorded what each rank spent them on, for the timeline of a report."""
    log_steps: bool = False  # a record for every step, not for every epoch alone
    tensorboard: bool = False  # also write event files (needs the extra `tensorboard`)

    def __post_init__(self) -> None:
        least = {"epochs": 1, "patience": 0, "validate_every": 1, "threads": 0, "keep": 1, "spans": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise BadConfig(f"train.{name}={getattr(self, name)} is too small: give {value} or more")
        if not 0 <= self.seed < 2**63:
            raise BadConfig(f"train.seed={self.seed} is no seed: give 0 or more")
        if self.save_seconds < 0:
            raise BadConfig(f"train.save_seconds={self.save_seconds:g} is no time: give 0 or more")
        if self.cache_bytes is not None and self.cache_bytes < 0:
            raise BadConfig(f"train.cache_bytes={self.cache_bytes} is no size: give 0 or more")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise BadConfig(
                f"train.memory_bytes={self.memory_bytes} is no size: give more than 0, such as --memory 2GiB"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSettings:
    """What is computed once where snapshots, windows or epochs share it. All of it is exact but for `approximate`."""

    mode: Literal["auto", "full", "delta", "versions"] = "auto"
    """Where the rows of a window come from. full: a pass over every snapshot. delta: from what changed since the one
    before. versions: rows that are equal in several snapshots are computed once. auto: the least predicted time."""
    between_windows: bool = True
    """Windows that are computed in one step on one rank share rows, too (REAL's type II); else each makes its own."""
    cache: Literal["auto", "off"] = "auto"
    """auto: sums of input rows, which no parameter changes, are kept from epoch to epoch as far as there is room."""
    disk_bytes: int = 0
    """Room for them in a temporary file, beyond what train.cache_bytes allows in memory."""
    approximate: Literal["none", "sym-lazy", "sym-static-src", "sym-approx"] = "none"
    """How sums of the norms sym and both may be off, so that less of them changes from snapshot to snapshot (SPEC
    3.2). sym-lazy: a node's scale as a source is renewed when it is off by more than `lazy_eps`. sym-static-src: it
    is that of the snapshot in which the node first has an edge. sym-approx: REAL's Eq. 4, in training alone, to
    reproduce the paper. The deviation is measured once an epoch."""
    lazy_eps: float = 0.01
    """sym-lazy: a message is off by at most lazy_eps / (1 - lazy_eps) of itself."""

    def __post_init__(self) -> None:
        if self.disk_bytes < 0:
            raise BadConfig(f"reuse.disk_bytes={self.disk_bytes} is no size: give 0 or more")
        if not 0.0 <= self.lazy_eps < 1.0:
            raise BadConfig(f"reuse.lazy_eps={self.lazy_eps:g} is no share: give 0 or more, and less than 1")
        if self.approximate == "sym-approx" and self.mode in ("full", "versions"):
            raise BadConfig(
                f"reuse.approximate=sym-approx is a way from snapshot to snapshot, but reuse.mode={self.mode} takes no "
                "such way: use --set reuse.mode=delta, or sym-lazy"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """A run: what is trained on what, and how."""

    graph: str
    """The folder of the graph."""
    model: ModelSettings = field(default_factory=ModelSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    window: WindowSettings = field(default_factory=WindowSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    inputs: InputSettings = field(default_factory=InputSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    reuse: ReuseSettings = field(default_factory=ReuseSettings)
    live: LiveSettings = field(default_factory=LiveSettings)
    system: SystemSettings = field(default_factory=SystemSettings)
    hybrid: HybridSettings = field(default_factory=HybridSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    distdy: DistdySettings = field(default_factory=DistdySettings)
    world: WorldSettings = field(default_factory=WorldSettings)
    flare: FlareSettings = field(default_factory=FlareSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)

    def __post_init__(self) -> None:
        if self.system.divide == "targets":
            _refuse_unsampled(self)
        elif self.distdy != DistdySettings():
            raise BadConfig(
                f"[distdy] was set, but system.divide={self.system.divide} samples nothing: use --system distdy, or "
                "leave it out"
            )
        if self.system.unit == "trapezoid":
            _refuse_beside_trapezoids(self)
        elif (self.flare, self.tune) != (FlareSettings(), TuneSettings()):
            raise BadConfig(
                f"[flare] or [tune] was set, but system.unit={self.system.unit} takes windows of [window]: use "
                "--system flare, or leave them out"
            )
        if self.system.pipeline and self.model.dropout:
            raise BadConfig(
                f"system.pipeline=true with model.dropout={self.model.dropout:g}: two stages beside each other would "
                "draw in an order that nobody knows; use --set model.dropout=0, or --system psg"
            )
        if self.system.divide == "batches":
            _refuse_beside_batches(self)
        elif self.hybrid != HybridSettings():
            raise BadConfig(
                f"[hybrid] was set, but system.divide={self.system.divide} learns from whole windows: use --system "
                "dynahb, or leave it out"
            )
        if self.schedule.scheduler != "in_order":
            _refuse_idle_schedule(self)


def _refuse_idle_schedule(settings: RunSettings) -> None:
    """Refuse what would leave a schedule without any effect."""
    said = f"schedule.scheduler={settings.schedule.scheduler} says which rank takes which windows"
    if settings.system.divide != "windows":
        raise BadConfig(
            f"{said}, but with system.divide={settings.system.divide} all ranks go over all of them: leave it out, or "
            "use --system real"
        )
    if settings.window.groups != 1:
        raise BadConfig(
            f"{said}, and schedule.limit how many at once, but window.groups={settings.window.groups} does, too: leave "
            "window.groups out"
        )
    if settings.train.protocol == "live":
        raise BadConfig(
            f"{said}, but train.protocol=live learns from one snapshot after the other: use --set "
            "train.protocol=fixed, or schedule.scheduler=in_order"
        )


def _refuse_beside_trapezoids(settings: RunSettings) -> None:
    """Refuse what would have no effect, or none that anybody wants, where windows are those of [flare]."""
    window, reuse, name = settings.window, settings.reuse, settings.system.name
    if window != WindowSettings():
        raise BadConfig(f"[window] was set, but windows of system.name={name} are those of [flare]: leave it out")
    if settings.train.protocol == "live":
        raise BadConfig(
            f"train.protocol=live learns from one snapshot after the other, and system.name={name} from windows whose "
            "older snapshots shrink: use --set train.protocol=fixed"
        )
    if settings.schedule.needs_times:
        raise BadConfig(
            f"schedule.scheduler={settings.schedule.scheduler} chooses windows for ranks, but all ranks of system.name="
            f"{name} take the same ones, which follow each other: leave it out"
        )
    if reuse.mode in ("delta", "versions") or reuse.approximate != "none":
        raise BadConfig(
            f"reuse.mode={reuse.mode} and reuse.approximate={reuse.approximate} share rows between whole snapshots, "
            f"but system.name={name} computes parts of them: use --set reuse.mode=full, --set reuse.approximate=none"
        )
    if settings.flare.loss == "blocks" and settings.task.name not in ("degree", "signal"):
        raise BadConfig(
            f"flare.loss=blocks learns from parts of snapshots, of which task.name={settings.task.name} has no loss: "
            "use --set flare.loss=last"
        )


def _refuse_beside_batches(settings: RunSettings) -> None:
    """Refuse what batches of a rank's own nodes cannot be."""
    name, reuse = settings.system.name, settings.reuse
    if settings.task.name not in ("degree", "signal", "classes"):
        raise BadConfig(
            f"task.name={settings.task.name} with system.name={name}: a rank has the rows of its own nodes, and a pair "
            "may end elsewhere; use --system vertex, or a task about nodes"
        )
    if settings.train.protocol == "live":
        raise BadConfig(
            f"train.protocol=live learns from one snapshot after the other, and system.name={name} from batches of "
            "several: use --set train.protocol=fixed"
        )
    if reuse.mode in ("delta", "versions") or reuse.approximate != "none" or settings.schedule.needs_times:
        raise BadConfig(
            f"reuse.mode={reuse.mode}, reuse.approximate={reuse.approximate} and schedule.scheduler="
            f"{settings.schedule.scheduler} are about whole windows, but system.name={name} learns from batches: leave "
            "them out, or use --system real"
        )
    window = settings.window
    if window != WindowSettings(length=window.length, state=window.state):
        raise BadConfig(
            f"window.stride, window.targets, window.groups or window.shuffle was set, but system.name={name} learns "
            "from batches, and scores by window.length and window.state alone: leave them out; hybrid.snapshot_shares "
            "say how many snapshots a batch has"
        )
    if settings.system.recompute:
        raise BadConfig(
            f"system.recompute=true is about whole windows, but system.name={name} learns from batches: leave it out, "
            "or give smaller hybrid.snapshot_shares"
        )


def _refuse_unsampled(settings: RunSettings) -> None:
    """Refuse what sampled batches cannot do."""
    window, layers = settings.window, len(settings.distdy.fanouts)
    if window.state != "zero" or window.groups != 1:
        raise BadConfig(
            f"window.state={window.state} with window.groups={window.groups}: sampled windows are embedded "
            "anew, one after the other, where targets are divided; use --set window.state=zero and window.groups=1"
        )
    if layers != settings.model.layers:
        raise BadConfig(
            f"distdy.fanouts={list(settings.distdy.fanouts)} are for {layers} layers, but model.layers="
            f"{settings.model.layers}: give one fan-out for each layer"
        )
    online, usual = settings.system.partition.online, OnlineSettings()
    if (online.window, online.sampling) != (usual.window, usual.sampling):
        raise BadConfig(
            f"system.partition.online.window={online.window} or system.partition.online.sampling was set, but where "
            "targets are divided nodes are placed for the run's own window.length and distdy.fanouts: leave them out"
        )
    if settings.reuse.approximate != "none" or settings.schedule.needs_times:
        raise BadConfig(
            f"reuse.approximate={settings.reuse.approximate} and schedule.scheduler={settings.schedule.scheduler} are "
            "for whole windows, but system.divide=targets samples them: leave both out"
        )
