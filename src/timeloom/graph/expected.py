"""Which arrays a graph must have, judging by its manifest: their names, types and shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from timeloom.graph.ingest.history import Contributions, keeps_tail
from timeloom.graph.ingest.rules import rules_from_json
from timeloom.graph.snapshot import STATISTICS
from timeloom.graph.store import Array, Store


@dataclass(frozen=True, slots=True)
class Form:
    """The types that an array may have, one after another, and its shape (None: of any size)."""

    dtypes: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtypes} and [{', '.join('any' if size is None else str(size) for size in self.shape)}]"

    def is_of(self, array: Array) -> bool:
        """Say whether an array has this form."""
        sizes = zip(array.shape, self.shape, strict=False)
        return (
            array.dtype.str in self.dtypes.split()
            and array.ndim == len(self.shape)
            and all(b in (None, a) for a, b in sizes)
        )


Forms = dict[str, Form]
_INTEGERS = "<i8 <i4 |i1"


def expected_arrays(store: Store) -> Forms:
    """Return the form of every array that belongs to a graph with this manifest."""
    size = store.manifest["num_nodes"]
    forms = {"nodes.first_seen": Form("<i8", (size,)), "nodes.degrees": Form("<i4", (size, 2))}
    forms |= _ids(store, "nodes", size) | _ids(store, "types", None) | _tail(store) | _attributes(store)
    for segment in store.manifest["segments"]:
        forms |= _segment(store, segment)
    return forms


def _rows(store: Store, name: str) -> int:
    """Return how many rows an array has (0: it is missing)."""
    return len(store.array(name)) if name in store else 0


def _ids(store: Store, family: str, count: int | None) -> Forms:
    if f"{family}.id_ends" in store:
        return {f"{family}.id_ends": Form("<i8", (count,)), f"{family}.id_bytes": Form("|u1", (None,))}
    return {f"{family}.ids": Form("<i8", (count,))}


def _tail(store: Store) -> Forms:
    rules = rules_from_json(store.manifest["rules"])
    if not keeps_tail(rules.policy, rules.follow_life, rules.operations):
        return {}
    rows = _rows(store, "tail.key")
    return {f"tail.{name}": Form("<f8" if name == "value" else "<i8", (rows,)) for name in Contributions._fields}


def _segment(store: Store, segment: dict[str, Any]) -> Forms:
    name, count = segment["name"], segment["count"]
    edges, changes = _rows(store, f"{name}.keyframe.keys"), _rows(store, f"{name}.delta.keys")
    parts = {
        "starts": Form("<i8", (count,)),
        "whole": Form("|u1", (count,)),
        "ends": Form("<i8", (count, 2)),
        "statistics": Form("<i8", (count, len(STATISTICS))),
        "keyframe.keys": Form("<i8", (edges,)),
        "delta.keys": Form("<i8", (changes,)),
    }
    if segment["weighted"]:
        parts |= {"keyframe.weights": Form("<f8", (edges,)), "delta.old": Form("<f8", (changes,))}
        parts |= {"delta.new": Form("<f8", (changes,))}
    else:
        parts["delta.appears"] = Form("|u1", (changes,))
    return {f"{name}.{part}": form for part, form in parts.items()}


def _attributes(store: Store) -> Forms:
    features, labels = store.manifest["features"]["kind"], store.manifest["labels"]["kind"]
    forms: Forms = {"nodes.present": Form("<i8", (None, 3))} if "nodes.present" in store else {}
    if features == "one_hot":
        forms["features.classes"] = Form("<i8", (None,))
    if features == "stored":
        forms |= _values(store, "features", "<f4", (None, None))
    if labels != "none":
        forms |= _values(store, "labels", _INTEGERS if labels == "class" else "<f8", (None,))
    return forms


def _values(store: Store, family: str, dtypes: str, shape: tuple[int | None, ...]) -> Forms:
    """Return the arrays of values that are given once, or for each snapshot."""
    if f"{family}.fixed" in store:
        return {f"{family}.fixed": Form(dtypes, shape)}
    segments = store.manifest["segments"]
    return {f"{segment['name']}.{family}": Form(dtypes, (segment["count"], *shape)) for segment in segments}
