r"""Compare two answers part by part: lists in any order, tuples in order, names, units, numbers, then mathematics.

Text rules (`rules.py`) and exact numbers (`exact.py`) decide what they can; the rest is asked, one pair of formulas at
a time, of whoever `ask` is: math-verify behind `workers.py`. So a list of plain numbers never waits for a worker, and
math-verify never sees what it is known to misread: lists of different lengths, base-n numerals, times, units.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from torl_env.grading import exact, parts, rules

Ask = Callable[[str, str], bool | None]
_TOLERANCE = Fraction(101, 100_000_000)  # a decimal stands for a number it agrees with to six places


class UndecidedError(Exception):
    """math-verify could not say, or would have to be asked too often."""


_MAX_QUESTIONS = 100  # of one grading: an answer's list of formulas may need a question for each pair


def bounded(ask: Ask) -> Ask:
    """Return an `ask` that raises UndecidedError when it is asked once too often."""
    left = _MAX_QUESTIONS

    def ask_again(gold: str, answer: str) -> bool | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise UndecidedError
        return ask(gold, answer)

    return ask_again


def prepared(text: str) -> str:
    """Return a text in the spelling that this module compares."""
    return rules.strip_ends(rules.plain_to_latex(rules.bare(text)))


def is_list(gold: str) -> bool:
    """Return whether a prepared gold asks for several values."""
    return len(parts.items(gold)) > 1


def equal(gold: str, answer: str, ask: Ask) -> bool:
    """Return whether two prepared answers are the same.

    Raises:
        UndecidedError: if it came down to a pair of formulas that `ask` returned None for.
    """
    if _squeezed(gold) == _squeezed(answer):
        return True
    readings = [
        (gold_items, answer_items) for gold_items in parts.readings(gold) for answer_items in parts.readings(answer)
    ]
    if all(len(gold_items) == len(answer_items) == 1 for gold_items, answer_items in readings):
        return _equal_items(readings[0][0][0], readings[0][1][0], ask)
    if any(_same_in_any_order(*reading, ask) for reading in readings if len(reading[0]) == len(reading[1])):
        return True
    if "\\cup" in gold or "\\cup" in answer:
        return _asked(gold, answer, ask)  # the same set may be cut in other places
    return _list_for_tuple(gold, answer, ask)


def _squeezed(text: str) -> str:
    """Return a text without its spaces, but for those between digits: "1 2" is not 12."""
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _same_in_any_order(gold: Sequence[str], answer: Sequence[str], ask: Ask) -> bool:
    """Return whether each item of the gold has a partner of its own in the answer."""
    left = list(answer)
    for item in gold:
        same = [_squeezed(item) == _squeezed(other) for other in left]
        partner = same.index(True) if True in same else None
        if partner is None:
            partner = next((i for i, other in enumerate(left) if _equal_items(item, other, ask)), None)
        if partner is None:
            return False
        del left[partner]
    return True


def _list_for_tuple(gold: str, answer: str, ask: Ask) -> bool:
    """Read an answer without brackets as the tuple that is asked for, and the other way round, in the same order."""
    gold, answer = parts.value(gold), parts.value(answer)
    for first, second in ((gold, answer), (answer, gold)):
        inner = parts.tuple_items(first)
        if inner and inner[0] == "[]" and len(inner[1]) == 2:
            return False  # a closed interval
        if inner and not parts.tuple_items(second) and second[:1] not in ("{", "\\"):
            outer = parts.items(second)
            return len(inner[1]) == len(outer) and all(
                _equal_items(*((a, b) if first is gold else (b, a)), ask) for a, b in zip(inner[1], outer, strict=True)
            )
    return False


def _equal_items(gold: str, answer: str, ask: Ask) -> bool:
    """Compare two items that are no lists."""
    for decide in (_equal_words, _equal_choices, _equal_times, _equal_base_numerals):
        verdict = decide(gold, answer)
        if verdict is not None:
            return verdict
    gold_interval, answer_interval = parts.interval(gold), parts.interval(answer)
    if (
        gold_interval
        and answer_interval
        and (gold_interval[0] == answer_interval[0] or not answer_interval[0] or not gold_interval[0])
    ):
        gold, answer = gold_interval[1], answer_interval[1]
    if "=" in gold or "=" in answer:
        return _equal_named(gold, answer, ask)
    gold_tuple, answer_tuple = parts.tuple_items(gold), parts.tuple_items(answer)
    if gold_tuple and answer_tuple:
        alike = gold_tuple[0] == answer_tuple[0] or len(gold_tuple[1]) > 2
        return (
            alike
            and len(gold_tuple[1]) == len(answer_tuple[1])
            and all(_equal_items(a, b, ask) for a, b in zip(gold_tuple[1], answer_tuple[1], strict=True))
        )
    if parts.RELATION.search(gold) or parts.RELATION.search(answer):
        return _asked(gold, answer, ask)
    return _equal_ratios(gold, answer, ask) or _equal_quantities(gold, answer, ask)


def _equal_words(gold: str, answer: str) -> bool | None:
    """Words are equal whatever their case, markup and spacing; a gold in marked words has no other form."""
    gold_words, answer_words = rules.words(gold), rules.words(answer)
    if gold_words and answer_words and gold_words == answer_words:
        return True
    if gold_words and ("\\text" in gold or " " in gold_words) and not rules.choice(gold):
        return False
    return None


def _equal_choices(gold: str, answer: str) -> bool | None:
    """A gold that is one letter of a multiple choice is met by that letter, with or without the option's text."""
    gold, answer = (re.sub(r"\\text\s*|[{}]", "", text).strip() for text in (gold, answer))
    if not re.fullmatch(r"\(?[A-J]\)?", gold):
        return None
    chosen = rules.choice(answer)
    if chosen is None and not re.fullmatch(r"\(?[A-Za-z]\)?", answer):
        return None
    return chosen == gold.strip("()")


def _equal_times(gold: str, answer: str) -> bool | None:
    """A time of day equals the same time only; 9:24 is a time, where 3:5 and 5:12, in lowest terms, may be ratios."""
    gold_time, answer_time = rules.clock(gold), rules.clock(answer)
    if gold_time is None or (
        gold_time[1]
        and Fraction(gold_time[0], gold_time[1]).denominator == gold_time[1]
        and "m" not in gold
        and gold.count(":") == 1
        and not gold.startswith("0")
    ):
        return None
    return gold_time == answer_time


def _equal_base_numerals(gold: str, answer: str) -> bool | None:
    """A numeral in a stated base equals numerals of the same value in a stated base, never one without."""
    gold_numeral, answer_numeral = rules.base_numeral(gold), rules.base_numeral(answer)
    if gold_numeral is None and answer_numeral is None:
        return None
    return bool(gold_numeral and answer_numeral and gold_numeral == answer_numeral)


def _equal_named(gold: str, answer: str, ask: Ask) -> bool:
    """Values are compared where one side or both give a name to theirs; equations are compared as equations."""
    gold_named, answer_named = parts.named(gold), parts.named(answer)
    if gold_named and answer_named:
        if gold_named[0] == answer_named[0]:
            return equal(gold_named[1], answer_named[1], ask)
        renamed = _same_function(gold_named, answer_named)
        if renamed is not None:
            return equal(gold_named[1], renamed, ask)
        calls = "(" in gold_named[0] and "(" in answer_named[0]
        return not calls and _asked(gold, answer, ask)  # f(2) = 3 is not f(3) = 2
    if gold_named and "=" not in answer:
        return not _compound(gold) and equal(gold_named[1], answer, ask)
    if answer_named and "=" not in gold:
        return equal(gold, answer_named[1], ask)
    return _asked(gold, answer, ask)


def _compound(text: str) -> bool:
    return bool(re.search(r"\\forall|\\exists", text))


def _same_function(gold: tuple[str, str], answer: tuple[str, str]) -> str | None:
    """Return the answer's value in the gold's letter: f(x) = 2x and f(t) = 2t are one function; None for two."""
    heads = [re.fullmatch(r"([A-Za-z]+)\(([a-z])\)", name) for name, _ in (gold, answer)]
    if not (heads[0] and heads[1] and heads[0][1] == heads[1][1]):
        return None
    letter = r"(?<![A-Za-z\\]){}(?![A-Za-z])"
    if re.search(letter.format(heads[0][2]), answer[1]):
        return None
    return re.sub(letter.format(heads[1][2]), heads[0][2], answer[1])


def _equal_ratios(gold: str, answer: str, ask: Ask) -> bool:
    """Ratios are equal when their terms are proportional; a ratio of two numbers equals their quotient."""
    gold_terms, answer_terms = parts.split(gold, ":"), parts.split(answer, ":")
    if len(gold_terms) < 2 and len(answer_terms) < 2:
        return False
    if len(gold_terms) == len(answer_terms) > 1:
        gold_numbers, answer_numbers = _nonzero(gold_terms), _nonzero(answer_terms)
        if len(gold_numbers) == len(answer_numbers) == len(gold_terms):
            return len({a / b for a, b in zip(gold_numbers, answer_numbers, strict=True)}) == 1
        return all(_equal_items(a, b, ask) for a, b in zip(gold_terms, answer_terms, strict=True))
    if {len(gold_terms), len(answer_terms)} == {1, 2}:
        gold, answer = (rf"\frac{{{t[0]}}}{{{t[1]}}}" if len(t) == 2 else t[0] for t in (gold_terms, answer_terms))
        return _equal_quantities(gold, answer, ask)
    return False


def _nonzero(terms: list[str]) -> list[Fraction]:
    values = [exact.read(term).value for term in terms]
    return [value for value in values if isinstance(value, Fraction) and value]


def _equal_quantities(gold: str, answer: str, ask: Ask) -> bool:
    """A unit may be left out, but not exchanged; a per cent sign may be left out or worked out, degrees in radians."""
    (gold, gold_unit), (answer, answer_unit) = parts.quantity(gold), parts.quantity(answer)
    if gold_unit != answer_unit and not (parts.is_unit(gold_unit) and parts.is_unit(answer_unit)):
        return False
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return False
    if "%" in (gold_unit, answer_unit) and gold_unit != answer_unit:
        percent, plain = (gold, answer) if gold_unit == "%" else (answer, gold)
        if _equal_formulas(rf"\frac{{{percent}}}{{100}}", plain, ask):
            return True
        return (gold_unit == "%" or not _is_share(gold)) and _equal_formulas(percent, plain, ask)
    if "degree" in (gold_unit, answer_unit) and gold_unit != answer_unit and "\\pi" in gold + answer:
        degrees, plain = (gold, answer) if gold_unit else (answer, gold)
        return _equal_formulas(rf"\frac{{({degrees})\pi}}{{180}}", plain, ask)
    return _equal_formulas(gold, answer, ask)


def _is_share(gold: str) -> bool:
    """Return whether a gold is a number below 1, to which no per cent sign can be added: 0.25 is not 0.25%."""
    number = exact.read(gold).value
    return isinstance(number, Fraction) and abs(number) < 1


def _equal_formulas(gold: str, answer: str, ask: Ask) -> bool:
    """Compare exact numbers here, after the size gate, and the rest by asking."""
    if _squeezed(gold) == _squeezed(answer):
        return True
    gold_reading, answer_reading = exact.read(gold), exact.read(answer)
    left, right = gold_reading.value, answer_reading.value
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        near = "." in gold + answer and abs(left - right) <= _TOLERANCE * min(Fraction(1), abs(left))
        return left == right or near
    if left is not None and right is not None:
        return left == right
    if (answer_reading.too_large or isinstance(right, exact.Tower)) and not gold_reading.too_large:
        return False
    return _asked(gold, answer, ask)


def _asked(gold: str, answer: str, ask: Ask) -> bool:
    """Ask, unless math-verify is known not to see the difference.

    A and a are two symbols, an ellipsis stands for what is left out, and "1 2" is no number.
    """
    for sign in (r"\\ldots(?![a-zA-Z])", r"^[-+]?\d+(?:\s+\d+)+$"):
        if bool(re.search(sign, gold)) != bool(re.search(sign, answer)):
            return False
    letters = [set(re.findall("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text))) for text in (gold, answer)]
    folded = [{letter.lower() for letter in found} for found in letters]
    if folded[0] == folded[1] and letters[0] != letters[1]:
        return False
    verdict = ask(gold, answer)
    if verdict is None:
        raise UndecidedError
    return verdict
