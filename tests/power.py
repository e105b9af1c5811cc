"""What a power cut leaves of a folder: what was forced to disk, and of the rest nothing, or the worst of it.

`Disk` watches a folder while somebody writes to it. Whenever a call is about to change the folder, it takes down two
states in which the power might leave it. In the one nothing is there that was not forced (`os.fsync`): contents by
their files, names by their folders. In the other all names are there, and of contents that were not forced, half.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "ftruncate")
Tree = Mapping[str, bytes | None]
"""Files and, as None, folders, by their paths."""


@dataclass(frozen=True, slots=True)
class State:
    """What is found when the power is back."""

    tree: Tree
    promised: tuple[Any, ...]
    """What the writer had been told by then to be on disk."""
    how: str

    def put(self, folder: Path) -> None:
        """Write it to an empty folder."""
        folder.mkdir()
        for name, data in sorted(self.tree.items()):
            if data is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(data)


@dataclass
class Disk:
    """A folder, and what of it would survive. It begins with what is there, forced."""

    root: Path
    promised: list[Any] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)
    """Files that are open have numbers (inodes) that no other file gets."""

    def __post_init__(self) -> None:
        for folder, _, files in os.walk(self.root):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                self._force(path)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take states down before every call in the block that changes a folder, and at its end."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name in CALLS:
                    patch.setattr(os, name, self._watching(name, getattr(os, name)))
                yield
            self._take_down()
        finally:
            for handle in self._held.values():
                os.close(handle)

    def _watching(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        true_open = os.open

        def watching(*arguments: Any, **named: Any) -> Any:
            if name != "open" or (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                self._take_down(true_open)
            if name == "fsync":
                self._force(f"/proc/self/fd/{arguments[0]}", true_open)
                return None
            return call(*arguments, **named)

        return watching

    def _force(self, path: str, true_open: Callable[..., int] = os.open) -> None:
        status = os.stat(path)
        self._hold(path, true_open)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {name: self._hold(f"{path}/{name}", true_open) for name in os.listdir(path)}
        else:
            self._contents[status.st_ino] = Path(path).read_bytes()

    def _hold(self, path: str, true_open: Callable[..., int]) -> int:
        number = os.stat(path).st_ino
        if number not in self._held:
            self._held[number] = true_open(path, os.O_RDONLY)
        return number

    def _take_down(self, true_open: Callable[..., int] = os.open) -> None:
        for how, tree in (("forced", self._forced()), ("torn", self._torn())):
            state = State(tree, tuple(self.promised), how)
            if state not in self.states[-4:]:
                self.states.append(state)

    def _forced(self) -> Tree:
        tree: dict[str, bytes | None] = {}

        def add(folder: int, path: str) -> None:
            for name, number in self._names.get(folder, {}).items():
                is_folder = stat.S_ISDIR(os.fstat(self._held[number]).st_mode)
                tree[path + name] = None if is_folder else self._contents.get(number, b"")
                if is_folder:
                    add(number, f"{path}{name}/")

        add(os.stat(self.root).st_ino, "")
        return tree

    def _torn(self) -> Tree:
        tree: dict[str, bytes | None] = {}
        for folder, folders, files in os.walk(self.root):
            for name in folders:
                tree[str(Path(folder, name).relative_to(self.root))] = None
            for name in files:
                path = Path(folder, name)
                tree[str(path.relative_to(self.root))] = self._half(path)
        return tree

    def _half(self, path: Path) -> bytes:
        now, forced = path.read_bytes(), self._contents.get(path.stat().st_ino, b"")
        begun = forced if now.startswith(forced) else b""
        return begun + now[len(begun) : (len(begun) + len(now)) // 2] if now != forced else now
