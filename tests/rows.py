"""Token rows of random lengths for tests of the learner, and the policy they are for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learners.batching import RowRef, collate
from learners.config import ToRLConfig
from learners.episodes import TokenEpisode
from learners.rl_module import CausalLMModule, causal_lm_spec
from tests.tiny_model import VOCAB_SIZE
from torl_env.spaces import UnicodeText

SPACE = UnicodeText(1000)


def learner_config(folder: Path, num_learners: int = 0, **training: Any) -> ToRLConfig:
    """Return a float32 config whose learners use one thread and a share of a core."""
    return (
        ToRLConfig()
        .language_model(str(folder), dtype="float32")
        .learners(num_learners=num_learners, num_cpus_per_learner=0.5)
        .training(**{"lr": 1e-3, "learner_threads": 1, **training})
    )


def make_policy(config: ToRLConfig) -> CausalLMModule:
    """Return the policy alone, without a learner."""
    spec = causal_lm_spec(config)
    spec.observation_space = spec.action_space = SPACE
    return spec.build()


def random_episodes(num_rows: int, seed: int = 0, policy: CausalLMModule | None = None) -> list[TokenEpisode]:
    """Return rows of 6 to 60 tokens: prompt, response, observation, response.

    Args:
        num_rows: Number of rows.
        seed: Of everything.
        policy: Gives the `action_logp`, as a sampler with the same weights would; without one they are made up.
    """
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(num_rows):
        num_tokens, num_prompt = int(rng.integers(6, 61)), int(rng.integers(2, 5))
        loss_mask = np.arange(num_tokens) >= num_prompt
        loss_mask[num_tokens // 2 : num_tokens // 2 + 3] &= num_tokens < 10  # an observation in the middle
        token_ids = rng.integers(0, VOCAB_SIZE, num_tokens).astype(np.int32)
        action_logp = np.where(loss_mask, -6 + rng.standard_normal(num_tokens), 0).astype(np.float32)
        episodes.append(TokenEpisode(token_ids, loss_mask, action_logp, num_prompt, policy_version=0))
    return episodes if policy is None else [sampled_by(policy, episode) for episode in episodes]


def sampled_by(policy: CausalLMModule, episode: TokenEpisode) -> TokenEpisode:
    """Return the episode with the policy's own log-probs."""
    with torch.no_grad():
        logp = policy(collate([episode], [0.0]))["logp"][0].numpy()
    return TokenEpisode(
        episode.token_ids, episode.loss_mask, logp, episode.prompt_length, policy_version=episode.policy_version
    )


def row_refs(episodes: Sequence[TokenEpisode], ref: Any = None, seed: int = 0) -> list[RowRef]:
    """Return the rows with advantages of -1, 0 or 1."""
    advantages = np.random.default_rng(seed).integers(-1, 2, len(episodes))
    return [
        RowRef(ref, i, episode.num_tokens, episode.num_response_tokens, float(advantages[i]), row_id=i)
        for i, episode in enumerate(episodes)
    ]
