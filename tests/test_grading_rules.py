"""Each rule of grading by kind: what it accepts, and the near miss it rejects."""
# ruff: noqa: E501 (a kind a line)

import pytest

from torl_env import Verdict, grade

# (kind, gold, accepted answers, rejected answers)
KINDS: list[tuple[str, str, list[str], list[str]]] = [
    ("delimiters, fonts and spacing", "\\frac{4}{3}", ["\\( \\dfrac43 \\)", "$\\tfrac{4}{3}$.", "{\\frac{4}{3}}", "\\mathbf{4/3}"],
     ["\\frac34"]),
    ("text escaped twice", "\\\\left(\\\\frac{4}{5},1\\\\right)", ["(\\frac{4}{5}, 1)"], ["(\\frac{5}{4}, 1)"]),
    ("boxes in the gold", "x \\in \\boxed{(0,1]}.$", ["(0, 1]"], ["[0, 1]", "(0, 1)"]),
    ("several boxes in the gold", "\\boxed{1} and \\boxed{2}", ["1, 2", "2, 1"], ["1", "2", "1, 2, 3"]),
    ("plain text", "10 - 2\\sqrt{5}", ["10 - 2√5", "10 - 2*sqrt(5)", "10-2sqrt(5)"], ["10 + 2√5", "10"]),
    ("mixed numbers", "\\frac{5}{4}", ["1 1/4", "1\\frac{1}{4}", "1.25"], ["11/4", "1/4"]),
    ("scientific notation", "1.70e4", ["17000", "1.70 \\times 10^{4}", "1.7 \\cdot 10^4"], ["1.70", "1.71e4", "1.70e5"]),
    ("Python powers", "2^{10}", ["2**10", "1024", "2^10"], ["20", "2^1"]),
    ("functions in plain text", "\\arcsin(\\frac{10}{13})", ["np.arcsin(10/13)", "arcsin(10/13)"], ["np.arccos(10/13)"]),
    ("pi in plain text", "\\frac{\\pi}{2}", ["pi/2", "0.5*pi", "π/2"], ["pi", "2/pi"]),
    ("thousands separators", "10,080", ["10080", "10{,}080", "10,\\!080", "10\\,080", "10 080"], ["10, 081", "108", "10.080"]),
    ("a space makes a list", "32349", ["32,349"], ["32, 349"]),
    ("three digits in a list", "70,110", ["70, 110", "70110"], ["70, 11", "70"]),
    ("thousands in a tuple", "(2,251,252)", ["(2, 251, 252)"], ["(2251252)", "(2251, 252)"]),
    ("lists in any order", "1,-2", ["-2,1", "\\{1, -2\\}", "1 \\text{ and } -2", "-2 or 1", "$1$,$-2$"], ["1", "1,-3", "1,2", "1,-2,3"]),
    ("lists of equal numbers", "0.5, 1", ["1, \\frac12"], ["1, 1"]),
    ("repeated elements", "1, 1, 2", ["1, 2, 1"], ["1, 2, 2"]),
    ("tuples in order", "(3,1)", ["(3, 1)", "3, 1"], ["(1,3)", "\\{1,3\\}", "(3,1,0)"]),
    ("lists of tuples", "(2,1),(3,1)", ["(3,1),(2,1)"], ["(3,1)", "(1,2),(3,1)"]),
    ("plus or minus", "\\pm 3, \\pm 1", ["-3,-1,1,3", "1, 3, -1, -3"], ["3, 1", "-3,-1,1"]),
    ("one of two roots", "1 \\pm \\sqrt{19}", ["1+\\sqrt{19}, 1-\\sqrt{19}", "1 \\pm \\sqrt{19}"], ["1+\\sqrt{19}"]),
    ("names of values", "5", ["x=5", "x = 2 + 3 = 5", "f(1) = 5", "x \\approx 5", "\\angle ABC = 5"], ["x=6", "5=6"]),
    ("a named gold", "k=1", ["1", "k = 1"], ["2", "j=1", "k=2"]),
    ("a value with a letter", "n=3k", ["3k"], ["3", "k"]),
    ("equations are no values", "2x + z = 1", ["z + 2x = 1", "4x + 2z = 2"], ["1", "2x + z = 2", "2x - z = 1"]),
    ("names of tuples", "(p,q)=(3,2)", ["(3,2)", "(p, q) = (3, 2)"], ["(2,3)"]),
    ("named lists", "a_3 = 2, a_{37} = 19", ["a_{37} = 19, a_3 = 2", "2, 19"], ["a_3 = 19, a_{37} = 2"]),
    ("solutions between semicolons", "p=5,q=2;p=7,q=2", ["(5,2),(7,2)"], ["(5,2)", "(2,5),(2,7)"]),
    ("relation and interval", "(2, 5]", ["2 < x \\leq 5", "x \\in (2, 5]", "5 \\geq x > 2"], ["2 < x < 5", "2 \\leq x \\leq 5"]),
    ("half-lines", "x \\geq 5", ["5 \\leq x", "[5, \\infty)", "x \\in [5, +\\infty)"], ["x > 5", "(5, \\infty)", "y \\geq 5"]),
    ("a relation written otherwise", "x < 1", ["-x > -1"], ["x > -1"]),
    ("a letter at a half-open interval", "$t(0,4]$", ["t \\in (0,4]", "(0,4]"], ["[0,4)", "(0,4)", "4t"]),
    ("a value alone behind its sign", "\\approx 8.24 \\text{ mph}", ["8.24", "= 8.24"], ["8.2"]),
    ("fractions of bare letters", "2007 + \\frac\\pi 2", ["2007 + \\frac{\\pi}{2}", "2007 + \\pi/2"], ["2007 + 2\\pi", "2007"]),
    ("phantom signs", "\\begin{pmatrix} 1 & \\phantom -1 \\end{pmatrix}", ["\\begin{pmatrix} 1 & 1 \\end{pmatrix}"],
     ["\\begin{pmatrix} 1 & -1 \\end{pmatrix}"]),
    ("unions of intervals", "(0,9) \\cup (9,36)", ["(9,36) \\cup (0,9)"], ["(0,36)", "(0,9)", "(0,9) \\cup (9,36]"]),
    ("infinity has a sign", "\\infty", ["+\\infty", "infinity"], ["-\\infty"]),
    ("base-n numerals", "52_8", ["52_{8}", "52_{\\text{eight}}", "(52)_8"], ["528", "52", "52_9", "42"]),
    ("no base where none is asked", "506", ["506"], ["506_7"]),
    ("times of day", "9:24", ["9:24", "09:24"], ["\\frac{3}{8}", "9:42", "3:8", "9.24"]),
    ("times with their half of the day", "4\\!:\\!51 \\text{ p.m.}", ["4:51 PM", "16:51"], ["4:51 a.m.", "4:52 p.m."]),
    ("ratios", "5:6", ["\\frac{5}{6}", "10:12"], ["6:5", "5", "\\frac{6}{5}"]),
    ("ratios of more terms", "1:2:3", ["2:4:6"], ["1:4:9", "1:2"]),
    ("choice letters", "\\text{(C)}", ["C", "(C)", "\\text{C}", "C: none of these", "C. 12"], ["D", "(D)", "Cat", "c"]),
    ("words", "\\text{two lines}", ["two lines", "Two lines.", "\\text{ two lines }"], ["a line", "lines", "2"]),
    ("words are no products of letters", "\\text{east}", ["east"], ["seat", "\\text{seat}"]),
    ("tiny numbers", "0.0000001", ["1e-7", "10^{-7}"], ["0.0000002", "0"]),
    ("decimals of exact numbers", "\\frac{1}{12}", ["0.0833333333333333", "0.08333333"], ["0.083", "0.09"]),
    ("decimals of irrational numbers", "600\\pi", ["1884.955592153876"], ["1884.96", "1885"]),
    ("units left out", "5.4 \\text{ cents}", ["5.4", "5.4 cents", "5.4\\mathrm{~cents}"], ["5.4 \\text{ dollars}", "54"]),
    ("powers of units", "15\\mbox{ cm}^2", ["15", "15 \\text{ cm}^{2}"], ["15 \\text{ cm}^3", "225"]),
    ("letters behind a number are variables", "2m", ["2 m", "m \\cdot 2"], ["2", "2h"]),
    ("currency", "\\$36", ["36", "\\$36.00", "36 dollars"], ["3.6"]),
    ("degrees", "90^\\circ", ["90", "90^{\\circ}", "90 degrees", "90°"], ["9", "180^\\circ"]),
    ("per cent", "28\\%", ["28 pct", "28 percent", "28", "0.28", "28\\%"], ["2.8\\%", "0.028"]),
    ("matrices", "(\\begin{pmatrix}1&2\\\\3&4\\\\\\end{pmatrix})", ["\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"],
     ["\\begin{pmatrix} 1 & 2 \\\\ 3 & 5 \\end{pmatrix}"]),
    ("column vectors", "\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}", ["\\begin{bmatrix}-\\frac13\\\\\\frac23\\end{bmatrix}"],
     ["\\begin{pmatrix} 2/3 \\\\ -1/3 \\end{pmatrix}"]),
    ("symbols count with their case", "A + b", ["b + A"], ["a + b", "A + B"]),
    ("symbols count", "\\sin^2 t", ["\\sin^2(t)"], ["\\sin^2 m", "\\sin t"]),
    ("Euler's number", "1 - \\frac{1}{\\mathrm{e}}", ["1 - 1/e", "1 - exp(-1)"], ["1 + 1/e"]),
    ("real numbers", "(-\\infty, \\infty)", ["\\mathbb{R}", "x \\in \\mathbb R", "ℝ"], ["\\mathbb{Q}", "R", "(0, \\infty)"]),  # noqa: RUF001
    ("the empty set", "\\emptyset", ["\\varnothing", "∅"], ["0", "\\{0\\}"]),
    ("sets by a condition", "(2, \\infty)", ["\\{x \\mid x > 2\\}", "\\{x \\in \\mathbb{R} : x > 2\\}"],
     ["\\{x \\mid x > 3\\}", "\\{x \\in \\mathbb{Z} : x > 2\\}", "\\{x \\mid y > 2\\}"]),
    ("unions in plain text", "(-\\infty, 2) \\cup (3, \\infty)", ["(-inf, 2) U (3, inf)"], ["(-inf, 2) U (4, inf)", "(-inf, 2), U"]),
    ("an interval in pieces", "[0,4]", ["[0,2] \\cup [2,4]"], ["[0,2] \\cup [3,4]", "(0,2] \\cup [2,4]"]),
    ("closed intervals are no lists", "[0, 1]", ["[0,1]"], ["0, 1", "(0, 1)"]),
    ("lists in square brackets", "[1, 2, 3]", ["1, 2, 3"], ["3, 2, 1"]),
    ("repeating decimals", "\\frac{1}{6}", ["0.1\\overline{6}", "0.1\\bar{6}"], ["0.\\overline{16}", "0.16", "1.\\overline{6}"]),
    ("a repeating gold", "0.\\overline{12}", ["\\frac{4}{33}", "12/99"], ["0.12", "0.1\\overline{2}"]),
    ("large numbers in words", "7 \\text{ million}", ["7000000", "7 million", "7 \\times 10^6"], ["7", "7 billion"]),
    ("a number is not so many millions", "7", ["7"], ["7 \\text{ million}", "7 thousand"]),
    ("large amounts keep their unit", "2 \\text{ thousand dollars}", ["2000", "2000 dollars"], ["2000 cents", "2 dollars"]),
    ("a unit is no sentence", "7", ["7 \\text{ apples}"], ["7 \\text{ is wrong}", "7 \\text{ or more}", "7 \\text{ at most}"]),
    ("a per cent sign added to a share", "0.25", ["25\\%", "\\frac14"], ["0.25\\%", "\\frac14\\%"]),
    ("degrees in radians", "45^\\circ", ["\\frac{\\pi}{4}", "\\theta = \\pi/4"], ["\\frac{\\pi}{3}", "45\\pi"]),
    ("an ellipsis leaves something out", "1, 2, 4", ["1, 2, 4"], ["1, 2, 4, \\ldots", "1, 2, 4\\ldots"]),
    ("digits apart are no number", "12", ["12"], ["1 2"]),
    ("arguments have a name", "f(x) = x^2", ["f(t) = t^2", "x^2"], ["f(t) = 2t", "g(t) = t^2 + 1", "f(t) = x^3"]),
    ("values at a point", "f(2) = 3", ["3", "f(2) = 3"], ["f(3) = 2", "f(3) = 3"]),
    ("named values as a tuple", "x = 1, y = 2", ["(1, 2)", "y = 2, x = 1"], ["(2, 1)", "x = 2, y = 1"]),
    ("characters for fractions and powers", "\\frac{x^2}{2}", ["½x²", "x²/2"], ["½x³", "2x²"]),
    ("full-width and invisible characters", "15", ["１５", "15\u200b"], ["１６"]),  # noqa: RUF001
    ("complex numbers", "6 - 5i", ["-5i + 6"], ["6 + 5i", "6", "1"]),
    ("garbage", "4951077", ["4951077"], ["{@Ne 1276915 4951077 {1,1-3-10);5_G HEADERS1 O}"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "gold", "accepted", "rejected"), KINDS, ids=[kind[0] for kind in KINDS])
def test_a_rule_accepts_its_kind_and_rejects_the_near_miss(
    kind: str, gold: str, accepted: list[str], rejected: list[str]
) -> None:
    verdicts = {answer: grade(gold, f"\\boxed{{{answer}}}").verdict for answer in accepted + rejected}
    assert {answer for answer in accepted if verdicts[answer] is not Verdict.CORRECT} == set(), "refused"
    assert {answer for answer in rejected if verdicts[answer] is not Verdict.INCORRECT} == set(), "let pass"
