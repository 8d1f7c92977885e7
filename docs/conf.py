"""How `make docs` builds the site: Sphinx with MyST and furo, and what `_ext/` adds to them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
from source_pages import resolve as linkcode_resolve  # noqa: F401

project = "fibration"
copyright = "fibration's authors"
html_title = "fibration"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "commands",
    "docstrings",
    "flowchart",
    "front_page",
    "gallery",
    "mathml",
    "source_pages",
    "trainers",
]
exclude_patterns = ["_*"]
source_suffix = {".md": "markdown", ".myst": "markdown"}  # the latter of the gallery, for nobody but the site
nitpicky = True

# GitHub's anchors, so that a link holds in both places.
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
# Types in signatures that are not public names.
nitpick_ignore_regex = [("py:class", r"(?!fibration\.\w+$)[\w.]+\.\w+")]
maximum_signature_line_length = 80

html_math_renderer = "mathml"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/mark.svg"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp, .go"
