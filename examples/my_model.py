"""A model of one's own: `timeloom train GRAPH --model examples/my_model.py:Leaky --out RUN`.

A model is a class with three parts. `encode` sees one snapshot and nothing else, so the engine may share what it gives
between windows. `recur` adds what the model remembers. `memory` says what that is; the engine starts it at 0, carries
it from snapshot to snapshot, cuts its gradient between windows, and saves it.
"""

import torch
from torch import Tensor, nn

import timeloom


class Leaky(timeloom.Model):
    """Every node remembers a running mean of what it and its neighbours showed; how fast it forgets is learnt."""

    def __init__(self, num_in: int, settings: timeloom.ModelSettings) -> None:
        super().__init__()
        self.out_size = 2 * settings.hidden
        self.norm = timeloom.Norm("mean", self_loops=False)
        self.own, self.near = nn.Linear(num_in, settings.hidden), nn.Linear(num_in, settings.hidden)
        self.forget = nn.Parameter(torch.full((settings.hidden,), float(settings.options.get("forget", 1.0))))

    def memory(self) -> tuple[timeloom.PerNode, ...]:
        """Return what is remembered: a row for every node."""
        return (timeloom.PerNode("mean", (self.out_size // 2,)),)

    def encode(self, view: timeloom.View, x: Tensor) -> tuple[Tensor, ...]:
        """Return what one snapshot shows."""
        return (torch.relu(self.own(x) + self.near(view.aggregate(x, self.norm))),)

    def recur(
        self, view: timeloom.View, rows: tuple[Tensor, ...], state: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the output and the new state."""
        mean = state[0] + torch.sigmoid(-self.forget) * (rows[0] - state[0])
        return torch.cat([rows[0], mean], 1), (mean,)
