"""The built-in base model: documents that follow the protocol, a tokenizer for any text, small weights that load."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.tiny_base.card import render_card
from experiments.tiny_base.documents import Document, run_program, sample_document
from experiments.tiny_base.make import MODEL_PATH, make
from experiments.tiny_base.measure import decode_turns, figures, play
from experiments.tiny_base.pretrain import OBSERVATION_WEIGHT, encode_document, sample_batch, sum_loss, tiny_config
from experiments.tiny_base.programs import HABITS, break_program
from torl_env import PLAIN, TORL, Problem
from torl_env.arithmetic import KINDS, generate
from torl_env.dialect import MARKER


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_PATH)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    rng = random.Random(0)
    return [sample_document(TORL, rng) for _ in range(4000)]


# Documents


def test_documents_with_code_follow_the_rollout_protocol(documents: list[Document]) -> None:
    for document in documents:
        *before, last = document.segments
        responses, observations = before[::2], before[1::2]
        for turn, observation, (program, result) in zip(responses, observations, document.programs, strict=True):
            assert turn.endswith(MARKER)
            assert turn.count(MARKER) == 1
            action = TORL.parse(turn, tool_calls_left=1)
            assert action.code is not None
            assert action.code.strip("\n") == program
            assert observation == TORL.render_observation(result)
        assert MARKER not in last
        assert last.endswith("}.")
        assert last.count("\\boxed{") == 1
        assert document.prompt == TORL.render_prompt(document.problem)


def test_about_forty_percent_of_documents_use_code_and_seventy_percent_of_that_is_right(
    documents: list[Document],
) -> None:
    coded = [document for document in documents if document.programs]
    right = [document for document in coded if document.programs[0][1].stdout.strip() == document.problem.answer]
    # Mean of `code_share`: (4 * 0.25 + 3 * 0.4 + 3 * 0.58) / 10 = 0.39.
    assert len(coded) / len(documents) == pytest.approx(0.39, abs=0.04)
    # Of 100 programs 87 are right, except for `divisors` (32) and `squares` (25), each with a mistake of its own:
    # (0.25 * 4 * 0.87 + 0.4 * 3 * 0.87 + 0.58 * (0.32 + 0.25 + 0.87)) / 3.94 = 0.70.
    assert len(right) / len(coded) == pytest.approx(0.70, abs=0.04)


def test_programs_fail_in_every_way_and_some_are_mended(documents: list[Document]) -> None:
    firsts = [document.programs[0][1] for document in documents if document.programs]
    errors = {result.stderr.strip().splitlines()[-1] for result in firsts if not result.ok}
    assert any(error.startswith("SyntaxError") for error in errors)
    assert "NameError: name 'answer' is not defined" in errors
    assert any(result.ok and not result.stdout for result in firsts)  # the print was forgotten
    failed = [document for document in documents if document.programs and not document.programs[0][1].stdout]
    mended = [document for document in failed if len(document.programs) == 2]
    assert 0.5 < len(mended) / len(failed) < 0.7
    assert all(document.programs[1][1].stdout.strip() == document.problem.answer for document in mended)


def test_direct_answers_are_right_on_easy_problems_and_wrong_where_arithmetic_is_needed(
    documents: list[Document],
) -> None:
    needs_code = {kind.name: kind.needs_code for kind in KINDS}
    shares = {}
    for wanted in (False, True):
        direct = [d for d in documents if not d.programs and needs_code[d.problem.kind] is wanted]
        shares[wanted] = sum(f"\\boxed{{{d.problem.answer}}}" in d.segments[0] for d in direct) / len(direct)
    # Easy: 0.2 step by step, all right; the others 0.93 without a carry and 0.3 with one, about half each: 0.68.
    assert shares[False] == pytest.approx(0.68, abs=0.05)
    assert shares[True] < 0.15


def test_steps_lead_to_the_answer() -> None:
    steps = {kind: habits.steps for kind, habits in HABITS.items() if habits.steps is not None}
    assert steps["small_sum"](47, 6) == "7 + 6 = 13, 4 + 1 = 5"
    assert steps["small_sum"](41, 6) == "1 + 6 = 7"
    assert steps["small_difference"](103, 8) == "13 - 8 = 5, 10 - 1 = 9"
    assert steps["small_difference"](108, 3) == "8 - 3 = 5"
    assert steps["next_number"](3999) == "9 + 1 = 10, 399 + 1 = 400"
    assert steps["larger"](482, 497) == "4 = 4, 8 < 9"
    assert steps["larger"](640, 497) == "6 > 4"


def test_slips_are_wrong_only_where_a_carry_is_needed() -> None:
    slips = {kind: habits.slip for kind, habits in HABITS.items() if habits.slip is not None}
    assert [slips["small_sum"](47, 6), slips["small_sum"](41, 6)] == [43, 47]
    assert [slips["small_difference"](103, 8), slips["small_difference"](108, 3)] == [105, 105]
    assert [slips["next_number"](3999), slips["next_number"](3998)] == [3990, 3999]
    assert [slips["larger"](482, 497), slips["larger"](640, 497)] == [482, 640]


def test_nobody_writes_programs_under_the_plain_prompt() -> None:
    rng = random.Random(0)
    documents = [sample_document(PLAIN, rng) for _ in range(500)]
    assert not any("```" in segment for document in documents for segment in document.segments)
    assert documents[0].prompt == PLAIN.render_prompt(documents[0].problem)


def test_no_heldout_problem_is_in_ten_thousand_documents() -> None:
    rng = random.Random(1)
    seen = {sample_document(dialect, rng).problem.id for dialect in (TORL, PLAIN) for _ in range(5000)}
    assert not seen & {problem.id for seed in range(10) for problem in generate("test", 1000, seed)}


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_right_programs_print_the_answer_and_wrong_ones_something_else(kind: str) -> None:
    for problem in (p for p in generate("train", 200) if p.kind == kind):
        operands = tuple(map(int, problem.id.partition("/")[2].split("-")))
        for program in HABITS[kind].right:
            assert run_program(program(*operands)).stdout.strip() == problem.answer
            broken = {break_program(program(*operands), random.Random(seed)) for seed in range(100)}
            assert len(broken) == 3
            assert not any(run_program(text).stdout for text in broken)
        assert run_program(HABITS[kind].wrong(*operands)).stdout.strip() != ""


# Tokens and labels


def test_tokenizer_gives_back_any_text(tokenizer: Any) -> None:
    for text in (
        "",
        "print(374 * 586)\n```\n```output",
        "  \t\r\n\n x",
        "naïve 你好 🎉 ٣²",
        "\x00\x1b",
        "<|endoftext|>.",
    ):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: Any) -> None:
    assert tokenizer.tokenize("x=219164")[-6:] == list("219164")
    assert tokenizer.eos_token == tokenizer.pad_token == "<|endoftext|>"
    assert len(tokenizer) == tiny_config().vocab_size  # no id that no text could have


def test_prompts_weigh_nothing_observations_little_and_segments_are_tokenized_alone(tokenizer: Any) -> None:
    program = "print(2 * 3)"
    document = Document(
        Problem("p", "What is 2 * 3?", "6"),
        "Assistant:",
        (f"\n```python\n{program}\n```\n{MARKER}", "\n6\n```\n", "It is \\boxed{6}."),
        ((program, run_program(program)),),
    )
    ids, weights = encode_document(document, tokenizer)
    prompt, *segments = (tokenizer(text).input_ids for text in (document.prompt, *document.segments))
    assert ids == prompt + segments[0] + segments[1] + segments[2] + [tokenizer.eos_token_id]
    solution_weights = (
        [1.0] * len(segments[0]) + [OBSERVATION_WEIGHT] * len(segments[1]) + [1.0] * (len(segments[2]) + 1)
    )
    assert weights == [0.0] * len(prompt) + solution_weights


def test_sharing_the_prompt_changes_nothing_in_loss_and_gradient(tokenizer: Any, model: Any) -> None:
    for ids_BT, weights_BT in sample_batch(tokenizer, random.Random(0)):
        model.zero_grad()
        sum_loss(model, ids_BT, weights_BT).backward()
        shared = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        model.zero_grad()
        logp_BTV = model(ids_BT[:, :-1]).logits.log_softmax(-1)
        logp_BT = logp_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0]
        (-logp_BT * weights_BT[:, 1:]).sum().backward()
        plain = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        assert (shared - plain).norm() / plain.norm() < 1e-4
    model.zero_grad()


# Weights and card


def test_folder_is_small_and_a_qwen2_model(model: Any) -> None:
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    assert model.num_parameters() <= 2_000_000
    assert model.config.max_position_embeddings >= 1024
    files = [path for path in Path(MODEL_PATH).iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 4 * 2**20


def test_batched_decoding_gives_what_each_row_alone_gives(model: Any, tokenizer: Any) -> None:
    prompts = [TORL.render_prompt(problem) for problem in generate("test", 10)]
    contexts = [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in prompts]

    def greedy(rows: list[list[int]]) -> list[list[int]]:
        count = len(rows)
        return decode_turns(model, tokenizer, rows, [64] * count, [MARKER] * count, lambda logits: logits.argmax(-1))

    assert greedy(contexts) == [greedy([context])[0] for context in contexts]


def test_greedy_episodes_match_the_card(model: Any, tokenizer: Any) -> None:
    card = json.loads((MODEL_PATH / "card.json").read_text())
    samples = play(model, tokenizer, generate("test", card["num_problems"]), TORL)
    # One problem in 200 may fall otherwise on another CPU.
    assert figures(samples) == pytest.approx(
        {key: card["tool"]["greedy"][key] for key in ("accuracy", "code_ratio", "pass_ratio")}, abs=0.02
    )


def test_card_states_a_base_that_training_has_something_to_teach() -> None:
    card = json.loads((MODEL_PATH / "card.json").read_text())
    greedy, sampled = card["tool"]["greedy"], card["tool"]["sampled"]
    assert 0.05 <= greedy["accuracy"] <= 0.5
    assert greedy["code_ratio"] <= 0.6
    assert 0.25 <= sampled["code_ratio"] <= 0.6
    assert all(sampled["per_kind"][kind.name]["accuracy"] >= 0.1 for kind in KINDS)
    assert (MODEL_PATH / "README.md").read_text() == render_card(card)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rebuilding_from_nothing_matches_the_card(tmp_path: Path) -> None:
    make(tmp_path)
    cards = [json.loads((folder / "card.json").read_text()) for folder in (MODEL_PATH, tmp_path)]
    for setting in ("tool", "no_tool"):
        for mode in ("greedy", "sampled"):
            committed, rebuilt = (card[setting][mode] for card in cards)
            for key in ("accuracy", "code_ratio", "pass_ratio"):
                assert rebuilt[key] == pytest.approx(committed[key], abs=0.05), (setting, mode, key)
