"""Pre-training of the base model: next-token prediction on the documents, nothing else."""

from __future__ import annotations

import random

import torch
from torch.nn import functional
from transformers import DynamicCache, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from experiments.progress import Progress
from experiments.tiny_base.documents import Document, sample_document
from torl_env.dialect import PLAIN, TORL

VOCAB_SIZE = 512
PEAK_LR = 2e-3
NUM_WARMUP_STEPS = 50
DOCUMENTS_PER_STEP = {TORL: 48, PLAIN: 32}
MICRO_BATCH_SIZE = 16
# What a program prints cannot be foretold, so learning it is mostly noise. It still counts a little: past its tool
# calls a model writes such text itself.
OBSERVATION_WEIGHT = 0.1

_LINE_EVERY_S = 10.0
MicroBatch = tuple[torch.Tensor, torch.Tensor]


def tiny_config() -> Qwen2Config:
    """Return the architecture: Qwen2 with 0.85M parameters."""
    return Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )


def encode_document(document: Document, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[float]]:
    """Return token ids of a document, which an end token closes, and the weight of each in the loss.

    Prompt and segments are tokenized one by one, as in an episode, where each is appended to the ids so far.
    """
    prompt, *segments = tokenizer([document.prompt, *document.segments], add_special_tokens=False).input_ids
    segments[-1].append(tokenizer.eos_token_id)
    ids, weights = list(prompt), [0.0] * len(prompt)
    for index, segment in enumerate(segments):
        ids += segment
        weights += [OBSERVATION_WEIGHT if index % 2 else 1.0] * len(segment)
    return ids, weights


def sample_batch(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> list[MicroBatch]:
    """Return fresh documents for one step: token ids and weights, each (B, T), padded at the right.

    A micro-batch holds one prompt's documents of similar length: they share most of the prompt, and little is padding.
    """
    micro_batches = []
    for dialect, num_documents in DOCUMENTS_PER_STEP.items():
        documents = [sample_document(dialect, rng) for _ in range(num_documents)]
        rows = sorted((encode_document(document, tokenizer) for document in documents), key=lambda row: len(row[0]))
        for start in range(0, num_documents, MICRO_BATCH_SIZE):
            part = rows[start : start + MICRO_BATCH_SIZE]
            length = len(part[-1][0])
            ids = [row_ids + [0] * (length - len(row_ids)) for row_ids, _ in part]
            weights = [row_weights + [0.0] * (length - len(row_weights)) for _, row_weights in part]
            micro_batches.append((torch.tensor(ids), torch.tensor(weights)))
    return micro_batches


def sum_loss(model: Qwen2ForCausalLM, ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of the tokens' cross-entropies; a scalar.

    What all documents begin with (most of the prompt, hence most of the tokens) goes through the model once and every
    document attends to it: twice as fast, the same gradient.
    """
    num_shared = int((ids_BT == ids_BT[:1]).all(0).int().cumprod(0).sum())
    cache = DynamicCache(config=model.config)
    model.model(ids_BT[:1, :num_shared], past_key_values=cache)
    cache.batch_repeat_interleave(len(ids_BT))
    # Right padding under causal attention: no attention mask is needed.
    hidden_BTD = model.model(ids_BT[:, num_shared:-1], past_key_values=cache).last_hidden_state
    weights_BT = weights_BT[:, num_shared + 1 :]
    counts_BT = weights_BT > 0
    logits_NV = model.lm_head(hidden_BTD[counts_BT])
    losses_N = functional.cross_entropy(logits_NV, ids_BT[:, num_shared + 1 :][counts_BT], reduction="none")
    return (losses_N * weights_BT[counts_BT]).sum()


def pretrain(tokenizer: PreTrainedTokenizerBase, num_steps: int, seed: int, progress: Progress) -> Qwen2ForCausalLM:
    """Return a model trained from nothing for `num_steps` batches; `progress` shows how far it is."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(tiny_config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, PEAK_LR, total_steps=num_steps, pct_start=NUM_WARMUP_STEPS / num_steps, cycle_momentum=False
    )
    rng = random.Random(seed)
    with progress.count("step", num_steps, every_s=_LINE_EVERY_S) as count:
        for step in range(1, num_steps + 1):
            micro_batches = sample_batch(tokenizer, rng)
            total_weight = sum(float(weights_BT.sum()) for _, weights_BT in micro_batches)
            mean_loss = 0.0
            optimizer.zero_grad()
            for ids_BT, weights_BT in micro_batches:
                loss = sum_loss(model, ids_BT, weights_BT) / total_weight
                loss.backward()
                mean_loss += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            count.advance(step, f"loss {mean_loss:.3f}")
    return model.eval()
