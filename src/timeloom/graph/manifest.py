"""What a graph's manifest must say. Whoever has opened a store may rely on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timeloom.graph.times import TICKS_PER_SECOND

Test = Callable[[Any], bool]
_CLOCKS = (*TICKS_PER_SECOND, "plain", "nano")
_MOST = 2**62


def problem_of(manifest: dict[str, Any]) -> str | None:
    """Return the first thing that no manifest of a graph says, as the end of a sentence (None: all is well)."""
    for key, is_good in _MANIFEST.items():
        if key not in manifest:
            return f"does not give {key!r}"
        if not is_good(manifest[key]):
            return f"gives {key!r} as {str(manifest[key])[:80]}, which no graph has"
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not _is_flag(value)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < _MOST


def _is_clock(value: Any) -> bool:
    return value in _CLOCKS


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _mapping(keys: dict[str, Test]) -> Test:
    """Return a test for mappings that have these keys, each with a good value, and perhaps others."""
    return lambda value: _is_mapping(value) and all(key in value and keys[key](value[key]) for key in keys)


def _list_of(is_good: Test, *, least: int = 0) -> Test:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(is_good, value))


def _kinds(kinds: dict[str, dict[str, Test]]) -> Test:
    """Return a test for mappings with a `kind`, which says what else they hold."""
    return lambda value: (
        _is_mapping(value) and _is_text(kind := value.get("kind")) and kind in kinds and _mapping(kinds[kind])(value)
    )


def _is_layout(value: Any) -> bool:
    if not _is_mapping(value) or set(value) != {"node_bits", "type_bits"} or not all(map(_is_count, value.values())):
        return False
    return value["node_bits"] > 0 and bool(2 * value["node_bits"] + value["type_bits"] <= 62)


def _is_segment(value: Any) -> bool:
    keys = {"name": _is_text, "first": _is_count, "count": _is_count, "weighted": _is_flag}
    return _mapping(keys)(value) and set(value) == set(keys)


_ACCOUNT = ("rows_read", "mirrored", "kept", "merged", "dropped_in_all")
_RULES: dict[str, Test] = {
    "windows": _mapping({"kind": _is_text, "amount": _is_text}), "life": _is_count, "duplicates": _is_text,
    "both_directions": _is_flag, "keep_self_loops": _is_flag, "operations": _is_flag,
}  # fmt: skip
_FEATURES: dict[str, dict[str, Test]] = {
    "none": {}, "stored": {}, "degree": {"log": _is_flag}, "random": {"num_features": _is_count, "seed": _is_count},
    "one_hot": {"classes": _list_of(_is_text)},
}  # fmt: skip
_LABELS: dict[str, dict[str, Test]] = {"none": {}, "value": {}, "class": {"classes": _list_of(_is_text)}}
_MANIFEST: dict[str, Test] = {
    "name": _is_text, "num_nodes": _is_count, "num_snapshots": _is_count, "clock": _is_clock, "end": _is_integer,
    "layout": _is_layout, "rules": _mapping(_RULES), "features": _kinds(_FEATURES), "labels": _kinds(_LABELS),
    "segments": _list_of(_is_segment, least=1), "reports": _list_of(_mapping(dict.fromkeys(_ACCOUNT, _is_count))),
    "arrays": lambda value: _is_mapping(value) and all(map(_is_mapping, value.values())),
}  # fmt: skip
