"""The site of the documentation: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import django  # noqa: E402
from django.conf import settings  # noqa: E402

import django_zklock  # noqa: E402

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_zklock", "django_zklock.contrib.fences"],
    ZKLOCK={"URL": "zk://127.0.0.1:2181/docs"},
    USE_TZ=True,
)
django.setup()

project = "django-zklock"
author = "django-zklock contributors"
copyright = author  # noqa: A001 - Sphinx names it so
release = version = django_zklock.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
default_role = "code"  # docstrings use single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

html_theme = "furo"
html_title = f"django-zklock {release}"
html_theme_options = {
    "source_repository": "https://github.com/django-zklock/django-zklock/",
    "source_branch": "main",
    "source_directory": "docs/",
}
copybutton_prompt_text = "$ "
