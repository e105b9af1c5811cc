"""Parameters under a name of its own for each snapshot of a window, so that gradients add up in one order.

Autograd adds the gradients of a parameter as they come, which is the reverse order of turns; and sums of numbers depend
on their order. Where every snapshot reads its own alias, they are added up snapshot by snapshot, whatever the turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Aliases:
    """The aliases of a module's parameters for one window."""

    def __init__(self, module: nn.Module, count: int) -> None:
        self._homes = [
            (part, name, parameter)
            for part in module.modules()
            for name, parameter in part.named_parameters(recurse=False)
        ]
        self._told: dict[int, tuple[Tensor, ...]] = {
            id(parameter): parameter.unsqueeze(0).expand(count, *parameter.shape).unbind(0)
            for _, _, parameter in self._homes
        }

    @contextmanager
    def of(self, place: int) -> Iterator[None]:
        """Let the module read the aliases of one snapshot."""
        for part, name, parameter in self._homes:
            part._parameters[name] = self._told[id(parameter)][place]  # type: ignore[assignment]
        try:
            yield
        finally:
            for part, name, parameter in self._homes:
                part._parameters[name] = parameter
