r"""Take an answer apart: lists, tuples, named values, intervals, quantities.

Everything is text in the spelling of `compare.prepared`; nothing is compared here.
"""

import re

from torl_env.grading import rules

_AND_OR = re.compile(r"\\text\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-z])")
RELATION = re.compile(r"<|>|\\leq(?![a-zA-Z])|\\geq(?![a-zA-Z])|\\neq(?![a-zA-Z])|=|\\in(?![a-zA-Z])")
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|text|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|phi|rho|sigma|tau|omega|"
    r"Delta|Omega|max|min|nu|eta|xi|psi|pi|prime|frac(?=\s*\{[A-Z]{2}\}\s*\{[A-Z]{2}\}))|[A-Za-z(),:|'{}\s]|\^\{?-1\}?"
    r"|(?<=[A-Za-z])\(-?\d+\))+"
)
_CONDITION = re.compile(r"\\\{\s*([A-Za-z])\s*(?:\\in\s*\(-\\infty,\\infty\)\s*)?[|:](.*)\\\}", re.DOTALL)
_NOT_A_UNIT = re.compile(r"\b(?:is|are|not|or|and|if|when|where|than|at|least|most|more|less|but|only)\b")
_HALF_OPEN = re.compile(r"([A-Za-z])\s*(\([^()\[\]]*,[^()\[\]]*\]|\[[^()\[\]]*,[^()\[\]]*\))")
_SUBSCRIPT = re.compile(r"_\s*(?:\{[^{}]*\}|\w|\\[a-zA-Z]+)")
_WORD_UNITS = re.compile(
    r"(?:(?<=[\d.})])\s*|(?<=\s))((?:(?<=\s)[a-zA-Z]{3,}|[ckm]m|[km]g|ft|mph|km/h|m/s)(?:\s+[a-zA-Z]{2,})*)$"
)
_UNIT_NAMES = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "millimeter": "mm", "inche": "in", "inch": "in", "foot": "ft", "feet": "ft", "hour": "h", "hr": "h",
    "minute": "min", "second": "s", "sec": "s", "gram": "g", "kilogram": "kg", "liter": "l", "litre": "l",
    "deg": "degree", "°": "degree",
}  # fmt: skip


def readings(text: str) -> list[list[str]]:
    """Read "70,110" as one number with a thousands separator and as two numbers."""
    number = rules.without_thousands_commas(text)
    if rules.matching(text, 0) is not None and text[0] in "([" and number != text:
        return [items(text)]  # (2,251,252) is a triple
    return [items(number)] if number == text else [items(number), items(text)]


def items(text: str) -> list[str]:
    r"""Split a list at its commas, "and", "or" and \cup; \pm makes two items; braces around the whole are dropped."""
    text = text.strip()
    for opening, closing in (("\\{", "\\}"), ("{", "}")):
        whole = text.startswith(opening) and rules.matching(text, 0) == len(text) - 1
        if whole and not re.search(r"[|:]", text):
            text = text[len(opening) : -len(closing)]
    groups = split(text, ";")
    if len(groups) > 1 and all("=" in group and len(split(group, ",")) > 1 for group in groups):
        return [f"({','.join(value(part) for part in split(group, ','))})" for group in groups]
    parts = [part for group in groups for part in split(_AND_OR.sub(",", group), ",")]
    parts = [part for whole in parts for part in split(whole, "\\cup")]
    return [signed for part in parts for signed in _both_signs(part)] or [text]


def split(text: str, separator: str) -> list[str]:
    """Split outside brackets of any kind; empty parts are left out."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(r"\\[a-zA-Z]+|\\.|.", text, re.DOTALL):
        token = match[0]
        if token in ("(", "[", "{", "\\{", "\\langle"):
            depth += 1
        elif token in (")", "]", "}", "\\}", "\\rangle"):
            depth -= 1
        elif token == separator and depth <= 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _both_signs(text: str) -> list[str]:
    if "\\pm" not in text or "\\neq" in text:
        return [text]
    plus = re.sub(r"\\mp(?![a-zA-Z])", "-", re.sub(r"\\pm(?![a-zA-Z])", "+", text))
    minus = re.sub(r"\\mp(?![a-zA-Z])", "+", re.sub(r"\\pm(?![a-zA-Z])", "-", text))
    return [plus.removeprefix("+").strip().replace("{+", "{").replace("=+", "="), minus]


def tuple_items(text: str) -> tuple[str, list[str]] | None:
    """Return the brackets around a tuple or interval and what it holds; None if the text is none."""
    text = re.sub(r"\\langle\s*", "(", re.sub(r"\s*\\rangle", ")", text)).strip()
    if text[:1] not in ("(", "[") or rules.matching(text, 0) != len(text) - 1:
        return None
    inner = split(text[1:-1], ",")
    return (text[0] + text[-1], inner) if len(inner) > 1 else None


def named(text: str) -> tuple[str, str] | None:
    """Return (name, last value) of an assignment: x = 5, f(x) = x + 1, (p, q) = (3, 2), x = 5 + 6 = 11."""
    sides = split(text, "=")
    if len(sides) < 2:
        return None
    name = re.sub(r"\s+", "", sides[0])
    stem = _SUBSCRIPT.sub("", sides[0])
    if not _NAME.fullmatch(stem) or not re.search("[A-Za-z]", stem):
        return None
    return re.sub(r"[{}]", "", name), sides[-1]


def value(text: str) -> str:
    """Return what a name is given, or the text itself; the text if there are several names."""
    entries = split(text, ",")
    several = len(entries) > 1 and all("=" in entry for entry in entries)
    assignment = None if several else named(text)
    return assignment[1] if assignment else text


def interval(text: str) -> tuple[str, str] | None:
    r"""Read x > 2, 2 < x \leq 5, x \in (2, 5] and \{x | x > 2\} as (name, interval); an interval has the name ""."""
    condition = _CONDITION.fullmatch(text)
    if condition:
        found = interval(condition[2].strip())
        return ("", found[1]) if found and found[0] == condition[1] else None
    relations = [match[0] for match in RELATION.finditer(text)]
    sides = [side.strip() for side in RELATION.split(text)]
    if not relations:
        half_open = _HALF_OPEN.fullmatch(text)  # t(0,4] is no call of a function
        return (half_open[1], half_open[2]) if half_open else ("", text) if tuple_items(text) else None
    if relations == ["\\in"] and _is_symbol(sides[0]):
        return sides[0], sides[1]
    rising = {"<": "<", "\\leq": "<", ">": ">", "\\geq": ">"}
    directions = {rising.get(relation) for relation in relations}
    if len(directions) != 1 or None in directions or not all(sides):
        return None
    if directions == {">"}:
        sides, relations = sides[::-1], relations[::-1]
    strict = [relation in "<>" for relation in relations]
    if len(sides) == 3 and _is_symbol(sides[1]):
        return sides[1], f"{'(' if strict[0] else '['}{sides[0]},{sides[2]}{')' if strict[1] else ']'}"
    if len(sides) == 2 and _is_symbol(sides[0]):
        return sides[0], f"(-\\infty,{sides[1]}{')' if strict[0] else ']'}"
    if len(sides) == 2 and _is_symbol(sides[1]):
        return sides[1], f"{'(' if strict[0] else '['}{sides[0]},\\infty)"
    return None


def _is_symbol(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z]|\\[a-z]+", _SUBSCRIPT.sub("", text).strip()))


def is_unit(name: str) -> bool:
    """Return whether words behind a value may be its unit: "or more" and "is wrong" say something about it."""
    return not _NOT_A_UNIT.search(name)


def quantity(text: str) -> tuple[str, str]:
    """Return a value and its unit, "" without one."""
    if match := re.search(r"\\%$", text):
        return text[: match.start()].strip(), "%"
    if match := re.search(r"\^\\circ\s*(?:\\text\s*\{\s*)?([CF]?)\s*\}?$", text):
        return text[: match.start()].strip(), "degree"
    match = re.search(r"\\text\s*\{([^{}]*[A-Za-z][^{}]*)\}\s*(\^\s*\{?\d\}?)?$", text) or _WORD_UNITS.search(text)
    if not match or not text[: match.start()].strip():
        return text, ""
    name = re.sub(r"[.~\s]+", " ", match[1]).strip().lower()
    name = name.removesuffix("s") if len(name) > 2 else name
    power = re.sub(r"\D", "", match[2] or "") if match.re.groups > 1 else ""
    unit = _UNIT_NAMES.get(name, name) + power
    return text[: match.start()].strip(), "" if unit in ("unit", "solution") else unit
