"""Train recipes/quickstart-tokenizer/tokenizer.json: byte-level BPE with 4,096 entries, on five of Austen's novels.

usage: train_quickstart_tokenizer.py [--inputs inputs] [--output recipes/quickstart-tokenizer/tokenizer.json]

`Persuasion` is held out, as in the quickstart. Entry 0 is <|endoftext|>, then the 256 bytes, then 3,839 merges. The
split pattern is that of Llama 3. Needs `scripts/fetch-inputs --what text`.
"""

import argparse
import os

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ENTRIES = 4096
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
HELD_OUT = "persuasion.txt"


def train(texts):
    """Trains a tokenizer on texts; deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=ENTRIES, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return tokenizer


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", default=os.path.join(root, "inputs"))
    parser.add_argument("--output", default=os.path.join(root, "recipes", "quickstart-tokenizer", "tokenizer.json"))
    arguments = parser.parse_args()
    folder = os.path.join(arguments.inputs, "text", "austen")
    texts = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            texts[name] = file.read()
    held_out = texts.pop(HELD_OUT)
    assert len(texts) == 5
    tokenizer = train(list(texts.values()))
    assert tokenizer.get_vocab_size() == ENTRIES and tokenizer.token_to_id("<|endoftext|>") == 0
    ids = tokenizer.encode(held_out).ids
    assert tokenizer.decode(ids) == held_out
    tokenizer.save(arguments.output, pretty=True)
    print(f"{len(texts)} novels; on {HELD_OUT}: {len(ids)} tokens, {len(held_out.encode()) / len(ids):.2f} bytes a token")


if __name__ == "__main__":
    main()
