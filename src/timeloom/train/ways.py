"""What is decided once, when a run begins, about how its windows are computed."""

from __future__ import annotations

import torch

from timeloom.errors import BadConfig
from timeloom.graph.tasks import Split
from timeloom.kernels.norms import WITH_SOURCE_SCALES
from timeloom.nn.model import Model
from timeloom.nn.stack import layers_of
from timeloom.nn.watch import Asked, watch
from timeloom.train.aggregates import Aggregates
from timeloom.train.choose import Decided, Sizes, predicted
from timeloom.train.costs import read_costs
from timeloom.train.encode import Encoder
from timeloom.train.feed import Feed
from timeloom.train.profile import Profile
from timeloom.train.settings import RunSettings
from timeloom.train.walk import Walker


def decide(settings: RunSettings, feed: Feed, layer: Model, split: Split) -> Decided:
    """Return the costs to go by, whether sums of input rows are kept, and whether layers should make use of that."""
    costs = read_costs(feed.device, torch.get_num_threads())
    # What Eq. 4 gives depends on where a window starts.
    keeps = settings.reuse.cache != "off" and settings.reuse.approximate != "sym-approx"
    rows_bytes = feed.num_nodes * feed.num_features * feed.dtype.itemsize
    plain, first = (watch(layer, feed.num_features, keeps_sums=keeps) for keeps in (False, True))
    _refuse_impossible(settings, feed, plain)
    _refuse_idle(settings, feed, plain)
    norms = len({one.norm for one in first.sums if one.of_inputs})
    needed = split.test_stop * rows_bytes * norms
    # Half of the memory: views, tables and labels are kept in it, too.
    free = keeps and needed <= feed.room.left // 2 + settings.reuse.disk_bytes
    edges = len(feed.view(split.train_stop - 1).edges)
    sizes = Sizes(feed.num_nodes, (edges,), feed.num_nodes, edges, None)
    without = Decided(costs=costs, keeps=keeps, free=free, sums_first=False)
    with_sums = Decided(costs=costs, keeps=keeps, free=free, sums_first=True)
    gains = predicted(sizes, first, with_sums)["full"] < predicted(sizes, plain, without)["full"]
    return with_sums if free and gains else without


def _refuse_impossible(settings: RunSettings, feed: Feed, asked: Asked) -> None:
    mode, name = settings.reuse.mode, settings.model.name
    if mode in ("delta", "versions") and not feed.holding.holds_all:
        raise BadConfig(
            f"reuse.mode={mode} shares rows between snapshots, which need other halos each where nodes are divided "
            "(system.divide=nodes): use --set reuse.mode=full or auto, or --system psg"
        )
    if mode == "delta" and not feed.unchanging:
        raise BadConfig(
            f"reuse.mode=delta needs features that are the same in all snapshots, but inputs.features={feed.features} "
            f"with inputs.lags={feed.lags} change: use --set reuse.mode=versions or auto"
        )
    if mode in ("delta", "versions") and not asked.by_node:
        raise BadConfig(
            f"reuse.mode={mode}: model {name} reads a snapshot's nodes or edges all at once, so that no row of it can "
            "be shared: use --set reuse.mode=full or auto"
        )


def _refuse_idle(settings: RunSettings, feed: Feed, asked: Asked) -> None:
    """Refuse an approximation of what is not there to be approximated."""
    approximate, name = settings.reuse.approximate, settings.model.name
    if approximate == "none":
        return
    if not any(norm.kind in WITH_SOURCE_SCALES for norm in asked.norms):
        kinds = ", ".join(dict.fromkeys(norm.kind for norm in asked.norms)) or "no"
        raise BadConfig(
            f"reuse.approximate={approximate} is about the source scales of the norms sym and both, but model {name} "
            f"makes sums of {kinds} norm, which are exact at the cost of what changes: leave it out"
        )
    if approximate == "sym-approx" and not (feed.unchanging and asked.by_node):
        raise BadConfig(
            "reuse.approximate=sym-approx goes from snapshot to snapshot, which needs features that are the same in "
            f"all of them, but inputs.features={feed.features} with inputs.lags={feed.lags} change, or a model that "
            f"may share rows, unlike {name}: use sym-lazy"
        )


def make_walker(settings: RunSettings, feed: Feed, model: Model, decided: Decided, profile: Profile) -> Walker:
    """Return what takes the model over windows, with everything that it may keep."""
    reuse = settings.reuse
    aggregates = Aggregates(
        room=feed.room, disk_bytes=reuse.disk_bytes, keeps=decided.keeps, comes_first=decided.sums_first,
        holding=feed.holding,
    )  # fmt: skip
    forced = None if reuse.mode == "auto" else reuse.mode
    if reuse.approximate == "sym-approx":
        forced = "delta"
    encoder = Encoder(
        layers_of(model)[0][0], feed, aggregates, decided=decided, forced=forced, approximate=reuse.approximate
    )  # fmt: skip
    bf16 = settings.train.precision == "bf16"
    return Walker(model, feed, encoder, hold=settings.model.absent == "hold", bf16=bf16, profile=profile)
