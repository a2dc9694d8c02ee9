"""One episode as the page shows it: its texts with code marked for highlighting, and its tokens.

Offsets and lengths are in UTF-16 code units, which is what JavaScript counts in.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any

from pygments.lexers import PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Operator
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from experiments.reporting.behaviours import boxed_answer, responses
from torl_env.dialect import MARKER, code_blocks, cut_middle

MAX_TURN_CHARS = 20_000
MAX_TOKENS = 4096

# Trailing line ends are the text's own: nothing may be added or stripped, or the offsets shift.
_LEXER = PythonLexer(stripnl=False, ensurenl=False)
_CLASSES = (
    (Comment, "comment"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (Literal.String, "string"),
    (Literal.Number, "number"),
    (Name.Function, "function"),
    (Name.Class, "function"),
    (Name.Builtin, "builtin"),
    (Name.Exception, "builtin"),
)
_OPEN_BLOCK = re.compile(r"(?<!`)```(?:python3?|py)[ \t]*\r?\n", re.IGNORECASE)
_BOX = re.compile(r"\\boxed\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}")


def shown(record: Mapping[str, Any], halvings: int = 0) -> dict[str, Any]:
    """Return the record without its tokens, its turns as `{role, text, blocks, marks}` and the boxed answer.

    Texts are cut to `MAX_TURN_CHARS`, halved as often as asked.

    blocks   [start, end] of each code block, fences included
    marks    [start, end, class] of what is highlighted, in order, not overlapping
    cut      characters left out of a text that is too long for the page; absent if none are
    """
    left_out = ("turns", "token_ids", "loss_mask", "action_logp", "logp")
    answer = boxed_answer(responses(record))
    return {
        **{name: value for name, value in record.items() if name not in left_out},
        "num_tokens": len(record["token_ids"]),
        "num_response_tokens": sum(record["loss_mask"]),
        "boxed": None if answer is None else cut_middle(answer, 1000),
        "turns": [_turn(role, text, MAX_TURN_CHARS >> halvings) for role, text in record["turns"]],
    }


def tokens(record: Mapping[str, Any], tokenizer: Tokenizer | None, halvings: int = 0) -> list[list[list[int]]] | None:
    """Return the tokens turn by turn; None where token ids, mask and texts do not belong together.

    A turn is `[ids, lengths]`, or `[ids, lengths, action_logp, logp]` of a response, with log-probs in millionths of
    a nat and `logp` empty if the learner did not see the episode. Turns that are cut, or lie behind the first
    `MAX_TOKENS` tokens (halved like the texts), are left out; their list is empty.

    lengths   characters of its turn's text that a token stands for: 0 for a special token or half a character
    """
    if tokenizer is None:
        return None
    spans = _spans(record["loss_mask"])
    roles = [role for role, _ in record["turns"]]
    if [is_trained for _, _, is_trained in spans] != [role == "response" for role in roles]:
        return None
    found: list[list[list[int]]] = []
    num_trained = 0
    for (start, end, is_trained), (_, text) in zip(spans, record["turns"], strict=True):
        ids = record["token_ids"][start:end]
        first, num_trained = num_trained, num_trained + (end - start if is_trained else 0)
        is_cut = end > MAX_TOKENS >> halvings or len(text) > MAX_TURN_CHARS >> halvings
        lengths = None if is_cut else _lengths(ids, text, tokenizer)
        if lengths is None:
            found.append([])
        elif is_trained:
            logps = (record["action_logp"], record["logp"] or [])
            found.append([ids, lengths, *([round(v * 1e6) for v in logp[first:num_trained]] for logp in logps)])
        else:
            found.append([ids, lengths])
    return found


def special_names(tokenizer: Tokenizer | None) -> dict[int, str]:
    """Return id -> name of the tokens that stand for no text."""
    if tokenizer is None:
        return {}
    return {id_: token.content for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}


def _turn(role: str, text: str, max_chars: int) -> dict[str, Any]:
    whole, text = len(text), cut_middle(text, max_chars)
    turn: dict[str, Any] = {"role": role, "text": text, "blocks": [], "marks": []}
    if whole > max_chars:
        turn["cut"] = whole - max_chars
    if role != "response":
        return turn
    blocks = [(block.start, block.end) for block in code_blocks(text)]
    opening = _OPEN_BLOCK.search(text, blocks[-1][1] if blocks else 0)
    if opening:
        # Never closed: generation was cut off, or the marker stands inside.
        marker = text.find(MARKER, opening.end())
        blocks.append((opening.start(), len(text) if marker < 0 else marker))
    marks = [mark for start, end in blocks for mark in _code_marks(text, start, end)]
    covered = [(0, 0), *blocks, (len(text), len(text))]
    for (_, before), (after, _) in pairwise(covered):
        marks += [(before + box.start(), before + box.end(), "box") for box in _BOX.finditer(text[before:after])]
    units = _Units(text)
    # The line end behind a block is its own, or a blank line would follow it.
    turn["blocks"] = [[units.at(start), units.at(end + (text[end : end + 1] == "\n"))] for start, end in blocks]
    turn["marks"] = [[units.at(start), units.at(end), name] for start, end, name in sorted(marks)]
    return turn


def _code_marks(text: str, start: int, end: int) -> list[tuple[int, int, str]]:
    inner = min(end, text.index("\n", start) + 1)
    fence = text.rfind("```", inner, end)
    code_end = end if fence < 0 else fence
    marks = [(start, inner, "fence")]
    position = inner
    for name, length in _highlighted(text[inner:code_end]):
        if name:
            marks.append((position, position + length, name))
        position += length
    return marks if code_end == end else [*marks, (code_end, end, "fence")]


@lru_cache(maxsize=4096)
def _highlighted(code: str) -> tuple[tuple[str, int], ...]:
    """Return (class, length) of the pieces of Python code, neighbours of one class as one."""
    pieces = (
        (next((name for kind, name in _CLASSES if token in kind), ""), len(value))
        for token, value in _LEXER.get_tokens(code)
    )
    return tuple(
        (name, sum(length for _, length in same)) for name, same in groupby(pieces, key=lambda piece: piece[0])
    )


def _spans(mask: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Return (start, end, value) of each stretch of equal values."""
    spans, start = [], 0
    for value, same in groupby(mask):
        length = len(list(same))
        spans.append((start, start + length, bool(value)))
        start += length
    return spans


def _lengths(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> list[int] | None:
    """Return how many characters each token adds to its turn's text, None if they do not add up to it."""
    stream = DecodeStream(skip_special_tokens=True)
    pieces = [stream.step(tokenizer, id_) or "" for id_ in ids]
    decoded = "".join(pieces)
    if not text.startswith(decoded) or not ids:
        return None
    pieces[-1] += text[len(decoded) :]  # a character cut off in the middle, shown as U+FFFD
    return [_Units(piece).total for piece in pieces]


class _Units:
    """Offsets of a text in UTF-16 code units."""

    def __init__(self, text: str) -> None:
        self._wide = [] if text.isascii() else [i for i, char in enumerate(text) if char > "\uffff"]
        self.total = len(text) + len(self._wide)

    def at(self, offset: int) -> int:
        """Return the code units before the character at `offset`."""
        return offset + sum(1 for place in self._wide if place < offset)
