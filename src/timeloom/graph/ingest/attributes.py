"""What comes with nodes beside edges: tables of nodes, matrices of features, labels and signals."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput, TooLarge
from timeloom.graph.ingest.files import TextFile, lines_of, zip_members
from timeloom.graph.ingest.unpacked import refuse_bomb, refuse_wide
from timeloom.graph.names import IdList

Values = NDArray[Any]
MOST_CLASSES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """Features and labels by row; row k belongs to the node ``ids[k]`` (None: to the node with id k)."""

    ids: IdList | None = None
    features: Values | None = None
    """[rows, F] once, or [T, rows, F] by snapshot."""
    feature_classes: tuple[Values, list[str]] | None = None
    """[rows] one-hot classes and their names."""
    labels: Values | None = None
    """[rows] once, or [T, rows] by snapshot: classes (integers, -1 unknown) or values (floats, NaN unknown)."""
    classes: tuple[str, ...] = ()
    present: list[Values] | None = None
    """For each snapshot, the ids of the nodes that are here; None: the nodes with an edge."""
    spec: dict[str, Any] | None = None
    """Features that are computed when read: their description for the manifest."""

    def __post_init__(self) -> None:
        counts = self._counts()
        if len(set(counts.values())) > 1:
            said = " and ".join(f"{what} for {count} snapshots" for what, count in counts.items())
            raise BadInput(f"these do not go together: {said}; give all of them for the same snapshots")

    def _counts(self) -> dict[str, int]:
        """Return how many snapshots each part speaks of, without those that are the same in all."""
        counts = {}
        if self.features is not None and self.features.ndim == 3:
            counts["features"] = len(self.features)
        if self.labels is not None and self.labels.ndim == 2:
            counts["labels"] = len(self.labels)
        if self.present is not None:
            counts["present nodes"] = len(self.present)
        return counts

    @property
    def num_snapshots(self) -> int:
        """How many snapshots these attributes speak of (0: of none in particular)."""
        return next(iter(self._counts().values()), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeOptions:
    """Where features and labels come from, as the user wrote it."""

    nodes: Path | None = None
    """A table of nodes (CSV, TSV or Parquet, perhaps compressed)."""
    node_id: str | None = None
    """The column of that table with the ids; None: its first."""
    features: str = "none"
    """none | degree | log-degree | random:DIM[:SEED] | one-hot:COLUMN | columns:A,B | array:FILE[#NAME]"""
    labels: str = "none"
    """none | class:COLUMN | value:COLUMN | classes:FILE[#NAME] | values:FILE[#NAME]"""
    present: str | None = None
    """FILE#NAME{t}: arrays of the ids of the nodes that are here, one for each snapshot."""


def read_attributes(options: AttributeOptions, *, ids_as_names: bool = False) -> Attributes:
    """Read what the options ask for; with ``ids_as_names`` the ids of the table of nodes stay the text they are."""
    table, parts = None, dict[str, Any]()
    if options.nodes is not None:
        table = _read_table(options.nodes, (options.node_id or "1") if ids_as_names else None)
        parts["ids"] = _ids_of(table, options, ids_as_names=ids_as_names)
    parts |= _features(options, table)
    parts |= _labels(options, table)
    if options.present is not None:
        path, name = _split_array(options.present, "--present")
        parts["present"] = [
            _present(array, options.present) for array in numbered_arrays(load_archive(path), name, path)
        ]
    return Attributes(**parts)


def _present(array: Values, what: str) -> Values:
    if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0)):
        raise BadInput(f"--present {what} holds {array.dtype} of shape {array.shape}: give lists of ids from 0 on")
    return array.astype(np.int64)


def _features(options: AttributeOptions, table: Any) -> dict[str, Any]:
    kind, _, rest = options.features.partition(":")
    if kind == "none":
        return {}
    if kind in ("degree", "log-degree"):
        return {"spec": {"kind": "degree", "log": kind == "log-degree"}}
    if kind == "random":
        dim, _, seed = rest.partition(":")
        if not dim.isdecimal() or int(dim) == 0 or not (seed or "0").isdecimal():
            raise BadConfig(f"--features {options.features}: write random:16 or random:16:SEED")
        return {"spec": {"kind": "random", "num_features": int(dim), "seed": int(seed or 0)}}
    if kind == "one-hot":
        codes, names = _classes(_column(table, rest, options))
        return {"feature_classes": (codes, names)}
    if kind == "columns":
        columns = [_numbers(_column(table, name, options), name) for name in rest.split(",")]
        return {"features": as_features(np.stack(columns, axis=1), f"--features {options.features}")}
    if kind == "array":
        values = read_array(*_split_array(rest, "--features"))
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim not in (2, 3):
            raise BadInput(
                f"--features {options.features}: shape {values.shape} is neither [nodes, F] nor [T, nodes, F]"
            )
        return {"features": as_features(values, f"--features {options.features}")}
    raise BadConfig(
        f"--features {options.features} is unknown: use none, degree, log-degree, random:16, one-hot:COLUMN, "
        "columns:A,B or array:FILE#NAME"
    )


def _labels(options: AttributeOptions, table: Any) -> dict[str, Any]:
    kind, _, rest = options.labels.partition(":")
    if kind == "none":
        return {}
    if kind == "class":
        codes, names = _classes(_column(table, rest, options))
        return {"labels": codes, "classes": tuple(names)}
    if kind == "value":
        return {"labels": _numbers(_column(table, rest, options), rest)}
    if kind in ("classes", "values"):
        values = read_array(*_split_array(rest, "--labels"))
        if values.ndim not in (1, 2):
            raise BadInput(f"--labels {options.labels}: shape {values.shape} is neither [nodes] nor [T, nodes]")
        if kind == "values":
            if values.dtype.kind not in "iufb":
                raise BadInput(f"--labels {options.labels} holds {values.dtype}, not numbers")
            return {"labels": values.astype(np.float64)}
        if values.dtype.kind not in "iu":
            raise BadInput(f"--labels {options.labels} holds {values.dtype}: classes are integers")
        classes, class_names = as_classes(values, f"--labels {options.labels}")
        return {"labels": classes, "classes": class_names}
    raise BadConfig(
        f"--labels {options.labels} is unknown: use none, class:COLUMN, value:COLUMN, "
        "classes:FILE#NAME or values:FILE#NAME"
    )


def as_features(values: Values, what: str) -> Values:
    """Return numbers as features, which must be finite."""
    if values.dtype.kind not in "iufb":
        raise BadInput(f"{what} holds {values.dtype}, not numbers")
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    if not np.isfinite(found).all():
        first = tuple(np.argwhere(~np.isfinite(found))[0].tolist())
        raise BadInput(f"{what} holds NaN or infinite numbers (or beyond 1e38), first at {first}")
    return found


def as_classes(values: Values, what: str) -> tuple[Values, tuple[str, ...]]:
    """Return integers as classes (-1: unknown), and the names of the classes: their numbers."""
    least, most = (int(values.min()), int(values.max())) if values.size else (-1, -1)
    if least < -1 or most >= MOST_CLASSES:
        raise BadInput(
            f"{what} has classes from {least} to {most}: they must lie between -1 (unknown) and {MOST_CLASSES - 1}; "
            "numbers that are no classes must be floats"
        )
    return values.astype(np.int64), tuple(str(number) for number in range(most + 1))


def _read_table(path: Path, text_column: str | None) -> Any:
    """Return a table of nodes; ``text_column`` (None: no column) is read as text whatever it holds."""
    if path.suffix in (".parquet", ".pq"):
        try:
            refuse_wide(pq.ParquetFile(path), path)
            return pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{path} is no Parquet file, or a broken one: {error}") from None
    file = TextFile(path)
    archive, _, member = str(path).rpartition(":")
    if archive and not path.exists():
        file = TextFile(Path(archive), member)
        if member not in zip_members(file.path):
            raise BadInput(f"{archive} has no member {member}")
    return _parsed(b"".join(lines.tobytes() for lines, _ in lines_of(file)), path, text_column)


def _parsed(data: bytes, path: Path, text_column: str | None) -> Any:
    """Return a text table of nodes; without a header its columns are named 1, 2, ..."""
    header = data.split(b"\n", 1)[0] + b"\n"
    first = header.decode("utf-8", "replace").strip()
    separator = next((mark for mark in (",", "\t", ";") if mark in first), " ")
    fields = first.split(separator)
    bare = all(field.strip().lstrip("+-").replace(".", "", 1).isdecimal() for field in fields)
    names = [str(place + 1) for place in range(len(fields))] if bare else None
    parse_options = pyarrow.csv.ParseOptions(delimiter=separator)
    # To Arrow, "NA" and "null" are missing too; but they are good names.
    converted = {"strings_can_be_null": True, "null_values": [""]}
    try:
        if text_column is not None:
            have = names or pyarrow.csv.read_csv(pa.BufferReader(header), parse_options=parse_options).column_names
            place = _place(have, text_column)
            if place is not None:
                converted["column_types"] = {have[place]: pa.string()}
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(column_names=names),
            parse_options=parse_options,
            convert_options=pyarrow.csv.ConvertOptions(**converted),
        )
    except pa.ArrowException as error:
        raise BadInput(f"{path} cannot be read as a table of nodes: {error}") from None


def _place(names: list[str], name: str) -> int | None:
    """Return which column is meant by a name or a position (None: there is no such column)."""
    if name in names:
        return names.index(name)
    return int(name) - 1 if name.isdecimal() and 1 <= int(name) <= len(names) else None


def _column(table: Any, name: str, options: AttributeOptions) -> Any:
    if table is None:
        raise BadConfig(f"column {name!r} was asked for, but there is no table of nodes: add --nodes FILE")
    place = _place(table.column_names, name)
    if place is None:
        raise BadConfig(f"{options.nodes} has no column {name!r}; it has {', '.join(table.column_names)}")
    if table.column_names.count(name) > 1:
        raise BadInput(f"{options.nodes} has {table.column_names.count(name)} columns {name!r}: rename all but one")
    if pa.types.is_nested(table.column(place).type):
        raise BadInput(
            f"{options.nodes}: column {name!r} has type {table.column(place).type}: it must hold single values"
        )
    return table.column(place)


def _ids_of(table: Any, options: AttributeOptions, *, ids_as_names: bool) -> IdList:
    if not table.num_columns:
        raise BadInput(f"{options.nodes} has no columns: a table of nodes begins with their ids")
    name = options.node_id or table.column_names[0]
    column = _column(table, name, options)
    missing = int(pc.sum(column.is_null(nan_is_null=True)).as_py() or 0)
    if missing:
        raise BadInput(f"the table of nodes has {missing} rows without an id (column {name!r})")
    if pa.types.is_integer(column.type) and not ids_as_names:
        try:
            ids: IdList = np.asarray(column.cast(pa.int64()))
        except pa.ArrowException:
            raise BadInput(f"the table of nodes has an id beyond 2^63 (column {name!r})") from None
    else:
        ids = [str(value) for value in column.to_pylist()]
    if len(set(ids if isinstance(ids, list) else ids.tolist())) != len(ids):
        raise BadInput(f"the table of nodes lists an id more than once (column {name!r})")
    return ids


def _classes(column: Any) -> tuple[Values, list[str]]:
    """Return a class for each value (numbers in order, else names in order; -1: no value, or NaN) and the names."""
    values = [None if value != value else value for value in column.to_pylist()]
    known = sorted({value for value in values if value is not None})
    number = {value: place for place, value in enumerate(known)}
    return np.array([number.get(value, -1) for value in values], np.int64), [str(value) for value in known]


def _numbers(column: Any, name: str) -> Values:
    try:
        return np.asarray(column.cast(pa.float64())).astype(np.float64)
    except pa.ArrowException:
        raise BadInput(f"column {name!r} of the table of nodes holds {column.type}, not numbers") from None


def _split_array(text: str, option: str) -> tuple[Path, str]:
    path, mark, name = text.rpartition("#")
    if not mark or Path(text).exists():
        path, name = text, ""
    if not path:
        raise BadConfig(f"{option} {text}: write FILE.npy, or FILE.npz#NAME")
    return Path(path), name


def load_archive(path: Path) -> dict[str, Values]:
    """Return the arrays of a `.npz`, or of a `.npy` under the empty name; arrays of objects are refused."""
    try:
        # NumPy leaves a file that it opened itself open where the file is broken.
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as archive:
                    unpacked = sum(info.file_size for info in archive.infolist())
                refuse_bomb(str(path), unpacked, path.stat().st_size)
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except TooLarge:
        raise
    except (OSError, ValueError, EOFError, KeyError, SyntaxError) as error:
        raise BadInput(f"{path} cannot be read as NumPy arrays: {error}") from None
    except Exception as error:  # zipfile and zlib raise a family of their own
        raise BadInput(f"{path} is broken or cut off: {error}") from None


def read_array(path: Path, name: str) -> Values:
    """Return one array of a file; `x` also means the sparse matrix `x_indptr`, `x_indices` (`x_data`, `x_shape`)."""
    return _array_of(load_archive(path), name, path)


def _array_of(arrays: dict[str, Values], name: str, path: Path) -> Values:
    if name in arrays:
        return arrays[name]
    if f"{name}_indptr" in arrays and f"{name}_indices" in arrays:
        return _dense(arrays, name, path)
    raise BadInput(f"{path} has no array {name!r}; it has {', '.join(sorted(arrays))}")


def _dense(arrays: dict[str, Values], name: str, path: Path) -> Values:
    num_rows, places, columns = sparse_entries(arrays, name, path)
    width = int(columns.max(initial=-1)) + 1
    if f"{name}_shape" in arrays:
        shape = arrays[f"{name}_shape"]
        if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[1] < width:
            raise BadInput(f"{path}: the sparse matrix {name!r} has shape {shape.tolist()}, but {width} columns")
        width = int(shape[1])
    try:
        rows = np.zeros((num_rows, width), np.float32)
    except (MemoryError, ValueError):
        raise TooLarge(f"{path}: the sparse matrix {name!r} is [{num_rows}, {width}], too large to fill") from None
    rows[places, columns] = arrays.get(f"{name}_data", 1.0)
    return rows


def sparse_entries(arrays: dict[str, Values], name: str, path: Path) -> tuple[int, Values, Values]:
    """Return how many rows a sparse matrix `x_indptr`, `x_indices` has, and the row and the column of each entry."""
    starts, columns = arrays[f"{name}_indptr"], arrays[f"{name}_indices"]
    data = arrays.get(f"{name}_data", columns)
    if any(array.ndim != 1 or (array.size and array.dtype.kind not in "iu") for array in (starts, columns)):
        raise BadInput(f"{path}: the sparse matrix {name!r} needs lists of integers as indptr and indices")
    starts, columns = starts.astype(np.int64), columns.astype(np.int64)
    if not len(starts) or starts[0] != 0 or (np.diff(starts) < 0).any() or (columns < 0).any():
        raise BadInput(f"{path}: the sparse matrix {name!r} is broken: its indptr must ascend from 0")
    if data.dtype.kind not in "iufb":
        raise BadInput(f"{path}: the sparse matrix {name!r} holds {data.dtype}, not numbers")
    if len(columns) != starts[-1] or data.shape != columns.shape:
        raise BadInput(
            f"{path}: the sparse matrix {name!r} does not fit together: {len(columns)} entries with {data.size} "
            f"values, {starts[-1]} announced"
        )
    return len(starts) - 1, np.repeat(np.arange(len(starts) - 1), np.diff(starts)), columns


def numbered_arrays(arrays: dict[str, Values], pattern: str, path: Path) -> list[Values]:
    """Return the arrays that a name such as `edge_index_{t}` means for t = 0, 1, ..., or the one of a plain name."""
    if "{t}" not in pattern:
        return [_array_of(arrays, pattern, path)]
    found: list[Values] = []
    while (name := pattern.replace("{t}", str(len(found)))) in arrays:
        found.append(arrays[name])
    if not found:
        raise BadInput(f"{path} has no array {pattern.replace('{t}', '0')!r}; it has {', '.join(sorted(arrays))}")
    return found
