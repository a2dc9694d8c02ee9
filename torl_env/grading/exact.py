r"""Exact values of plain arithmetic in LaTeX, and a size gate for what would not fit into memory.

Integers, decimals, fractions, powers and factorials are worked out as fractions without a computer algebra system: it
is faster than any, and a power is written down instead of computed where its value would have too many digits. What
has letters, roots or relations has no value here, but its numeric parts go through the gate all the same.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_MAX_BITS = 100_000  # 30,000 digits; no gold answer of the public sets has 200
_MAX_DIGITS = 4_000  # of one number as written; Python's `int` reads 4,300
_MAX_FACTORIAL = 5_000
_MAX_DEPTH = 60
_TOKEN = re.compile(r"\s*(?:([0-9]+\.?[0-9]*|\.[0-9]+)|(\\[A-Za-z]+|\\.|.))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tower:
    """The value root ** exponent, too large to compute; equal towers are equal numbers.

    `root` is not itself a power, so that 4^{10^{9}} and 2^{2 \\cdot 10^{9}} are the same tower.
    """

    root: int
    exponent: "int | Tower"


@dataclass(frozen=True, slots=True)
class Reading:
    """What an expression comes to.

    Attributes:
        value: its exact value; None if it is no plain arithmetic.
        too_large: it holds a number too large to compute, other than as a `value` that is a tower.
    """

    value: Fraction | Tower | None
    too_large: bool = False


class _NoValueError(Exception):
    """Not plain arithmetic, or not arithmetic at all."""


class _Opaque:
    """The value of what has none here: letters, roots, relations."""


_OPAQUE: Final = _Opaque()
_Value = Fraction | Tower | _Opaque
_ADD, _MULTIPLY, _DIVIDE = {"+", "-"}, {"*", "\\cdot", "\\times"}, {"/", "\\div"}
_CLOSING = {"{": "}", "(": ")", "[": "]", "\\{": "\\}"}
_SEPARATORS = {"=", ",", ";", "<", ">", "|", ":", "&", "\\\\", "\\leq", "\\geq", "\\neq", "\\in", "\\cup", "\\pm"}


def read(latex: str) -> Reading:
    """Return the exact value of an expression and whether it passes the size gate."""
    parser = _Parser(latex)
    try:
        value = parser.expression()
        if parser.token:
            raise _NoValueError
    except (_NoValueError, RecursionError):
        return Reading(None, parser.too_large)
    return Reading(None if parser.too_large or isinstance(value, _Opaque) else value, parser.too_large)


class _Parser:
    """Recursive descent; `token` is the one to be looked at next, "" at the end."""

    def __init__(self, latex: str) -> None:
        self.too_large = False
        self._depth = 0
        self._tokens = [number or other for number, other in _TOKEN.findall(latex)]
        self._position = 0

    @property
    def token(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _next(self) -> str:
        token = self.token
        self._position += 1
        return token

    def expression(self) -> _Value:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self.too_large = True
            raise _NoValueError
        value: _Value = self._term()
        while self.token in _ADD or self.token in _SEPARATORS:
            operator = self._next()
            if operator in _SEPARATORS and (not self.token or self.token in _CLOSING.values()):
                value = _OPAQUE
                break
            other = self._term()
            value = self._sum(value, other, operator) if operator in _ADD else _OPAQUE
        self._depth -= 1
        return value

    def _term(self) -> _Value:
        value = self._signed()
        while self.token and self.token not in _ADD and self.token not in _SEPARATORS:
            if self.token in _CLOSING.values():
                break
            if self.token in _MULTIPLY or self.token in _DIVIDE:
                divides = self._next() in _DIVIDE
                value = self._product(value, self._signed(), divides)
            else:
                value = self._beside(value)
        return value

    def _beside(self, value: _Value) -> _Value:
        """Multiply by what stands beside without an operator; a fraction behind an integer makes a mixed number."""
        fraction, digit = self.token == "\\frac", _is_number(self.token)
        before = self._tokens[self._position - 1]
        integer = _is_number(before) and "." not in before
        other = self._power()
        if digit:
            return _OPAQUE  # "1 2" is no product
        if fraction and integer and isinstance(value, Fraction) and isinstance(other, Fraction):
            return value - other if value < 0 else value + other
        return self._product(value, other, divides=False)

    def _signed(self) -> _Value:
        sign = 1
        while self.token in _ADD:
            sign = -sign if self._next() == "-" else sign
        value = self._power()
        return self._product(Fraction(sign), value, divides=False) if sign < 0 else value

    def _power(self) -> _Value:
        value = self._atom()
        while self.token == "!":
            self._next()
            value = self._factorial(value)
        if self.token == "^":
            self._next()
            exponent = self._group() if self.token == "{" else self._power()
            value = self._raised(value, exponent)
        return value

    def _atom(self) -> _Value:
        token = self.token
        if token in _CLOSING:
            return self._group()
        self._next()
        if not token or token in _CLOSING.values() or token == "^":
            raise _NoValueError
        if token == "\\frac":
            numerator = self._group() if self.token == "{" else self._digit()
            denominator = self._group() if self.token == "{" else self._digit()
            return self._product(numerator, denominator, divides=True)
        if _is_number(token):
            if len(token) > _MAX_DIGITS:
                self.too_large = True
                return _OPAQUE
            return Fraction(token)
        if token == "_":
            self._power()
        return _OPAQUE

    def _digit(self) -> _Value:
        """Read the argument of a command without braces: a single digit, so that \\frac34 is three quarters."""
        token = self.token
        if not _is_number(token) or token[0] == ".":
            return self._atom()
        self._tokens[self._position : self._position + 1] = [token[0], token[1:]] if token[1:] else [token]
        return Fraction(self._next())

    def _group(self) -> _Value:
        closing = _CLOSING[self._next()]
        if self.token == closing:
            self._next()
            return _OPAQUE
        value = self.expression()
        if self._next() not in (closing, ")", "]"):  # intervals close with another bracket
            raise _NoValueError
        return value

    def _sum(self, left: _Value, right: _Value, operator: str) -> _Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return left - right if operator == "-" else left + right
        return self._gone(left, right)

    def _product(self, left: _Value, right: _Value, divides: bool) -> _Value:
        if not isinstance(left, Fraction) or not isinstance(right, Fraction):
            return self._gone(left, right)
        if divides:
            if right == 0:
                raise _NoValueError
            return left / right
        if _bits(left) + _bits(right) > 2 * _MAX_BITS:
            self.too_large = True
            return _OPAQUE
        return left * right

    def _gone(self, left: _Value, right: _Value) -> _Value:
        if isinstance(left, Tower) or isinstance(right, Tower):
            self.too_large = True
        return _OPAQUE

    def _factorial(self, value: _Value) -> _Value:
        if isinstance(value, Tower) or (isinstance(value, Fraction) and value > _MAX_FACTORIAL):
            self.too_large = True
            return _OPAQUE
        if isinstance(value, _Opaque) or value.denominator != 1 or value < 0:
            return _OPAQUE
        product = 1
        for factor in range(2, int(value) + 1):
            product *= factor
        return Fraction(product)

    def _raised(self, base: _Value, exponent: _Value) -> _Value:
        if isinstance(base, _Opaque) or isinstance(exponent, _Opaque):
            return self._gone(base, exponent)
        if isinstance(base, Tower):
            if isinstance(base.exponent, int) and isinstance(exponent, Fraction) and exponent.denominator == 1:
                return Tower(base.root, base.exponent * int(exponent)) if exponent > 0 else self._gone(base, exponent)
            return self._gone(base, exponent)
        if base == 1 or (base == 0 and not (isinstance(exponent, Fraction) and exponent <= 0)):
            return base
        if isinstance(exponent, Fraction):
            if exponent.denominator != 1:
                return _OPAQUE
            if _bits(base) * abs(exponent) <= _MAX_BITS:
                if base == 0:  # to a power of 0 or below
                    raise _NoValueError
                return base ** int(exponent)
        if base.denominator != 1 or base < 2 or _bits(base) > 1000 or (isinstance(exponent, Fraction) and exponent < 0):
            self.too_large = True
            return _OPAQUE
        root, power = _primitive_root(int(base))
        if isinstance(exponent, Tower):
            return Tower(root, exponent) if power == 1 else self._gone(base, exponent)
        return Tower(root, power * int(exponent))


def _is_number(token: str) -> bool:
    return "0" <= token[:1] <= "9" or (token[:1] == "." and len(token) > 1)


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length() - 1


def _primitive_root(base: int) -> tuple[int, int]:
    """Return (root, power) with root ** power == base and the largest possible power; base >= 2."""
    for power in range(base.bit_length() - 1, 1, -1):
        root = _integer_root(base, power)
        if root**power == base:
            return root, power
    return base, 1


def _integer_root(value: int, power: int) -> int:
    """Return the largest integer whose `power` is at most `value`, by bisection."""
    low, high = 1, 1 << (value.bit_length() // power + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**power <= value else (low, middle - 1)
    return low
