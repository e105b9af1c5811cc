"""How content becomes one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from timeloom.disk import sync_folder
from timeloom.errors import BadConfig, BadRun, TooLarge, is_disk_full

_SCRIPTS = ("basics.js", "chart.js", "lanes.js", "sections.js")
_MARK = "<!-- made by timeloom report -->"
# What would end a script or begin another one must not stand in the data.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page_of(content: dict[str, Any]) -> str:
    """Return the page of some content."""
    folder = resources.files("timeloom.report") / "page"
    script = '"use strict";\n' + "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (folder / "page.css").read_text(encoding="utf-8")
    data = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)
    title = html.escape(", ".join(run["name"] for run in content["runs"]))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # A browser that keeps to this policy runs our script alone, and asks no server for anything.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{allowed}'"
    return (
        f"<!doctype html>\n{_MARK}\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:,"><title>{title} · Timeloom</title>\n<style>\n{style}</style></head>\n'
        "<body><noscript><p>This page draws its charts with a script that lies in it: allow it to run.</p></noscript>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script>{script}</script>\n</body></html>\n'
    )


def write_page(path: Path, text: str) -> None:
    """Write a page in place of an earlier one, at once; refuse a file that is something else."""
    refuse_in_the_way(path)
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(text.encode("utf-8", "replace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        kind = TooLarge if is_disk_full(error) else BadRun
        raise kind(
            f"{path} cannot be written ({error.strerror}): give another file with --out, or make room for it"
        ) from None


def refuse_in_the_way(path: Path) -> None:
    """Refuse a path at which there is something else than a report."""
    if not path.exists():
        return
    found = "a folder"
    if path.is_file():
        with path.open("rb") as file:
            if _MARK.encode() in file.read(200):
                return
        found = "a file that timeloom report did not make"
    raise BadConfig(f"{path} is {found}, and it will not be replaced: give another file with --out")
