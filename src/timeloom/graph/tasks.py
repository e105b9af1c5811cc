"""What is to be predicted: which label, how far ahead, and which snapshots are for training, validation and test.

What is predicted after snapshot t is the label of snapshot ``t + horizon``; a split goes by the time of that label
(SPEC section 10). Shape letters: N nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from timeloom.errors import BadConfig
from timeloom.graph.features import Features, Labels
from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.names import NodeIds
from timeloom.graph.snapshot import NodeFacts, Snapshot

TaskName = Literal["degree", "signal", "classes", "links", "edge_classes"]
Part = Literal["train", "val", "test"]
Negatives = Literal["random", "historical", "inductive"]


class GraphLike(Protocol):
    """What training reads of a graph."""

    name: str
    num_nodes: int
    ids: NodeIds

    def __len__(self) -> int:
        """How many snapshots there are."""
        ...

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t."""
        ...

    def num_edges(self, t: int) -> int:
        """Return how many edges snapshot t has, without reading it where that is known."""
        ...

    @property
    def features(self) -> Features:
        """The features of the nodes, by snapshot."""
        ...

    @property
    def labels(self) -> Labels:
        """The labels of the nodes, by snapshot."""
        ...

    @property
    def num_edge_types(self) -> int:
        """How many types edges have (0: none)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What is to be predicted."""

    name: TaskName = "degree"
    """degree: log(1 + in-degree) of each node. signal: the value each node has as its label. classes: the class of each
    node. links: which pairs are linked. edge_classes: the class of each edge."""
    horizon: int | None = None
    """How many snapshots ahead (default 1; 0 for classes: the class of the snapshot that is seen)."""
    residual: bool | None = None
    """degree, signal: the model predicts the change from the last known value, not the value itself (default: where the
    change varies less than the value does, in training)."""
    loss: Literal["mse", "mae"] = "mse"  # degree, signal
    node_split: Literal["auto", "time", "nodes"] = "auto"
    """classes: nodes whose class never changes are dealt out to train, validation and test, so that no class is seen in
    training and asked for again; `time` lets every node be in all three."""
    class_weights: Literal["none", "balanced"] = "none"  # classes, edge_classes: what a rare class weighs in the loss
    edge_class: Literal["auto", "type", "sign"] = "auto"  # edge_classes: the type of an edge, or whether its weight < 0
    decoder: Literal["mlp", "dot"] = "mlp"  # links: how two nodes' rows become a score
    train_negatives: int = 1  # links: pairs that are not linked for each that is, in training; drawn at random
    negatives: tuple[Negatives, ...] = ("random", "historical")
    """links: what a model is tested against. random: any target; historical: a former target of the same source;
    inductive: the same, first seen after training."""
    num_negatives: int = 100  # links: for each pair that is scored
    most_pairs: int = 2_000
    """links, edge_classes: at most so many edges of a snapshot are scored in validation and test, drawn by the seed
    (0: all)."""

    def __post_init__(self) -> None:
        if self.horizon is not None and not 0 <= self.horizon <= 1_000_000:
            raise BadConfig(f"task.horizon={self.horizon} is no number of snapshots: give 0 or more")
        if self.name in ("degree", "links", "edge_classes") and self.horizon == 0:
            raise BadConfig(
                f"task.horizon=0 with task.name={self.name} asks for what the model is shown: give 1 or more"
            )
        for name, least in (("train_negatives", 1), ("num_negatives", 1), ("most_pairs", 0)):
            if getattr(self, name) < least:
                raise BadConfig(f"task.{name}={getattr(self, name)} is too small: give {least} or more")
        if not self.negatives or len(set(self.negatives)) != len(self.negatives):
            raise BadConfig(f"task.negatives={list(self.negatives)}: name each kind once, and at least one")

    @property
    def ahead(self) -> int:
        """How many snapshots ahead a label lies."""
        return (0 if self.name == "classes" else 1) if self.horizon is None else self.horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSettings:
    """Which labels are for training, for validation and for the test: the earliest, the next and the last."""

    train: float = 0.7  # the share of the labels, the earliest
    val: float = 0.15  # the share of the labels after those; the rest is the test

    def __post_init__(self) -> None:
        if not (0.0 < self.train < 1.0 and 0.0 < self.val < 1.0 and self.train + self.val < 1.0):
            raise BadConfig(
                f"split.train={self.train:g} and split.val={self.val:g} leave nothing for the test: both must be more "
                "than 0, and their sum less than 1"
            )


@dataclass(frozen=True, slots=True)
class Split:
    """The snapshots after which something is predicted, by the time of the label."""

    horizon: int
    train_stop: int
    """Predictions after snapshots 0 to this one (exclusive) are for training."""
    val_stop: int
    test_stop: int

    def of(self, part: Part) -> tuple[int, int]:
        """Return the snapshots of a part: the first one, and the one after the last."""
        return {
            "train": (0, self.train_stop), "val": (self.train_stop, self.val_stop),
            "test": (self.val_stop, self.test_stop),
        }[part]  # fmt: skip


def split_by_time(settings: SplitSettings, num_snapshots: int, horizon: int) -> Split:
    """Return the split of a graph; each part gets at least one label."""
    count = num_snapshots - horizon
    if count < 3:
        raise BadConfig(
            f"a split into train, validation and test needs 3 snapshots that have a label {horizon} ahead, but the "
            f"graph's {num_snapshots} snapshots have {max(count, 0)}: use a finer cut of time, or a smaller horizon"
        )
    train_stop = min(max(round(settings.train * count), 1), count - 2)
    val_stop = min(max(round((settings.train + settings.val) * count), train_stop + 1), count - 1)
    return Split(horizon, train_stop, val_stop, count)


def degree_label(snapshot: NodeFacts) -> Float64s:
    """Return log(1 + in-degree) of each node; weights count by their size, so that no logarithm is of less than 1.

    SPEC section 10; what the public codes of DynaHB and FlareDTDG learn.
    """
    return np.log1p(snapshot.strengths()[0])


def edge_classes_of(snapshot: Snapshot, kind: Literal["type", "sign"]) -> Int64s:
    """Return the class of each edge: its type, or 1 where its weight is negative and else 0."""
    return snapshot.types if kind == "type" else (snapshot.weights < 0).astype(np.int64)


def node_parts(num_nodes: int, split: SplitSettings, seed: int) -> dict[Part, NDArray[np.bool_]]:
    """Return which nodes are for training, validation and test; nodes appended later change nobody's part."""
    drawn = np.random.Generator(np.random.Philox([seed, 0x6E6F6465])).random(num_nodes)
    later = split.train + split.val
    return {"train": drawn < split.train, "val": (drawn >= split.train) & (drawn < later), "test": drawn >= later}
