#!/usr/bin/env python3
"""Compare ids and speed of Hawser with the original tokenizers; speed also with other implementations.

usage: compare.py [--tool build/cpu/tokenizer_tool] [--inputs inputs] [--only NAME]... [--fuzz 1000000] [--seed 1]
                  [--scratch DIR] [--speed] [--seconds 3]

Real text is inputs/text (5.3 MB, split between lines, and each book as one text). The fuzzed corpus has --fuzz short
hard strings: marks, CJK, emoji, invalid UTF-8, long runs, special tokens in text. Compares every id and the decoded
texts. Needs tokenizers, sentencepiece, mistral-common, tiktoken and numpy; --speed also runs quicktok-v1 and
iree-tokenizer if they are installed. Exits with 1 if there is a difference.
"""

import argparse
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class HuggingFace:
    """Reads tokenizer.json with `tokenizers`."""

    def __init__(self, path):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def text(self, data):
        return data.decode("utf-8", "replace")

    def encode(self, texts):
        return [e.ids for e in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def special(self):
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()][:40]


class SentencePiece:
    """Reads a SentencePiece model with the library."""

    def __init__(self, path):
        import sentencepiece
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path))

    def text(self, data):
        return data

    def encode(self, texts):
        return self.tokenizer.encode(texts, num_threads=1)

    def decode(self, ids):
        return self.tokenizer.decode(ids)

    def special(self):
        return [self.tokenizer.id_to_piece(i) for i in range(min(1000, self.tokenizer.vocab_size()))
                if not self.tokenizer.is_byte(i)][:800:20]


class Tekken:
    """Reads tekken.json with mistral-common."""

    def __init__(self, path):
        import logging
        logging.disable(logging.INFO)
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        self.tokenizer = Tekkenizer.from_file(str(path))
        self.keep = SpecialTokenPolicy.KEEP

    def text(self, data):
        return data.decode("utf-8", "replace")

    def encode(self, texts):
        return [self.tokenizer.encode(text, bos=False, eos=False) for text in texts]

    def decode(self, ids):
        return self.tokenizer.decode(ids, special_token_policy=self.keep)

    def special(self):
        return ["<s>", "</s>", "[INST]", "[/INST]", "<SPECIAL_20>"]


def known(inputs):
    """{name: (file, class that reads it with the original library)}."""
    folder = inputs / "tokenizers"
    out = {name: (inputs / name / "tokenizer.json", HuggingFace) for name in ("smollm2", "gemma3")}
    for name in ("llama3", "llama3.2", "gpt2", "deepseek", "minilm"):
        out[name] = (folder / name / "tokenizer.json", HuggingFace)
    for name in ("v1", "v2", "v3", "v7"):
        out[f"mistral-{name}"] = (folder / f"mistral-{name}" / "tokenizer.model", SentencePiece)
    for name in ("240718", "240911"):
        out[f"tekken-{name}"] = (folder / f"tekken-{name}" / "tekken.json", Tekken)
    small = ROOT / "tests" / "golden" / "tokenizers"
    for path in sorted(small.glob("*/tokenizer.json")):
        out[path.parent.name] = (path, HuggingFace)
    for path in sorted(small.glob("*/tokenizer.model")):
        out[path.parent.name] = (path, SentencePiece)
    return out


def books(inputs):
    return [path.read_bytes() for path in sorted((inputs / "text").glob("**/*.txt"))]


def pieces_of(text, size):
    """Splits a text between lines into pieces of at least `size` bytes."""
    out, now = [], b""
    for line in text.splitlines(keepends=True):
        now += line
        if len(now) >= size:
            out.append(now)
            now = b""
    return out + ([now] if now else [])


def fuzzed(count, seed, special):
    """Short hard strings, as bytes; deterministic for given arguments."""
    dice = random.Random(seed)
    ranges = [(0x20, 0x7E)] * 6 + [(0, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
              (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x1100, 0x11FF),
              (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF), (0x2C00, 0x2E7F), (0x3000, 0x30FF),
              (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xF900, 0xFAFF),
              (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10000, 0x10FFF), (0x11000, 0x16FFF), (0x1B000, 0x1D7FF),
              (0x1E000, 0x1EFFF), (0x1F000, 0x1FAFF), (0x20000, 0x3FFFF), (0xE0000, 0xE01FF), (0x0, 0x10FFFF)]
    words = ["the", " of", " and", "ing", "Hello", " World", "HELLO", "don't", "'s", "'LL", "'re", "I'm", "\u2019s", " a", "  ",
             "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "123", "3.14", "1,000", "2024", "\u0663", "\u00b2", "\u00bd", "...", "!!", "?!",
             "--", "__", "x=1;", "{}", "</s>", "<s>", "<unk>", "<0x0A>", "\u2581", "\u2581\u2581", "##", "[UNK]", "[CLS]",
             "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\u3042\u308a", "\ud55c\uad6d\uc5b4", "\u1100\u1161\u11a8", "e\u0301", "\u00e9", "n\u0303",
             "\u212b", "\ufb01", "\uff21\uff22", "\uff76\uff9e", "\u017f", "\u0130", "\u00df", "\u03a3\u03c2", "\u0915\u094d\u0937", "\u0e01\u0e33",
             "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1eb\U0001f1f7", "1\ufe0f\u20e3", "\u200b", "\ufeff",
             "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\x00", "\x1d", "\ufffd", "\u00ad", "\u0600", "\u06dd"]
    bad = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\x80", b"\xf8\x88\x80\x80\x80"]
    out = []
    for _ in range(count):
        text = b""
        for _ in range(dice.choice((1, 2, 3, 4, 6, 10))):
            kind = dice.random()
            if kind < 0.45:
                first, last = dice.choice(ranges)
                piece = "".join(chr(dice.randint(first, last)) for _ in range(dice.choice((1, 1, 2, 3, 5))))
                text += piece.encode("utf-8", "surrogatepass")
            elif kind < 0.85:
                text += dice.choice(words).encode()
            elif kind < 0.90 and special:
                text += dice.choice(special).encode()
            elif kind < 0.94:
                first, last = dice.choice(ranges)
                text += chr(dice.randint(first, last)).encode("utf-8", "surrogatepass") * dice.choice((3, 8, 20, 60))
            elif kind < 0.97:
                text += dice.choice(words).encode() * dice.choice((2, 5, 17))
            else:
                text += dice.choice(bad)
        out.append(text)
    return out


def write_texts(path, texts):
    with open(path, "wb") as file:
        for text in texts:
            file.write(struct.pack("<I", len(text)) + text)


def read_answers(path, count):
    data = path.read_bytes()
    at = 0
    for _ in range(count):
        (n,) = struct.unpack_from("<I", data, at)
        ids = np.frombuffer(data, "<i4", n, at + 4).tolist()
        at += 4 + 4 * n
        (n,) = struct.unpack_from("<I", data, at)
        yield ids, data[at + 4:at + 4 + n]
        at += 4 + n
    assert at == len(data)


def compare(name, tool, path, oracle, texts, scratch, what):
    """Compares ids and decoded texts; returns the number of texts that differ."""
    write_texts(scratch / "texts", texts)
    subprocess.run([tool, "ids", path, scratch / "texts", scratch / "answers"], check=True)
    answers = read_answers(scratch / "answers", len(texts))
    wrong, ids_seen, back, chunk = 0, 0, 0, 2000
    for start in range(0, len(texts), chunk):
        given = [oracle.text(text) for text in texts[start:start + chunk]]
        for index, expected in enumerate(oracle.encode(given)):
            ids, decoded = next(answers)
            ids_seen += len(expected)
            text = given[index]
            same = ids == expected
            expected_text = oracle.decode(expected).encode() if same else b""
            if same and decoded == expected_text:
                back += decoded == (text if isinstance(text, bytes) else text.encode())
                continue
            wrong += 1
            if wrong <= 5:
                print(f"  {name}: {text!r}\n    ids      {ids[:60]}\n    expected {expected[:60]}")
                if same:
                    print(f"    decoded  {decoded!r}\n    expected {expected_text!r}")
    size = sum(map(len, texts))
    print(f"{name:14} {what:8} {len(texts):8} texts {size / 1e6:7.2f} MB {ids_seen:9} ids  {wrong} differ; "
          f"{back} decode to themselves", flush=True)
    return wrong


def best_rate(size, seconds, work, clock=time.perf_counter):
    """MB/s of the fastest pass, repeated for `seconds`."""
    fastest, total = float("inf"), 0.0
    while total < seconds or fastest == float("inf"):
        start = clock()
        work()
        took = clock() - start
        fastest, total = min(fastest, took), total + took
    return size / fastest / 1e6


def on_two_threads(work, texts):
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, [texts[0::2], texts[1::2]]))


def speed(name, tool, path, oracle, texts, scratch, seconds):
    """Prints MB/s on one core (by CPU time) and on two, of Hawser, the original and others that read the file."""
    write_texts(scratch / "texts", texts)
    size = sum(map(len, texts))
    given = [oracle.text(text) for text in texts]
    rows = {}
    for threads in (1, 2):
        out = subprocess.run([tool, "speed", path, scratch / "texts", str(threads), str(seconds)], check=True,
                             capture_output=True, text=True)
        rows.setdefault("Hawser", []).append(float(out.stdout))
    peers = {type(oracle).__name__: oracle.encode}
    text = [t.decode() if isinstance(t, bytes) else t for t in given]
    if isinstance(oracle, HuggingFace):
        try:
            from iree.tokenizer import Tokenizer as Iree
            iree = Iree.from_file(str(path))
            peers["iree-tokenizer"] = lambda part: [iree.encode_to_array(t) for t in part]
        except Exception as error:  # unsupported file, or not installed
            print(f"  iree-tokenizer: {str(error)[:100]}")
    if name in ("llama3", "llama3.2"):
        try:
            import quicktok
            quick = quicktok.get_encoding("llama3")
            peers["quicktok"] = lambda part: quick.encode_batch(part, threads=1)
        except Exception as error:  # not installed, or an incompatible version
            print(f"  quicktok: {str(error)[:100]}")
    for peer, encode in peers.items():
        part = given if encode == oracle.encode else text
        once = best_rate(size, seconds, lambda: encode(part), time.process_time)
        if peer == "quicktok":
            twice = best_rate(size, seconds, lambda: quick.encode_batch(part, threads=2))
        else:
            twice = best_rate(size, seconds, lambda: on_two_threads(encode, part))
        rows[peer] = [once, twice]
    print(f"{name:14} " + "; ".join(f"{who} {a:.1f} / {b:.1f}" for who, (a, b) in rows.items()) + " MB/s on 1 / 2 cores",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tool", type=pathlib.Path, default=ROOT / "build/cpu/tokenizer_tool")
    parser.add_argument("--inputs", type=pathlib.Path, default=ROOT / "inputs")
    parser.add_argument("--only", action="append")
    parser.add_argument("--fuzz", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scratch", type=pathlib.Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        scratch = pathlib.Path(folder)
        real = books(arguments.inputs)
        for name, (path, how) in known(arguments.inputs).items():
            if arguments.only and name not in arguments.only:
                continue
            if not path.exists():
                print(f"{name}: no such file: {path}; try scripts/fetch-inputs")
                continue
            oracle = how(path)
            if arguments.speed:
                texts = [piece for book in real for piece in pieces_of(book, 20_000)]
                speed(name, arguments.tool, path, oracle, texts, scratch, arguments.seconds)
                continue
            wrong += compare(name, arguments.tool, path, oracle, real, scratch, "books")
            lines = [piece for book in real for piece in pieces_of(book, 200)]
            wrong += compare(name, arguments.tool, path, oracle, lines, scratch, "lines")
            for part in range(0, arguments.fuzz, 250_000):
                count = min(250_000, arguments.fuzz - part)
                wrong += compare(name, arguments.tool, path, oracle,
                                 fuzzed(count, arguments.seed * 1000 + part // 250_000, oracle.special()), scratch, "fuzz")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
