"""Toolsets ready to use, one file each. To add one, write its file and add its line here.

The names are those that verl-tool knows them by; each is also the name of the tool itself on every wire.
"""

from __future__ import annotations

from collections.abc import Mapping

TOOLS: Mapping[str, str] = {
    "python_code": "toolyard.tools.python_code:PythonCode",
}
"""In the order in which they are listed."""
