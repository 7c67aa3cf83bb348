"""Grades an agent's code: `grader` makes a fresh sandbox from its files, `running` runs hidden tests on them.

`laying` copies files, `finding` reads tests on the host, `twins`, `changes` and `literals` write tests that must fail,
`pytest_runner` runs inside the sandbox, `records` reads its report, and `judging` decides.
"""
