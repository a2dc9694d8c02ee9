"""The base model's own tokenizer: Qwen2's byte-level BPE, so that any text can be encoded and digits stay alone."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import Qwen2Tokenizer

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Qwen2Tokenizer:
    """Return a tokenizer of at most `vocab_size` tokens: the end token, the 256 bytes, and merges learned from `texts`.

    The end token (id 0) also pads. Nothing is put before or after a text, and decoding gives back the text (its NFC
    form, as with every Qwen2 tokenizer: transformers loads no other for this architecture, whatever the folder says).
    """
    # min_frequency: trainers otherwise keep merges seen once, e.g. of one program's indentation.
    return Qwen2Tokenizer().train_new_from_iterator(texts, vocab_size, min_frequency=10, show_progress=False)
