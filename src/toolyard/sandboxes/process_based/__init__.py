"""The common parts of `subprocess`, `bubblewrap`, `landlock` and the containers: sandboxes of ordinary processes.

A backend gives each sandbox a `Room`, which starts and ends programs; `RoomSandbox` does the rest.
"""
