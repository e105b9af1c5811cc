"""How a block is multiplied by a weight: in the state's own precision, or with bfloat16 factors.

With bfloat16 the factors and the product are bfloat16 (torch's CPU kernels sum in float32), and everything that adds
up over snapshots or blocks (states, pre-activations, gradients of weights) stays in the state's precision.

Shape letters: B rows of a block, I and O columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from timeloom.kernels.workspace import Lease


@dataclass(frozen=True, slots=True)
class Kinds:
    """The dtype of states, gradients and what lies between products, that of factors, and the device of all."""

    exact: torch.dtype
    factor: torch.dtype
    device: torch.device

    @property
    def mixed(self) -> bool:
        """Whether factors are shorter than states."""
        return self.exact != self.factor


class Products:
    """Products of one worker, with memory for the short results."""

    def __init__(self, kinds: Kinds, lease: Lease, most: int) -> None:
        self._mixed = kinds.mixed
        self._short = lease.take((most if kinds.mixed else 0,), kinds.factor, kinds.device)

    def _product(self, x_BI: Tensor, weight_IO: Tensor) -> Tensor:
        shape = (x_BI.shape[0], weight_IO.shape[1])
        return torch.mm(x_BI, weight_IO, out=self._short[: shape[0] * shape[1]].view(shape))

    def put(self, x_BI: Tensor, weight_IO: Tensor, bias: Tensor | None, out_BO: Tensor) -> None:
        """Write ``bias + x W``; a bias may be one row or one for each row of x."""
        if self._mixed:
            out_BO.copy_(self._product(x_BI, weight_IO))
            if bias is not None:
                out_BO.add_(bias)
        elif bias is None:
            torch.mm(x_BI, weight_IO, out=out_BO)
        else:
            torch.addmm(bias, x_BI, weight_IO, out=out_BO)

    def add(self, x_BI: Tensor, weight_IO: Tensor, out_BO: Tensor) -> None:
        """Add ``x W``."""
        if self._mixed:
            out_BO.add_(self._product(x_BI, weight_IO))
        else:
            out_BO.addmm_(x_BI, weight_IO)
