"""Generate tests/golden/tokenizers/declared.json: ids by transformers where files beside a tokenizer declare tokens.

usage: make_declared_tokens.py [--output tests/golden/tokenizers/declared.json]

Needs transformers, tokenizers, sentencepiece and protobuf, but not PyTorch, and the small models that
make_small_tokenizers.py wrote. tests/golden/README.md describes the format.
"""

import argparse
import base64
import json
import os
import pathlib
import shutil
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import sentencepiece
import tokenizers
import transformers
from sentencepiece import sentencepiece_model_pb2
from transformers.convert_slow_tokenizer import bytes_to_unicode

from jsonfiles import write_json

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SMALL = ROOT / "tests" / "golden" / "tokenizers"

TEXTS = [
    "",
    " ",
    "Where is the kettle?",
    "  two  spaces   and more  ",
    "a b a b ing ing",
    "\u2581mark \u2581\u2581of a space",
    "line\nfeed\n\n and\ttab\n",
    "caf\u00e9 na\u00efve \U0001f600\u4e2d\u6587 \ufb01 \u2026 \uff21\uff22",
    "<s>the<s> of</s>and </s> <unk>the",
    "<|im_start|>user\nWhere is the kettle?<|im_end|>\n<|im_start|>assistant\nIn aisle two.<|im_end|>\n",
    "the<|im_start|>the <|im_start|> the  <|im_end|>  the<|im_end|><|im_end|>",
    "<|im_start|> the<|im_end|>",
    "the <x> the<x>the <y> the<y>the  <y>  the",
    "word words wordword a word, word",
    "<extra_id_0> the<extra_id_2>",
    "<sep>the<sep> and",
    "a  caf\u00e9  <|endoftext|>  a",
    "[INST] the [/INST] of </s>",
    "<start_of_turn>user\nthe<end_of_turn>\n<bos><eos><pad> the",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.",
]

START, END = "<|im_start|>", "<|im_end|>"


def token(content, **flags):
    """A token with its flags, as added_tokens_decoder has it."""
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
            "special": True, **flags}


def llama(**keys):
    return {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", **keys}}


def generic(**keys):
    return {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **keys}}


NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CHATML = {"added_tokens.json": {END: 700, START: 701},
          "special_tokens_map.json": {**NAMED, "eos_token": END}}
DECODER = {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "700": token(END), "705": token(START)}
RENAMED = {"0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "690": token(START), "695": token(END)}
FLAGS = {"700": token(START, lstrip=True), "701": token(END, rstrip=True),
         "702": token("<x>", lstrip=True, rstrip=True, special=False),
         "703": token("<y>", normalized=True, special=False),
         "704": token("word", single_word=True, special=False)}

# Name: (model, the files beside it).
CASES = {
    # LlamaTokenizer.
    "llama": ("sp-bpe-bytes", llama()),
    "llama-named": ("sp-bpe-bytes", llama(**NAMED, add_bos_token=True, add_eos_token=False)),
    "llama-both-ends": ("sp-bpe-bytes", llama(**NAMED, add_bos_token=True, add_eos_token=True)),
    "llama-chatml": ("sp-bpe-bytes", {**llama(**NAMED, legacy=False, add_bos_token=True), **CHATML}),
    "llama-chatml-legacy": ("sp-bpe-bytes", {**llama(**NAMED, legacy=True, add_bos_token=True), **CHATML}),
    "llama-chatml-default": ("sp-bpe-bytes", {**llama(**NAMED), **CHATML}),
    "llama-chatml-null": ("sp-bpe-bytes", {**llama(legacy=None, add_bos_token=True, bos_token=None), **CHATML}),
    "llama-fast": ("sp-bpe-bytes", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast"}, **CHATML}),
    "llama-no-prefix": ("sp-bpe-bytes", {**llama(add_prefix_space=False, legacy=False), **CHATML}),
    "llama-no-prefix-legacy": ("sp-bpe-bytes", {**llama(add_prefix_space=False, legacy=True), **CHATML}),
    "llama-null-prefix": ("sp-bpe-bytes", {**llama(add_prefix_space=None, legacy=True), **CHATML}),
    "llama-decoder": ("sp-bpe-bytes", llama(**NAMED, legacy=False, added_tokens_decoder=DECODER)),
    "llama-decoder-and-map": ("sp-bpe-bytes", {**llama(**NAMED, added_tokens_decoder=DECODER), **CHATML}),
    "llama-renames-nothing": ("sp-bpe-bytes", llama(**NAMED, legacy=True, added_tokens_decoder=RENAMED)),
    "llama-flags": ("sp-bpe-bytes", llama(**NAMED, legacy=False, added_tokens_decoder=FLAGS)),
    "llama-flags-legacy": ("sp-bpe-bytes", llama(**NAMED, legacy=True, added_tokens_decoder=FLAGS)),
    "llama-map-only": ("sp-bpe-bytes", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"},
                                        "special_tokens_map.json": {"bos_token": token("<s>"), "eos_token": token(END),
                                                                    "sep_token": START}}),
    "llama-additional-in-map": ("sp-bpe-bytes", {
        **llama(), "special_tokens_map.json": {"additional_special_tokens": [START, END]}}),
    "llama-additional-in-map-and-file": ("sp-bpe-bytes", {
        **llama(), "special_tokens_map.json": {"additional_special_tokens": [START, END]},
        "added_tokens.json": {START: 700, END: 701}}),
    "llama-additional": ("sp-bpe-bytes", llama(additional_special_tokens=[START, END])),
    "llama-additional-empty": ("sp-bpe", llama(additional_special_tokens=[])),
    "llama-extra": ("sp-bpe-bytes", llama(**NAMED, extra_special_tokens=[START, "the"])),
    "llama-extra-names": ("sp-bpe-bytes", llama(extra_special_tokens={"image_token": "<x>", "audio_token": "<y>"})),
    "llama-extra-in-both": ("sp-bpe-bytes", {**llama(extra_special_tokens=["<x>"]),
                                             "special_tokens_map.json": {"extra_special_tokens": ["<y>", "<x>", START]}}),
    "llama-model-specific": ("sp-bpe-bytes", llama(image_token="<x>", boi_token="<y>")),
    "llama-pad": ("sp-bpe-bytes", {**llama(pad_token="<|padding|>", mask_token=START), "added_tokens.json": {END: 700}}),
    "llama-pad-known": ("sp-bpe-bytes", llama(pad_token="<unk>", additional_special_tokens=[START])),
    "llama-pad-extra": ("sp-bpe-bytes", llama(pad_token="<x>", extra_special_tokens=["<y>", "<x>"])),
    "llama-old-objects": ("sp-bpe-bytes", llama(
        bos_token={"__type": "AddedToken", "content": "<s>", "lstrip": False, "normalized": True, "rstrip": False,
                   "single_word": False},
        eos_token={"__type": "AddedToken", "content": "</s>", "lstrip": True, "normalized": True, "rstrip": False,
                   "single_word": False}, add_bos_token=True, add_eos_token=False)),
    "llama-user-defined": ("sp-bpe", {**llama(legacy=False), "added_tokens.json": {START: 500, END: 501}}),
    "llama-of-unigram": ("sp-unigram", {**llama(), "added_tokens.json": {START: 500, END: 501}}),
    "llama-across": ("sp-bpe-across", {**llama(), **CHATML}),
    "llama-without-names": ("gemma-like", llama(eos_token="<eos>", add_bos_token=True,
                                                  additional_special_tokens=[START])),
    "llama-split": ("sp-bpe-bytes", {**llama(**NAMED, split_special_tokens=True, add_bos_token=True), **CHATML}),
    "llama-split-flags": ("sp-bpe-bytes", llama(**NAMED, split_special_tokens=True, added_tokens_decoder=FLAGS)),
    "llama-of-llama": ("sp-bpe-bytes", {**llama(**NAMED), **CHATML, "config.json": {"model_type": "llama"}}),
    "code-llama": ("sp-bpe-bytes", {"tokenizer_config.json": {"tokenizer_class": "CodeLlamaTokenizer"}, **CHATML}),
    "llama-pad-named": ("sp-bpe-bytes", llama(pad_token="<x>", image_token="<x>", boi_token="<y>")),
    "code-llama-named": ("sp-bpe-bytes", {"tokenizer_config.json": {
        "tokenizer_class": "CodeLlamaTokenizer", "image_token": "<x>", "middle_token": "<y>", "add_bos_token": False}}),
    # The generic class.
    "generic": ("sp-bpe-bytes", generic()),
    "generic-chatml": ("sp-bpe-bytes", {**generic(**NAMED, add_bos_token=True), **CHATML}),
    "generic-chatml-new": ("sp-bpe-bytes", {**generic(**NAMED, legacy=False, add_eos_token=True), **CHATML}),
    "generic-map-only": ("sp-bpe-bytes", {"special_tokens_map.json": {"eos_token": END}}),
    "generic-added-only": ("sp-bpe-bytes", {"added_tokens.json": {END: 700, START: 701}}),
    "generic-renamed": ("sp-bpe-bytes", generic(**NAMED, added_tokens_decoder=RENAMED)),
    "generic-renamed-by-file": ("sp-bpe-bytes", {**generic(**NAMED), "added_tokens.json": {START: 690, END: 695}}),
    "generic-renamed-end": ("sp-bpe-bytes", generic(added_tokens_decoder={"2": token(END), "5": token(START)})),
    "generic-flags": ("sp-bpe-bytes", generic(**NAMED, added_tokens_decoder=FLAGS)),
    "generic-additional": ("sp-bpe-bytes", generic(additional_special_tokens=[START, END])),
    "generic-null-end": ("sp-bpe-bytes", generic(eos_token=None, add_bos_token=True, add_eos_token=True)),
    "generic-user-defined": ("sp-bpe", {**generic(add_bos_token=True), "added_tokens.json": {START: 500, END: 501}}),
    "generic-user-defined-new": ("sp-bpe", {**generic(legacy=False), "added_tokens.json": {START: 500, END: 501}}),
    "generic-across": ("sp-bpe-across", {**generic(), **CHATML}),
    "generic-split": ("sp-bpe-bytes", {**generic(**NAMED, split_special_tokens=True), **CHATML}),
    "generic-unigram": ("sp-unigram", {**generic(add_bos_token=True), "added_tokens.json": {START: 500, END: 501}}),
    "generic-unigram-new": ("sp-unigram", {**generic(legacy=False), "added_tokens.json": {START: 500, END: 501},
                                           "special_tokens_map.json": {"eos_token": END}}),
    "generic-unigram-bytes": ("sp-unigram-bytes", {**generic(**NAMED), **CHATML}),
    "generic-unigram-split": ("sp-unigram", generic(split_special_tokens=True, additional_special_tokens=[START])),
    "generic-gemma-like": ("gemma-like", generic(add_bos_token=True, additional_special_tokens=["<end_of_turn>"])),
    "mistral": ("sp-bpe-bytes", {**llama(**NAMED, add_bos_token=True), **CHATML, "config.json": {"model_type": "mistral"}}),
    "phi3": ("sp-bpe-bytes", {**llama(**NAMED, legacy=False), **CHATML, "config.json": {"model_type": "phi3"}}),
    "llama-without-class": ("sp-bpe-bytes", {"tokenizer_config.json": NAMED, **CHATML,
                                             "config.json": {"model_type": "llama"}}),
    "class-of-config": ("sp-bpe-bytes", {"tokenizer_config.json": NAMED, **CHATML,
                                         "config.json": {"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}}),
    "unknown-class": ("sp-bpe-bytes", {"tokenizer_config.json": {"tokenizer_class": "OwnTokenizer"}, **CHATML}),
    # Gemma.
    "gemma": ("gemma-like", {"tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}}),
    "gemma-added": ("gemma-like", {"tokenizer_config.json": {
        "tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "eos_token": END,
        "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>", START]}}),
    "gemma-of-config": ("gemma-like", {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True},
                                       "config.json": {"model_type": "gemma3_text"}}),
    "gemma-split": ("gemma-like", {"tokenizer_config.json": {"tokenizer_class": "GemmaTokenizer",
                                                             "split_special_tokens": True}}),
    # T5.
    "t5": ("sp-unigram", {"tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "pad_token": "<s>"}}),
    "t5-no-sentinels": ("sp-unigram", {"tokenizer_config.json": {
        "tokenizer_class": "T5Tokenizer", "extra_ids": 0, "bos_token": "<s>", "pad_token": "<s>", "add_bos_token": True,
        "additional_special_tokens": [START]}, "added_tokens.json": {END: 500}}),
    "t5-named": ("sp-unigram-bytes", {"tokenizer_config.json": {
        "tokenizer_class": "T5Tokenizer", "extra_ids": 3, "eos_token": END, "unk_token": "<unk>", "pad_token": "<unk>"}}),
    # tekken.json.
    "tekken": ("tekken", generic()),
    "tekken-named": ("tekken", generic(**NAMED, add_bos_token=True)),
    "tekken-both-ends": ("tekken", generic(**NAMED, add_bos_token=True, add_eos_token=True)),
    "tekken-chatml": ("tekken", {**generic(**NAMED), "added_tokens.json": {END: 900, START: 901},
                                 "special_tokens_map.json": {"eos_token": END}}),
    "tekken-flags": ("tekken", generic(**NAMED, added_tokens_decoder=FLAGS)),
    "tekken-additional-in-map": ("tekken", {
        **generic(), "special_tokens_map.json": {"additional_special_tokens": [START, END]}}),
    "tekken-extra": ("tekken", generic(extra_special_tokens=[START, "the", " the", "caf\u00e9"], pad_token="<|padding|>")),
    "tekken-llama": ("tekken", llama(legacy=True, add_bos_token=True, additional_special_tokens=[START])),
    "tekken-pad-named": ("tekken", generic(pad_token="<x>", image_token="<x>", boi_token="<y>")),
    "tekken-split": ("tekken", generic(**NAMED, split_special_tokens=True, add_bos_token=True,
                                       additional_special_tokens=[START])),
    # tokenizer.json.
    "json-split": ("llama2-style", generic(split_special_tokens=True)),
    "json-split-added": ("qwen-style", generic(split_special_tokens=True, added_tokens_decoder={
        "900": token(START), "901": token(END, special=False)})),
    "json-flags": ("qwen-style", generic(eos_token="caf\u00e9", added_tokens_decoder={
        "700": token("caf\u00e9", lstrip=True, special=False), "0": token("<|endoftext|>", rstrip=True)})),
    "json-names": ("qwen-style", {**generic(eos_token="caf\u00e9"), "special_tokens_map.json": {
        "bos_token": token("<|endoftext|>", lstrip=True)}}),
    "json-names-with-decoder": ("qwen-style", generic(eos_token="caf\u00e9", added_tokens_decoder={"800": token(START)},
                                                     extra_special_tokens=["<|endoftext|>"])),
    "llama-named-twice": ("sp-bpe-bytes", {**llama(), "special_tokens_map.json": {
        "bos_token": token("<s>", lstrip=True), "cls_token": token("<s>", rstrip=True), "eos_token": token(END, lstrip=True),
        "sep_token": token(END, rstrip=True)}}),
    "llama-named-and-extra": ("sp-bpe-bytes", {**llama(extra_special_tokens=[START, END]), "special_tokens_map.json": {
        "eos_token": token(END, lstrip=True), "mask_token": token(START, rstrip=True)}}),
    "json-pad-known": ("qwen-style", generic(pad_token="the", additional_special_tokens=[START])),
}


def gemma_like():
    """A BPE model with Gemma's control pieces and settings; returns its bytes."""
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((SMALL / "sp-bpe-bytes" / "tokenizer.model").read_bytes())
    pieces = [(piece.piece, piece.score, piece.type) for piece in model.pieces][3:]
    first = [("<pad>", 3), ("<eos>", 3), ("<bos>", 3), ("<unk>", 2), ("<mask>", 3), ("<start_of_turn>", 4), ("<end_of_turn>", 4)]
    del model.pieces[:]
    for text, score, kind in [(text, 0.0, kind) for text, kind in first] + pieces:
        model.pieces.add(piece=text, score=score, type=kind)
    spec = model.trainer_spec
    spec.pad_id, spec.eos_id, spec.bos_id, spec.unk_id = 0, 1, 2, 3
    spec.pad_piece, spec.eos_piece, spec.bos_piece, spec.unk_piece = "<pad>", "<eos>", "<bos>", "<unk>"
    model.normalizer_spec.add_dummy_prefix = False
    return model.SerializeToString()


def tekken():
    """A small tekken.json with the vocabulary of qwen-style."""
    made = json.loads((SMALL / "qwen-style" / "tokenizer.json").read_text(encoding="utf-8"))
    characters = bytes_to_unicode()
    byte_of = {character: byte for byte, character in characters.items()}
    words = [bytes([byte]) for byte in range(256)]
    for left, right in (merge if isinstance(merge, list) else merge.split(" ") for merge in made["model"]["merges"]):
        word = bytes(byte_of[character] for character in left + right)
        if word not in words:
            words.append(word)
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    pattern = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
               r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
               r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    return {"config": {"pattern": pattern, "num_vocab_tokens": len(words), "default_vocab_size": len(words) + 10,
                       "default_num_special_tokens": 10, "version": "v7"},
            "vocab": [{"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
                      for rank, word in enumerate(words)],
            "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)]}


def expected_of(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    bare, framed = (tokenizer("the", add_special_tokens=special)["input_ids"] for special in (False, True))
    at = next(at for at in range(len(framed)) if framed[at:at + len(bare)] == bare)
    return {"class": type(tokenizer).__name__,
            "before": framed[:at], "after": framed[at + len(bare):],
            "eos": tokenizer.eos_token_id,
            "added": tokenizer.get_added_vocab(),
            "ids": ids,
            "decoded": [tokenizer.decode(one) for one in ids],
            "decoded_without_special": [tokenizer.decode(one, skip_special_tokens=True) for one in ids]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=SMALL / "declared.json")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    arguments = parser.parse_args()
    made = {"gemma-like": ("tokenizer.model", gemma_like()), "tekken": ("tekken.json", json.dumps(tekken()).encode())}
    result = {"made_with": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                            "sentencepiece": sentencepiece.__version__},
              "models": {name: {"file": file, "base64": base64.b64encode(data).decode()}
                         for name, (file, data) in made.items()},
              "texts": TEXTS, "cases": {}}
    for name in arguments.cases or CASES:
        model, files = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            if model in made:
                (pathlib.Path(folder) / made[model][0]).write_bytes(made[model][1])
            else:
                for file in (SMALL / model).iterdir():
                    shutil.copy(file, folder)
            for file, content in files.items():
                (pathlib.Path(folder) / file).write_text(json.dumps(content), encoding="utf-8")
            result["cases"][name] = {"model": model, "files": files, **expected_of(folder)}
        print(name, result["cases"][name]["class"], flush=True)
    write_json(arguments.output, result)


if __name__ == "__main__":
    main()
