"""Predicting the class of each node.

Shape letters: N nodes, H the model's output size, C classes, M nodes that count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from timeloom.graph.keys import Int64s
from timeloom.graph.tasks import Part, Split, SplitSettings, TaskSettings, node_parts
from timeloom.nn.heads import Head, NodeHead
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import Columns, Draw, Goal, Loss, Marks, Seen, as_tensor, balance, class_loss, mask_of
from timeloom.train.goals.sample import Truth
from timeloom.train.metrics import confusion


class ClassGoal(Goal):
    """A class for each node that is there and has a label.

    Where classes never change, nodes are dealt out to training, validation and test: else a model, or a table of last
    known classes, would be asked for what it was told.
    """

    metrics = ("accuracy", "macro_f1")

    def __init__(self, feed: Feed, task: TaskSettings, split: Split, shares: SplitSettings, seed: int) -> None:
        self._feed, self._task, self._split = feed, task, split
        self.classes = feed.graph.labels.classes
        self.truth = Truth(what="class of a node", form="class", classes=tuple(map(str, self.classes)))
        self._all_nodes = feed.holding.own(np.arange(feed.graph.num_nodes))
        by_node = task.node_split == "nodes" or (task.node_split == "auto" and feed.graph.labels.fixed)
        self._parts: dict[Part, NDArray[np.bool_]] | None = None
        if by_node:
            parts = node_parts(feed.graph.num_nodes, shares, seed)
            self._parts = {part: feed.holding.own(mask) for part, mask in parts.items()}
        self._counts_C: Int64s | None = None

    @property
    def hidden_nodes(self) -> NDArray[np.bool_] | None:
        """[N] which nodes have a class that nobody may look at, as they are not for training (None: none have)."""
        return None if self._parts is None else ~self._parts["train"]

    def head(self, num_in: int, dropout: float) -> Head:
        """Return a linear map to a number for each class."""
        return NodeHead(num_in, len(self.classes), dropout=dropout)

    def _nodes(self, t: int, part: Part) -> tuple[Int64s, Int64s]:
        """Return the nodes of a part that count after snapshot t, and their classes."""
        nodes, classes = np.flatnonzero(self._counts(t, part)), self._feed.label(t + self._task.ahead)
        return nodes, classes[nodes].astype(np.int64)

    def _counts(self, t: int, part: Part) -> NDArray[np.bool_]:
        """Return [N] which nodes of a part count after snapshot t."""
        classes = self._feed.label(t + self._task.ahead)
        counts: NDArray[np.bool_] = (classes >= 0) & self._feed.alive(t)
        return counts if self._parts is None else counts & self._parts[part]

    def _training_counts(self) -> Int64s:
        """Collective. Return how often each class occurs in training."""
        if self._counts_C is None:
            counts = np.zeros(len(self.classes), np.int64)
            for t in range(*self._split.of("train")):
                counts += np.bincount(self._nodes(t, "train")[1], minlength=len(counts))
            self._counts_C = self._feed.holding.total(counts, "classes").astype(np.int64)
        return self._counts_C

    def reads(self, t: int) -> NDArray[np.bool_] | None:
        """Return the nodes of training."""
        return mask_of(self._nodes(t, "train")[0], self._feed.num_nodes)

    def asks(self, t: int, born_N: NDArray[np.bool_], draw: Draw) -> Int64s:
        """Return the nodes of training."""
        return draw.among(np.flatnonzero(self._counts(t, "train") & born_N), t)

    def loss(self, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        """Return the cross entropy of the nodes of training."""
        assert isinstance(head, NodeHead)
        weights_C = None
        if self._task.class_weights == "balanced":
            weights_C = balance(self._training_counts(), len(self.classes))
        nodes_M, rows_M = seen.drawn(self._counts(seen.t, "train"), draw)
        if not len(nodes_M):
            return None
        classes_M = self._feed.label(seen.t + self._task.ahead)[nodes_M].astype(np.int64)
        logits_MC = head(seen.out_NH.index_select(0, as_tensor(rows_M, seen.out_NH)))
        logits_MC = logits_MC.to(torch.promote_types(logits_MC.dtype, torch.float32))
        return class_loss(logits_MC, classes_M, weights_C)

    def score(self, head: Head, seen: Seen, part: Part, marks: Marks) -> None:
        """Add the counts of true and predicted classes."""
        assert isinstance(head, NodeHead)
        nodes_M, classes_M = self._nodes(seen.t, part)
        logits_MC = head(seen.out_NH.index_select(0, as_tensor(nodes_M, seen.out_NH)))
        told_M = logits_MC.argmax(1).cpu().numpy()
        marks.count(confusion(told_M, classes_M, len(self.classes)))
        marks.sample.add(seen.t, self._all_nodes[nodes_M], classes_M, told_M)

    def baselines(self, part: Part, first: int, last: int) -> dict[str, Marks]:
        """Return `prior` (the commonest class of training) and `persistence` (the last known class of the node)."""
        marks = {"prior": Marks(), "persistence": Marks()}
        for t, told in self.guesses(first, last):
            nodes, classes = self._nodes(t, part)
            for name, predicted in told.items():
                marks[name].count(confusion(predicted[nodes], classes, len(self.classes)))
        return marks

    def guesses(self, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        """Yield the [N] classes that each baseline predicts."""
        prior = int(self._training_counts().argmax())
        latest = np.full(self._feed.num_nodes, prior)
        for t in range(last):
            if t - self._feed.known_behind >= 0:
                known = self._feed.label_before(t)
                tellable = known >= 0 if self._parts is None else (known >= 0) & self._parts["train"]
                latest = np.where(tellable, known, latest).astype(np.int64)
            if t >= first:
                yield t, {"prior": np.full(len(latest), prior), "persistence": latest}

    def table(self, head: Head, seen: Seen, pairs: Int64s | None) -> Columns:
        """Return every node's likeliest class, and the probability of each."""
        assert isinstance(head, NodeHead)
        shares_NC = torch.softmax(head(seen.out_NH).double(), 1).cpu().numpy()
        columns: Columns = {"node": np.arange(len(shares_NC)), "predicted": np.array(self.classes)[shares_NC.argmax(1)]}
        columns.update({f"p_{name}": shares_NC[:, place] for place, name in enumerate(self.classes)})
        return columns
