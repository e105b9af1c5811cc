"""What a model sees of a snapshot that is computed together with others: what they share is computed once.

Shape letters: N nodes, F features, H heads, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from torch import Tensor

from timeloom.kernels.norms import Norm
from timeloom.nn.model import View
from timeloom.nn.watch import Opening
from timeloom.train.aggregates import Aggregates
from timeloom.train.part_view import PartView

T = TypeVar("T")


class Chain(Protocol):
    """Sums over neighbours that go from snapshot to snapshot by what changed (SPEC 3.1, 3.3)."""

    def aggregate(self, x_NF: Tensor, norm: Norm) -> list[Tensor]:
        """Return ``P_t x`` for every snapshot."""

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> list[Tensor]:
        """Return every snapshot's attended values."""


class Shared:
    """What the snapshots of a window that are given the same rows share; it lives as long as one forward pass."""

    def __init__(self, chain: Chain | None) -> None:
        self.chain = chain
        self._made: dict[Any, tuple[Tensor, Any]] = {}
        self._parts: set[int] = set()

    def once(self, x: Tensor, key: Any, make: Callable[[], T]) -> T:
        """Return what was made under this key of these very rows, or make it."""
        found = self._made.get(key)
        if found is None or found[0] is not x:
            found = (x, make())
            self._made[key] = found
            parts = found[1] if isinstance(found[1], tuple) else (found[1],)
            self._parts |= {id(part) for part in parts}
        made: T = found[1]
        return made

    def is_shared(self, x: Tensor) -> bool:
        """Say whether these rows were made once for all snapshots (they live as long as this does)."""
        return id(x) in self._parts


class WindowView(View):
    """A view of one snapshot (or of a table of rows) that knows its input rows, and the rest of its window."""

    def __init__(
        self, base: View, inputs: Tensor, shared: Shared, *, aggregates: Aggregates, key: tuple[Any, ...], place: int
    ) -> None:
        """``key`` names what `base` is a view of; ``place`` is its place in the chain, where there is one."""
        self._base, self._inputs, self._shared = base, inputs, shared
        self._aggregates, self._key, self._place = aggregates, key, place
        self.t, self.num_nodes, self.alive_N, self.all_alive = base.t, base.num_nodes, base.alive_N, base.all_alive
        self._early: tuple[Callable[[Tensor], Any], Any] | None = None

    def begin(self, opening: Opening) -> None:
        """Collective where nodes lie on several ranks. Send for what the encoding of this snapshot asks first."""
        assert isinstance(self._base, PartView), "rows come from others where nodes are divided"
        make, norm = opening.make, opening.norm
        if make is None:
            if not (norm is not None and self._aggregates.has((*self._key, norm))):
                self._base.begin(self._inputs, norm)
            return
        made = self.once(self._inputs, make)
        self._early = (make, made)
        self._base.begin(made, norm)

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Return ``P_t x``: kept since an earlier epoch, or from the chain, or by a pass over the edges."""
        if x_NF is self._inputs and self._aggregates.keeps:
            return self._aggregates.get((*self._key, norm), lambda: self._summed(x_NF, norm))
        return self._summed(x_NF, norm)

    def _summed(self, x_NF: Tensor, norm: Norm) -> Tensor:
        chain = self._shared.chain
        if chain is None or not (x_NF is self._inputs or self._shared.is_shared(x_NF)):
            return self._base.aggregate(x_NF, norm)
        return self._shared.once(x_NF, ("sums", id(x_NF), norm), lambda: tuple(chain.aggregate(x_NF, norm)))[
            self._place
        ]

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the base's."""
        return self._base.best(x_NF, scores_N, count)

    def knows(self, x_NF: Tensor, norm: Norm) -> bool:
        """Say whether sums of the input rows are kept (also where this one will only be made now: SPEC D2.6)."""
        return x_NF is self._inputs and self._aggregates.comes_first

    def once(self, x_NF: Tensor, make: Callable[[Tensor], T]) -> T:
        """Return what was made of the input rows for an earlier snapshot that has the same ones."""
        if x_NF is not self._inputs:
            return make(x_NF)
        if self._early is not None and self._early[0] == make:
            early: T = self._early[1]
            return early
        return self._shared.once(x_NF, make, lambda: make(x_NF))

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Return the neighbours' values weighed by a softmax."""
        chain = self._shared.chain
        if chain is None or not self._shared.is_shared(value_NHD):
            return self._base.attend(value_NHD, sent_NH, received_NH, self_loops=self_loops, slope=slope)
        key = ("attended", id(value_NHD), self_loops, slope)
        return self._shared.once(
            value_NHD,
            key,
            lambda: tuple(chain.attend(value_NHD, sent_NH, received_NH, self_loops=self_loops, slope=slope)),
        )[self._place]

    @property
    def edge_index(self) -> Tensor:
        """The base's."""
        return self._base.edge_index

    @property
    def edge_weight(self) -> Tensor:
        """The base's."""
        return self._base.edge_weight


class SilentView(View):
    """A snapshot whose rows nobody reads, though something else about it is read: its sums have no rows at all."""

    def __init__(self, base: View) -> None:
        self._base = base
        self.t, self.num_nodes, self.alive_N, self.all_alive = base.t, base.num_nodes, base.alive_N, base.all_alive

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Return no rows."""
        return x_NF[:0]

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the base's."""
        return self._base.best(x_NF, scores_N, count)

    def knows(self, x_NF: Tensor, norm: Norm) -> bool:
        """Say so: no rows cost nothing."""
        return True

    def once(self, x_NF: Tensor, make: Callable[[Tensor], T]) -> T:
        """Make it."""
        return make(x_NF)

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Return no rows."""
        return value_NHD[:0]

    @property
    def edge_index(self) -> Tensor:
        """The base's."""
        return self._base.edge_index

    @property
    def edge_weight(self) -> Tensor:
        """The base's."""
        return self._base.edge_weight


class SomeNodes(View):
    """Some nodes of a snapshot, for a recurrence that reads no neighbours."""

    def __init__(self, t: int, alive_M: Tensor) -> None:
        self.t, self.num_nodes = t, len(alive_M)
        self.alive_N = alive_M
        self.all_alive = bool(alive_M.all())

    def aggregate(self, x_NF: Tensor, norm: Norm) -> Tensor:
        """Not here."""
        raise AssertionError(_READS_OTHERS)

    def best(self, x_NF: Tensor, scores_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Not here."""
        raise AssertionError(_READS_OTHERS)

    def knows(self, x_NF: Tensor, norm: Norm) -> bool:
        """Not here."""
        raise AssertionError(_READS_OTHERS)

    def once(self, x_NF: Tensor, make: Callable[[Tensor], T]) -> T:
        """Make it."""
        return make(x_NF)

    def attend(
        self, value_NHD: Tensor, sent_NH: Tensor, received_NH: Tensor, *, self_loops: bool, slope: float
    ) -> Tensor:
        """Not here."""
        raise AssertionError(_READS_OTHERS)

    @property
    def edge_index(self) -> Tensor:
        """Not here."""
        raise AssertionError(_READS_OTHERS)

    @property
    def edge_weight(self) -> Tensor:
        """Not here."""
        raise AssertionError(_READS_OTHERS)


_READS_OTHERS = "a model whose recurrence reads other nodes says so by `mixes_states = True`"
