"""The site of the documentation: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import django
from django.conf import settings
from sphinx.ext.napoleon import Config, GoogleDocstring

import django_zklock

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django_zklock",
        "django_zklock.contrib.events",
        "django_zklock.contrib.fences",
        "django_zklock.contrib.tokens",
    ],
    ZKLOCK={"URL": "zk://127.0.0.1:2181/docs"},
    USE_TZ=True,
)
django.setup()

project = "django-zklock"
author = "django-zklock contributors"
copyright = author
release = version = django_zklock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "from_code", "site_search"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
default_role = "code"  # docstrings use single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 100

html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"  # the default one underlines names
html_title = f"django-zklock {release}"
html_baseurl = "https://django-zklock.readthedocs.io/en/latest/"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search.js"))
html_theme_options = {
    "source_repository": "https://github.com/django-zklock/django-zklock/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = "$ "


def read_sections(app, what, name, obj, options, lines):
    """Read the sections of a docstring, such as Args. In a property, a colon in the first line is no section."""
    if what in ("function", "method", "class"):
        lines[:] = GoogleDocstring("\n".join(lines), Config(), app, what, name, obj, options).lines()


def setup(app):
    app.connect("autodoc-process-docstring", read_sections)
