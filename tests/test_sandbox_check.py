"""The command that runs a file of programs: what it refuses to take for a case, and what it takes."""

import json
from pathlib import Path

import pytest

from torl_env.sandbox import check

CASE = {"id": "one", "code": "print(1)", "expect": {"out_eq": "1\n"}}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b"", "has no cases"),
        (b"id,code\n1,print(1)\n", "line 1: JSONDecodeError"),
        ("{}".encode("utf-16"), "can't decode byte"),
        (b"[" * 100_000, "line 1: RecursionError"),
        (b"[]", "should be an object with `id`, `code` and `expect`"),
        *(
            (
                json.dumps({name: value for name, value in CASE.items() if name != left_out}).encode(),
                "with `id`, `code`",
            )
            for left_out in CASE
        ),
        *(
            (b"\n" + json.dumps(CASE | changed).encode(), said)
            for changed, said in (
                ({"code": None}, "line 2: BadRequestError: `code` (None)"),
                ({"request": {"timeout": -1}}, "line 2: BadRequestError: `timeout_s` (-1)"),
                ({"request": {"time_out": 1}}, "`request` ({'time_out': 1}) should be an object of"),
                ({"request": {"generate": "1 / 0"}}, "line 2: ZeroDivisionError"),
                ({"expect": {"out_equals": "2"}}, "`expect` ({'out_equals': '2'}) should be an object of"),
                ({"expect": {"out_has": 1}}, "`out_has` (1) should be of kind str"),
                ({"expect": {"follow_up": "1"}}, "`follow_up` and `follow_out` go together"),
                ({"expect": {}}, "`expect` should say something"),
            )
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_file_that_is_not_one_of_cases_is_refused(
    written: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(written)
    assert check.main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert said in captured.err


def test_a_mark_at_the_start_and_separators_within_strings_are_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    case = CASE | {"code": "print('\u2028\x85')"}
    path.write_text("\ufeff" + json.dumps(case, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert check.read_cases(path) == [case]


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_a_number_at_once_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(SystemExit) as error:
        check.main(["cases.jsonl", "--num-at-once", number])
    assert error.value.code == 2
