"""Timeloom: graph neural networks on graphs that change over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from timeloom.graph.dynamic import DynamicGraph as DynamicGraph
    from timeloom.graph.dynamic import open_graph as open
    from timeloom.graph.ingest import Ingest as Ingest
    from timeloom.graph.ingest import Windows as Windows
    from timeloom.graph.ingest import ingest as ingest
    from timeloom.graph.synth import Drift as Drift
    from timeloom.graph.synth import synth as synth
    from timeloom.kernels.norms import Norm as Norm
    from timeloom.nn.model import Model as Model
    from timeloom.nn.model import PerNode as PerNode
    from timeloom.nn.model import Shared as Shared
    from timeloom.nn.model import View as View
    from timeloom.nn.settings import ModelSettings as ModelSettings
    from timeloom.report.frames import Run as Run
    from timeloom.train.inference import evaluate as evaluate
    from timeloom.train.inference import predict as predict
    from timeloom.train.runs import resume as resume
    from timeloom.train.runs import train as train

__all__ = [
    "Drift", "DynamicGraph", "Ingest", "Model", "ModelSettings", "Norm", "PerNode", "Run", "Shared", "View", "Windows",
    "__version__", "evaluate", "ingest", "open", "predict", "resume", "synth", "train",
]  # fmt: skip

# Where each public name lives. `import timeloom` stays instant: a name's module is imported when it is first used.
_HOMES = {
    "open": ("timeloom.graph.dynamic", "open_graph"),
    "DynamicGraph": ("timeloom.graph.dynamic", "DynamicGraph"),
    "ingest": ("timeloom.graph.ingest", "ingest"),
    "Ingest": ("timeloom.graph.ingest", "Ingest"),
    "Windows": ("timeloom.graph.ingest", "Windows"),
    "Drift": ("timeloom.graph.synth", "Drift"),
    "synth": ("timeloom.graph.synth", "synth"),
    "Run": ("timeloom.report.frames", "Run"),
    "train": ("timeloom.train.runs", "train"),
    "resume": ("timeloom.train.runs", "resume"),
    "evaluate": ("timeloom.train.inference", "evaluate"),
    "predict": ("timeloom.train.inference", "predict"),
    "Model": ("timeloom.nn.model", "Model"),
    "View": ("timeloom.nn.model", "View"),
    "PerNode": ("timeloom.nn.model", "PerNode"),
    "Shared": ("timeloom.nn.model", "Shared"),
    "Norm": ("timeloom.kernels.norms", "Norm"),
    "ModelSettings": ("timeloom.nn.settings", "ModelSettings"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("timeloom")
    if name not in _HOMES:
        raise AttributeError(f"module 'timeloom' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
