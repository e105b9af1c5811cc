"""Where plans, models and processes are joined: training, evaluation, prediction.

The package has the name of the function that users call: ``timeloom.train(graph, out)`` is `timeloom.train.runs.train`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    # Importing any part of this package makes `timeloom.train` this module, so the module is what must be callable.
    # A property, because the function is not to be imported, and torch with it, before it is called.
    @property
    def __call__(self) -> Any:
        return importlib.import_module("timeloom.train.runs").train


sys.modules[__name__].__class__ = _Callable
