"""What a recurrent cell has to do for a block of nodes at one snapshot, and what it is given for it.

A cell writes its gates where backward will read them.

Shape letters: B rows of a block, H hidden size, Z columns of what is seen (0 where the cell is given its gates' input
sides), K = Z + H, G gates x H, D columns of the gradients of the gates, the last G of which are those of the input
sides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from timeloom.kernels.pointwise import Columns
from timeloom.kernels.products import Products


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights laid out for products from the right, as factors; biases in the state's precision."""

    seen_ZG: Tensor
    state_HG: Tensor
    back_GH: Tensor
    """`state` the other way, its gates in the order in which the cell leaves their gradients."""
    both_KG: Tensor
    """`seen` above `state`."""
    seen_bias_G: Tensor | None
    state_bias_G: Tensor | None
    both_bias_G: Tensor | None
    """Their sum."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A block at one snapshot. Everything but `x_BK` has the state's precision."""

    x_BK: Tensor
    """What is seen beside the state before, as factors of products."""
    given_BG: Tensor | None
    """The gates' input sides, where they are given."""
    held_B: Tensor | None
    """bool: whose state is held."""
    before: Columns
    after: Columns
    memories: tuple[Tensor, ...]
    """An LSTM's memory before and after; nothing for other cells."""
    gates: tuple[Tensor, ...]
    spares: tuple[Tensor, Tensor]
    """[B, H], for whatever is needed for a moment."""
    short_BH: Tensor | None
    """The same with the dtype of factors, where those are shorter."""

    @property
    def h(self) -> Tensor:
        """[B, H] the state before, as a factor of products."""
        return self.x_BK[:, self.x_BK.shape[1] - self.spares[0].shape[1] :]

    def as_factor(self, x_BH: Tensor) -> Tensor:
        """Return a factor of products; it holds until the next is asked for."""
        return x_BH if self.short_BH is None else self.short_BH.copy_(x_BH)


@dataclass(frozen=True, slots=True)
class Back:
    """What backward has at hand. `d_h` and `d_c` go from the state after a snapshot to that before it."""

    d_h_BH: Tensor
    d_c_BH: Tensor
    d_BD: Tensor
    """The gradients of the gates."""
    factor_BD: Tensor
    """The same as factors of products: the same tensor where those are not shorter."""
    sums: tuple[Tensor, ...]
    """The gradients of the cell's own parameters so far, laid out as it likes."""

    def factors(self, gates: slice) -> Tensor:
        """Return the gradients of some gates as factors of products, now that they are known."""
        if self.factor_BD is not self.d_BD:
            self.factor_BD[:, gates].copy_(self.d_BD[:, gates])
        return self.factor_BD[:, gates]


class Cell(ABC):
    """A recurrent cell and its parameters."""

    num_gates: int
    num_back: int
    """How many times H columns the gradients of the gates have: D / H."""
    kept: tuple[int, ...]
    """How many times H columns the gates have that forward leaves to backward."""
    num_states: int

    @property
    @abstractmethod
    def hidden(self) -> int:
        """The hidden size."""

    @abstractmethod
    def parameters(self) -> tuple[Tensor, ...]:
        """Return the parameters, in the order of `gradients`."""

    @abstractmethod
    def state_weight(self) -> Tensor:
        """Return [H, G] the weight of the state for all gates, in the order of their input sides."""

    @abstractmethod
    def back_weight(self) -> Tensor:
        """Return [G, H] the same the other way, its gates in the order of their gradients."""

    @abstractmethod
    def state_bias(self) -> Tensor | None:
        """Return the bias that is added to the state's product, where there is one."""

    @abstractmethod
    def sum_shapes(self) -> tuple[tuple[int, int], ...]:
        """Return the shapes of the sums in which the gradients of the parameters come up."""

    @abstractmethod
    def forward(self, at: Moment, weights: Weights, do: Products) -> None:
        """Write the gates and the state after."""

    @abstractmethod
    def backward(self, at: Moment, weights: Weights, back: Back, do: Products) -> None:
        """Write the gradients of the gates, add those of the weights, and go back to the state before."""

    @abstractmethod
    def gradients(self, sums: tuple[Tensor, ...], d_bias_D: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the parameters, given the sums and those of the gates summed over nodes."""


def see(at: Moment, weights: Weights, do: Products, *, gates: slice, out: Tensor) -> None:
    """Write what some gates come to of what is seen alone."""
    if at.given_BG is not None:
        out.copy_(at.given_BG[:, gates])
    else:
        do.put(at.x_BK[:, : len(weights.seen_ZG)], weights.seen_ZG[:, gates], part_of(weights.seen_bias_G, gates), out)


def see_with_state(at: Moment, weights: Weights, do: Products, *, gates: slice, out: Tensor) -> None:
    """Write what some gates come to of what is seen and of the state, by one product."""
    if at.given_BG is None:
        do.put(at.x_BK, weights.both_KG[:, gates], part_of(weights.both_bias_G, gates), out)
        return
    do.put(at.x_BK, weights.both_KG[:, gates], at.given_BG[:, gates], out)
    if weights.state_bias_G is not None:
        out.add_(weights.state_bias_G[gates])


def part_of(bias_G: Tensor | None, gates: slice) -> Tensor | None:
    """Return some gates' part of a bias, where there is one."""
    return None if bias_G is None else bias_G[gates]
