"""How the pages of this folder become a site: `make docs`."""

from __future__ import annotations

project = "Timeloom"
author = "the Timeloom developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Timeloom"
myst_enable_extensions: list[str] = []
# Links to headings of other pages are checked, too.
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# A word such as `toml` or `text` is always a language here, and nothing is asked of a server while the site is built.
highlight_language = "text"
html_show_sourcelink = False
html_copy_source = False
