"""How index loops are compiled: one signature each, on first use, cached per kind of machine.

Numba's own cache is unsafe where one function has several signatures and several processes compile at once, or where
machines with different processors share a home directory. A kernel here has exactly one signature, so two processes
that race write the same bytes, and the folder is named after the processor and the versions that made the code.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import xxhash

from timeloom.cache import cache_home

logger = logging.getLogger(__name__)
R = TypeVar("R")
_compiling = threading.RLock()


def sources_of(function: Callable[..., object]) -> bytes:
    """Return the source of a function's file and of those of ours that it imports from.

    Constants of other files become part of compiled code, and numba looks at the function's own file alone.
    """
    own = Path(function.__code__.co_filename).read_bytes()
    imported = sorted(set(re.findall(rb"^from (timeloom[\w.]*) import", own, re.MULTILINE)))
    files = [sys.modules[name.decode()].__file__ for name in imported if name.decode() in sys.modules]
    return b"".join([own, *(Path(file).read_bytes() for file in files if file)])


def _code_folder(function: Callable[..., object]) -> str | None:
    """Return a writable folder for a function's compiled code on this kind of machine, or None where there is none."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    name = f"{llvmlite.binding.get_host_cpu_name()}-{python}-numba{numba.__version__}"
    folder = cache_home() / "kernels" / name / xxhash.xxh3_64_hexdigest(sources_of(function))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError as error:
        logger.debug("compiled kernels are not kept: %s", error)
        return None


class Kernel(Generic[R]):
    """A compiled loop: it releases the GIL, checks no bounds and is compiled when first called."""

    __slots__ = ("_function", "_run", "_signature")

    def __init__(self, function: Callable[..., R], signature: str) -> None:
        self._function = function
        self._signature = signature
        self._run: Callable[..., R] | None = None

    def __call__(self, *args: object) -> R:
        """Run the loop, compiling it first where that was not done yet."""
        return (self._run or self._compile())(*args)

    def _compile(self) -> Callable[..., R]:
        with _compiling:
            if self._run is None:
                folder = _code_folder(self._function)
                config: Any = numba.config
                before = config.CACHE_DIR
                config.CACHE_DIR = folder or before
                try:
                    build = numba.njit([self._signature], nogil=True, error_model="numpy", cache=folder is not None)
                    self._run = build(self._function)
                finally:
                    config.CACHE_DIR = before
        return self._run


def kernel(signature: str) -> Callable[[Callable[..., R]], Kernel[R]]:
    """Make a compiled loop with one numba signature, such as ``"int64(int64[::1], float64[::1])"``."""
    return lambda function: Kernel(function, signature)


def inlined(function: Callable[..., R]) -> Callable[..., R]:
    """Make a function that kernels of the same file may call; it is compiled into each of them."""
    built: Any = numba.njit(nogil=True, error_model="numpy")(function)
    return built  # type: ignore[no-any-return]
