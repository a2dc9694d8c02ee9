r"""Why a gold answer cannot be graded, found from its text alone: what is asked of a hundred thousand at once.

An answer that a grader cannot read would make every response to its problem wrong. Words are gradable (`\text{even}`,
"no solution"), sentences are not: no two are alike.
"""

import re

_MAX_CHARS = 1000  # the longest gold of the public sets has 160
_MAX_WORDS = 8
_PLAIN = re.compile(r"[-+]?[\d.,/]*\d")
_EMPTY = re.compile(r"(?:[\s$.{}]|\\boxed|\\text|\\[()\[\]!,;: ])*")
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{2,}")
_HAN = re.compile("[\u3400-\u9fff]")
_PLACEHOLDER = re.compile(
    r"n/?a|none given|null|nan|unknown|see (?:the )?(?:solution|proof|answer|below).*|proof\b.*|\?+|-+|omitted",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\.", re.DOTALL)


def why_ungradable(gold: str) -> str | None:
    """Return why no answer could be held against this gold; None if it can be graded."""
    text = gold.strip()
    if _PLAIN.fullmatch(text):
        return None
    if _EMPTY.fullmatch(text):
        return "it is empty"
    if len(text) > _MAX_CHARS:
        return f"it has {len(text)} characters, over {_MAX_CHARS}"
    if _PLACEHOLDER.fullmatch(text.strip("$. ")):
        return "it stands for a missing answer"
    depth = 0
    for bracket in re.findall(r"[{}]", _ESCAPED.sub("", text)):
        depth += 1 if bracket == "{" else -1
        if depth < 0:
            break
    if depth:
        return "its braces do not match"
    if len(_WORD.findall(text)) > _MAX_WORDS or len(_HAN.findall(text)) > 2 * _MAX_WORDS:
        return "it is prose"
    return None
