"""Generate tests/golden/tokenizers/NAME and small.json: small tokenizers of every kind, and answers of the originals.

usage: make_small_tokenizers.py [--inputs inputs] [--output tests/golden/tokenizers]

small.json also has the answers of the published tokenizers that `scripts/fetch-inputs` downloads.

Trains the tokenizers on two novels (`scripts/fetch-inputs --what text`) with `tokenizers` and `sentencepiece`, with the
same parts as the published tokenizers of the model families. tests/golden/README.md describes the format of small.json.
"""

import argparse
import base64
import io
import json
import os
import pathlib
import sys

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import philox
from jsonfiles import write_json

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "tokenizers"))
import compare  # noqa: E402

MARK = "\u2581"
# Replacements of the SentencePiece models: (text, replacement); the longest match wins.
RULES = [("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\r\n", " "), ("\r", " "), ("\u200b", ""), ("\ufb01", "fi"),
         ("\u2026", "..."), ("\u212b", "\u00e5"), ("A\u030a", "\u00e5"), ("e\u0301", "\u00e9"), ("\uff76\uff9e", "\u30ac"), ("\uff76", "\u30ab"),
         ("\u00bd", "1 2"), ("\u2460", " 1 "), ("\ud55c\uad6d", "Korea"), ("\U0001f44d\U0001f3fd", "+")]
RULES += [(chr(c), chr(c - 0xFEE0)) for c in range(0xFF01, 0xFF5F)]
RULES += [(chr(c), chr(c + 32)) for c in range(0x41, 0x5B) if c not in (0x41,)]


def lines_of(inputs):
    text = "".join((inputs / "text" / name).read_text(encoding="utf-8")
                   for name in ("austen/persuasion.txt", "austen/northanger-abbey.txt"))
    return [line for line in text.split("\n") if line]


def sentence_piece(lines, scratch, **options):
    """Trains a SentencePiece model; returns its bytes."""
    rules = scratch / "rules.tsv"
    rules.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n"
                             for a, b in RULES), encoding="utf-8")
    if options.pop("rules", True):
        options["normalization_rule_tsv"] = str(rules)
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, minloglevel=2,
                                             character_coverage=0.9995, num_threads=1, **options)
    return out.getvalue()


def fields(data):
    """The (number, value) pairs of a protocol buffer."""
    def varint(at):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at
    at = 0
    while at < len(data):
        tag, at = varint(at)
        if tag & 7 == 0:
            value, at = varint(at)
        elif tag & 7 == 2:
            size, at = varint(at)
            value, at = data[at:at + size], at + size
        else:
            size = 4 if tag & 7 == 5 else 8
            value, at = data[at:at + size], at + size
        yield tag >> 3, value


def pieces_of(model):
    """(text, score, type) of each piece."""
    out = []
    for number, value in fields(model):
        if number == 1:
            piece = dict(fields(value))
            out.append((piece[1].decode(), float(np.frombuffer(piece[2], "<f4")[0]), piece.get(3, 1)))
    return out


def charsmap_of(model):
    return dict(fields(dict(fields(model))[3]))[2]


def llama2_style(model):
    """A SentencePiece BPE with byte fallback as transformers converts it, with merges in the order of scores."""
    pieces = pieces_of(model)
    ids = {text: index for index, (text, _, _) in enumerate(pieces)}
    normal = {text: score for text, score, kind in pieces if kind == 1}
    merges = []
    for text, score, kind in pieces:
        if kind == 1:
            merges += [(-score, ids[text[:cut]], ids[text[cut:]], text[:cut], text[cut:]) for cut in range(1, len(text))
                       if text[:cut] in normal and text[cut:] in normal]
    merges = [(left, right) for _, _, _, left, right in sorted(merges)]
    out = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    out.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    out.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    out.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    out.add_special_tokens(["<unk>", "<s>", "</s>"])
    return out


def mistral_style(model):
    """llama2_style with Metaspace that prepends a mark only to the start of the text."""
    out = llama2_style(model)
    out.normalizer = None
    out.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    out.add_tokens([tokenizers.AddedToken("two words", normalized=True), tokenizers.AddedToken("<x>", lstrip=True)])
    return out


def xlm_style(model, **metaspace):
    """A SentencePiece Unigram as transformers converts it."""
    pieces = [(text, score) for text, score, _ in pieces_of(model)]
    out = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=[p for p, _ in pieces].index("<unk>")))
    out.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap_of(model)),
                                           normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    out.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                 pre_tokenizers.Metaspace(**metaspace)])
    out.decoder = decoders.Metaspace(**metaspace)
    out.add_special_tokens([tokenizers.AddedToken("<s>"), tokenizers.AddedToken("</s>"), tokenizers.AddedToken("<unk>"),
                            tokenizers.AddedToken("<mask>", lstrip=True)])
    out.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", 1), ("</s>", 2)])
    return out


def t5_style(model):
    """xlm_style with other normalizers."""
    out = xlm_style(model)
    out.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip(True, False),
                                           normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()])
    out.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    out.decoder = decoders.Sequence([decoders.Replace(tokenizers.Regex("[\u2581_]"), " "), decoders.Fuse()])
    return out


def byte_level(lines, pre_tokenizer, size=700, **options):
    out = tokenizers.Tokenizer(models.BPE(**options))
    out.pre_tokenizer = pre_tokenizer
    out.decoder = decoders.ByteLevel()
    out.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"]))
    return out


def falcon_style(lines):
    return byte_level(lines, pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated")]))


def qwen_style(lines):
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               r"\s+(?!\S)|\s+")
    out = byte_level(lines, pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    out.normalizer = normalizers.NFC()
    out.add_tokens([tokenizers.AddedToken("caf\u00e9", normalized=True, single_word=True)])
    out.post_processor = processors.ByteLevel()
    return out


def roberta_style(lines):
    out = byte_level(lines, pre_tokenizers.ByteLevel(add_prefix_space=True))
    out.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, rstrip=True), "<s>", "</s>"])
    out.post_processor = processors.RobertaProcessing(("</s>", out.token_to_id("</s>")), ("<s>", out.token_to_id("<s>")))
    return out


def clip_style(lines):
    """Characters with an end-of-word suffix; lower case without accents."""
    out = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    out.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    out.pre_tokenizer = pre_tokenizers.Whitespace()
    out.decoder = decoders.BPEDecoder()
    out.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=600, show_progress=False, special_tokens=["<unk>"],
                                                       end_of_word_suffix="</w>"))
    return out


def bert_style(lines, cased):
    out = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    out.normalizer = normalizers.BertNormalizer(lowercase=not cased, handle_chinese_chars=not cased)
    out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out.decoder = decoders.WordPiece(cleanup=not cased)
    out.train_from_iterator(lines, trainers.WordPieceTrainer(
        vocab_size=700, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    out.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return out


def split_style(lines):
    """Split behaviors, inverted and merged; a pattern that needs PCRE2; no decoder."""
    out = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", ignore_merges=True))
    out.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Replace("--", "\u2014"), normalizers.Strip()])
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(r"(?<=[a-z])(?=[A-Z])|[.,]++"), "merged_with_previous"),
        pre_tokenizers.Split(tokenizers.Regex(r"\w+|[^\w\s]"), "removed", invert=True),
        pre_tokenizers.Split("th", "merged_with_next"), pre_tokenizers.CharDelimiterSplit("q"),
        pre_tokenizers.Digits(individual_digits=True)])
    out.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, show_progress=False, special_tokens=["<unk>"]))
    return out


def write(folder, made):
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(made, bytes):
        (folder / "tokenizer.model").write_bytes(made)
        return compare.SentencePiece(folder / "tokenizer.model")
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(made.to_str()), ensure_ascii=False), encoding="utf-8")
    return compare.HuggingFace(folder / "tokenizer.json")


def expected_of(oracle, texts):
    """8 hexadecimal digits per text, concatenated."""
    out = ""
    for ids in oracle.encode([oracle.text(text) for text in texts]):
        data = np.asarray(ids, "<i4").tobytes() + oracle.decode(ids).encode()
        out += f"{philox.fnv1a64(data) & 0xFFFFFFFF:08x}"
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", type=pathlib.Path, default=ROOT / "inputs")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests" / "golden" / "tokenizers")
    parser.add_argument("--scratch", type=pathlib.Path, default=pathlib.Path(os.environ.get("TMPDIR", "/tmp")))
    arguments = parser.parse_args()
    lines = lines_of(arguments.inputs)
    plain = dict(vocab_size=700, rules=False, normalization_rule_name="identity", remove_extra_whitespaces=False)
    unigram = sentence_piece(lines, arguments.scratch, vocab_size=500, user_defined_symbols=["<sep>", "the"])
    bytes_bpe = sentence_piece(lines, arguments.scratch, model_type="bpe", byte_fallback=True, **plain)
    made = {
        "sp-unigram": unigram,
        "sp-unigram-bytes": sentence_piece(lines, arguments.scratch, byte_fallback=True, split_by_whitespace=False, **plain),
        "sp-bpe": sentence_piece(lines, arguments.scratch, model_type="bpe", vocab_size=500,
                                 user_defined_symbols=["<sep>", "ing", "a b"]),
        "sp-bpe-bytes": bytes_bpe,
        "sp-bpe-across": sentence_piece(lines, arguments.scratch, model_type="bpe", split_by_whitespace=False,
                                        add_dummy_prefix=False, **plain),
        "llama2-style": llama2_style(bytes_bpe),
        "mistral-style": mistral_style(bytes_bpe),
        "xlm-style": xlm_style(unigram),
        "t5-style": t5_style(unigram),
        "falcon-style": falcon_style(lines),
        "qwen-style": qwen_style(lines),
        "roberta-style": roberta_style(lines),
        "clip-style": clip_style(lines),
        "bert-style": bert_style(lines, cased=False),
        "bert-cased-style": bert_style(lines, cased=True),
        "split-style": split_style(lines),
    }
    texts = compare.fuzzed(400, 20260101, ["<s>", "</s>", "<mask>", "<sep>", "[MASK]", "<|endoftext|>", "caf\u00e9", "<x>",
                                           "two words", "ing"])
    texts += (arguments.output / "hard_unicode.txt").read_bytes().split(b"\n") + ["\n".join(lines[:60]).encode()]
    compare.write_texts(arguments.output / "hard_strings.bin", texts)
    result = {"made_with": {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__},
              "tokenizers": {}}
    for name, tokenizer in made.items():
        result["tokenizers"][name] = expected_of(write(arguments.output / name, tokenizer), texts)
        print(name, flush=True)
    for name, (path, how) in compare.known(arguments.inputs).items():
        if name not in made:
            result["tokenizers"][name] = expected_of(how(path), texts)
            print(name, flush=True)
    write_json(arguments.output / "small.json", result)


if __name__ == "__main__":
    main()
