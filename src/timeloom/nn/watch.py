"""What a model asks of a snapshot while it encodes: found by watching it encode a tiny one.

Shape letters: N nodes, F features, H heads, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from timeloom.kernels.norms import Norm
from timeloom.nn.model import Model, Rows, View, best_of

T = TypeVar("T")
# No size of a layer: rows of nodes are known by their number.
_SIZE = 13


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over neighbours that an encoding asks for."""

    norm: Norm
    width: int
    of_inputs: bool
    """It is of the very rows that the model is given: no parameter changes it."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What an encoding asks of its neighbours first, where that follows from the rows it is given alone."""

    make: Callable[[Tensor], Any] | None
    """What makes the rows that are asked for of those that are given (None: it is these)."""
    norm: Norm | None
    """How they are summed; None: they are attended to."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an encoding depends on beside the rows that it is given, and what it computes."""

    sums: tuple[Sum, ...]
    attended: tuple[int, ...]
    """The width of the values of each attention."""
    by_node: bool
    """It gives a row for every node, and asks for nothing but what nodes hear. One that reads the edges themselves (as
    layers of other libraries do), the index of the snapshot or how many nodes there are must see snapshots whole."""
    hops: int
    """How far messages travel, at most."""
    flops: int
    """Operations of products for each row: an estimate, from the products that torch is asked for."""
    width: int
    """Numbers that come out for each row."""
    opening: Opening | None = None
    """None where nothing is asked of neighbours, or where more than a layer's own map comes before it."""
    reads_edges: bool = False
    """It reads the edges themselves."""

    @property
    def norms(self) -> tuple[Norm, ...]:
        """How messages are weighed, in all."""
        return tuple(dict.fromkeys(one.norm for one in self.sums))

    @property
    def directions(self) -> tuple[bool, ...]:
        """Along (False) and against (True) the edges: the ways that messages go."""
        along = bool(self.attended) or any(not norm.reverse for norm in self.norms)
        return (False,) * along + (True,) * any(norm.reverse for norm in self.norms)


class _Watched(View):
    def __init__(self, inputs_NF: Tensor, *, keeps_sums: bool) -> None:
        self.all_alive = True
        self.alive_N = torch.ones(_SIZE, dtype=torch.bool, device=inputs_NF.device)
        self._inputs, self._keeps_sums = inputs_NF, keeps_sums
        self.sums: list[Sum] = []
        self.attended: list[int] = []
        self.whole = self.reads_edges = False
        self.opening: Opening | None = None
        self._made: dict[int, Callable[[Tensor], Any]] = {}
        # So that no other tensor has the id of one of these.
        self._held: list[Any] = []

    @property
    def t(self) -> int:  # type: ignore[override]
        """Note that the index is read."""
        self.whole = True
        return 0

    @property
    def num_nodes(self) -> int:  # type: ignore[override]
        """Note that the size is read."""
        self.whole = True
        return _SIZE

    def _open(self, x: Tensor, norm: Norm | None) -> None:
        if self.sums or self.attended:
            return
        if x is self._inputs or id(x) in self._made:
            self.opening = Opening(None if x is self._inputs else self._made[id(x)], norm)

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Note what is summed."""
        self._open(x_NF, norm)
        self.sums.append(Sum(norm, x_NF.shape[1], x_NF is self._inputs))
        return x_NF.clone()

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the rows and scores of the nodes that score highest."""
        return best_of(self.alive_N, x_NF, scores_N, count)

    def knows(self, x_NF: Tensor, norm: Norm) -> bool:
        """Say what the real view will say."""
        return self._keeps_sums and x_NF is self._inputs

    def once(self, x_NF: Tensor, make: Callable[[Tensor], T]) -> T:
        """Make it, and note of what."""
        made = make(x_NF)
        if x_NF is self._inputs:
            self._made[id(made[0] if isinstance(made, tuple) else made)] = make
            self._held.append(made)
        return made

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Note that attention is used."""
        self._open(value_NHD, None)
        self.attended.append(value_NHD[0].numel())
        return value_NHD

    @property
    def edge_index(self) -> Tensor:
        """Note that the edges are read."""
        self.whole = self.reads_edges = True
        return torch.zeros(2, 0, dtype=torch.int64, device=self._inputs.device)

    @property
    def edge_weight(self) -> Tensor:
        """Note that the edges are read."""
        self.whole = self.reads_edges = True
        return torch.zeros(0, dtype=self._inputs.dtype, device=self._inputs.device)


class _Products(TorchFunctionMode):
    """Counts the operations of products that have a row for every node."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if (
            getattr(func, "__name__", "") in ("matmul", "__matmul__", "mm", "addmm", "linear", "bmm")
            and len(out) == _SIZE
        ):
            left = args[1] if func is torch.addmm else args[0]
            self.flops += 2 * out[0].numel() * left.shape[-1]
        return out


def watch(model: Model, num_features: int, *, keeps_sums: bool = False) -> Asked:
    """Return what a model asks of a snapshot while it encodes. Nothing that it learns or draws is changed by this.

    ``keeps_sums`` says that sums of input rows will be at hand (`View.knows`).
    """
    view, rows, flops = _encoded(model, num_features, keeps_sums=keeps_sums)
    by_node = not view.whole and not model.sees_all and all(len(part) == _SIZE for part in rows)
    # Each call lets messages go one hop further, at most.
    hops = len(view.sums) + len(view.attended)
    width = sum(part[0].numel() for part in rows if len(part) == _SIZE)
    return Asked(
        tuple(view.sums), tuple(view.attended), by_node, hops, flops, width, view.opening, view.reads_edges
    )  # fmt: skip


def rows_are_of_nodes(model: Model, num_features: int) -> bool:
    """Say whether all that a model makes of a snapshot has a row for every node."""
    _, rows, _ = _encoded(model, num_features, keeps_sums=False)
    return all(len(part) == _SIZE for part in rows)


def _encoded(model: Model, num_features: int, *, keeps_sums: bool) -> tuple[_Watched, Rows, int]:
    """Let a model encode a tiny snapshot; return what it asked of it, what it made, and the operations of products."""
    like = next(model.parameters())
    inputs_NF = torch.zeros(_SIZE, num_features, dtype=like.dtype, device=like.device)
    view, was_training = _Watched(inputs_NF, keeps_sums=keeps_sums), model.training
    model.eval()
    with torch.no_grad(), _Products() as products:
        rows = model.encode(view, inputs_NF)
    model.train(was_training)
    return view, rows, products.flops
