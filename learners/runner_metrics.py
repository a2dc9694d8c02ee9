"""A batch of episodes under RLlib's standard result keys, which Tune's stoppers and schedulers read."""

from collections.abc import Sequence

from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    EPISODE_DURATION_SEC_MEAN,
    EPISODE_LEN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_RETURN_MEAN,
    EPISODE_RETURN_MIN,
    NUM_AGENT_STEPS_SAMPLED,
    NUM_AGENT_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
    WEIGHTS_SEQ_NO,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from learners.episodes import EpisodeRecord

_STEP_KEYS = (
    (NUM_ENV_STEPS_SAMPLED, NUM_ENV_STEPS_SAMPLED_LIFETIME),
    ((NUM_AGENT_STEPS_SAMPLED, DEFAULT_AGENT_ID), (NUM_AGENT_STEPS_SAMPLED_LIFETIME, DEFAULT_AGENT_ID)),
    ((NUM_MODULE_STEPS_SAMPLED, DEFAULT_MODULE_ID), (NUM_MODULE_STEPS_SAMPLED_LIFETIME, DEFAULT_MODULE_ID)),
)
_RETURN_KEYS = (
    EPISODE_RETURN_MEAN,
    ("agent_episode_return_mean", DEFAULT_AGENT_ID),
    ("module_episode_return_mean", DEFAULT_MODULE_ID),
)


def log_episodes(
    metrics: MetricsLogger, records: Sequence[EpisodeRecord], *, policy_version: int, smoothing: int
) -> None:
    """Log steps (an env step is one response) and episodes of all records, returns and lengths of those that count.

    Args:
        metrics: The runner's logger.
        records: One training batch.
        policy_version: Logged as `weights_seq_no`.
        smoothing: Episodes the means are taken over, at least the batch.
    """
    num_steps = sum(record.num_turns for record in records)
    for key, lifetime_key in _STEP_KEYS:
        metrics.log_value(key, num_steps, reduce="sum")
        with_throughput = lifetime_key == NUM_ENV_STEPS_SAMPLED_LIFETIME
        metrics.log_value(lifetime_key, num_steps, reduce="lifetime_sum", with_throughput=with_throughput)
    metrics.log_value(NUM_EPISODES, len(records), reduce="sum")
    metrics.log_value(NUM_EPISODES_LIFETIME, len(records), reduce="lifetime_sum")
    metrics.log_value(WEIGHTS_SEQ_NO, policy_version, window=1)
    counted = [record for record in records if record.counts]
    window = max(1, smoothing, len(records))
    for record in counted:
        metrics.log_value(EPISODE_DURATION_SEC_MEAN, record.duration_s, window=window)
        metrics.log_value(EPISODE_LEN_MEAN, record.num_turns, window=window)
        metrics.log_value(EPISODE_LEN_MIN, record.num_turns, reduce="min", window=window)
        metrics.log_value(EPISODE_LEN_MAX, record.num_turns, reduce="max", window=window)
        metrics.log_value(EPISODE_RETURN_MIN, record.reward, reduce="min", window=window)
        metrics.log_value(EPISODE_RETURN_MAX, record.reward, reduce="max", window=window)
        for key in _RETURN_KEYS:
            metrics.log_value(key, record.reward, window=window)
