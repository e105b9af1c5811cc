"""Which systems can serve a model: a fact of the model, told before a run begins."""

from __future__ import annotations

from timeloom.errors import BadConfig
from timeloom.nn.model import Model
from timeloom.nn.stack import layers_of
from timeloom.nn.watch import watch
from timeloom.train.feed import Feed
from timeloom.train.settings import RunSettings
from timeloom.train.system import Divide


def why_not(model: Model, divide: Divide, num_features: int) -> str | None:
    """Return why ranks that divide work in this way cannot train a model (None: they can)."""
    if divide != "nodes":
        return None
    layers, width = layers_of(model)[0], num_features
    for layer in layers:
        if watch(layer, width).reads_edges:
            return "it reads edge_index, and a rank has the edges of its own nodes only"
        width = layer.out_size
    if model.sees_all and not model.asks_view:
        return "it takes all nodes of a snapshot together, and a rank has the rows of its own nodes only"
    return None


def refuse_unserved(settings: RunSettings, feed: Feed, model: Model) -> None:
    """Refuse a model that several ranks cannot train as they divide the work."""
    if feed.holding.holds_all:
        return
    reason = why_not(model, settings.system.divide, feed.num_features)
    if reason is not None:
        raise BadConfig(
            f"model {settings.model.name} cannot be trained by system.name={settings.system.name}, which divides "
            f"nodes: {reason}; use --system psg or esdg, which leave every rank all nodes"
        )
