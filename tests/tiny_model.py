"""A Qwen2 model of random weights with a byte-level tokenizer, written to a folder."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

EOS = "<|endoftext|>"
# 256 bytes, a few merges and the end of sequence; the rest are ids without a text. vLLM pads this to a multiple of 64.
VOCAB_SIZE = 300
SECOND_EOS = 299  # in the generation config alone, as chat models have it


def make_tiny_model(folder: Path, *, tie_word_embeddings: bool, seed: int = 0) -> None:
    """Write the model. Its logits spread over several nats, so that wrong weights show at once."""
    make_tokenizer().save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=tie_word_embeddings,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [0, SECOND_EOS]
    model.save_pretrained(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer: id 0 ends a sequence, each byte has an id, "ab" and "out" are merged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("o", "u"), ("ou", "t")]
    tokens = [EOS, *alphabet, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, pad_token=EOS)
