"""Predicting the class of each edge of a coming snapshot: its type, or its sign.

Shape letters: H the model's output size, C classes, P edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.errors import BadConfig
from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import Part, Split, TaskSettings, edge_classes_of
from timeloom.nn.heads import Head, PairHead
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import (
    PAIRS_STREAM,
    Columns,
    Draw,
    Goal,
    Loss,
    Marks,
    Seen,
    balance,
    class_loss,
    keyed,
    mask_of,
)  # fmt: skip
from timeloom.train.goals.sample import Truth
from timeloom.train.meeting import meeting_of
from timeloom.train.metrics import confusion


class EdgeClassGoal(Goal):
    """The class of each edge that is there `horizon` snapshots later, from the rows of its ends now."""

    metrics = ("macro_f1", "accuracy")

    def __init__(self, feed: Feed, task: TaskSettings, split: Split, seed: int) -> None:
        self._feed, self._task, self._split, self._seed = feed, task, split, seed
        self._kind = self._resolved(task.edge_class)
        self.classes = ["0 or more", "negative"]
        if self._kind == "type":
            self.classes = [f"type {number}" for number in range(feed.graph.num_edge_types)]
        what = "type of an edge" if self._kind == "type" else "weight of an edge"
        self.truth = Truth(what=what, form="class", classes=tuple(self.classes))
        self._meeting = meeting_of(feed.holding)
        self._counts_C: Int64s | None = None

    def _resolved(self, asked: str) -> Literal["type", "sign"]:
        num_types = self._feed.graph.num_edge_types
        if asked == "type" and not num_types:
            raise BadConfig(
                f"task.edge_class=type: the edges of {self._feed.graph.name!r} have no types; ingest it with --type"
            )
        return "type" if asked == "type" or (asked == "auto" and num_types) else "sign"

    def head(self, num_in: int, dropout: float) -> Head:
        """Return a small network of both ends."""
        return PairHead(num_in, len(self.classes), dropout=dropout)

    def _edges(self, t: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return sources, targets and classes of the edges that are predicted after snapshot t."""
        coming = self._feed.snapshot(t + self._task.ahead)
        return coming.sources, coming.targets, edge_classes_of(coming, self._kind)

    def _training_counts(self) -> Int64s:
        if self._counts_C is None:
            counts = np.zeros(len(self.classes), np.int64)
            for t in range(*self._split.of("train")):
                counts += np.bincount(self._edges(t)[2], minlength=len(counts))
            self._counts_C = counts
        return self._counts_C

    def _logits(self, head: Head, seen: Seen, sources_P: Int64s, targets_P: Int64s) -> tuple[Tensor, Int64s]:
        """Collective. Return the logits of this rank's edges, and which of all they are."""
        assert isinstance(head, PairHead)
        met = seen.meet(self._meeting, sources_P, targets_P)
        return head.score(head.ends(met.rows_LH), met.source_Q, met.target_Q), met.mine_Q

    def reads(self, t: int) -> NDArray[np.bool_] | None:
        """Return the ends of the edges to come."""
        sources_P, targets_P, _ = self._edges(t)
        ends = mask_of(np.concatenate([sources_P, targets_P]), self._feed.graph.num_nodes)
        return self._feed.holding.own(ends)

    def asks(self, t: int, born_N: NDArray[np.bool_], draw: Draw) -> Int64s:
        """Return the ends of the edges to come; one not yet born has no row anywhere."""
        sources_P, targets_P, _ = self._drawn(t, draw)
        return np.unique(np.concatenate([sources_P, targets_P]))

    def _drawn(self, t: int, draw: Draw) -> tuple[Int64s, Int64s, Int64s]:
        edges = self._edges(t)
        if (chosen := draw.of(len(edges[0]), t)) is None:
            return edges
        return edges[0][chosen], edges[1][chosen], edges[2][chosen]

    def loss(self, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        """Return the cross entropy of the edges to come."""
        sources_P, targets_P, classes_P = self._drawn(seen.t, draw)
        if not len(sources_P):
            return None
        logits_QC, mine_Q = self._logits(head, seen, sources_P, targets_P)
        logits_QC = logits_QC.to(torch.promote_types(logits_QC.dtype, torch.float32))
        weights_C = None
        if self._task.class_weights == "balanced":
            weights_C = balance(self._training_counts(), len(self.classes))
        return class_loss(logits_QC, classes_P[mine_Q], weights_C)

    def _scored(self, t: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return the edges that are scored: all, or so many as allowed, drawn by the seed."""
        sources_P, targets_P, classes_P = self._edges(t)
        if not 0 < self._task.most_pairs < len(sources_P):
            return sources_P, targets_P, classes_P
        chosen = np.sort(
            keyed(self._seed, PAIRS_STREAM, t).choice(len(sources_P), self._task.most_pairs, replace=False)
        )
        return sources_P[chosen], targets_P[chosen], classes_P[chosen]

    def score(self, head: Head, seen: Seen, part: Part, marks: Marks) -> None:
        """Add the counts of true and predicted classes."""
        sources_P, targets_P, classes_P = self._scored(seen.t)
        logits_QC, mine_Q = self._logits(head, seen, sources_P, targets_P)
        told_Q = logits_QC.argmax(1).cpu().numpy()
        marks.count(confusion(told_Q, classes_P[mine_Q], len(self.classes)))
        marks.sample.add(seen.t, self._pairs(sources_P, targets_P)[mine_Q], classes_P[mine_Q], told_Q)

    def baselines(self, part: Part, first: int, last: int) -> dict[str, Marks]:
        """Return `prior` (the commonest class of training) and `persistence` (the last class seen of the same pair)."""
        marks = {"prior": Marks(), "persistence": Marks()}
        # Every rank knows all of them: one speaks, and the others have counted nothing.
        for t, told in self.guesses(first, last) if self._meeting.tells else ():
            sources_P, targets_P, classes_P = self._scored(t)
            (prior,), (known, classes_of) = told["prior"], told["persistence"]
            marks["prior"].count(confusion(np.full(len(classes_P), prior), classes_P, len(self.classes)))
            looked_up = _looked_up(known, classes_of, self._pairs(sources_P, targets_P), prior)
            marks["persistence"].count(confusion(looked_up, classes_P, len(self.classes)))
        return marks

    def guesses(self, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        """Yield the class for all, and the pairs seen so far with the class of each."""
        prior = int(self._training_counts().argmax())
        known, classes_of = np.empty(0, np.int64), np.empty(0, np.int64)
        for t in range(last):
            now = self._feed.snapshot(t)
            known, classes_of = _newest(known, classes_of, self._pairs(now.sources, now.targets),
                                        edge_classes_of(now, self._kind))  # fmt: skip
            if t >= first:
                yield t, {"prior": np.array([prior]), "persistence": np.stack([known, classes_of])}

    def _pairs(self, sources_P: Int64s, targets_P: Int64s) -> Int64s:
        keys: Int64s = sources_P * self._feed.graph.num_nodes + targets_P
        return keys

    def table(self, head: Head, seen: Seen, pairs: Int64s | None) -> Columns:
        """Return the likeliest class, and the probability of each, of given pairs or of the edges seen."""
        now = self._feed.snapshot(seen.t)
        sources_P, targets_P = (now.sources, now.targets) if pairs is None else pairs
        shares_PC = torch.softmax(self._logits(head, seen, sources_P, targets_P)[0].double(), 1).cpu().numpy()
        predicted = np.array(self.classes)[shares_PC.argmax(1)]
        columns: Columns = {"source": sources_P, "target": targets_P, "predicted": predicted}
        columns.update({f"p_{name}": shares_PC[:, place] for place, name in enumerate(self.classes)})
        return columns


def _newest(keys: Int64s, values: Int64s, new_keys: Int64s, new_values: Int64s) -> tuple[Int64s, Int64s]:
    """Return sorted keys, each once with its newest value; of parallel edges the last one counts."""
    both = np.concatenate([new_keys[::-1], keys])
    merged, places = np.unique(both, return_index=True)
    return merged, np.concatenate([new_values[::-1], values])[places]


def _looked_up(keys: Int64s, values: Int64s, wanted: Int64s, otherwise: int) -> Int64s:
    if not len(keys):
        return np.full(len(wanted), otherwise)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], otherwise)
