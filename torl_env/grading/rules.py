r"""Text rules: one spelling for each piece of mathematics, before anything is compared.

Each rule is a function whose docstring states it in one sentence. They work on text alone, so that what they do can be
read off a pair of strings; what they leave is LaTeX that math-verify reads as it is meant.
"""

import re
from unicodedata import normalize

_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|(?<!\\)\$")
_SPACES = re.compile(r"(?<!\\)\\[,;:> ]|~|\\q?quad|\\(?:display|text)style(?![a-zA-Z])|\\n(?![a-zA-Z])|\\limits")
_SIZES = re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?")
_FONTS = re.compile(
    r"\\(?:math(?:rm|bf|it|sf|tt|bb|cal|normal)|text(?:bf|it|rm|sf|tt|normal)|mbox|hbox|bm|boldsymbol"
    r"|operatorname\*?)(?=\s*\{)|\\(?:rm|bf)(?![a-zA-Z])"
)
_TEXT = re.compile(r"\\text\s*\{((?:[^{}\\]|\\[^a-zA-Z])*)\}")
_SYNONYMS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\le(?:qslant|qq)?(?![a-zA-Z])|≤|⩽", r"\\leq "),
        (r"\\ge(?:qslant|qq)?(?![a-zA-Z])|≥|⩾", r"\\geq "),
        (r"<=", r"\\leq "),
        (r">=", r"\\geq "),
        (r"\\neq?(?![a-zA-Z])|≠|!=", r"\\neq "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:approx|simeq|thickapprox)(?![a-zA-Z])|≈|~=", "="),
        (r"\\l[bB]race(?![a-zA-Z])", r"\\{"),
        (r"\\r[bB]race(?![a-zA-Z])", r"\\}"),
        (r"\\(?:mid|vert|colon)(?![a-zA-Z])", lambda match: ":" if match[0] == "\\colon" else "|"),
        (r"\\(?:var)?varphi(?![a-zA-Z])", r"\\phi "),
        (r"\\imath(?![a-zA-Z])", "i"),
        (r"\\[dl]?dots(?![a-zA-Z])|\\cdots(?![a-zA-Z])|…", r"\\ldots "),
        ("[−–—]", "-"),  # noqa: RUF001
        ("×", r"\\times "),  # noqa: RUF001
        ("[·⋅∙]", r"\\cdot "),
        ("÷", r"\\div "),
        ("π", r"\\pi "),
        ("∞", r"\\infty "),
        ("∪", r"\\cup "),  # noqa: RUF001
        (r"(?<=[)\]])\s*U\s*(?=[(\[])", r" \\cup "),
        (r"\\varnothing(?![a-zA-Z])|∅", r"\\emptyset "),
        ("∈", r"\\in "),
        ("±", r"\\pm "),
        (r"\\degree(?![a-zA-Z])|\^\s*\\circ(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}|°", r"^\\circ "),
        (r"√\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"√\s*(\w+)", r"\\sqrt{\1}"),
        (r"\s*(?:\\?%|(?<![a-zA-Z])(?:percentage|percent|pct)(?![a-zA-Z]))", r"\\%"),
    )
]
_GREEK = r"\\(?:pi|alpha|beta|theta|phi|lambda|mu)(?![a-zA-Z])"
_ROW_BREAK = re.compile(r"(?:\\\\\s*)+(?=\\end\{)")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln"
_CALL = re.compile(rf"(?<![a-zA-Z\\])(sqrt|exp|abs|{_FUNCTIONS})\s*\(")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_REPEATING = re.compile(r"(?<![\d.])(\d{0,50})\.(\d{0,50})\\(?:overline|bar)\s*\{?(\d{1,50})(?!\d)\}?(?!\d)")
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(rf"(\d)\s*(\\text\s*\{{)?\s*({'|'.join(_MAGNITUDES)})(?![a-zA-Z])")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
_BRACKET_OR_CHARACTER = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)


def bare(text: str) -> str:
    r"""Take off math delimiters, sizes, spacing and fonts, and spell operators one way."""
    text = undouble(unicode_forms(text))
    text = re.sub(r"\\!\s*", "", text.replace("{,}", ","))
    text = currency(text)
    text = _SIZES.sub("", text)
    text = _DELIMITERS.sub(" ", text)
    text = reals(_SPACES.sub(" ", text))
    text = _FONTS.sub(r"\\text", text)
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    text = _ROW_BREAK.sub("", text)
    text = magnitudes(repeating_decimals(text))
    text = text_symbols(bare_fractions(text))
    return strip_ends(re.sub(r"^\s*=", "", text))  # "= 5" leaves out what is 5


def unicode_forms(text: str) -> str:
    """Read full-width, superscript and fraction characters as what they show, and invisible ones as nothing."""
    text = re.sub("[\u200b-\u200d\u2060\ufeff]", "", text)
    text = re.sub("[\uff01-\uff5e]", lambda match: normalize("NFKC", match[0]), text)
    text = re.sub("[\u00bc-\u00be\u2150-\u215e]", _vulgar_fraction, text)
    return re.sub("[⁺⁻]?[⁰¹²³⁴-⁹]+", lambda match: f"^{{{normalize('NFKC', match[0])}}}", text)


def _vulgar_fraction(match: re.Match[str]) -> str:
    numerator, _, denominator = normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def undouble(text: str) -> str:
    r"""Read a doubled backslash before a letter as one (text escaped twice), unless rows are what it separates."""
    return text if re.search(r"matrix|cases|array|align", text) else re.sub(r"\\\\(?=[a-zA-Z()\[\]{}])", r"\\", text)


def bare_fractions(text: str) -> str:
    r"""Put braces around a Greek letter above or below a fraction bar (\frac\pi 2), and leave \phantom signs out."""
    text = re.sub(r"\\phantom\s*(?:\{[^{}]*\}|[^\\{}\s])", "", text)
    text = re.sub(rf"\\frac\s*({_GREEK})\s*(\d|{_GREEK}|\{{)", _braced_numerator, text)
    return re.sub(rf"(\\frac\s*(?:\d|\{{[^{{}}]*\}}))\s*({_GREEK})", r"\1{\2}", text)


def _braced_numerator(match: re.Match[str]) -> str:
    return rf"\frac{{{match[1]}}}" + (match[2] if match[2] == "{" else f"{{{match[2]}}}")


def currency(text: str) -> str:
    r"""Drop a currency sign before an amount: \$36 is 36."""
    return re.sub(r"(?:\\\$|[€£¥₹])\s*(?=[\d.])", "", text)


def reals(text: str) -> str:
    r"""Read the set of the real numbers, \mathbb{R}, as the interval it is."""
    return re.sub(r"\\mathbb\s*(?:\{\s*R\s*\}|R(?![a-zA-Z]))|ℝ", r"(-\\infty,\\infty)", text)  # noqa: RUF001


def repeating_decimals(text: str) -> str:
    r"""Read a decimal whose last digits have a bar (0.1\overline{6}) as the fraction it is."""

    def fraction(match: re.Match[str]) -> str:
        whole, fixed, repeated = match[1] or "0", match[2], match[3]
        numerator = int(whole + fixed + repeated) - int(whole + fixed)
        return rf"\frac{{{numerator}}}{{{(10 ** len(repeated) - 1) * 10 ** len(fixed)}}}"

    return _REPEATING.sub(fraction, text)


def magnitudes(text: str) -> str:
    r"""Read "million" and its like behind a number as the power of ten it means."""
    return _MAGNITUDE.sub(lambda match: rf"{match[1]} \cdot {10 ** _MAGNITUDES[match[3]]}{match[2] or ' '}", text)


def text_symbols(text: str) -> str:
    r"""Read \text around a letter, number or formula as what it holds; words stay marked, a number before them not."""

    def unmarked(match: re.Match[str]) -> str:
        content = match[1].strip()
        if re.fullmatch(r"\(?[A-Za-z]\)?", content) or not re.search("[A-Za-z]", content):
            return f" {content} " if content else " "
        number = re.match(r"-?\d[\d.,]*(?=\s)", content)
        return rf"{number[0]}\text{{{content[number.end() :]}}}" if number else match[0]

    text = re.sub(r"(?<=[_^])\s*\{\s*\\text\s*\{([^{}]*)\}\s*\}", r"{\1}", text)
    text = re.sub(r"_\s*\{\s*\\([a-z]{3,})\s*\}", r"_{\1}", text)  # R_{\odot}
    return _TEXT.sub(unmarked, re.sub(r"(?<=[_^])\s*\\text\s*\{", "{", text))


def strip_ends(text: str) -> str:
    """Take off white space, a closing full stop or other punctuation, and braces around the whole."""
    while True:
        shorter = re.sub(r"(?<!\\)[\s.,;:!]+$" if not text.endswith("!") else r"\s+$", "", text).strip()
        if shorter.startswith("{") and matching(shorter, 0) == len(shorter) - 1 and "," not in shorter:
            shorter = shorter[1:-1]
        if shorter == text:
            return text
        text = shorter


def matching(text: str, start: int) -> int | None:
    """Return where the bracket that opens at `start` closes; None if it does not, whatever closes it otherwise."""
    depth = 0
    for match in _BRACKET_OR_CHARACTER.finditer(text, start):
        if match[0] in _BRACKETS:
            depth += 1
        elif match[0] in _BRACKETS.values():
            depth -= 1
            if depth == 0:
                return match.end() - 1
    return None


def plain_to_latex(text: str) -> str:
    r"""Rewrite plain text and Python to LaTeX: 1.70e4, 2**3, x*y, sqrt(2), pi/2, np.arcsin(10/13), 1 1/4, 2^20."""
    text = re.sub(r"\b(?:np|math|sympy)\.", "", text)
    text = re.sub(
        r"(?<![\w.])(\d+\.?\d*|\.\d+)[eE]([+-]?\d+)(?!\w)", lambda m: rf"{m[1]} \cdot 10^{{{int(m[2])}}}", text
    )
    text = text.replace("**", "^")
    text = re.sub(r"\s*\*\s*", r" \\cdot ", text)
    text = re.sub(r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty ", text)
    text = re.sub(r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi ", text)
    text = _calls(text)
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    number = r"-?\d+(?:\.\d+)?"
    text = re.sub(rf"\^\s*({number}(?:\s*\^\s*{number})*)(?!\s*\}})", _braced_tower, text)
    text = re.sub(r"\^\s*\(([^()]*)\)", r"^{\1}", text)
    text = re.sub(r"(?<![\d.)}])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\d.])", r"\1\\frac{\2}{\3}", text)
    return re.sub(r"(?<![\d.])(\d{1,3})((?: \d{3})+)(?![\d.])", lambda m: m[1] + m[2].replace(" ", ""), text)


def _braced_tower(match: re.Match[str]) -> str:
    powers = match[1].split("^")
    return "".join(f"^{{{power.strip()}" for power in powers) + "}" * len(powers)


def _calls(text: str) -> str:
    position = 0
    while match := _CALL.search(text, position):
        closing = matching(text, match.end() - 1)
        if closing is None:
            return text
        inner = text[match.end() : closing]
        if match[1] == "sqrt":
            new = f"\\sqrt{{{inner}}}"
        elif match[1] == "exp":
            new = f"e^{{{inner}}}"
        elif match[1] == "abs":
            new = f"|{inner}|"
        else:
            new = f"\\{match[1]}({inner})"
        text = text[: match.start()] + new + text[closing + 1 :]
        position = match.start() + len(new) - len(inner) - 1
    return text


def without_thousands_commas(text: str) -> str:
    """Read commas that stand, without a space, before groups of three digits as thousands separators."""
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def words(text: str) -> str | None:
    r"""Return an answer in words as lower-case words, whatever its markup and spacing; None if it is mathematics."""
    if re.search(r"[=<>^_+*/|]|\\(?!text\b|[ ,])", text):
        return None
    marked = "\\text" in text
    text = re.sub(r"\\text\s*|[{}\\]", " ", text)
    found = re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text)  # noqa: RUF001
    if re.search(r"[()\[\]]", text) and not marked:
        return None
    if found and not found[0][0].isdigit() and any(len(word) > 1 for word in found) and (marked or _looks_prose(found)):
        return " ".join(found).lower()
    return None


def _looks_prose(found: list[str]) -> bool:
    return any(len(word) > 2 and word.isalpha() for word in found)


def choice(text: str) -> str | None:
    r"""Return the letter of a multiple-choice answer: "C", "(C)", or "C" with the option's text after a mark."""
    match = re.match(r"\(?\s*([A-J])\s*(?:\)|(?=[:.]\s*\S)|\.?$)", text)
    return match[1] if match else None


def clock(text: str) -> tuple[int, ...] | None:
    """Return (hour, minute, second) of a time of day, with 12 added after noon where that is said."""
    half_day = re.search(r"(?<![a-zA-Z])([ap])\s*\.?\s*m\b\.?", text, re.IGNORECASE)
    digits = re.sub(r"\\text|[{}\s]", "", text[: half_day.start()] if half_day else text)
    match = re.fullmatch(r"(\d{1,2})(?::([0-5]\d))?(?::([0-5]\d))?", digits)
    if not match or int(match[1]) > 24 or not (half_day or match[2]):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    if half_day:
        hour = hour % 12 + (12 if half_day[1].lower() == "p" else 0)
    return hour, minute, second


_BASES = ["", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_BASE_NUMERAL = re.compile(r"\(?\s*([0-9][0-9A-Fa-f]*)\s*\)?\s*_\s*\{?\s*(?:\\text\s*\{)?\s*(\d{1,2}|[a-z]+)\s*\}*")


def base_numeral(text: str) -> tuple[int, int] | None:
    """Return (value, base) of a numeral with its base as a subscript: 52_8, 52_{eight}."""
    match = _BASE_NUMERAL.fullmatch(text)
    if not match:
        return None
    base = int(match[2]) if match[2].isdigit() else _BASES.index(match[2]) if match[2] in _BASES else 0
    try:
        return (int(match[1], base), base) if 2 <= base <= 16 else None
    except ValueError:
        return None
