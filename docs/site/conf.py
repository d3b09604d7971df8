"""Configuration of the documentation site: ``make docs``.

The root of the repository is the source directory, so links such as ``../SECURITY.md`` and
``../examples/bulk_read.py`` work as they do on GitHub. Only the pages of ``include_patterns`` are read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The twins have signatures and docstrings that inspect can read, and are what the extensions are held to.
os.environ["LIFTENVELOPE_NO_EXTENSIONS"] = "1"
sys.path[:0] = [str(HERE), str(ROOT)]

from liftenvelope import __version__  # noqa: E402

project = "liftenvelope"
author = "The liftenvelope authors"
project_copyright = author
release = version = __version__
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/**.rst",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/RESULTS*.md",
]
exclude_patterns = ["docs/site/**"]
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "navigation",
    "source_pages",
    "public_names",
    "sphinx_click",
]
nitpicky = True

# Anchors as GitHub makes them: the pages are read in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]

autodoc_mock_imports = ["pyspark"]
autodoc_member_order = "bysource"
#: Members of these bases are described in Python's documentation.
FOREIGN = (
    "object,BaseException,Exception,OSError,ConnectionError,TimeoutError,ImportError,ValueError,TypeError,"
    "tuple,int,str,dict,Enum,IntEnum,StrEnum,Generic,Protocol"
)
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "inherited-members": FOREIGN,
    "show-inheritance": True,
}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = "liftenvelope"
html_favicon = "static/favicon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
