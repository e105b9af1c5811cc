"""Which source scales messages are multiplied by, where a run lets them lag behind the exact ones.

The scale of a snapshot is made of that of the snapshot before it, from the first one of the graph on: it must not
depend on where a window starts. So all of them are kept, as changes, with a whole one every few snapshots.

Shape letters: N nodes, C nodes whose scale changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from timeloom.kernels.drift import lazy_source, static_source
from timeloom.kernels.norms import Norm
from timeloom.train.settings import ReuseSettings

_WHOLE_EVERY = 16


class Drifting:
    """The source scales of all snapshots of a graph."""

    def __init__(self, reuse: ReuseSettings, exact: Callable[[int, Norm], Tensor | None]) -> None:
        """``exact`` gives the exact source scales of a snapshot; a norm has them in all snapshots or in none."""
        self._reuse, self._exact = reuse, exact
        self._told: dict[Norm, list[tuple[Tensor | None, Tensor]]] = {}
        self._newest: dict[Norm, Tensor] = {}
        self._making = threading.Lock()

    def source(self, t: int, norm: Norm) -> Tensor | None:
        """Return the source scales of a snapshot."""
        with self._making:
            told = self._told.setdefault(norm, [])
            while len(told) <= t:
                exact_N = self._exact(len(told), norm)
                if exact_N is None:
                    return None
                told.append(self._next(len(told), norm, exact_N))
        whole_N = told[t - t % _WHOLE_EVERY][1].clone()
        for nodes_C, values_C in told[t - t % _WHOLE_EVERY + 1 : t + 1]:
            assert nodes_C is not None
            whole_N.index_copy_(0, nodes_C, values_C)
        return whole_N

    def _next(self, t: int, norm: Norm, exact_N: Tensor) -> tuple[Tensor | None, Tensor]:
        """Go on by one snapshot; return which scales have changed and to what, or all of them."""
        before_N, now_N = self._newest.get(norm), exact_N
        if before_N is not None and self._reuse.approximate == "sym-lazy":
            now_N = lazy_source(before_N, exact_N, self._reuse.lazy_eps)
        elif before_N is not None:
            now_N = static_source(before_N, exact_N)
        self._newest[norm] = now_N
        if before_N is None or t % _WHOLE_EVERY == 0:
            return None, now_N
        nodes_C = torch.nonzero(before_N != now_N)[:, 0]
        return nodes_C, now_N.index_select(0, nodes_C)
