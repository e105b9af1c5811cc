"""Which models a way to share work can serve, and what to do about the others."""

from __future__ import annotations

import torch

from timeloom.errors import BadConfig
from timeloom.nn.model import LayeredModel, Model, Shared
from timeloom.nn.models import make_model
from timeloom.nn.settings import ModelSettings
from timeloom.nn.stack import layers_of
from timeloom.nn.watch import rows_are_of_nodes, watch
from timeloom.plan.batch.neighbourhood import why_not_cached
from timeloom.train.settings import RunSettings
from timeloom.train.system import SystemSettings

_NUM_FEATURES = 4
WHOLE = "use --system psg or esdg, which leave every rank all nodes"
RELAY = "use --set system.time=relay, which hands whole states on"


def refusal(model: Model, system: SystemSettings) -> str | None:
    """Return why several ranks cannot share this model's work like this, and what to use instead (None: they can)."""
    if any(True for _ in model.buffers()):
        return (
            "it keeps statistics of all snapshots that it has seen (batch normalisation), which would differ from rank "
            "to rank: use --set model.batch_norm=false, or one worker"
        )
    if system.divide == "targets":
        return _not_sampled(model)
    if system.divide == "time" and system.time == "alltoall":
        return _not_by_nodes(model)
    if system.divide == "batches":
        return _not_in_a_cache(model)
    return _not_in_parts(model) if system.divide == "nodes" else None


def _not_in_a_cache(model: Model) -> str | None:
    """Return why a few hops around its targets are not all that a model reads (None: they are)."""
    why = why_not_cached(mixes_states=model.mixes_states, sees_all=model.sees_all)
    if why is not None:
        return f"it {why}"
    return _reads_edges(model)


def _reads_edges(model: Model) -> str | None:
    """Return what is wrong where a model reads the edges themselves."""
    layers, width = layers_of(model)[0], _NUM_FEATURES
    for layer in layers:
        if watch(layer, width).reads_edges:
            return f"it reads edge_index, and a rank has the edges of its own nodes only: {WHOLE}"
        width = layer.out_size
    return None


def _not_in_parts(model: Model) -> str | None:
    """Return why ranks that have some of the nodes cannot train a model (None: they can)."""
    if (why := _reads_edges(model)) is not None:
        return why
    if model.sees_all and not model.asks_view:
        return f"it takes all nodes of a snapshot together, and a rank has the rows of its own nodes only: {WHOLE}"
    return None


def _not_sampled(model: Model) -> str | None:
    """Return why a model cannot be computed for some targets and sampled neighbours (None: it can)."""
    if not isinstance(model, LayeredModel):
        return (
            "neighbours are sampled for layers of means over them, and its encoding is not made of such layers "
            "(a LayeredModel is): use sage_linear or sage_attention, or --system vertex or psg"
        )
    shared = [slot.name for slot in model.memory() if isinstance(slot, Shared)]
    if shared or model.mixes_states or model.sees_all:
        return f"what it remembers must be of single nodes, whose embeddings meet on one rank: {WHOLE}"
    return None


def _not_by_nodes(model: Model) -> str | None:
    """Return why the memory of a model cannot be divided by nodes (None: it can)."""
    layers, _ = layers_of(model)
    shared = [slot.name for layer in layers for slot in layer.memory() if isinstance(slot, Shared)]
    if shared:
        return f"what it remembers ({shared[0]}) belongs to no node, so that it cannot be dealt out by nodes: {RELAY}"
    if model.mixes_states:
        return f"its memory reads that of neighbours, which alltoall deals to other ranks: {RELAY}"
    num_in = _NUM_FEATURES
    for layer in layers:
        if not rows_are_of_nodes(layer, num_in):
            return f"what it makes of a snapshot has rows that belong to no node: {RELAY}"
        num_in = layer.out_size
    return None


def refuse_model(settings: RunSettings) -> None:
    """Refuse a model that the system of a run cannot serve on several ranks."""
    why = refusal_of(settings.model, settings.system)
    if why is not None:
        where = "" if settings.system.divide in ("batches", "targets") else " on several ranks"
        raise BadConfig(f"model {settings.model.name}{where} with system.name={settings.system.name}: {why}")


def hops_of(model: ModelSettings) -> int:
    """Return how far messages travel in a snapshot through all layers of a model that settings describe."""
    with torch.random.fork_rng(devices=[]):
        return sum(layer.hops for layer in layers_of(make_model(_NUM_FEATURES, model))[0])


def refusal_of(model: ModelSettings, system: SystemSettings) -> str | None:
    """Return `refusal` of a model that settings describe."""
    with torch.random.fork_rng(devices=[]):
        return refusal(make_model(_NUM_FEATURES, model), system)
