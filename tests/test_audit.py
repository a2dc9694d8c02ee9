"""Which golds cannot be graded."""

import pytest

from torl_env.audit import why_ungradable


@pytest.mark.parametrize(
    "gold",
    [
        "42",
        "-1,234.5",
        "1/2",
        "\\frac{1}{2}",
        "\\text{even}",
        "no solution",
        "\\{1, 2\\}",
        "\\left\\{ x \\right.",
        "(0, 1]",
        "9 \\text{ a.m.}",
        "19, 46, and 82",
        "The midpoints form a regular hexagon",
        "2^{n}",
        "=",
        "+",
        "<",
        "()",
        "]0, 1[",
        "\\left( 0, 1 \\right]",
        "(0, 1[",
        "a) 3; b) 4",
        "\\sqrt{3}{}",
        "5 \\text{ km}/\\text{h}",
        "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
        "\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}.\\end{align*}",
        "f(1/\\boxed{2}",
        "inf",
    ],
)
def test_answers_are_gradable(gold: str) -> None:
    assert why_ungradable(gold) is None


@pytest.mark.parametrize(
    ("gold", "reason"),
    [
        ("", "it is empty"),
        ("  $ $ ", "it is empty"),
        ("\\boxed{}", "it is empty"),
        ("\\frac{1}{2", "its braces do not match"),
        ("a}{b", "its braces do not match"),
        ("x^", "nothing follows its last sign"),
        ("$a_$", "nothing follows its last sign"),
        ("1/", "nothing follows its last sign"),
        ("((", "its brackets do not match"),
        (")(", "its brackets do not match"),
        ("\\left(", "its brackets do not match"),
        ("\\left(1, \\frac{1}{2}", "its brackets do not match"),
        ("\\frac{}{}", "its fraction or root is empty"),
        ("\\dfrac{1}{ }", "its fraction or root is empty"),
        ("\\sqrt{}", "its fraction or root is empty"),
        ("\\begin{pmatrix}1", "its environment does not end"),
        ("See solution", "it stands for a missing answer"),
        ("N/A", "it stands for a missing answer"),
        ("Proof: by induction", "it stands for a missing answer"),
        ("all n for which the last digit of the sum is not zero", "it is prose"),
        ("所有满足条件的正整数都是完全平方数并且", "it is prose"),
        ("x" * 2000, "it has 2000 characters, over 1000"),
    ],
)
def test_what_cannot_be_graded_is_told_why(gold: str, reason: str) -> None:
    assert why_ungradable(gold) == reason
