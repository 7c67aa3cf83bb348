"""Several processes behind one port. Each owns some sessions, by their ids, and passes requests for all others on to
their owners.

`Supervisor` starts the processes and replaces those that die. `Gateway` is one of them, as the others see it.
"""
