"""Sandboxes made of ordinary processes: all that `subprocess`, `bubblewrap` and the containers have in common.

A backend gives each sandbox a `Room`, in which programs are started and ended; `RoomSandbox` does the rest with it.
"""
