"""What a task asks of the rows that a model gives after a snapshot.

Shape letters: N nodes, H the model's output size, C classes, M chosen rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import Part
from timeloom.nn.heads import Head
from timeloom.train.goals.sample import Sample, Truth
from timeloom.train.here import Here
from timeloom.train.meeting import Meeting, Met, as_places
from timeloom.train.metrics import Tally, accuracy, macro_f1

Columns = dict[str, NDArray[Any]]
HELD_OUT_STREAM, PAIRS_STREAM, TRAIN_STREAM, BATCH_STREAM = 1, 2, 3, 4
"""What a keyed generator draws: targets held out, pairs that are scored, negatives of training, batches."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is to predict from after snapshot t."""

    t: int
    out_NH: Tensor
    """The model's rows. A node that is absent has the row it had last, one not yet born has 0 (SPEC D1.4)."""
    born_N: Tensor
    """bool: which nodes were there up to now."""
    nodes: Int64s | None = None
    """The nodes whose rows these are, by their places among those on this rank (None: all of them, in order)."""
    here: Here | None = None
    """Where the rows of a sampled batch are; row i is then that of ``here.nodes_M[i]``, and ``born_N`` of all nodes."""

    def among(self, counts_N: NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
        """Return the nodes that count, of those whose rows are here, and the places of their rows."""
        if self.nodes is None:
            nodes = np.flatnonzero(counts_N)
            return nodes, nodes
        rows = np.flatnonzero(counts_N[self.nodes])
        return self.nodes[rows], rows

    def drawn(self, counts_N: NDArray[np.bool_], draw: Draw) -> tuple[Int64s, Int64s]:
        """Return the nodes that count, were born and are drawn, as `among` does.

        Of a sampled batch they are drawn among all nodes, whichever of them are here.
        """
        born_N = self.born_N.cpu().numpy()
        if self.here is not None:
            nodes = self.here.mine(draw.among(np.flatnonzero(counts_N & born_N), self.t))
            return nodes, self.here.places(nodes)
        nodes, rows = self.among(counts_N)
        nodes, rows = nodes[born_N[rows]], rows[born_N[rows]]
        chosen = draw.of(len(nodes), self.t)
        return (nodes, rows) if chosen is None else (nodes[chosen], rows[chosen])

    def meet(self, meeting: Meeting, sources_P: Int64s, targets_P: Int64s) -> Met:
        """Collective. Return the pairs of this rank with the rows of both ends, wherever these are."""
        if self.here is None:
            return meeting.meet(self.out_NH, sources_P, targets_P)
        rows_LH, source_Q, target_Q, mine_Q = self.here.meet(self.out_NH, sources_P, targets_P)
        return Met(rows_LH, *as_places(source_Q, target_Q, rows_LH), mine_Q)


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss as a sum over targets, so that ranks may hold different ones."""

    total: Tensor
    count: float
    """How many targets, or the sum of their weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Which targets a loss is taken of, and what random draws are keyed by."""

    seed: int
    epoch: int
    side: Literal["all", "fit", "held"] = "all"
    held_out: float = 0.0
    """The share of the targets that `held` takes and `fit` leaves."""
    batch: int = 0
    """Which of several batches, to one of which each target is dealt."""
    batches: int = 1

    def among(self, nodes: Int64s, t: int) -> Int64s:
        """Return those of some targets of snapshot t that are meant."""
        chosen = self.of(len(nodes), t)
        return nodes if chosen is None else nodes[chosen]

    def rng(self, t: int) -> np.random.Generator:
        """Return the generator for the draws of one snapshot in one epoch."""
        return keyed(self.seed, TRAIN_STREAM, t, self.epoch)

    def of(self, count: int, t: int) -> NDArray[np.bool_] | None:
        """Return which of so many targets of snapshot t are meant; None: all. Sides are the same in every
        epoch, batches are not.
        """
        chosen: NDArray[np.bool_] | None = None
        if self.side != "all":
            held = keyed(self.seed, HELD_OUT_STREAM, t).random(count) < self.held_out
            chosen = held if self.side == "held" else ~held
        if self.batches > 1:
            dealt = keyed(self.seed, BATCH_STREAM, t, self.epoch).integers(self.batches, size=count) == self.batch
            chosen = dealt if chosen is None else chosen & dealt
        return chosen


def keyed(seed: int, stream: int, t: int, epoch: int = 0) -> np.random.Generator:
    """Return the generator of one purpose at one snapshot; it depends on nothing that was drawn before."""
    return np.random.Generator(np.random.Philox([seed, stream, t, epoch]))


class Marks:
    """The scores of one predictor over a part, target by target; of a few targets also what was predicted."""

    def __init__(self, *, most_sampled: int = 0) -> None:
        self.tally = Tally()
        self.confusion: Int64s | None = None
        self.sample = Sample(most_sampled)

    def count(self, confusion: Int64s) -> None:
        """Take in [C, C] counts."""
        self.confusion = confusion if self.confusion is None else self.confusion + confusion

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        confusion = None if self.confusion is None else self.confusion.tolist()
        sums = {name: list(both) for name, both in self.tally.sums().items()}
        return {"sums": sums, "confusion": confusion, "sample": self.sample.as_json()}

    def take_in(self, told: Mapping[str, Any]) -> None:
        """Add what `as_json` made of others."""
        if told["confusion"] is not None:
            self.count(np.array(told["confusion"], np.int64))
        for name, (total, count) in told["sums"].items():
            self.tally.add(name, total, count)
        # Checkpoints of the live protocol that were written before there were samples have none.
        self.sample.take_in(told.get("sample", []))

    def means(self) -> dict[str, float]:
        """Return every metric by its name."""
        counted = {}
        if self.confusion is not None:
            counted = {"accuracy": accuracy(self.confusion), "macro_f1": macro_f1(self.confusion)}
        return {**counted, **self.tally.means()}


class Goal(ABC):
    """A task, given a graph and a split."""

    metrics: tuple[str, ...]
    """The names of its metrics; the first is what validation goes by unless told otherwise."""
    truth: Truth
    """What its targets are."""

    @abstractmethod
    def head(self, num_in: int, dropout: float) -> Head:
        """Return what turns rows into predictions."""

    @abstractmethod
    def reads(self, t: int) -> NDArray[np.bool_] | None:
        """Return the nodes whose rows the loss after snapshot t may read, whatever is drawn (None: all)."""

    @abstractmethod
    def asks(self, t: int, born_N: NDArray[np.bool_], draw: Draw) -> Int64s:
        """Return the nodes whose rows the loss after snapshot t reads for a draw, ascending; these are born by then."""

    @abstractmethod
    def loss(self, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        """Return the loss of the targets of snapshot t, or None where it has none."""

    @abstractmethod
    def score(self, head: Head, seen: Seen, part: Part, marks: Marks) -> None:
        """Add how good the predictions after snapshot t are."""

    @abstractmethod
    def guesses(self, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        """Yield, for each snapshot from ``first`` to ``last`` (exclusive), what each baseline goes by after it."""

    @abstractmethod
    def baselines(self, part: Part, first: int, last: int) -> dict[str, Marks]:
        """Return how good those are that learn nothing, after each snapshot from ``first`` to ``last`` (exclusive).

        This readies `score` for these snapshots.
        """

    @abstractmethod
    def table(self, head: Head, seen: Seen, pairs: Int64s | None) -> Columns:
        """Return the predictions after snapshot t: columns `node`, or `source` and `target` ([2, P] ``pairs``)."""

    def is_better(self, metric: str, new: float, old: float) -> bool:
        """Say whether a value of a metric beats another; a nan beats nothing, and anything beats a nan."""
        if np.isnan(new) or np.isnan(old):
            return bool(np.isnan(old) and not np.isnan(new))
        return new < old if metric.rpartition(".")[2].startswith(("mse", "mae")) else new > old


def as_tensor(places: NDArray[Any], like: Tensor) -> Tensor:
    """Return an index array beside a tensor."""
    return torch.from_numpy(np.ascontiguousarray(places)).to(like.device)


def mask_of(nodes: Int64s, num_nodes: int) -> NDArray[np.bool_]:
    """Return which of all nodes are among the given ones."""
    mask = np.zeros(num_nodes, np.bool_)
    mask[nodes] = True
    return mask


def balance(counts_C: Mapping[int, int] | Int64s, num_classes: int) -> NDArray[np.float32]:
    """Return the [C] weights with which every class that occurs counts alike, 1 on average over targets.

    A class that does not occur, but may be met later under the live protocol, counts 1: with 0 its loss were 0 / 0.
    """
    counts = np.array([counts_C[c] for c in range(num_classes)], np.float64)
    present = counts > 0
    weights = np.where(present, counts.sum() / np.maximum(counts, 1) / max(present.sum(), 1), 1.0)
    return weights.astype(np.float32)


def class_loss(logits_MC: Tensor, classes_M: Int64s, weights_C: NDArray[np.float32] | None) -> Loss:
    """Return the cross entropy of classes that may weigh differently."""
    weights = None if weights_C is None else torch.from_numpy(weights_C).to(logits_MC)
    total = cross_entropy(logits_MC, as_tensor(classes_M, logits_MC), weights, reduction="sum")
    return Loss(total, len(classes_M) if weights_C is None else float(weights_C[classes_M].sum(dtype=np.float64)))
