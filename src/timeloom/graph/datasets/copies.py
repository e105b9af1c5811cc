"""Where the files of a dataset lie: in a copy that the user names, or in the cache, fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from timeloom.cache import cache_home
from timeloom.errors import BadInput, DownloadFailed
from timeloom.graph.datasets.dataset import Dataset, File
from timeloom.graph.download import fetch
from timeloom.graph.ingest import AttributeOptions, Ingest
from timeloom.graph.ingest.gather import Progress, silent
from timeloom.graph.ingest.rules import default_budget

_COMPRESSIONS = (".gz", ".xz", ".zst", ".bz2")


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """What `ingest` is to be given for a copy of a dataset."""

    source: list[Path]
    options: Ingest


def local_copy(dataset: Dataset, path: str | PathLike[str]) -> LocalCopy:
    """Return the source and the options for the copy at ``path``: a folder that holds the files, or the file of edges.

    A file may be compressed otherwise than it is published, an archive may be unpacked, and the file of edges may have
    any name if it is the only one. All other files are looked for in the same folder.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise BadInput(f"--from {path} does not exist: name a copy of {dataset.edges[0].name}, or the folder it is in")
    is_folder = path.is_dir()
    folder, named = (path, "") if is_folder else (path.parent, _meant(dataset, path))
    source: list[Path] = []
    places: dict[str, Path] = {}
    for file in (*dataset.edges, *dataset.beside):
        found = path if file.name == named else _first(folder, (file.name, *file.also))
        parts, parts_by_name = _opened(dataset, file, folder, found)
        source += parts if file in dataset.edges else []
        places |= parts_by_name
    # The catalogue was made when it was imported; how much memory is free has changed since.
    attributes = _resolved(dataset.preset.attributes, places)
    return LocalCopy(source, replace(dataset.preset, attributes=attributes, budget=default_budget()))


def _meant(dataset: Dataset, path: Path) -> str:
    """Return the name of the file that ``path`` is a copy of (empty: of a part of an archive)."""
    files = (*dataset.edges, *dataset.beside)
    for file in files:
        if path.name in _spellings((file.name, *file.also)):
            return file.name
        if path.name in _spellings(file.members) and len(files) + len(file.members) > 2:
            return ""
    if len(dataset.edges) > 1:
        names = ", ".join(file.name for file in dataset.files)
        raise BadInput(f"--from {path} is no file of {dataset.name}: name one of {names}, or the folder they are in")
    return dataset.edges[0].name


def _spellings(names: tuple[str, ...]) -> Iterator[str]:
    """Yield each name as it is, then without and with each compression."""
    for name in names:
        yield name
        bare = next((name.removesuffix(ending) for ending in _COMPRESSIONS if name.endswith(ending)), name)
        yield from (bare + ending for ending in ("", *_COMPRESSIONS))


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in _spellings(names) if (folder / name).is_file()), None)


def _opened(dataset: Dataset, file: File, folder: Path, found: Path | None) -> tuple[list[Path], dict[str, Path]]:
    """Return what is to be read of a file, and where each part of it lies, by the part's name."""
    if found is not None and file.members and found.suffix == ".zip":
        parts = {member: Path(f"{found}:{member}") for member in file.members}
        return [Path(f"{found}:{','.join(file.members)}")], parts
    if found is not None:
        return [found], {file.name: found}
    unpacked = {member: place for member in file.members if (place := _first(folder, (member,))) is not None}
    if unpacked and len(unpacked) == len(file.members):
        return list(unpacked.values()), unpacked
    here = sorted(entry.name for entry in folder.iterdir())
    holds = f"holds {', '.join(here[:6])}{', ...' if len(here) > 6 else ''}" if here else "is empty"
    raise BadInput(f"{dataset.name} needs {file.name}, but {folder} {holds}: name the folder or the file with --from")


def _resolved(attributes: AttributeOptions, places: dict[str, Path]) -> AttributeOptions:
    """Return the options with the places of a copy for the names of files."""
    names = re.compile("|".join(re.escape(name) for name in places))

    def placed(text: str) -> str:
        return names.sub(lambda found: str(places[found[0]]), text)

    return replace(
        attributes,
        nodes=None if attributes.nodes is None else Path(placed(str(attributes.nodes))),
        features=placed(attributes.features),
        labels=placed(attributes.labels),
        present=None if attributes.present is None else placed(attributes.present),
    )


def fetch_dataset(dataset: Dataset, progress: Progress = silent, *, timeout_s: float = 30.0) -> Path:
    """Return the folder of the cache that holds a dataset's files; those that are not there yet are fetched.

    The stage that ``progress`` is told says `unverified` where no checksum is known.
    """
    folder = cache_home() / "data" / dataset.name.replace(":", "/")
    missing = [file for file in dataset.files if not (folder / file.name).exists()]
    for file in missing:
        if file.url is None:
            raise DownloadFailed(f"{file.name} of {dataset.name} is published nowhere: name a copy with --from PATH")
    for file in missing:
        assert file.url is not None
        stage = f"fetching {file.name}" + ("" if file.sha256 else ", unverified")

        def show(done_bytes: int, total_bytes: int, stage: str = stage) -> None:
            progress(stage, done_bytes, total_bytes, 0)

        fetch(file.url, folder / file.name, sha256=file.sha256, progress=show, timeout_s=timeout_s)
    return folder
