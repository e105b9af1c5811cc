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
    from timeloom.graph.synth import synth as synth

__all__ = ["DynamicGraph", "Ingest", "Windows", "__version__", "ingest", "open", "synth"]

# Where each public name lives. `import timeloom` stays instant: a name's module is imported when it is first used.
_HOMES = {
    "open": ("timeloom.graph.dynamic", "open_graph"),
    "DynamicGraph": ("timeloom.graph.dynamic", "DynamicGraph"),
    "ingest": ("timeloom.graph.ingest", "ingest"),
    "Ingest": ("timeloom.graph.ingest", "Ingest"),
    "Windows": ("timeloom.graph.ingest", "Windows"),
    "synth": ("timeloom.graph.synth", "synth"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("timeloom")
    if name not in _HOMES:
        raise AttributeError(f"module 'timeloom' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
