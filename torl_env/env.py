"""Math problems with a Python interpreter: one step is one model turn, code or answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from torl_env.dialect import TORL, Action, Dialect
from torl_env.grading import Verdict
from torl_env.problems import BUILT_IN, Problem, ProblemSet
from torl_env.rewards import Reward, RewardTerms
from torl_env.sandbox.blocking import run_blocking
from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.types import ExecutionResult, SandboxClient, Status
from torl_env.spaces import UnicodeText


class MathToolEnv(gymnasium.Env[str, str]):
    r"""One math problem an episode; the model may run Python before it answers. Registered as `torl/MathTool-v0`.

    Observation: the *new* text. After `reset` the rendered prompt, after a tool call what the tool printed, after the
    answer the empty string. An LLM appends it to its context; `info["transcript"]` (or the wrapper
    `TranscriptObservation`) has the whole text.
    Action: the text of one model turn. With the marker "```output" in it and tool calls left it is a tool request:
    the latest complete Python block before the marker is run. Any other text, the empty one too, is the answer. A
    request without a complete block uses up a call and gets one line that says so; it runs nothing. Past
    `max_tool_calls` requests are ignored: the turn is graded, so an episode has at most `max_tool_calls` + 1 turns.
    Reward: 0 for a tool request, the reward function's total for the answer.
    Terminated: the answer was graded. Truncated: the grader could not decide, or the sandbox failed (not the
    program); reward 0, and the episode says nothing about the model. Token limits are the caller's.

    Info: `problem_id` str; `stop` tuple of the strings at which the next turn's generation should stop; `tool_calls`
    int, used up so far; `execution` ExecutionResult of this step's program or None; `transcript` str, prompt and turns.
    In the last step also: `stop_reason` "answered" | "grader_unknown" | "sandbox_error"; `verdict` "correct" |
    "incorrect" | "unknown"; `reward_terms` dict of floats whose sum is the reward.

    `step` is `begin`, the sandbox client, `finish`; a caller with an event loop of its own calls that pair instead,
    on `env.unwrapped`, and awaits the client between them:

        program = env.begin(turn_text)
        result = None if program is None else await client.run(program, env.timeout_s)
        observation, reward, terminated, truncated, info = env.finish(result)

    Example:
        >>> env = MathToolEnv([Problem("p1", "What is 6 times 7?", "42")], max_tool_calls=1)
        >>> prompt, info = env.reset(seed=0)
        >>> observation, *_ = env.step("```python\nprint(6 * 7)\n```\n```output")
        >>> observation
        '\n42\n```\n'
        >>> env.step("It is \\boxed{42}.")[1:4]
        (1.0, True, False)
        >>> env.close()
    """

    def __init__(
        self,
        problems: str | Path | ProblemSet | Sequence[Problem] = BUILT_IN,
        *,
        max_tool_calls: int = 1,
        sandbox: SandboxClient | None = None,
        dialect: Dialect = TORL,
        reward: Reward | None = None,
        timeout_s: float = 5.0,
        max_text_chars: int = 1_000_000,
    ) -> None:
        """Make the environment; nothing is started before the first program runs.

        Args:
            problems: what `reset` draws from: "arithmetic", a JSON Lines path, or problems.
            max_tool_calls: the paper's C, at least 0.
            sandbox: runs the programs; None for a `LocalSandbox` of the environment's own, which `close` closes.
            dialect: prompt and protocol.
            reward: grades the answer; None for the paper's +1 / -1.
            timeout_s: seconds a program may run.
            max_text_chars: length limit of both spaces; an action beyond it is an error, so it is set far past
                anything a token limit lets through.

        Raises:
            ValueError: for a limit out of range or an unusable problem set.
        """
        if not isinstance(max_tool_calls, int) or max_tool_calls < 0:
            raise ValueError(f"`max_tool_calls` ({max_tool_calls!r}) should be an integer, 0 or more.")
        if not timeout_s > 0:
            raise ValueError(f"`timeout_s` ({timeout_s}) should be positive.")
        if max_text_chars < dialect.max_observation_chars + 10:  # the fence and line ends around an output
            raise ValueError(
                f"`max_text_chars` ({max_text_chars}) should be at least the dialect's `max_observation_chars` "
                f"({dialect.max_observation_chars}) + 10."
            )
        if isinstance(problems, str | Path):
            problems = ProblemSet.load(problems)
        self.problems = problems if isinstance(problems, ProblemSet) else ProblemSet(problems)
        self.max_tool_calls = max_tool_calls
        self.dialect = dialect
        self.reward = reward or Reward()
        self.timeout_s = timeout_s
        self.observation_space = UnicodeText(max_text_chars)
        self.action_space = UnicodeText(max_text_chars)
        self.sandbox: SandboxClient = LocalSandbox() if sandbox is None else sandbox
        self._owns_sandbox = sandbox is None
        self._problem: Problem | None = None  # None: before `reset` and after the last step
        self._pending: tuple[str, Action] | None = None  # the turn between `begin` and `finish`
        self._transcript = ""
        self._turns: list[str] = []
        self._executions: list[ExecutionResult] = []
        self._tool_calls = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; any episode in progress is dropped.

        Args:
            seed: of the draws from the problem set, this one and the following.
            options: {"problem": Problem} starts with that problem instead of drawing one.

        Raises:
            ValueError: for other options, or a problem whose prompt is over the observation space's length.
        """
        super().reset(seed=seed)
        options = options or {}
        if unknown := set(options) - {"problem"}:
            raise ValueError(f"Unknown reset options {sorted(unknown)}; the only option is `problem`.")
        if "problem" in options:
            problem = options["problem"]
            if not isinstance(problem, Problem):
                raise ValueError(f"Option `problem` should be a torl_env.Problem, got {problem!r}.")
        else:
            problem = self.problems[int(self.np_random.integers(len(self.problems)))]
        prompt = self.dialect.render_prompt(problem)
        if prompt not in self.observation_space:
            raise ValueError(
                f"The prompt of problem {problem.id!r} is no text of {self.observation_space!r} ({len(prompt)} "
                "characters); raise `max_text_chars` or leave the problem out."
            )
        self._problem, self._pending, self._transcript = problem, None, prompt
        self._turns, self._executions, self._tool_calls = [], [], 0
        return prompt, self._info(problem)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one model turn, running its program if it has one."""
        program = self.begin(action)
        result = None if program is None else run_blocking(self.sandbox.run(program, self.timeout_s))
        return self.finish(result)

    def begin(self, action: str) -> str | None:
        """Take one model turn up to the sandbox call; return the program to run, or None if there is none.

        Raises:
            RuntimeError: if no episode is in progress, or the last turn is not finished.
            ValueError: if `action` is no text of the action space.
        """
        if self._problem is None:
            raise RuntimeError("No episode is in progress; call `reset` before `step` or `begin`.")
        if self._pending is not None:
            raise RuntimeError("`begin` was called twice; call `finish` with the last program's result first.")
        if action not in self.action_space:
            got = f"{len(action)} characters" if isinstance(action, str) else repr(action)
            raise ValueError(f"`action` should be a text of {self.action_space!r}, got {got}.")
        parsed = self.dialect.parse(action, self.max_tool_calls - self._tool_calls)
        self._pending = (action, parsed)
        return parsed.code

    def finish(self, result: ExecutionResult | None) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Complete the turn begun with `begin`; grading an answer may block for as long as the grader's time limit.

        Args:
            result: of the program that `begin` returned; None if it returned None.

        Raises:
            RuntimeError: without a turn begun.
            ValueError: if `result` is missing, or there is one without a program.
        """
        if self._problem is None or self._pending is None:
            raise RuntimeError("There is no turn to finish; call `begin` first.")
        action, parsed = self._pending
        if (result is None) != (parsed.code is None):
            expected = "None, since `begin` returned no program" if parsed.code is None else "an ExecutionResult"
            raise ValueError(f"`result` should be {expected}; got {result!r}.")
        problem, self._pending = self._problem, None
        self._turns.append(action)
        self._transcript += action
        if parsed.requests_tool:
            self._tool_calls += 1
            if result is not None and result.status is Status.SANDBOX_ERROR:
                outcome = RewardTerms({}, Verdict.UNKNOWN, result.stderr)
                return self._end(problem, outcome, "sandbox_error", result)
            if result is not None:
                self._executions.append(result)
            observation = self.dialect.render_observation(result)
            self._transcript += observation
            return observation, 0.0, False, False, self._info(problem, result)
        outcome = self.reward(problem, self.dialect.answer_text(self._turns), self._executions)
        return self._end(problem, outcome, "grader_unknown" if outcome.verdict is Verdict.UNKNOWN else "answered")

    def _end(
        self, problem: Problem, outcome: RewardTerms, stop_reason: str, result: ExecutionResult | None = None
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._problem = None
        answered = stop_reason == "answered"
        info = self._info(problem, result) | {
            "stop": (),
            "stop_reason": stop_reason,
            "verdict": outcome.verdict.value,
            "reward_terms": dict(outcome.terms),
        }
        return "", outcome.total if answered else 0.0, answered, not answered, info

    def _info(self, problem: Problem, result: ExecutionResult | None = None) -> dict[str, Any]:
        return {
            "problem_id": problem.id,
            "stop": self.dialect.stop(self.max_tool_calls - self._tool_calls),
            "tool_calls": self._tool_calls,
            "execution": result,
            "transcript": self._transcript,
        }

    def close(self) -> None:
        """Close the sandbox if it is the environment's own."""
        if self._owns_sandbox:
            run_blocking(self.sandbox.close())


class TranscriptObservation(gymnasium.Wrapper[str, str, str, str]):
    """Observe the whole text of the episode instead of what is new: prompt, turns and observations.

    For agents that keep no context of their own. In the last step the observation holds the answer too.
    """

    def __init__(self, env: gymnasium.Env[str, str]) -> None:
        super().__init__(env)
        inner = env.unwrapped
        if not isinstance(inner, MathToolEnv) or not isinstance(env.action_space, UnicodeText):
            raise ValueError(f"`TranscriptObservation` wraps a MathToolEnv, got {inner!r}.")
        num_texts = 2 * (inner.max_tool_calls + 1)  # prompt, C turns with observations, the answer
        self.observation_space = UnicodeText(env.action_space.max_length * num_texts)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment; the transcript is the prompt."""
        _, info = self.env.reset(seed=seed, options=options)
        return info["transcript"], info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take one model turn; observe the transcript after it."""
        _, reward, terminated, truncated, info = self.env.step(action)
        return info["transcript"], reward, terminated, truncated, info
