"""What a graph's manifest must say. Whoever has opened a store may rely on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from timeloom.graph.snapshot import STATISTICS
from timeloom.graph.times import TICKS_PER_SECOND

Test = Callable[[Any], bool]
_CLOCKS = (*TICKS_PER_SECOND, "plain", "nano")
_MOST = 2**62
# The type of an array and the sizes of a row of it; -1 is any size. Segments are numbered: s0, s1, ...
_FORMS: dict[str, tuple[str, tuple[int, ...]]] = {
    "nodes.ids": ("<i8", ()), "nodes.id_bytes": ("|u1", ()), "nodes.id_ends": ("<i8", ()),
    "types.ids": ("<i8", ()), "types.id_bytes": ("|u1", ()), "types.id_ends": ("<i8", ()),
    "nodes.first_seen": ("<i8", ()), "nodes.degrees": ("<i4", (2,)), "nodes.present": ("<i8", (3,)),
    "features.fixed": ("<f4", (-1,)), "features.classes": ("<i8", ()), "labels.fixed": ("|i1 <i4 <i8 <f8", ()),
    "s.starts": ("<i8", ()), "s.whole": ("|u1", ()), "s.ends": ("<i8", (2,)),
    "s.statistics": ("<i8", (len(STATISTICS),)), "s.keyframe.keys": ("<i8", ()), "s.keyframe.weights": ("<f8", ()),
    "s.delta.keys": ("<i8", ()), "s.delta.old": ("<f8", ()), "s.delta.new": ("<f8", ()),
    "s.delta.appears": ("|u1", ()), "s.features": ("<f4", (-1, -1)), "s.labels": ("|i1 <i4 <i8 <f8", (-1,)),
}  # fmt: skip


def problem_of(manifest: dict[str, Any]) -> str | None:
    """Return the first thing that no manifest of a graph says, as the end of a sentence (None: all is well)."""
    for key, is_good in _MANIFEST.items():
        if key not in manifest:
            return f"does not give {key!r}"
        if not is_good(manifest[key]):
            return f"gives {key!r} as {str(manifest[key])[:80]}, which no graph has"
    return None


def is_form_of(name: str, dtype: str, shape: tuple[int, ...]) -> bool:
    """Say whether an array of this name may have this type and shape; its length is not judged."""
    dtypes, dims = _FORMS.get(re.sub(r"s[0-9]+\.", "s.", name, count=1), (dtype, shape[1:]))
    fits = len(shape) == 1 + len(dims) and all(size in (found, -1) for size, found in zip(dims, shape[1:], strict=True))
    return fits and dtype in dtypes.split()


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not _is_flag(value)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < _MOST


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


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
    keys: dict[str, Test] = {"name": _is_text, "first": _is_count, "count": _is_count, "weighted": _is_flag}
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
    "name": _is_text, "num_nodes": _is_count, "num_snapshots": _is_size, "clock": _is_clock, "end": _is_integer,
    "layout": _is_layout, "rules": _mapping(_RULES), "features": _kinds(_FEATURES), "labels": _kinds(_LABELS),
    "segments": _list_of(_is_segment, least=1), "reports": _list_of(_mapping(dict.fromkeys(_ACCOUNT, _is_count))),
    "arrays": lambda value: _is_mapping(value) and all(map(_is_mapping, value.values())),
}  # fmt: skip
