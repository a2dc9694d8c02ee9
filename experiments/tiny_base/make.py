"""Make the built-in base model from nothing: tokenizer, weights, and a card with what it does before any reward.

How to run: `python -m experiments.tiny_base.make [--output DIR]`, about 17 minutes on one core.
Results to expect: a Hugging Face folder of 0.85M float32 parameters (3.4 MB) with README.md and card.json, whose
figures another run on the same hardware repeats.
Hardware: CPU; one thread, so that the order of additions and with it the result does not depend on the machine's load.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch

from experiments.progress import Progress
from experiments.tiny_base.card import measure_card, write_card
from experiments.tiny_base.documents import sample_document
from experiments.tiny_base.pretrain import VOCAB_SIZE, pretrain
from experiments.tiny_base.tokenizer import train_tokenizer
from torl_env.dialect import TORL

MODEL_PATH = Path(__file__).parent
NUM_STEPS = 1600
SEED = 0
NUM_TOKENIZER_DOCUMENTS = 3000
TOKENIZER_SEED = 1


def make(output: Path, num_steps: int = NUM_STEPS) -> None:
    """Write the model folder: tokenizer, weights, card; an earlier one at `output` is replaced file by file."""
    torch.set_num_threads(1)
    with Progress(time.time()) as progress:
        with progress.stage("making the tokenizer"):
            rng = random.Random(TOKENIZER_SEED)
            documents = [sample_document(TORL, rng) for _ in range(NUM_TOKENIZER_DOCUMENTS)]
            texts = (text for document in documents for text in (document.prompt, *document.segments))
            tokenizer = train_tokenizer(texts, VOCAB_SIZE)
        with progress.stage("training"):
            model = pretrain(tokenizer, num_steps, SEED, progress)
        output.mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(output)
        model.save_pretrained(output)
        with progress.stage("measuring the card"):
            write_card(output, measure_card(model, tokenizer, num_steps))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make the built-in base model from nothing.")
    parser.add_argument("--output", type=Path, default=MODEL_PATH, help="folder to write (default: %(default)s)")
    arguments = parser.parse_args()
    make(arguments.output)


if __name__ == "__main__":
    main()
