"""Measure the `tokenizers` library on JSONL to token ids, the tokenization part of `hawser prepare`.

usage: tokenizers_prepare.py TEXT.jsonl TOKENIZER.json [--bytes 2e7]
"""

import argparse
import json
import os
import resource
import time

import tokenizers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text")
    parser.add_argument("tokenizer")
    parser.add_argument("--bytes", type=float, default=2e7)
    arguments = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(arguments.tokenizer)
    used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])  # noqa: E731
    start, cpu, read, tokens, batch = time.time(), used(), 0, 0, []
    with open(arguments.text, "rb") as file:
        for line in file:
            read += len(line)
            batch.append(json.loads(line)["text"])
            if len(batch) == 1000 or read >= arguments.bytes:
                tokens += sum(len(encoding.ids) for encoding in tokenizer.encode_batch_fast(batch))
                batch = []
            if read >= arguments.bytes:
                break
    print(f"tokenizers {tokenizers.__version__}, {os.cpu_count()} cores: {read / 1e6:.1f} MB, {tokens} tokens, "
          f"{time.time() - start:.1f} s, {used() - cpu:.1f} s of CPU, {read / 1e6 / (used() - cpu):.2f} MB per CPU second")


if __name__ == "__main__":
    main()
