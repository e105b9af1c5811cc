"""Records as JSON and back, checked field by field."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from timeloom.errors import BadRun
from timeloom.records.kinds import Record

Read = Callable[[Any], Any]
_MOST_AS_FLOAT = 1 << 1023
_MOST_COUNTED = (1 << 63) - 1


class _Odd(Exception):
    """A value that a field cannot have, and where it was found."""

    def __init__(self, value: Any) -> None:
        self.value, self.where = value, list[str]()

    def under(self, name: str) -> Self:
        self.where.insert(0, name)
        return self


def as_json(record: Record) -> dict[str, Any]:
    """Return a record as JSON has it; a float that is no number is null."""
    return {"kind": record.kind, **{field.name: _to_json(getattr(record, field.name)) for field in fields(record)}}


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_json(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(data: dict[str, Any]) -> Record:
    """Return the record that `as_json` made this of; null where a float stands is nan."""
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise BadRun(f"a record of kind {kind!r} is unknown: use the timeloom that wrote it")
    readers = _READERS[kind]
    if len(data) - 1 != len(readers) or not data.keys() >= readers.keys():
        odd = sorted({*data, "kind"} ^ {*readers, "kind"})
        what = "has an unknown" if odd[0] in data else "has no"
        raise BadRun(f"a record of kind {kind!r} {what} field {odd[0]!r}: use the timeloom that wrote it")
    try:
        return _CLASSES[kind](**_read_each(readers, data))
    except _Odd as found:
        where = ".".join([kind, *found.where])
        raise BadRun(
            f"a record gives {where} as {str(found.value)[:60]!r}, which it cannot be: restore the records from a copy"
        ) from None


def _read_each(readers: dict[str, Read], data: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for name, read in readers.items():
        try:
            values[name] = read(data[name])
        except _Odd as odd:
            raise odd.under(name) from None
    return values


def _reader(hint: Any) -> Read:
    """Return the function that reads a value of this type. Made once for each field: a run can have millions."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is dict:
        return _dict_reader(_reader(parts[1]))
    if origin is tuple and parts[-1] is Ellipsis:
        return _list_reader(_reader(parts[0]))
    if origin is tuple:
        return _tuple_reader(parts)
    return _scalar_reader(parts or (hint,))


def _dict_reader(read: Read) -> Read:
    def read_dict(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _Odd(value)
        return _read_each(dict.fromkeys(value, read), value)

    return read_dict


def _list_reader(read: Read) -> Read:
    def read_list(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _Odd(value)
        return tuple([read(one) for one in value])

    return read_list


def _tuple_reader(parts: tuple[type, ...]) -> Read:
    readers, exact, no_counts = [_reader(part) for part in parts], list(parts), int not in parts

    def read_tuple(value: Any) -> tuple[Any, ...]:
        # Nearly all values have the very types that were asked for: spans are most of what a large run tells.
        if type(value) is list and no_counts and list(map(type, value)) == exact:
            return tuple(value)
        if type(value) is not list or len(value) != len(readers):
            raise _Odd(value)
        return tuple([read(one) for read, one in zip(readers, value, strict=True)])

    return read_tuple


def _scalar_reader(members: tuple[type, ...]) -> Read:
    def read_scalar(value: Any) -> Any:
        if type(value) in members and not (type(value) is int and abs(value) > _MOST_COUNTED):
            return value
        if float in members and value is None:
            return math.nan
        if float in members and type(value) is int and abs(value) < _MOST_AS_FLOAT:
            return float(value)
        raise _Odd(value)

    return read_scalar


_CLASSES: dict[str, type[Record]] = {cls.kind: cls for cls in get_args(Record)}
_READERS: dict[str, dict[str, Read]] = {
    kind: {name: _reader(hint) for name, hint in get_type_hints(cls).items() if get_origin(hint) is not ClassVar}
    for kind, cls in _CLASSES.items()
}
