"""Problems are right, seeded, and never both trained on and held out."""

import random

import pytest

from torl_env.arithmetic import KINDS, draw_operands, generate, is_heldout, make_problem, needs_code

KIND_BY_NAME = {kind.name: kind for kind in KINDS}


@pytest.mark.parametrize(
    ("kind", "operands", "answer"),
    [
        ("small_sum", (47, 6), "53"),
        ("small_difference", (103, 8), "95"),
        ("next_number", (3999,), "4000"),
        ("larger", (482, 497), "497"),
        ("product", (374, 586), "219164"),
        ("power_remainder", (3, 5, 50), "43"),  # 243 = 4 * 50 + 43
        ("digit_sum", (374, 586), "23"),  # 2 + 1 + 9 + 1 + 6 + 4
        ("divisors", (360,), "24"),  # 2^3 * 3^2 * 5: 4 * 3 * 2
        ("squares", (3, 10), "126"),  # 9 + 36 + 81
        ("collatz", (27,), "111"),  # the best-known of all
    ],
)
def test_answers_match_hand_computed_ones(kind: str, operands: tuple[int, ...], answer: str) -> None:
    assert make_problem(KIND_BY_NAME[kind], operands).answer == answer


def test_squares_leave_out_the_bound_itself() -> None:
    assert make_problem(KIND_BY_NAME["squares"], (3, 9)).answer == "45"  # 9 + 36, not 81


def test_problem_names_its_kind_and_operands() -> None:
    problem = make_problem(KIND_BY_NAME["product"], (374, 586))
    assert (problem.id, problem.kind, problem.source) == ("product/374-586", "product", "arithmetic")
    assert problem.question == "What is 374 * 586?"


def test_ten_kinds_of_which_six_need_code() -> None:
    assert len(KINDS) == 10
    assert sum(kind.needs_code for kind in KINDS) == 6
    assert needs_code("collatz")
    assert not needs_code("small_sum")


def test_nothing_is_known_of_a_kind_that_is_not_built_in() -> None:
    assert not needs_code("math")


def test_kinds_take_turns() -> None:
    kinds = [problem.kind for problem in generate("test", 20)]
    assert kinds == 2 * [kind.name for kind in KINDS]


def test_same_seed_same_problems_other_seed_others() -> None:
    assert generate("train", 100, seed=3) == generate("train", 100, seed=3)
    assert generate("train", 100, seed=3) != generate("train", 100, seed=4)


def test_problems_of_one_call_are_distinct() -> None:
    for split, num_problems in (("train", 4096), ("test", 1000)):
        assert len({problem.id for problem in generate(split, num_problems)}) == num_problems


def test_no_problem_is_in_both_splits_over_ten_thousand_draws() -> None:
    train = {problem.id for seed in range(5) for problem in generate("train", 1000, seed)}
    test = {problem.id for seed in range(5) for problem in generate("test", 1000, seed)}
    assert not train & test


def test_questions_of_the_splits_differ_too() -> None:
    # Ids could differ and the questions still be the same, e.g. if operands were reordered on the way.
    train = {problem.question for problem in generate("train", 4000)}
    assert not train & {problem.question for problem in generate("test", 1000)}


def test_larger_never_compares_a_number_with_itself() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        first, second = draw_operands(KIND_BY_NAME["larger"], "train", rng)
        assert first != second
        assert not is_heldout("larger", (first, second))


def test_asking_for_more_than_a_kind_has_is_rejected() -> None:
    # `squares` has 7 * 170 = 1190 operands, about a fifth of them held out: far fewer than 1000.
    with pytest.raises(ValueError, match="Ask for fewer"):
        generate("test", 10_000)


@pytest.mark.parametrize("split", ["validation", "", "Train"])
def test_unknown_split_is_rejected(split: str) -> None:
    with pytest.raises(ValueError, match="`split`"):
        generate(split, 1)


def test_negative_number_of_problems_is_rejected() -> None:
    with pytest.raises(ValueError, match="`num_problems`"):
        generate("train", -1)
    assert generate("train", 0) == []
