"""How a model is taken over a cutout: layer by layer, each over the rows that it reads.

What comes out is exact in the targets, whatever lies in rows that nobody reads.

Shape letters: T snapshots, N rows that a layer reads, M rows that it gives, V targets, H the model's output size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout

from timeloom.kernels.blocked import Precision, Window, walk_window
from timeloom.kernels.front import Sight
from timeloom.kernels.workspace import Pool
from timeloom.nn.model import Model, PerNode, RowModel, State, remember, resume, start
from timeloom.nn.stack import layers_of
from timeloom.plan.batch.cutout import Cutout
from timeloom.plan.batch.layered import Levels, rows_given
from timeloom.plan.batch.neighbourhood import LayerReach
from timeloom.train.encode import Encoded, encode_above
from timeloom.train.goals.goal import Seen
from timeloom.train.hybrid.view import CutoutView
from timeloom.train.profile import Profile
from timeloom.train.session import Session
from timeloom.train.walk import Carry
from timeloom.train.window_view import SomeNodes


def reach_of(model: Model) -> tuple[LayerReach, ...]:
    """Return what each layer of a model needs of other rows."""
    return tuple(
        LayerReach(hops=layer.hops, remembers=any(isinstance(slot, PerNode) for slot in layer.memory()))
        for layer in layers_of(model)[0]
    )


@dataclass(frozen=True, slots=True)
class CutoutWalker:
    """A model, and how it goes over cutouts."""

    model: Model
    hold: bool
    """A node that is absent keeps its state and its last row, else it goes on without edges."""
    precision: Precision
    dtype: torch.dtype
    device: torch.device
    profile: Profile
    pool: Pool

    def start(self, levels: Levels) -> Carry:
        """Return what there is before the first snapshot; the rows of a layer's state are those that it gives."""
        like, state = next(self.model.parameters()), list[Tensor]()
        for layer, count in zip(layers_of(self.model)[0], rows_given(levels), strict=True):
            state.extend(start(layer.memory(), count, like))
        targets = levels[0].num_targets
        born_V = torch.zeros(targets, dtype=torch.bool, device=like.device)
        return Carry(tuple(state), like.new_zeros(targets, self.model.out_size), born_V)

    def goes_on(self, carry: Carry) -> Carry:
        """Return what a window starts from that goes on where another ended; no gradient flows back into that one."""
        like = next(self.model.parameters())
        # Under bf16 what is carried from window to window is kept exactly.
        state = tuple(part.to(like.dtype) for part in resume(self.model.memory(), carry.state))
        return Carry(state, carry.out_NH.detach().to(like.dtype), carry.born_N)

    def walk(
        self, levels: Levels, inputs_T: list[Tensor], before: Carry, *, keep: int = -1
    ) -> tuple[list[Seen], Carry]:
        """Return what is seen of the targets after every snapshot, and what there is after snapshot ``keep``."""
        layers, rate = layers_of(self.model)
        rows_T, kept, place = inputs_T, list[Tensor](), 0
        for depth, (layer, level, count) in enumerate(zip(layers, levels, rows_given(levels), strict=True)):
            if depth:
                rows_T = [dropout(rows, rate, self.model.training) for rows in rows_T]
            views = [self._view(level, t) for t in range(level.first, level.last)]
            with self.profile.phase("encode"):
                encoded = encode_above(layer, views, rows_T, (None,) * len(views), opening=None)
            state = before.state[place : place + len(layer.memory())]
            place += len(state)
            with self.profile.phase("recur"):
                remembers = self._in_blocks if isinstance(layer, RowModel) else self._step_by_step
                rows_T, after = remembers(layer, encoded, views, state, count=count, keep=keep)
            kept.extend(after)
        return self._seen(levels, rows_T, before, tuple(kept), keep=keep)

    def _view(self, level: Cutout, t: int) -> CutoutView:
        return CutoutView(level.rows(t), t, dtype=self.dtype, device=self.device)

    def _in_blocks(
        self, layer: Model, encoded: Encoded, views: list[CutoutView], state: State, *, count: int, keep: int
    ) -> tuple[list[Tensor], State]:  # fmt: skip
        """Take a layer's maps and cell over all snapshots in blocks of nodes; return outputs and what is kept."""
        assert isinstance(layer, RowModel), "chosen by its kind"
        masks = [view.alive_N[:count] if self.hold and not view.all_alive else None for view in views]
        first = views[0].t
        window = Window(
            sights=tuple(Sight(encoded.part(t)[0][:count], None, mask) for t, mask in enumerate(masks)),
            front=encoded.maps, cell=layer.cell(), wanted=tuple(range(len(views))),
            keep=keep - first if keep >= 0 else None, precision=self.precision,
        )  # fmt: skip
        with torch.autocast(self.device.type, enabled=False):
            walked = walk_window(window, state, self.pool)
        return list(walked.outputs), state if walked.kept is None else walked.kept

    def _step_by_step(
        self, layer: Model, encoded: Encoded, views: list[CutoutView], state: State, *, count: int, keep: int
    ) -> tuple[list[Tensor], State]:  # fmt: skip
        """Take a layer's memory over all snapshots, one by one; return outputs and what is kept."""
        outputs, kept = list[Tensor](), state
        for place, view in enumerate(views):
            rows = tuple(part[:count] for part in encoded.rows(place))
            out, state = remember(layer, SomeNodes(view.t, view.alive_N[:count]), rows, state, hold=self.hold)
            outputs.append(out)
            kept = state if view.t == keep else kept
        return outputs, kept

    def _seen(
        self, levels: Levels, outputs: list[Tensor], before: Carry, kept: State, *, keep: int
    ) -> tuple[list[Seen], Carry]:  # fmt: skip
        """Return what is seen: absent nodes show the row that they had last."""
        cutout, seen, after = levels[0], list[Seen](), before
        out_VH, born_V = before.out_NH, before.born_N
        for t, out in zip(range(cutout.first, cutout.last), outputs, strict=True):
            alive_V = torch.from_numpy(cutout.rows(t).alive_N[: cutout.num_targets]).to(self.device)
            born_V = born_V | alive_V
            here_V = alive_V if self.hold else born_V
            out_VH = torch.where(here_V[:, None], out, out_VH.to(out.dtype))
            seen.append(Seen(t, out_VH, born_V))
            if t == keep:
                after = Carry(kept, out_VH, born_V)
        return seen, after


def cutout_walker(session: Session) -> CutoutWalker:
    """Return what takes a session's model over cutouts."""
    train = session.settings.train
    return CutoutWalker(
        session.model, session.settings.model.absent == "hold", "bf16" if train.precision == "bf16" else "exact",
        session.feed.dtype, session.device, session.profile, Pool(),
    )  # fmt: skip
