"""What can be chosen of a model. No torch here, so that a command can read it in an instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from timeloom.errors import BadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """A model and its sizes. What a model has no use for, it ignores."""

    name: str = "tgcn"
    """One of `timeloom models`, or FILE.py:Class for a model of your own, whose code is run."""
    hidden: int = 32  # numbers that a layer gives for each node
    layers: int = 1
    """mpnn_lstm, sage: so many convolutions below one recurrence. All others: so many pairs of convolution and
    recurrence on top of each other."""
    norm: Literal["sym", "both", "mean", "sum"] = "sym"
    """How messages are weighed (SPEC D1.5). gat_lstm, dcrnn and sage have their own way, also with self loops."""
    self_loops: bool = True
    """Every node also sends its row to itself (not in FlareDTDG's public code, whose norm is `both`)."""
    heads: int = 4  # gat_lstm and sage_attention; must divide hidden
    hops: int = 2  # dcrnn: the K of its walks, counted in hops (the paper's 2, not PyGT's K - 1)
    walk: Literal["pull", "push"] = "pull"
    """dcrnn: pull keeps constants (the paper, SPEC D2.4); push is the direction of the official code."""
    span: int = 4  # sage: snapshots that the linear or attention part looks at (DistDy's window)
    jump: bool = True  # mpnn_lstm: the first LSTM reads all convolutions, not the last alone
    skip: bool = True  # mpnn_lstm: the input features are part of the output
    batch_norm: bool = False  # mpnn_lstm: as its authors; couples all nodes, so that rows cannot be shared (SPEC D2.3)
    dropout: float = 0.0
    """Applied to what a layer gives to the next one or to the head, never inside what snapshots may share."""
    absent: Literal["hold", "run"] = "hold"
    """What a node that is not there does to its state: keeps it, or goes on as if it had no edges (SPEC D1.4)."""
    options: dict[str, int | float | str | bool] = field(default_factory=dict)
    """For a model of your own: handed to it as they are."""

    def __post_init__(self) -> None:
        for name, least in (("hidden", 1), ("layers", 1), ("heads", 1), ("hops", 0), ("span", 1)):
            if getattr(self, name) < least:
                raise BadConfig(f"model.{name}={getattr(self, name)} is too small: give {least} or more")
        if self.layers > 16:
            raise BadConfig(f"model.layers={self.layers} is more than any graph needs: give 16 or fewer")
        if not 0.0 <= self.dropout < 1.0:
            raise BadConfig(f"model.dropout={self.dropout:g} is no share: give 0 or more, and less than 1")
        if self.name in ("gat_lstm", "sage_attention") and self.hidden % self.heads:
            raise BadConfig(
                f"model.hidden={self.hidden} cannot be shared evenly by model.heads={self.heads}: "
                f"use --set model.hidden={self.hidden + -self.hidden % self.heads} or other heads"
            )
