"""Grading what an agent wrote: `grader` makes a fresh sandbox from its files, `running` runs hidden tests on them.

`laying` copies files, `finding` reads tests on the host, `twins`, `changes` and `literals` write what must fail,
`pytest_runner` runs inside the sandbox, `records` reads what that says, and `judging` decides.
"""
