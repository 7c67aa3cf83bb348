"""Toolsets ready to use, one file each. To add one, write its file and add its line here.

verl-tool knows them by the same names; each is also the name of the tool itself on every wire.
"""

from __future__ import annotations

from collections.abc import Mapping

TOOLS: Mapping[str, str] = {
    "base": "toolyard.tools.base:Base",
    "finish": "toolyard.tools.finish:Finish",
    "python_code": "toolyard.tools.python_code:PythonCode",
    "ipython_code": "toolyard.tools.ipython_code:IPythonCode",
    "bash_terminal": "toolyard.tools.bash_terminal:BashTerminal",
    "python_oj": "toolyard.tools.python_oj:PythonOJ",
    "text_browser": "toolyard.tools.text_browser:TextBrowser",
    "mcp_interface": "toolyard.tools.mcp_interface:McpInterface",
    "sandbox_fusion": "toolyard.tools.sandbox_fusion:SandboxFusion",
    "piston": "toolyard.tools.piston:Piston",
    "pixel_reasoner": "toolyard.tools.pixel_reasoner:PixelReasoner",
    "audio_crop": "toolyard.tools.audio_crop:AudioCrop",
    "sql": "toolyard.tools.sql:Sql",
    "search_retrieval": "toolyard.tools.search_retrieval:SearchRetrieval",
    "google_search": "toolyard.tools.web_search:GoogleSearch",
    "bing_search": "toolyard.tools.web_search:BingSearch",
}
"""In the order of listings."""
