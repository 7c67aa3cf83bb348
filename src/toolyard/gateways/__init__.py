"""Several processes behind one port. Each has the sessions whose ids are its own; a request that reaches another one is
passed on.

`Supervisor` starts the processes and replaces those that die. `Gateway` is one of them, as the others see it.
"""
