"""Offers catalogues of HTTP APIs as tools: OpenAPI documents, ToolBench's tool files, and lists for a ToolBench
endpoint."""
