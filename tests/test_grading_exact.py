"""Exact arithmetic and the size gate."""

from fractions import Fraction

import pytest

from torl_env.grading.exact import Tower, read


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        ("42", 42),
        ("-3", -3),
        ("--3", 3),
        (".5", Fraction(1, 2)),
        ("\\frac{1}{2}", Fraction(1, 2)),
        ("\\frac34", Fraction(3, 4)),
        ("\\frac{-3}4", Fraction(-3, 4)),
        ("3/4", Fraction(3, 4)),
        ("1/2/2", Fraction(1, 4)),
        ("2+3\\cdot 4", 14),
        ("(2+3)\\times 4", 20),
        ("2(3)", 6),
        ("2\\frac{1}{2}", Fraction(5, 2)),  # a mixed number
        ("-2\\frac{1}{2}", Fraction(-5, 2)),
        ("2\\cdot\\frac{1}{2}", 1),
        ("(2)\\frac{1}{2}", 1),
        ("2^{10}", 1024),
        ("2^{-2}", Fraction(1, 4)),
        ("-2^{2}", -4),
        ("2^{3^{2}}", 512),
        ("5!", 120),
        ("7.8\\cdot 10^{2}", 780),
        ("0^{2}", 0),
    ],
)
def test_plain_arithmetic_has_its_exact_value(latex: str, value: Fraction | int) -> None:
    assert read(latex).value == value
    assert not read(latex).too_large


@pytest.mark.parametrize(
    "latex", ["", "x", "2x", "\\sqrt{2}", "1,2", "1/0", "(1", "1)", "1 2", "2^{1/2}", "\\pi", ".", "²"]
)
def test_anything_else_has_none(latex: str) -> None:
    assert read(latex) == read("x")


@pytest.mark.parametrize(
    ("latex", "tower"),
    [
        ("9^{9^{9}}", Tower(3, 2 * 9**9)),
        ("2^{10^9}", Tower(2, 10**9)),
        ("4^{500000000}", Tower(2, 10**9)),
        ("(9^{99999})^{64}", Tower(3, 2 * 99999 * 64)),
        ("3^{9^{9^{9}}}", Tower(3, Tower(3, 2 * 9**9))),
    ],
)
def test_a_power_too_large_is_written_down(latex: str, tower: Tower) -> None:
    assert read(latex).value == tower


@pytest.mark.parametrize(
    "latex", ["10000000!", "9^{9^{9}}+1", "x + 9^{9^{9}}", "\\sqrt{9^{9^{9}}}", "7" * 5000, "(" * 90]
)
def test_a_part_too_large_is_noticed(latex: str) -> None:
    assert read(latex).value is None
    assert read(latex).too_large


@pytest.mark.parametrize("latex", ["100!", "2^{4181}", "x^{100}", "2^{x}", "7" * 900, "(" * 20 + "1" + ")" * 20])
def test_what_is_large_but_fits_passes(latex: str) -> None:
    assert not read(latex).too_large
