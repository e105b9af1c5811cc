"""What stands at the end of every command's help: what it may end with, and which commands and pages go with it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

CODES = {
    0: "done",
    1: "an error of another kind",
    2: "an option that cannot be meant",
    3: "a source that cannot be read",
    4: "a graph or run that is missing, broken or in use",
    5: "too large for the memory or disk allowed",
    6: "a failed download",
    7: "training diverged",
    8: "another rank is lost",
    9: "ranks differ",
    75: "asked to stop, and saved: --resume goes on",
    130: "Ctrl-C",
    143: "SIGTERM",
}
"""What each exit code means."""

_ALWAYS = (0, 1, 2)
_STOPPED = (130, 143)
_TRAINING = (4, 5, 7, 8, 9, 75)


@dataclass(frozen=True, slots=True)
class Manual:
    """What belongs to a command."""

    also: tuple[str, ...]
    """Other commands."""
    page: str
    """A page of docs/."""
    codes: tuple[int, ...] = (4,)
    """What it may end with beside what every command may."""

    def epilogue(self, examples: list[str]) -> str:
        """Return the last lines of the help."""
        shown = "".join(f"    {example}\n" for example in examples)
        codes = "; ".join(f"{code} {CODES[code]}" for code in (*_ALWAYS, *self.codes, *_STOPPED))
        also = ", ".join(f"timeloom {name}" for name in self.also)
        return f"Examples:\n\n{shown}\nExit codes: {codes}.\n\nSee also: {also}; docs/{self.page}"


def examples_of(doc: str | None) -> list[str]:
    """Return the examples that a docstring gives: the lines below its heading, which no help shows by itself."""
    _, found, below = inspect.cleandoc(doc or "").partition("\nExamples\n--------\n")
    return below.splitlines() if found else []


MANUALS = {
    "ingest": Manual(("append", "info", "check"), "own-data.md", (3, 4, 5, 6)),
    "append": Manual(("ingest", "check", "follow"), "own-data.md", (3, 4, 5)),
    "info": Manual(("check", "ingest"), "own-data.md"),
    "check": Manual(("info", "evaluate"), "store.md"),
    "export": Manual(("info", "predict"), "store.md"),
    "synth": Manual(("info", "train"), "start.md", (4, 5)),
    "train": Manual(("models", "systems", "report", "predict", "compare"), "training.md", _TRAINING),
    "follow": Manual(("append", "train", "live"), "distdy.md", _TRAINING),
    "evaluate": Manual(("train", "predict", "report"), "training.md"),
    "predict": Manual(("train", "evaluate"), "training.md"),
    "models": Manual(("train", "systems"), "models.md", ()),
    "systems": Manual(("train", "plan", "compare"), "choosing.md", ()),
    "calibrate": Manual(("plan", "train"), "kernels.md", ()),
    "report": Manual(("live", "trace", "compare"), "report.md"),
    "trace": Manual(("report", "live"), "report.md"),
    "live": Manual(("report", "trace"), "report.md"),
    "compare": Manual(("report", "systems", "train"), "choosing.md", _TRAINING),
    "partition": Manual(("systems", "plan"), "partition.md"),
    "plan": Manual(("simulate", "calibrate", "systems"), "scheduling.md"),
    "simulate": Manual(("plan", "synth"), "scheduling.md", (3, 4)),
}
"""Of every command, by its name."""
