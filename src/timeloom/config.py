"""How a run is configured: a TOML file and `--set key=value` become frozen dataclasses.

`build(Config, merge(read_toml(path), parse_sets(sets)))` is the whole of it. TOML has no null: nothing is written
``"none"``, and means nothing only where the type of a field allows it.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from timeloom.errors import BadConfig

MAX_FILE_BYTES = 1 << 20
MAX_DEPTH = 16
_NONE = "none"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WANTED: dict[object, str] = {
    int: "a whole number such as 16",
    float: "a number such as 0.1",
    bool: "true or false",
    str: 'text, in quotes such as "abc"',
    Path: 'a path, in quotes such as "data/graph"',
}

D = TypeVar("D")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadConfig(
            f"configuration {path} cannot be read ({error.strerror}): give the path of a TOML file"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise BadConfig(
            f"configuration {path} has more than {MAX_FILE_BYTES} bytes, the most that is read: is this the right file?"
        )
    try:
        return parse_toml(data.decode(), f"configuration {path}")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadConfig(f"configuration {path} is not UTF-8 text (at line {line}): is this the right file?") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the tables of a TOML text; what is refused is called ``where``."""
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise BadConfig(f"{where} is nested too deep: write it with fewer brackets") from None
    except ValueError as error:
        # The parser ends its sentence with the line and the column.
        raise BadConfig(f"{where} is not TOML: {error}; mend that line") from None
    _refuse_deep(tables, where)
    return tables


def _refuse_deep(tables: dict[str, Any], where: str) -> None:
    """Refuse tables in tables in tables: no setting lies deep, and whoever goes down would not come back."""
    level: list[Any] = [tables]
    for _ in range(MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
        if not level:
            return
    raise BadConfig(f"{where} is nested too deep, more than {MAX_DEPTH} levels: write it with fewer brackets and dots")


def parse_sets(sets: Sequence[str]) -> dict[str, Any]:
    """Return the tables that ``a.b=value`` arguments say; of two that name the same key the later wins."""
    tables: dict[str, Any] = {}
    values: set[tuple[str, ...]] = set()
    for text in sets:
        dotted, equals, value = text.partition("=")
        if not equals:
            raise BadConfig(f"--set {text} has no '=': write --set KEY=VALUE, such as --set model.hidden=16")
        key = tuple(part.strip() for part in dotted.split("."))
        if len(key) > MAX_DEPTH:
            raise BadConfig(
                f"--set {text[:60]}... has {len(key)} dots or more: no setting lies deeper than {MAX_DEPTH}"
            )
        if not all(key):
            raise BadConfig(f"--set {text} has an empty key: write --set KEY=VALUE, such as --set model.hidden=16")
        for other in values - {key}:
            short, long = sorted((key, other), key=len)
            if long[: len(short)] == short:
                raise BadConfig(
                    f"--set gives {'.'.join(short)} a value, and {'.'.join(long)} too, which needs it to be a table: "
                    "leave one of them out"
                )
        values.add(key)
        table = tables
        for part in key[:-1]:
            table = table.setdefault(part, {})
        table[key[-1]] = _value(value.strip())
    _refuse_deep(tables, "--set")
    return tables


def _value(text: str) -> Any:
    """Return the TOML value that the text is, or else the text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
        # Text such as "1 # one", "1, 2" or two lines can be read in one of the two places only.
        tomllib.loads(f"value = [{text}]")
    except (ValueError, RecursionError):
        return text
    # No field has a date: what looks like one is meant as text.
    return value if isinstance(value, int | float | str | list | dict) else text


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return all layers in one; where two give a value for a key the later wins, tables are merged."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            before = merged.get(key)
            if isinstance(value, Mapping):
                merged[key] = merge(before, value) if isinstance(before, Mapping) else merge(value)
            else:
                merged[key] = value
    return merged


def build(cls: type[D], data: Mapping[str, Any], *, where: str = "") -> D:
    """Return the dataclass that the tables say; ``where`` is the dotted key that they are found at.

    What is not given has the default of its field; of a dataclass given in part the rest is that default's, too. A
    table of free options is taken as given: it replaces the default.
    """
    return _build(cls, data, where, MISSING)


def _build(cls: type[D], data: Mapping[str, Any], where: str, default: object) -> D:
    assert is_dataclass(cls), cls
    hints, known = get_type_hints(cls), [field for field in fields(cls) if field.init]
    names = [field.name for field in known]
    for key in data:
        if key not in names:
            raise BadConfig(_unknown(key, names, where))
    values: dict[str, Any] = {}
    for field in known:
        name, dotted = field.name, _dotted(where, field.name)
        fallback = getattr(default, name) if isinstance(default, cls) else _default(field)
        if name in data:
            values[name] = _convert(hints[name], data[name], dotted, fallback)
        elif fallback is MISSING and is_dataclass(hints[name]):
            values[name] = _convert(hints[name], {}, dotted, fallback)
        elif fallback is MISSING:
            raise BadConfig(f"{dotted} is not given and has no default: give {_wanted(hints[name])}")
        else:
            values[name] = fallback
    return cls(**values)


def _default(field: Field[Any]) -> object:
    """Return the default of a field, MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _dotted(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _unknown(key: str, names: list[str], where: str) -> str:
    close = difflib.get_close_matches(key, names, n=1)
    guess = f"did you mean {_dotted(where, close[0])}? " if close else ""
    known = ", ".join(sorted(names)) or "none"
    home = f"The keys of {where}" if where else "The keys"
    return f"{_dotted(where, key)} is no key of the configuration: {guess}{home} are: {known}"


def _convert(hint: Any, value: Any, dotted: str, default: object = MISSING) -> Any:
    """Return the value of a field of this type that a TOML value says."""
    members = _members(hint)
    if NoneType in members and value == _NONE:
        return None
    for member in members:
        found = _member(member, value, dotted, default)
        if found is not MISSING:
            return found
    raise BadConfig(f"{dotted} is {_shown(value)}: give {_wanted(hint)}{_close_option(members, value)}")


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types that a type allows, the narrower of two numbers first."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(sorted(members, key=lambda member: member is float))


def _member(hint: Any, value: Any, dotted: str, default: object) -> Any:
    """Return the value as this type has it, MISSING if it is none of this type."""
    origin, inner = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value, dotted, default) if isinstance(value, Mapping) else MISSING
    if origin is Literal:
        return next((one for one in inner if type(one) is type(value) and one == value), MISSING)
    if origin is tuple:
        assert inner[1:] == (...,), f"{dotted}: {hint} is no tuple[X, ...]"
        parts = enumerate(value) if isinstance(value, list | tuple) else None
        return MISSING if parts is None else tuple(_convert(inner[0], one, f"{dotted}[{i}]") for i, one in parts)
    if origin is dict:
        assert inner[0] is str, f"{dotted}: {hint} is no dict[str, X]"
        pairs = value.items() if isinstance(value, Mapping) else None
        return MISSING if pairs is None else {key: _convert(inner[1], one, _dotted(dotted, key)) for key, one in pairs}
    if hint is float and type(value) in (int, float):
        return _finite(value)
    if hint is Path and isinstance(value, str) and value:
        return Path(value)
    assert hint in (*_WANTED, NoneType), f"{dotted}: a field of type {hint} cannot be configured"
    return value if type(value) is hint and hint in (int, bool, str) else MISSING


def _finite(value: int | float) -> Any:
    try:
        return float(value) if math.isfinite(value) else MISSING
    except OverflowError:
        return MISSING


def _shown(value: object) -> str:
    """Return a value as a person would write it, cut short."""
    if isinstance(value, Mapping):
        return "a table"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{text[:60]}{'...' * (len(text) > 60)}"


def _wanted(hint: Any) -> str:
    """Say what a field of this type takes."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(_shown(one) for one in inner)
    if origin is tuple:
        return f"a list, in brackets, each part {_wanted(inner[0])}"
    if origin in (Union, UnionType):
        named = [_wanted(member) for member in inner if member is not NoneType]
        return " or ".join([*named, *(['"none"'] if NoneType in inner else [])])
    return _WANTED.get(hint, "a table")


def _close_option(members: tuple[Any, ...], value: object) -> str:
    options = [str(one) for member in members if get_origin(member) is Literal for one in get_args(member)]
    close = difflib.get_close_matches(str(value), options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def dump(config: object) -> str:
    """Return TOML text that `build` reads back as an equal configuration."""
    text = "\n".join(_lines(_table(config), "")) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadConfig(
            f"{_shown(error.object[max(error.start - 20, 0) : error.end])} is not UTF-8: give another name"
        ) from None
    again = build(type(config), tomllib.loads(text))
    if again != config:
        # Left are values that have no TOML of their own, such as the text "none" where nothing is allowed, too.
        before, after = flat(config), flat(again)
        key = next((key for key in before if key not in after or before[key] != after[key]), "a table")
        raise BadConfig(f"{key} is {before.get(key)!r}, which reads back as {after.get(key)!r}: give another value")
    return text


def _table(config: object) -> dict[str, Any]:
    assert is_dataclass(config), config
    return {field.name: getattr(config, field.name) for field in fields(config) if field.init}


def _lines(table: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield the lines of a table: its values, then the tables in it, since a header ends what stands above it."""
    inner: list[tuple[str, Mapping[str, Any]]] = []
    for name, value in table.items():
        if isinstance(value, Mapping) or is_dataclass(value):
            inner.append((_dotted(where, _key(name)), value if isinstance(value, Mapping) else _table(value)))
        else:
            yield f"{_key(name)} = {_toml(value)}"
    for dotted, under in inner:
        yield from ("", f"[{dotted}]")
        yield from _lines(under, dotted)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quoted(name)


def _quoted(text: str) -> str:
    # JSON escapes what TOML wants escaped, but for one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    if is_dataclass(value):
        value = _table(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {_toml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else _quoted(_NONE if value is None else str(value))


def flat(config: object) -> dict[str, object]:
    """Return every value with its dotted key, for printing."""
    flattened: dict[str, object] = {}
    for name, value in (config if isinstance(config, Mapping) else _table(config)).items():
        if isinstance(value, Mapping) or is_dataclass(value):
            flattened |= {_dotted(name, below): one for below, one in flat(value).items()}
        else:
            flattened[name] = value
    return flattened
