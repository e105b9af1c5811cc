"""How models stand on top of each other: each reads, at every snapshot, what the one below gives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from timeloom.nn.model import Memory, Model, PerNode, Rows, Shared, State, View


class Stack(Model):
    """Models as the layers of one model. Only the first one's encoding depends on the snapshot alone."""

    def __init__(self, layers: Sequence[Model], *, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.parts, self.dropout = tuple(layers), dropout
        self.out_size = layers[-1].out_size
        self.hops = sum(layer.hops for layer in layers)
        self.mixes_states = any(layer.mixes_states for layer in layers)
        self.sees_all = any(layer.sees_all for layer in layers)
        self.asks_view = all(layer.asks_view or not layer.sees_all for layer in layers)

    def memory(self) -> Memory:
        """Return what all layers remember."""
        return tuple(
            PerNode(f"{depth}.{slot.name}", slot.shape, slot.holds)
            if isinstance(slot, PerNode)
            else Shared(f"{depth}.{slot.name}", slot.start)
            for depth, layer in enumerate(self.parts)
            for slot in layer.memory()
        )

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Return what the first layer makes of the snapshot."""
        return self.parts[0].encode(view, x_NF)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Take all layers over the snapshot."""
        after: list[Tensor] = []
        out = torch.empty(0)
        for depth, layer in enumerate(self.parts):
            if depth:
                rows = layer.encode(view, dropout(out, self.dropout, self.training))
            size = len(layer.memory())
            out, new = layer.recur(view, rows, state[len(after) : len(after) + size])
            after.extend(new)
        return out, tuple(after)


def layers_of(model: Model) -> tuple[tuple[Model, ...], float]:
    """Return the layers of a model, the first one first, and the dropout between them."""
    return (model.parts, model.dropout) if isinstance(model, Stack) else ((model,), 0.0)
