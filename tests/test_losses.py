"""The objective and the log-probs, with numbers worked out by hand, and what must never enter them."""

import math
from typing import Any

import pytest
import torch

from learners.losses import LossSums, k3, loss_sums, token_logp

# One row of four tokens; the last three are response tokens.
MASK = torch.tensor([[False, True, True, True]])
ZEROS = torch.zeros(1, 4)


def sums(logp: torch.Tensor, advantage: float, **kwargs) -> LossSums:
    settings: dict[str, Any] = {
        "entropy": ZEROS,
        "action_logp": ZEROS,
        "loss_mask": MASK,
        "clip_param": 0.2,
        "clip_param_high": 0.2,
    } | kwargs
    return loss_sums(logp=logp, advantages=torch.tensor([[advantage]]), **settings)


def logp_of_ratios(*ratios: float) -> torch.Tensor:
    return torch.tensor([[0.0, *(math.log(r) for r in ratios)]], requires_grad=True)


def test_a_winning_episode_gains_up_to_the_upper_clip() -> None:
    # A = 2: min(r A, clip(r) A) is 1 * 2, 1.5 clipped to 1.2 * 2, 0.5 * 2 (the clip never helps): 2 + 2.4 + 1 = 5.4
    logp = logp_of_ratios(1.0, 1.5, 0.5)
    result = sums(logp, advantage=2.0)
    assert result.policy.item() == pytest.approx(-5.4, rel=1e-6)
    assert result.clipped.item() == 1
    result.total.backward()
    # d(-r A)/dlogp = -r A where the clip is not active, 0 where it is
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, -2.0, 0.0, -1.0]]))


def test_a_losing_episode_is_pushed_down_only_to_the_lower_clip() -> None:
    # A = -1: min(-r, -clip(r)) is -1, -1.5 (no bound on this side), -max(0.5, 0.8) = -0.8: sum -3.3
    logp = logp_of_ratios(1.0, 1.5, 0.5)
    result = sums(logp, advantage=-1.0)
    assert result.policy.item() == pytest.approx(3.3, rel=1e-6)
    assert result.clipped.item() == 1
    result.total.backward()
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, 1.0, 1.5, 0.0]]))


def test_the_upper_clip_may_lie_higher_than_the_lower_one() -> None:
    # A = 1, ratios 1.25 and 1.5 against 1.28: 1.25 + 1.28, and 1 for the third
    result = sums(logp_of_ratios(1.25, 1.5, 1.0), advantage=1.0, clip_param_high=0.28)
    assert result.policy.item() == pytest.approx(-(1.25 + 1.28 + 1.0), rel=1e-6)


def test_k3_of_a_doubled_and_a_halved_probability() -> None:
    # d = ln 2: 1/2 + ln 2 - 1 = 0.19314718; d = -ln 2: 2 - ln 2 - 1 = 0.30685282; d = 0: exactly 0
    values = k3(torch.tensor([math.log(2), -math.log(2), 0.0]))
    torch.testing.assert_close(values, torch.tensor([0.19314718, 0.30685282, 0.0]))
    assert values[2].item() == 0.0


def test_the_kl_term_is_weighted_and_pulls_towards_the_base() -> None:
    # ratio 1, so the policy term is -3 A = 0 at A = 0; d = ln 2 at one token, 0 at two: total 0.5 * 0.19314718
    logp = torch.zeros(1, 4, requires_grad=True)
    ref_logp = torch.tensor([[0.0, -math.log(2), 0.0, 0.0]])
    result = sums(logp, advantage=0.0, ref_logp=ref_logp, kl_coeff=0.5)
    assert result.kl.item() == pytest.approx(0.19314718, rel=1e-6)
    assert result.total.item() == pytest.approx(0.5 * 0.19314718, rel=1e-6)
    result.total.backward()
    # dk3/dlogp = 1 - exp(-d) = 1/2, times 0.5
    torch.testing.assert_close(logp.grad, torch.tensor([[0.0, 0.25, 0.0, 0.0]]))


def test_kl_is_measured_without_a_weight_and_then_has_no_gradient() -> None:
    logp = torch.zeros(1, 4, requires_grad=True)
    result = sums(logp, advantage=0.0, ref_logp=torch.full((1, 4), -1.0))
    result.total.backward()
    assert logp.grad is not None
    assert result.kl.item() > 0 and not logp.grad.any()


def test_a_kl_weight_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`kl_coeff` \(0.5\) needs `ref_logp`"):
        sums(torch.zeros(1, 4), advantage=0.0, kl_coeff=0.5)


def test_the_entropy_bonus_is_subtracted() -> None:
    entropy = torch.tensor([[9.0, 1.0, 2.0, 3.0]])
    result = sums(torch.zeros(1, 4), advantage=0.0, entropy=entropy, entropy_coeff=0.1)
    assert result.entropy.item() == pytest.approx(6.0)
    assert result.total.item() == pytest.approx(-0.6)


def test_nan_outside_the_mask_enters_neither_value_nor_gradient() -> None:
    nan = torch.tensor([[math.nan, 0.0, 0.0, 0.0]])
    logp = nan.clone().requires_grad_()
    result = sums(logp, advantage=1.0, action_logp=nan, ref_logp=nan, entropy=nan, kl_coeff=1.0, entropy_coeff=1.0)
    result.total.backward()
    assert result.total.item() == -3.0
    assert logp.grad is not None and torch.isfinite(logp.grad).all()


def test_the_sum_over_micro_batches_is_the_sum_over_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    logp, action_logp = torch.randn(6, 5, generator=generator), torch.randn(6, 5, generator=generator)
    mask, advantages = torch.rand(6, 5, generator=generator) < 0.6, torch.randn(6, 1, generator=generator)

    def total(rows: slice) -> torch.Tensor:
        return loss_sums(
            logp=logp[rows],
            entropy=-logp[rows],
            action_logp=action_logp[rows],
            advantages=advantages[rows],
            loss_mask=mask[rows],
            clip_param=0.2,
            clip_param_high=0.2,
        ).total

    torch.testing.assert_close(total(slice(0, 6)), total(slice(0, 1)) + total(slice(1, 4)) + total(slice(4, 6)))


def test_logp_and_entropy_of_two_logits_at_a_temperature() -> None:
    # hidden 1, head (0, 2): logits (0, 2), at temperature 2 (0, 1): p = (1, e) / (1 + e) = (0.26894142, 0.73105858)
    # log p = (-1.31326169, -0.31326169); entropy = 0.26894142 * 1.31326169 + 0.73105858 * 0.31326169 = 0.58220309
    logp, entropy = token_logp(torch.ones(2, 1), torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]), temperature=2.0)
    torch.testing.assert_close(logp, torch.tensor([-1.31326169, -0.31326169]))
    torch.testing.assert_close(entropy, torch.tensor([0.58220309, 0.58220309]))


@pytest.mark.parametrize("entropy_grad", [False, True])
def test_chunks_give_the_same_values_and_gradients_as_all_logits_at_once(entropy_grad: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 11, (10,), generator=generator)
    results = []
    for max_logits in (1 << 20, 3 * 11):  # one chunk; chunks of three tokens
        generator.manual_seed(1)
        hidden = torch.randn(10, 4, generator=generator).requires_grad_()
        head = torch.randn(11, 4, generator=generator).requires_grad_()
        logp, entropy = token_logp(
            hidden, head, targets, temperature=0.7, with_entropy_grad=entropy_grad, max_logits=max_logits
        )
        assert entropy.requires_grad == entropy_grad
        (logp.sum() + (entropy.sum() if entropy_grad else 0)).backward()
        results.append((logp, entropy, hidden.grad, head.grad))
    for one, several in zip(*results, strict=True):
        torch.testing.assert_close(one, several)


def test_no_tokens_at_all_still_reach_the_parameters_with_zero_gradients() -> None:
    hidden, head = torch.ones(0, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    logp, _ = token_logp(hidden, head, torch.zeros(0, dtype=torch.long), temperature=1.0)
    logp.sum().backward()
    assert head.grad is not None and not head.grad.any()
