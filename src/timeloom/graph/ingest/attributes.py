"""What comes with nodes beside edges: tables of nodes, matrices of features, labels and signals."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from timeloom.errors import BadConfig, BadInput
from timeloom.graph.ingest.files import TextFile, stream, zip_members
from timeloom.graph.names import IdList

Values = NDArray[Any]


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
    """For each snapshot, the rows of the nodes that are here; None: the nodes with an edge."""
    spec: dict[str, Any] | None = None
    """Features that are computed when read: their description for the manifest."""

    @property
    def num_snapshots(self) -> int:
        """How many snapshots these attributes speak of (0: of none in particular)."""
        if self.features is not None and self.features.ndim == 3:
            return len(self.features)
        if self.labels is not None and self.labels.ndim == 2:
            return len(self.labels)
        return len(self.present) if self.present is not None else 0


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


def read_attributes(options: AttributeOptions) -> Attributes:
    """Read what the options ask for."""
    table = None if options.nodes is None else _read_table(options.nodes)
    if table is not None and options.node_id is not None:
        _column(table, options.node_id, options)
    ids = None if table is None else _ids_of(table, options.node_id or table.column_names[0])
    parts: dict[str, Any] = {"ids": ids}
    parts |= _features(options, table)
    parts |= _labels(options, table)
    if options.present is not None:
        path, name = _split_array(options.present, "--present")
        parts["present"] = [np.asarray(array, np.int64) for array in numbered_arrays(path, name)]
    from_array = any(
        text.split(":")[0] in ("array", "classes", "values") for text in (options.features, options.labels)
    )
    if from_array and ids is not None:
        parts["ids"] = ids
    return Attributes(**parts)


def _features(options: AttributeOptions, table: Any) -> dict[str, Any]:
    kind, _, rest = options.features.partition(":")
    if kind == "none":
        return {}
    if kind in ("degree", "log-degree"):
        return {"spec": {"kind": "degree", "log": kind == "log-degree"}}
    if kind == "random":
        dim, _, seed = rest.partition(":")
        if not dim.isdigit() or int(dim) == 0 or not (seed or "0").isdigit():
            raise BadConfig(f"--features {options.features}: write random:16 or random:16:SEED")
        return {"spec": {"kind": "random", "num_features": int(dim), "seed": int(seed or 0)}}
    if kind == "one-hot":
        codes, names = _classes(_column(table, rest, options))
        return {"feature_classes": (codes, names)}
    if kind == "columns":
        columns = [_numbers(_column(table, name, options), name) for name in rest.split(",")]
        return {"features": _finite(np.stack(columns, axis=1).astype(np.float32), f"--features {options.features}")}
    if kind == "array":
        values = read_array(*_split_array(rest, "--features"))
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim not in (2, 3) or values.dtype.kind not in "iufb":
            raise BadInput(
                f"--features {options.features}: shape {values.shape} is neither [nodes, F] nor [T, nodes, F]"
            )
        return {"features": _finite(values.astype(np.float32), f"--features {options.features}")}
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
        names = [str(number) for number in range(int(values.max(initial=-1)) + 1)]
        return {"labels": values.astype(np.int64), "classes": tuple(names)}
    raise BadConfig(
        f"--labels {options.labels} is unknown: use none, class:COLUMN, value:COLUMN, "
        "classes:FILE#NAME or values:FILE#NAME"
    )


def _finite(values: Values, what: str) -> Values:
    if not np.isfinite(values).all():
        raise BadInput(f"{what} holds NaN or infinite numbers, first at {tuple(np.argwhere(~np.isfinite(values))[0])}")
    return values


def _read_table(path: Path) -> Any:
    if path.suffix in (".parquet", ".pq"):
        try:
            return pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{path} is no Parquet file, or a broken one: {error}") from None
    file = TextFile(path)
    archive, _, member = str(path).rpartition(":")
    if archive and not path.exists():
        file = TextFile(Path(archive), member)
        if member not in zip_members(file.path):
            raise BadInput(f"{archive} has no member {member}")
    try:
        decompressed, raw = stream(file)
        with closing(raw), closing(decompressed):
            data = decompressed.read()
    except (EOFError, OSError) as error:
        raise BadInput(f"{path} is broken or cut off: {error}") from None
    return _parsed(data, path)


def _parsed(data: bytes, path: Path) -> Any:
    """Return a text table of nodes; without a header its columns are named 1, 2, ..."""
    first = data.split(b"\n", 1)[0].decode("utf-8", "replace").strip()
    separator = next((mark for mark in (",", "\t", ";") if mark in first), " ")
    fields = first.split(separator)
    bare = all(field.strip().lstrip("+-").replace(".", "", 1).isdigit() for field in fields)
    names = [str(place + 1) for place in range(len(fields))] if bare else None
    try:
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator),
            convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True),
        )
    except pa.ArrowException as error:
        raise BadInput(f"{path} cannot be read as a table of nodes: {error}") from None


def _column(table: Any, name: str, options: AttributeOptions) -> Any:
    if table is None:
        raise BadConfig(f"column {name!r} was asked for, but there is no table of nodes: add --nodes FILE")
    if name.isdigit() and name not in table.column_names and 1 <= int(name) <= table.num_columns:
        return table.column(int(name) - 1)
    if name not in table.column_names:
        raise BadConfig(f"{options.nodes} has no column {name!r}; it has {', '.join(table.column_names)}")
    return table.column(name)


def _ids_of(table: Any, name: str) -> IdList:
    column = table.column(int(name) - 1) if name not in table.column_names else table.column(name)
    if column.null_count:
        raise BadInput(f"the table of nodes has {column.null_count} rows without an id (column {name!r})")
    if pa.types.is_integer(column.type):
        ids: IdList = np.asarray(column.cast(pa.int64()))
    else:
        ids = [str(value) for value in column.to_pylist()]
    if len(set(ids if isinstance(ids, list) else ids.tolist())) != len(ids):
        raise BadInput(f"the table of nodes lists an id more than once (column {name!r})")
    return ids


def _classes(column: Any) -> tuple[Values, list[str]]:
    """Return a class for each value (numbers in order, else names in order; -1: no value) and the names."""
    values = column.to_pylist()
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
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, KeyError, SyntaxError) as error:
        raise BadInput(f"{path} cannot be read as NumPy arrays: {error}") from None
    except Exception as error:  # zipfile and zlib raise a family of their own
        raise BadInput(f"{path} is broken or cut off: {error}") from None


def read_array(path: Path, name: str) -> Values:
    """Return one array of a file; `x` also means the sparse matrix `x_indptr`, `x_indices` (`x_data`, `x_shape`)."""
    arrays = load_archive(path)
    if name in arrays:
        return arrays[name]
    if f"{name}_indptr" in arrays and f"{name}_indices" in arrays:
        return _dense(arrays, name)
    raise BadInput(f"{path} has no array {name!r}; it has {', '.join(sorted(arrays))}")


def _dense(arrays: dict[str, Values], name: str) -> Values:
    starts, columns = arrays[f"{name}_indptr"].astype(np.int64), arrays[f"{name}_indices"].astype(np.int64)
    width = int(arrays[f"{name}_shape"][1]) if f"{name}_shape" in arrays else int(columns.max(initial=-1)) + 1
    data = arrays.get(f"{name}_data", np.ones(len(columns)))
    if len(columns) != starts[-1] or len(data) != len(columns) or (len(columns) and columns.max() >= width):
        raise BadInput(
            f"the sparse matrix {name!r} does not fit together: {len(columns)} entries, {starts[-1]} announced"
        )
    rows = np.zeros((len(starts) - 1, width), np.float32)
    rows[np.repeat(np.arange(len(starts) - 1), np.diff(starts)), columns] = data
    return rows


def numbered_arrays(path: Path, pattern: str) -> list[Values]:
    """Return the arrays that a name such as `edge_index_{t}` means for t = 0, 1, ..., or the one of a plain name."""
    arrays = load_archive(path)
    if "{t}" not in pattern:
        return [read_array(path, pattern)]
    found: list[Values] = []
    while (name := pattern.replace("{t}", str(len(found)))) in arrays:
        found.append(arrays[name])
    if not found:
        raise BadInput(f"{path} has no array {pattern.replace('{t}', '0')!r}; it has {', '.join(sorted(arrays))}")
    return found
