"""Judges: models that grade the texts of agents by a rubric.

`JUDGE = Judge("model", [Criterion("correct", "Is the answer right?")])`, and in a tool
`verdict = await JUDGE.ask(answer, about={"question": …})`, then `ToolOutput(rewards=verdict.rewards)`.
"""

from toolyard.judge.judge import Judge
from toolyard.judge.rubric import Criterion, Verdict

__all__ = ["Criterion", "Judge", "Verdict"]
