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
_SIZES = re.compile(r"\\(?:left|right)(?![A-Za-z])|[\s$.]")
_PAIR = re.compile(r"\(\)|\[\]")
_OPEN_ENDED = re.compile(r"(?<!\\)[\^_/]$")
_NO_ARGUMENT = re.compile(r"\\[dt]?frac\s*(?:\{[^{}]*\}\s*)?\{\s*\}|\\sqrt\s*\{\s*\}")
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{")


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
    if "\\boxed" not in text and (reason := _why_cut_off(text)):  # of a solution, what is in the box counts
        return reason
    if len(_WORD.findall(text)) > _MAX_WORDS or len(_HAN.findall(text)) > 2 * _MAX_WORDS:
        return "it is prose"
    return None


def _why_cut_off(text: str) -> str | None:
    """Return what is missing for sure: "=" and "+" are answers to "which sign?", "]0, 1[" and "a) 3" are whole."""
    if _OPEN_ENDED.search(text.strip("$. ")):
        return "nothing follows its last sign"
    if _NO_ARGUMENT.search(text):
        return "its fraction or root is empty"
    environments = _ENVIRONMENT.findall(text)
    if environments.count("begin") > environments.count("end"):
        return "its environment does not end"
    bare = _SIZES.sub("", text)
    only_brackets = not bare.strip("()[]") and _PAIR.sub("", bare)
    if only_brackets or bare.count("(") > bare.count(")") + bare.count("]") + bare.count("["):
        return "its brackets do not match"
    return None
