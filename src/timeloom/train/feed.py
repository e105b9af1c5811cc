"""What the loop is fed of each snapshot: the view, the input rows and the labels, kept in memory as far as allowed.

Shape letters: N nodes, F features, L lags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from timeloom.errors import BadConfig
from timeloom.graph.features import Float32s, degree_rows
from timeloom.graph.keys import Float64s
from timeloom.graph.snapshot import NodeFacts, Snapshot
from timeloom.graph.tasks import GraphLike, TaskSettings, degree_label
from timeloom.kernels.norms import Norm
from timeloom.train.drifting import Drifting
from timeloom.train.faults import Faults
from timeloom.train.holding import HOLDS_ALL, Holding
from timeloom.train.kept import AtHand, Kept, Room
from timeloom.train.localise import WholeView
from timeloom.train.part_view import PartView
from timeloom.train.settings import InputSettings, ReuseSettings

_SNAPSHOTS_FOR_SCALES = 64
_EXACT = ReuseSettings()


@dataclass(frozen=True, slots=True)
class Scales:
    """What inputs and targets are shifted and divided by; from training alone (SPEC section 10)."""

    mean_F: Float64s
    deviation_F: Float64s
    target_mean: float
    target_deviation: float
    change_deviation: float
    """Of the change from the last known value to the target."""


class Feed:
    """A graph as tensors, snapshot by snapshot: the rows of the nodes that are on this rank."""

    def __init__(
        self, graph: GraphLike, task: TaskSettings, inputs: InputSettings, *, dtype: torch.dtype, device: torch.device,
        cache_bytes: int, at_hand: int = 4, reuse: ReuseSettings = _EXACT, holding: Holding = HOLDS_ALL,
    ) -> None:  # fmt: skip
        """``at_hand`` snapshots are kept whatever the size: those that a window goes over again and again.

        As many more are what may be read ahead. What of the graph is here follows from ``holding``; a rank that has
        some of the nodes never keeps whole snapshots.
        """
        self.graph, self._task, self._inputs, self.holding = graph, task, inputs, holding
        self.dtype, self.device = dtype, device
        self.num_nodes = holding.count(graph.num_nodes)
        self.reads_ahead = at_hand
        self._near = AtHand[int, Snapshot](2 * at_hand if holding.holds_all else 1)
        self._near_views = AtHand[int, WholeView | PartView](2 * at_hand)
        self._near_rows = AtHand[int, Tensor](2 * at_hand)
        self.room = room = Room(cache_bytes)
        self._snapshots, self._views = Kept[int, Snapshot](room), Kept[int, WholeView | PartView](room)
        self._facts = Kept[int, NodeFacts](room)
        self._rows, self._arrays = Kept[int, Tensor](room), Kept[tuple[str, int], NDArray[Any]](room)
        self._fixed: Tensor | None = None
        lags = reuse.approximate in ("sym-lazy", "sym-static-src")
        self._drifting = Drifting(reuse, self._exact_sources) if lags else None
        self.scales: Scales | None = None
        self.faults = Faults()
        """What was read that is no number: a run stops at it."""
        self.features = self._resolved(inputs.features)
        self.lags = (4 if task.name == "signal" else 0) if inputs.lags is None else inputs.lags
        self._refuse_impossible()

    def _resolved(self, asked: str) -> str:
        """Return which features are shown, where `auto` was asked for."""
        if asked != "auto":
            return asked
        if self.graph.features.num_features:
            return "graph"
        return "none" if self._task.name == "signal" and self._inputs.lags != 0 else "log_degree"

    def _refuse_impossible(self) -> None:
        name, kind = self.graph.name, self.graph.labels.kind
        wanted = {"signal": "value", "classes": "class"}.get(self._task.name)
        if wanted is not None and kind != wanted:
            raise BadConfig(
                f"task.name={self._task.name} needs a graph whose labels are of kind {wanted}, but those of {name!r} "
                f"are of kind {kind}: ingest it with --labels, or choose another task"
            )
        if self.features == "graph" and not self.graph.features.num_features:
            raise BadConfig(
                f"inputs.features=graph: {name!r} has no features; use log_degree, or ingest with --features"
            )
        if self.lags and self._task.name not in ("signal", "degree"):
            raise BadConfig(
                f"inputs.lags={self.lags} shows past values, but task.name={self._task.name} has none: leave lags out"
            )
        if self.num_features == 0:
            raise BadConfig(f"a model of {name!r} would be shown nothing: give inputs.features or inputs.lags")

    @property
    def num_features(self) -> int:
        """How many numbers a model is shown of each node."""
        own = {"graph": self.graph.features.num_features, "none": 0}.get(self.features, 2)
        return own + self.lags

    @property
    def unchanging(self) -> bool:
        """Whether every snapshot has the same rows."""
        return self.features == "graph" and self.graph.features.fixed and not self.lags

    @property
    def known_behind(self) -> int:
        """How many snapshots before the present one the last known label lies: 1 where the present one is asked for."""
        return 0 if self._task.ahead else 1

    def snapshot(self, t: int) -> Snapshot:
        """Return snapshot t, all of it; the last few are at hand. Two threads may ask."""
        if (kept := self._snapshots.get(t)) is not None:
            return kept
        return self._near.get(t, lambda: self._read(t))

    def _read(self, t: int) -> Snapshot:
        found = self.graph.snapshot(t)
        self.faults.look_at_weights(found, torch.finfo(self.dtype).max)
        return self._snapshots.offer(t, found, found.num_bytes) if self.holding.holds_all else found

    def facts(self, t: int) -> NodeFacts:
        """Return what is known of the nodes here in snapshot t."""
        if self.holding.holds_all:
            return self.snapshot(t)
        if (kept := self._facts.get(t)) is not None:
            return kept
        made = self.holding.facts(self.snapshot(t))
        return self._facts.offer(t, made, made.num_bytes)

    def alive(self, t: int) -> NDArray[np.bool_]:
        """Return which of the nodes here are there in snapshot t."""
        return self.facts(t).alive

    def remembered(self, what: str, t: int, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return what is made of snapshot t; it is made again only where there was no room for it."""
        if (kept := self._arrays.get((what, t))) is not None:
            return kept
        made = make()
        return self._arrays.offer((what, t), made, made.nbytes)

    def has(self, t: int) -> bool:
        """Say whether all of snapshot t is kept."""
        rows = self._fixed is not None or self._rows.get(t) is not None
        facts = (self._snapshots if self.holding.holds_all else self._facts).get(t)
        return rows and self._views.get(t) is not None and facts is not None

    def view(self, t: int) -> WholeView | PartView:
        """Return what a model sees of snapshot t."""
        if (kept := self._views.get(t)) is not None:
            return kept
        return self._near_views.get(t, lambda: self._lay_out(t))

    def _lay_out(self, t: int) -> WholeView | PartView:
        view = self.holding.view(
            self.snapshot(t), lambda: self.snapshot(t), dtype=self.dtype, device=self.device, drifting=self._drifting
        )
        # What norms add to a view comes later: three numbers a node.
        return self._views.offer(t, view, view.num_bytes + 3 * self.dtype.itemsize * view.edges.num_nodes)

    def whole_view(self, t: int) -> WholeView:
        """Return the same, where every node is here."""
        view = self.view(t)
        assert isinstance(view, WholeView), "rows are shared between snapshots where every node is here"
        return view

    def _exact_sources(self, t: int, norm: Norm) -> Tensor | None:
        return self.whole_view(t).exact_scales(norm).source_N

    def rows(self, t: int) -> Tensor:
        """Return the [N, F] input rows of snapshot t."""
        if self._fixed is not None:
            return self._fixed
        if (kept := self._rows.get(t)) is not None:
            return kept
        return self._near_rows.get(t, lambda: self._make_rows(t))

    def _make_rows(self, t: int) -> Tensor:
        # In torch's own memory: what a product of it comes to, to the last bit, depends on where it begins.
        made = torch.from_numpy(self.scaled(self.raw(t))).to(self.dtype, copy=True).to(self.device)
        if self.unchanging:
            self._fixed = made
            return made
        return self._rows.offer(t, made, made.numel() * made.element_size())

    def scaled(self, raw: Float32s) -> NDArray[Any]:
        """Return raw rows as a model is shown them."""
        if self.scales is None:
            return np.nan_to_num(raw)
        # A number that is not known becomes the mean.
        return np.nan_to_num((raw - self.scales.mean_F) / self.scales.deviation_F)

    def raw(self, t: int) -> Float32s:
        """Return the [N, F] rows before scaling; NaN where a label is not known."""
        parts: list[NDArray[Any]] = []
        features = self.graph.features
        if self.features == "graph" and features.degrees is None:
            parts.append(self.holding.own(features.at(t)))
        elif self.features != "none":
            log = self.features == "log_degree" or (self.features == "graph" and features.degrees == "log")
            parts.append(degree_rows(self.facts(t), log=log))
        for part in parts:
            self.faults.look(f"the features ({self.features})", t, part)
        with np.errstate(over="ignore"):
            lags = [self.label_before(t, lag)[:, None].astype(np.float32) for lag in range(self.lags)]
        for part in lags:
            self.faults.look("the last known labels", t, part, unknown=True)
        parts.extend(lags)
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)

    def label_before(self, t: int, lag: int = 0) -> NDArray[Any]:
        """Return the last labels known when snapshot t is seen, or those ``lag`` snapshots before them (NaN: none)."""
        place = t - self.known_behind - lag
        return self.label(place) if place >= 0 else np.full(self.num_nodes, np.nan)

    def label(self, t: int) -> NDArray[Any]:
        """Return the label of each node in snapshot t: a value (NaN: unknown) or a class (-1: unknown)."""
        if self._task.name == "degree":
            return self.remembered("label", t, lambda: self._looked_at(t, degree_label(self.facts(t))))
        return self.remembered("label", t, lambda: self._looked_at(t, self.holding.own(self.graph.labels.at(t))))

    def _looked_at(self, t: int, labels: NDArray[Any]) -> NDArray[Any]:
        self.faults.look("the labels", t, labels, unknown=True)
        return labels

    def measure(self, train_stop: int) -> Scales:
        """Collective. Return the scales of the snapshots of training (of at most 64, evenly spread) and use them."""
        raw, targets, changes = _Moments(self.num_features), _Moments(1), _Moments(1)
        values = self._task.name in ("degree", "signal")
        count = min(train_stop, _SNAPSHOTS_FOR_SCALES)
        for t in np.unique(np.linspace(0, train_stop - 1, count).astype(int)).tolist():
            here = self.alive(t)
            # Features that never change are read once, with the nodes of the last snapshot.
            if self._inputs.scale == "standard" and (not self.unchanging or t == train_stop - 1):
                raw.add(self.raw(t)[here])
            if values:
                target, before = self.label(t + self._task.ahead), self.label_before(t)
                targets.add(target[here, None])
                with np.errstate(over="ignore", invalid="ignore"):
                    changes.add((target - before)[here, None])
        all_raw, all_targets, all_changes = (
            moments.of_all_ranks(self.holding).mean_and_deviation() for moments in (raw, targets, changes)
        )
        (mean,), (deviation,) = all_targets
        (change,) = all_changes[1]
        self.scales = Scales(*all_raw, float(mean), float(deviation), float(change))
        told = np.concatenate([*all_raw, [mean, deviation, change]])
        if not np.isfinite(told).all():
            self.faults.note("the mean or the deviation of inputs or labels in training (values beyond 1e150)")
        return self.scales


class _Moments:
    """Mean and deviation of columns, rows by rows; what is not a number does not count."""

    def __init__(self, num_columns: int) -> None:
        self._count, self._sum, self._squares = (np.zeros(num_columns) for _ in range(3))

    def add(self, rows: NDArray[Any]) -> None:
        wide = rows.astype(np.float64)
        known = np.isfinite(wide)
        wide = np.where(known, wide, 0.0)
        self._count += known.sum(0)
        with np.errstate(over="ignore"):
            self._sum += wide.sum(0)
            self._squares += np.square(wide).sum(0)

    def of_all_ranks(self, holding: Holding) -> _Moments:
        """Collective. Return the moments of the rows of all ranks."""
        whole = _Moments(len(self._sum))
        told = holding.total(np.stack([self._count, self._sum, self._squares]), "moments")
        whole._count, whole._sum, whole._squares = told
        return whole

    def mean_and_deviation(self) -> tuple[Float64s, Float64s]:
        """Return both; a column that never varies is divided by 1."""
        count = np.maximum(self._count, 1)
        mean = self._sum / count
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.maximum(self._squares / count - np.square(mean), 0.0)
            varies = (variance > 1e-12 * np.maximum(np.square(mean), 1e-12)) | ~np.isfinite(variance)
        return mean, np.where(varies, np.sqrt(variance), 1.0)
