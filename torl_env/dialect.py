r"""How a model asks for the interpreter: the prompt, the action in a turn's text, the observation, code analytics.

The protocol is the paper's (ToRL, arXiv 2503.23383, section 3.1): the model writes a fenced Python block and then the
marker "```output", where generation pauses; the printed result and a closing fence are appended and it goes on:

    ...Assistant: Let me compute.                    prompt, then the model's first turn
    ```python
    print(6 * 7)
    ```
    ```output                                        <- the marker ends the turn
    42                                               observation, as `render_observation` returns it:
    ```                                              "\n42\n```\n"
    The answer is \boxed{42}.                        the model's second turn

Everything here is a pure function of text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torl_env.problems import Problem
from torl_env.sandbox.types import ExecutionResult, Status

MARKER = "```output"
_PROBLEM = "{problem}"
_CODE_START = re.compile(r"(?<!`)```(?:python3?|py)[ \t]*\r?\n", re.IGNORECASE)
# A closing fence starts its line or ends it; backticks in the middle of a line of code (a string, say) close nothing.
_FENCE_END = re.compile(r"^[ \t]*```(?!`)|(?<!`)```[ \t]*\r?$", re.MULTILINE)
_ANY_FENCE_START = re.compile(r"^[ \t]*```[^`\n]*$|" + _CODE_START.pattern, re.MULTILINE | re.IGNORECASE)
_HOST_PATH = re.compile(
    r" \((?:/|[A-Za-z]:\\)[^()]*\)$"
)  # as in: ImportError: cannot import name 'f' from 'm' (/usr/..)


@dataclass(frozen=True, slots=True)
class Action:
    """What one turn asks for.

    Attributes:
        requests_tool: the turn stops at the marker while tool calls are left; otherwise it is the final answer.
        code: the latest complete Python block before the marker; None if there is none or no tool is requested.
    """

    requests_tool: bool
    code: str | None = None


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A complete fenced Python block: its code, and where its fences start and end in the text."""

    code: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Dialect:
    """A prompt template and the fenced-code protocol.

    Attributes:
        template: the prompt with the literal "{problem}" once, which the question replaces; other braces stay as
            they are ("\\boxed{}").
        max_observation_chars: longer output loses its middle, so that a printed flood cannot fill the context.

    Raises:
        ValueError: if the template has no or several "{problem}", or the budget is below 100 characters.
    """

    template: str
    max_observation_chars: int = 1000

    def __post_init__(self) -> None:
        if (count := self.template.count(_PROBLEM)) != 1:
            raise ValueError(f'`template` should hold "{_PROBLEM}" exactly once, found it {count} times.')
        if self.max_observation_chars < 100:
            raise ValueError(f"`max_observation_chars` ({self.max_observation_chars}) should be at least 100.")

    @classmethod
    def from_chat_template(cls, render: Callable[[list[dict[str, str]]], str], instruction: str) -> "Dialect":
        """Put the protocol into a chat model's own template, as one user message "<instruction>\\n{problem}".

        The template is rendered once, here, around the literal "{problem}"; what a later version of the tokenizer
        would do to a conversation cannot break the prefix of an episode.

        Args:
            render: e.g. `lambda messages: tokenizer.apply_chat_template(messages, tokenize=False,
                add_generation_prompt=True)`; must end where the assistant's text starts.
            instruction: what to do, including the protocol.
        """
        return cls(render([{"role": "user", "content": f"{instruction}\n{_PROBLEM}"}]))

    def render_prompt(self, problem: Problem) -> str:
        """Return the whole prompt of an episode."""
        return self.template.replace(_PROBLEM, problem.question)

    def stop(self, tool_calls_left: int) -> tuple[str, ...]:
        """Return the strings at which the next turn's generation should stop: none once the calls are used up."""
        return (MARKER,) if tool_calls_left > 0 else ()

    def parse(self, turn_text: str, tool_calls_left: int) -> Action:
        """Return what a turn asks for.

        The marker counts wherever it first stands, inside a code string too, since generation stops there; sampled
        text may run a few characters past it, which changes nothing. Without calls left it is ordinary text.
        """
        before, marker, _ = turn_text.partition(MARKER)
        if not marker or tool_calls_left <= 0:
            return Action(requests_tool=False)
        blocks = code_blocks(before)
        return Action(requests_tool=True, code=blocks[-1].code if blocks else None)

    def answer_text(self, turns: Sequence[str]) -> str:
        """Return the text an answer is looked for in: the turns' prose, the final turn last.

        Code is taken out turn by turn (a block left open ends with its turn). All turns but the last were tool
        requests; what stands behind their marker was ignored, so it is no answer either.
        """
        requests = [turn.partition(MARKER)[0] for turn in turns[:-1]]
        return "\n".join(strip_code(turn) for turn in [*requests, *turns[-1:]])

    def render_observation(self, result: ExecutionResult | None) -> str:
        """Return the text appended after a tool request; None stands for a request without a program.

        Success shows stdout, anything else one line: the last of the traceback, or the limit that was hit. The text
        cannot fake the protocol: runs of three or more backticks become as many apostrophes, so an observation has
        exactly one fence, its last line. (The env never parses or grades observations; this is for the model's sake.)
        """
        return f"\n{self._result_text(result)}\n```\n"

    def _result_text(self, result: ExecutionResult | None) -> str:
        if result is None:
            return "Error: there is no complete python block to run"
        text = result.stdout.rstrip("\n") if result.ok else _error_line(result)
        text = re.sub("`{3,}", lambda run: "'" * len(run[0]), text)
        return cut_middle(text, self.max_observation_chars)


_PAPER_PROMPT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it.\n"
    "User: Please {instruction}, and put your final answer within \\boxed{}.\n{problem}\nAssistant:"
)
TORL = Dialect(
    _PAPER_PROMPT.replace(
        "{instruction}", "integrate natural language reasoning with programs to solve the problem above"
    )
)
"""The paper's prompt (section 3.1)."""
PLAIN = Dialect(_PAPER_PROMPT.replace("{instruction}", "reason step by step"))
"""The same without the request for programs: the no-tool baseline."""


def _error_line(result: ExecutionResult) -> str:
    lines = result.stderr.rstrip().splitlines()
    if lines:
        return _HOST_PATH.sub("", lines[-1].strip())
    if result.status is Status.TIME_LIMIT:
        return "TimeoutError: the program ran too long"
    if result.status is Status.MEMORY_LIMIT:
        return "MemoryError: the program used too much memory"
    if result.return_code is not None and result.return_code < 0:
        return f"Error: the program was killed by signal {-result.return_code}"
    return f"Error: the program exited with code {result.return_code}"


def cut_middle(text: str, max_chars: int) -> str:
    """Return `text` with its middle replaced by a mark if it is longer than `max_chars` (at least 100)."""
    if len(text) <= max_chars:
        return text
    keep = max_chars - 60  # the mark is at most 57 characters long for texts below 10^12 characters
    head, tail = (keep + 1) // 2, keep // 2
    return f"{text[:head]}\n... ({len(text) - keep} characters left out) ...\n{text[-tail:]}"


def code_blocks(text: str) -> list[CodeBlock]:
    """Return the complete fenced Python blocks of one turn's text, in order.

    A block opens with "```python" (also "```py", "```python3", any case) at the end of a line and closes at the
    first fence that starts or ends a line; the opening fence's indentation is taken off each line, and line ends are
    made "\\n". A block that is never closed is none.
    """
    blocks: list[CodeBlock] = []
    opening = _CODE_START.search(text)
    while opening:
        closing = _FENCE_END.search(text, opening.end())
        if closing is None:
            break
        before_fence = text[text.rfind("\n", 0, opening.start()) + 1 : opening.start()]
        indent = before_fence if before_fence.isspace() else ""
        code = text[opening.end() : closing.start()].replace("\r\n", "\n")
        if indent:
            code = re.sub(f"^[ \t]{{1,{len(indent)}}}", "", code, flags=re.MULTILINE)
        blocks.append(CodeBlock(code, opening.start(), closing.end()))
        opening = _CODE_START.search(text, closing.end())
    return blocks


def strip_code(text: str) -> str:
    """Return a turn's text without its fenced blocks of any language; an unclosed one reaches to the end."""
    kept: list[str] = []
    position = 0
    while opening := _ANY_FENCE_START.search(text, position):
        kept.append(text[position : opening.start()])
        closing = _FENCE_END.search(text, opening.end())
        if closing is None:
            return "".join(kept)
        position = closing.end()
    return "".join(kept) + text[position:]


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """Python blocks a response contains, and how many of them stand before its first final answer (paper, Fig. 5).

    A response without a final answer has all its blocks before it.
    """

    num_blocks: int
    num_before_answer: int


def count_code(turns: Iterable[str]) -> CodeCounts:
    r"""Count the complete Python blocks in a response's turns (the model's own text, no observations).

    The first final answer is the first "\boxed{" outside fenced blocks.
    """
    num_blocks = num_before_answer = 0
    answered = False
    for turn in turns:
        blocks = code_blocks(turn)
        first_answer = None if answered else _first_answer(turn)
        if first_answer is not None:
            answered = True
            num_before_answer += sum(block.end <= first_answer for block in blocks)
        elif not answered:
            num_before_answer += len(blocks)
        num_blocks += len(blocks)
    return CodeCounts(num_blocks, num_before_answer)


def _first_answer(text: str) -> int | None:
    prose = text
    for block in code_blocks(text):
        prose = prose[: block.start] + " " * (block.end - block.start) + prose[block.end :]
    position = prose.find(r"\boxed{")
    return None if position < 0 else position
