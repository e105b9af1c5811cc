"""What can be told of a run: one frozen dataclass for each kind of record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run began: on which graph, and every number that was derived from its configuration."""

    kind: ClassVar[str] = "started"
    graph: str
    num_parameters: int
    derived: dict[str, str | int | float | bool]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The parameters were updated once; nodes and edges are those of the snapshots that the step went over."""

    kind: ClassVar[str] = "stepped"
    epoch: int
    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    nodes: int
    edges: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The model was measured on a split, and so were the baselines that need no training."""

    kind: ClassVar[str] = "evaluated"
    epoch: int
    split: str
    scores: dict[str, float]
    baselines: dict[str, dict[str, float]]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnded:
    """All units were gone over once more."""

    kind: ClassVar[str] = "epoch_ended"
    epoch: int
    loss: float
    learning_rate: float
    nodes: int
    edges: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint was written."""

    kind: ClassVar[str] = "saved"
    checkpoint: str
    epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Training went on from a checkpoint."""

    kind: ClassVar[str] = "resumed"
    checkpoint: str
    epoch: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something was told that a person should know."""

    kind: ClassVar[str] = "warned"
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run came to its end, for a reason."""

    kind: ClassVar[str] = "ended"
    reason: str
    epochs: int
    best_epoch: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviated:
    """How far rows that were computed approximately were from exact ones, on one window of an epoch."""

    kind: ClassVar[str] = "deviated"
    epoch: int
    what: str
    """What makes them approximate: 'sym-lazy', 'sym-static-src', 'sym-approx' or 'attention in steps'."""
    deviation: float
    """The size of the difference in shares of the size of the exact rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """What one rank did in one step, on the clock that all ranks share."""

    kind: ClassVar[str] = "spans"
    rank: int
    epoch: int
    step: int
    """As in `Stepped`."""
    began: float
    """When the step began on this rank: seconds since 1970 by the clock of rank 0."""
    parts: tuple[tuple[str, float, float], ...]
    """(phase, how long after `began`, how long), both in seconds. Phases are those of `PHASES`; what overlaps (an
    exchange behind a computation) may be told as it was. Rounded to a microsecond, a record stays short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What the collectives of one rank came to in one epoch, by the name of their group, and what memory it took."""

    kind: ClassVar[str] = "traffic"
    rank: int
    epoch: int
    calls: dict[str, int]
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    waited_s: dict[str, float]
    """Seconds in which the rank did nothing but wait."""
    peak_bytes: int
    """The most memory that the process held so far."""
    peak_device_bytes: int
    """The most memory that it held on its GPU so far; 0 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """Which rank does which unit in which step of an epoch; it holds for later epochs until there is another."""

    kind: ClassVar[str] = "scheduled"
    epoch: int
    by: str
    """The scheduler that found it: real_g, where real_l was asked for and did not come to an end in its time."""
    first_step: int
    """The number in `Stepped` of the epoch's first step."""
    units: tuple[tuple[int, int, int, int, float], ...]
    """(step of the epoch from 0, rank, first snapshot, the one after the last, predicted seconds or nan)."""
    predicted_s: float
    """What an epoch is predicted to take, with agreeing on gradients."""
    bound_s: float
    """No schedule is predicted to take less."""
    solved_s: float
    """What it took to find it, beside training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaged:
    """Ranks that train each for itself agreed at the end of a round; the sizes of its batches are shares."""

    kind: ClassVar[str] = "averaged"
    epoch: int
    step: int
    """As in `Stepped`, which counts rounds."""
    snapshots: float
    """The share of the snapshots of training that a batch had."""
    nodes: float
    """The share of a rank's nodes that were a batch's targets."""
    steps: tuple[int, ...]
    """What each rank learnt from."""
    loss: float
    """The mean over all ranks' steps."""
    step_seconds: float
    """What a step of the median rank took."""
    seconds: float
    """How long the round was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batched:
    """Where one rank's batches of its own nodes came from in an epoch, and what building them cost."""

    kind: ClassVar[str] = "batched"
    rank: int
    epoch: int
    reused: int
    """Kept ones that were used again."""
    unused: int
    """Built beside training before they were asked for."""
    whole: int
    """Of all the rank's nodes, in place of one that was not built."""
    built: int
    """Built while training waited."""
    waited_s: float
    """How long training waited for batches, wherever they came from."""
    beside: int
    """Built by other threads, for later."""
    beside_s: float
    """What these threads spent on them, added up."""
    hidden_s: float
    """How much of that passed while training did not wait for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the nodes of a snapshot went that arrived: told once for each snapshot, and again after a restart."""

    kind: ClassVar[str] = "placed"
    t: int
    held_bytes: tuple[int, ...]
    """What each rank then stores of a window."""
    capacity_bytes: int
    """What each may store."""
    kept_share: float
    """The share of the weight of all edges whose ends are on one rank."""
    moved: int
    """Nodes that were there before, and are on another rank now."""
    rounds: int
    swaps: int
    overflows: int
    """Nodes that fitted nowhere, or ranks that hold more than they may."""
    examples: tuple[tuple[int, int, int, int], ...]
    """The first few of them: (node, or -1 for a whole rank; rank; bytes needed; bytes free)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Which windows of [flare] trials have chosen, before a run began."""

    kind: ClassVar[str] = "tuned"
    full: int
    decayed: int
    alpha: float
    score: float
    """By how much the validation loss fell in a second."""
    trials: tuple[tuple[int, float, float, float, float, float], ...]
    """(full, alpha, loss before, loss after, seconds of training, bytes at the most or 0 where not known)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """What a run's graph is like; tuples have one entry for each snapshot."""

    kind: ClassVar[str] = "graph_facts"
    graph: str
    nodes: int
    edges: tuple[int, ...]
    active: tuple[int, ...]
    """Nodes with an edge."""
    overlap: tuple[float, ...]
    """Jaccard overlap of the edges with those of the snapshot before (1 for the first)."""
    train_stop: int
    val_stop: int
    test_stop: int
    """The snapshots after the last ones of training, of validation and of test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Some of what was predicted, beside what came true."""

    kind: ClassVar[str] = "predicted"
    split: str
    what: str
    """What the numbers are, such as 'log(1 + in-degree)'."""
    form: str
    """'value': both are numbers. 'class': both are places among `classes`. 'probability': that of 1, where truth is 0
    or 1, the places among `classes`."""
    classes: tuple[str, ...]
    truth: tuple[float, ...]
    predicted: tuple[float, ...]


PHASES = ("load", "encode", "recur", "backward", "communicate", "wait", "other", "build")
"""What a rank can be at in a step. ``build``: a thread beside training builds later batches."""

Record = (
    Started | Stepped | Evaluated | EpochEnded | Saved | Resumed | Warned | Ended | Deviated
    | Spans | Traffic | Scheduled | Averaged | Batched | Placed | Tuned | GraphFacts | Predicted
)  # fmt: skip
