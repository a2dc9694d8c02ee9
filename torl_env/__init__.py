"""Math problems with a Python interpreter, as a Gymnasium environment: `gymnasium.make("torl/MathTool-v0")`.

Importing this package registers the environment; it needs neither torch nor vLLM nor Ray.
"""

import gymnasium

from torl_env.dialect import PLAIN, TORL, Dialect
from torl_env.env import MathToolEnv, TranscriptObservation
from torl_env.grading import Grade, Verdict, grade
from torl_env.problems import Problem, ProblemSet, ProblemStream
from torl_env.rewards import Reward, RewardTerms
from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.types import ExecutionResult, SandboxClient, Status

__all__ = [
    "PLAIN",
    "TORL",
    "Dialect",
    "ExecutionResult",
    "Grade",
    "LocalSandbox",
    "MathToolEnv",
    "Problem",
    "ProblemSet",
    "ProblemStream",
    "Reward",
    "RewardTerms",
    "SandboxClient",
    "Status",
    "TranscriptObservation",
    "Verdict",
    "grade",
]

gymnasium.register("torl/MathTool-v0", entry_point="torl_env.env:MathToolEnv")
