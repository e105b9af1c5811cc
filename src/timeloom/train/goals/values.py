"""Predicting a number for each node: the next degree, or a signal some snapshots ahead.

Shape letters: N nodes, H the model's output size, M nodes that count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import l1_loss, mse_loss

from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.tasks import Part, TaskSettings
from timeloom.nn.heads import Head, NodeHead
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import Columns, Draw, Goal, Loss, Marks, Seen, as_tensor
from timeloom.train.goals.sample import Truth


class ValueGoal(Goal):
    """A value for each node. A node is *active* where it is in the snapshot seen or in the one predicted."""

    metrics = ("mse", "mae", "mse_all", "mae_all")

    def __init__(self, feed: Feed, task: TaskSettings) -> None:
        self._feed, self._task = feed, task
        ahead = f"{task.ahead} snapshot{'s' if task.ahead > 1 else ''} later"
        what = "log(1 + in-degree)" if task.name == "degree" else "the signal"
        self.truth = Truth(what=f"{what}, {ahead}", form="value")
        self._nodes = feed.holding.own(np.arange(feed.graph.num_nodes))

    def head(self, num_in: int, dropout: float) -> Head:
        """Return a linear map to one number."""
        return NodeHead(num_in, 1, dropout=dropout)

    @property
    def is_residual(self) -> bool:
        """Whether the change from the last known value is predicted: as asked for, or where it varies less."""
        scales = self._feed.scales
        assert scales is not None, "scales are measured or loaded before anything is predicted"
        if self._task.residual is None:
            return scales.change_deviation < scales.target_deviation
        return self._task.residual

    def _base(self, t: int) -> tuple[Float64s, float]:
        """Return what the model's output is added to, and what it is multiplied by first."""
        scales = self._feed.scales
        assert scales is not None, "scales are measured or loaded before anything is predicted"
        if not self.is_residual:
            return np.full(self._feed.num_nodes, scales.target_mean), scales.target_deviation
        before = self._feed.label_before(t)
        return np.where(np.isnan(before), scales.target_mean, before), scales.change_deviation

    def _active(self, t: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        later = t + self._task.ahead
        there: np.ndarray[tuple[int], np.dtype[np.bool_]] = self._feed.alive(t) | self._feed.alive(later)
        return there

    def reads(self, t: int) -> NDArray[np.bool_] | None:
        """Return the active nodes whose value is known."""
        known: NDArray[np.bool_] = self._active(t) & ~np.isnan(self._feed.label(t + self._task.ahead))
        return known

    def asks(self, t: int, born_N: NDArray[np.bool_], draw: Draw) -> Int64s:
        """Return the active nodes that were born and whose value is known."""
        known_N = ~np.isnan(self._feed.label(t + self._task.ahead))
        return draw.among(np.flatnonzero(self._active(t) & known_N & born_N), t)

    def loss(self, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        """Return the error of active nodes that were born, in units of the target's deviation."""
        assert isinstance(head, NodeHead)
        target = self._feed.label(seen.t + self._task.ahead)
        nodes_M, rows_M = seen.drawn(self._active(seen.t) & ~np.isnan(target), draw)
        if not len(nodes_M):
            return None
        base, scale = self._base(seen.t)
        wanted_M = torch.from_numpy((target - base)[nodes_M] / scale).to(seen.out_NH)
        told_M = head(seen.out_NH.index_select(0, as_tensor(rows_M, seen.out_NH)))[:, 0]
        # Under bf16 the rows are rounded, the error is not.
        exact = torch.promote_types(told_M.dtype, torch.float32)
        error = mse_loss if self._task.loss == "mse" else l1_loss
        return Loss(error(told_M.to(exact), wanted_M.to(exact), reduction="sum"), len(nodes_M))

    def predict(self, head: Head, seen: Seen) -> Float64s:
        """Return the [N] predicted values; of a node never seen it is what is predicted without a model."""
        assert isinstance(head, NodeHead)
        base, scale = self._base(seen.t)
        told = torch.where(seen.born_N, head(seen.out_NH)[:, 0].double(), 0.0)
        predicted: Float64s = base + scale * told.cpu().numpy()
        return predicted

    def score(self, head: Head, seen: Seen, part: Part, marks: Marks) -> None:
        """Add the errors, of active nodes and of all; active ones are sampled."""
        predicted_N, target_N = self.predict(head, seen), self._feed.label(seen.t + self._task.ahead)
        self._mark(marks, predicted_N, seen.t)
        counts_N = self._active(seen.t) & ~np.isnan(target_N)
        marks.sample.add(seen.t, self._nodes[counts_N], target_N[counts_N], predicted_N[counts_N])

    def _mark(self, marks: Marks, predicted: Float64s, t: int) -> None:
        target, active = self._feed.label(t + self._task.ahead), self._active(t)
        known = ~np.isnan(target)
        for suffix, counts in (("", known & active), ("_all", known)):
            error = (predicted - target)[counts]
            marks.tally.add(f"mse{suffix}", float(np.square(error).sum()), len(error))
            marks.tally.add(f"mae{suffix}", float(np.abs(error).sum()), len(error))

    def baselines(self, part: Part, first: int, last: int) -> dict[str, Marks]:
        """Return `zero`, `mean` (of the targets of training) and `persistence` (the last known value stays)."""
        marks = {name: Marks() for name in ("zero", "mean", "persistence")}
        for t, told in self.guesses(first, last):
            for name, predicted in told.items():
                self._mark(marks[name], predicted, t)
        return marks

    def guesses(self, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        """Yield the [N] values that each baseline predicts."""
        assert self._feed.scales is not None, "scales are measured or loaded before anything is scored"
        mean = self._feed.scales.target_mean
        latest = np.full(self._feed.num_nodes, np.nan)
        told = {"zero": np.zeros(len(latest)), "mean": np.full(len(latest), mean)}
        for t in range(last):
            if self._task.name == "signal" or t >= first:
                known = self._feed.label_before(t)
                latest = np.where(np.isnan(known), latest, known)
            if t >= first:
                yield t, {**told, "persistence": np.where(np.isnan(latest), mean, latest)}

    def table(self, head: Head, seen: Seen, pairs: Int64s | None) -> Columns:
        """Return every node's predicted value, and its last known one."""
        nodes = np.arange(self._feed.num_nodes)
        return {"node": nodes, "predicted": self.predict(head, seen), "last_known": self._feed.label_before(seen.t)}
