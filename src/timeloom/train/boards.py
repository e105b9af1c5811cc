"""Records as TensorBoard's event files."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from timeloom.errors import BadConfig
from timeloom.records import EpochEnded, Evaluated, Record, Stepped


def tensorboard() -> Any:
    """Return the module that writes event files."""
    try:
        return importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        raise BadConfig(
            "train.tensorboard=true needs TensorBoard, which is not installed: pip install 'timeloom[tensorboard]'"
        ) from None


class Board:
    """Event files in the folder `tensorboard` of a run."""

    def __init__(self, run: Path) -> None:
        self._writer = tensorboard().SummaryWriter(run / "tensorboard")

    def add(self, record: Record) -> None:
        """Write what a record says, if it says a number."""
        if isinstance(record, Stepped):
            self._writer.add_scalar("step/loss", record.loss, record.step)
            self._writer.add_scalar("step/gradient_norm", record.grad_norm, record.step)
        elif isinstance(record, EpochEnded):
            self._writer.add_scalar("epoch/loss", record.loss, record.epoch)
            self._writer.add_scalar("epoch/learning_rate", record.learning_rate, record.epoch)
            self._writer.add_scalar("epoch/edges_per_second", record.edges / max(record.seconds, 1e-9), record.epoch)
        elif isinstance(record, Evaluated):
            for name, value in record.scores.items():
                self._writer.add_scalar(f"{record.split}/{name}", value, record.epoch)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
