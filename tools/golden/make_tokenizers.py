"""Generate tests/golden/tokenizers: a page of hard Unicode, and ids of it and of seven novels by `tokenizers`.

usage: make_tokenizers.py [--inputs inputs] [--output tests/golden/tokenizers]

tests/golden/README.md describes the format. Needs `scripts/fetch-inputs` and recipes/quickstart-tokenizer. The page has
only characters of Unicode 13 or older, so that libraries with tables of different versions classify them alike.
"""

import argparse
import os
import random

import numpy as np
import tokenizers

import philox
from jsonfiles import write_json

# Lines of the page. They contain no line feed, which ends a line.
LINES = [
    "", " ", "  ", "   x", "x   ", "a", " a", "Hello, world!", "Hello  world   and    more     spaces",
    "trailing space ", "trailing spaces    ", "\ttab", "tab\t\ttab \t tab", "a" * 300, "ab" * 100, " " * 129,
    "x" + " " * 40 + "y",
    # Contractions in every letter case, and strings that look like them.
    "I'm you're he's we'll they've I'd can't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D CAN'T", "'s't're've'm'll'd",
    "''s '' 'sS 'Ss", "it\u2019s don\u2019t", "'\u017f '\u017fs \u212a'm", "rock 'n' roll 'tis o'clock",
    # Numbers of every kind.
    "1234567890", "1 12 123 1234 12345", "3.14159, 1,000,000; 0x1F 1e-9 v2.0",
    "\u0661\u0662\u0663\u0664\u0665 \u0967\u0968\u0969\u096a",
    "x\u00b2 \u00bd \u2167 \u2460\u2461 \u3007\u4e00\u4e8c\u4e09 \uff11\uff12\uff13",
    "\U0001d7d8\U0001d7d9\U0001d7da \U00010107\U00010108", "a1b2c3 1st 2nd 10x 2\u00d74",
    "12345678901234567890123456789012345678901234567890",
    # Marks, ligatures, letters that look alike, letters without case.
    "e\u0301 vs \u00e9; n\u0303 vs \u00f1; A\u030a \u00c5 \u212b",
    "Z\u0351\u036b\u0343\u036a\u0302\u036ba\u0321\u034el\u0301\u0300g\u0488o\u0489", "\u0301 leading mark",
    "\ufb01 \ufb03 \u01c4 \u01c5 \u00df \u1e9e \u0130 \u0131",
    "\u0391\u0392\u0393 \u03b1\u03b2\u03c2\u03c3 \u0410\u0411\u0412 \u0430\u0431\u0432 \u0531\u0532 \u10d0\u10d1",
    "na\u00efve fa\u00e7ade co\u00f6perate \u0152uvre \u00c6sop",
    "\u1e0d\u0323\u0307 \u0b95\u0bcd\u0bb7 \u0915\u094d\u0937\u093f",
    # Scripts without spaces, and right-to-left scripts.
    "\u6211\u80fd\u541e\u4e0b\u73bb\u7483\u800c\u4e0d\u4f24\u8eab\u4f53\u3002",
    "\u79c1\u306f\u30ac\u30e9\u30b9\u3092\u98df\u3079\u3089\u308c\u307e\u3059\u3002\u305d\u308c\u306f\u79c1\u3092\u50b7\u3064\u3051\u307e\u305b\u3093\u3002",
    "\ub098\ub294 \uc720\ub9ac\ub97c \uba39\uc744 \uc218 \uc788\uc5b4\uc694. \u1112\u1161\u11ab",
    "\u0e09\u0e31\u0e19\u0e01\u0e34\u0e19\u0e01\u0e23\u0e30\u0e08\u0e01\u0e44\u0e14\u0e49 \u0e41\u0e15\u0e48\u0e21\u0e31\u0e19\u0e44\u0e21\u0e48\u0e17\u0e33\u0e43\u0e2b\u0e49\u0e09\u0e31\u0e19\u0e40\u0e08\u0e47\u0e1a",
    "\u0623\u0646\u0627 \u0642\u0627\u062f\u0631 \u0639\u0644\u0649 \u0623\u0643\u0644 \u0627\u0644\u0632\u062c\u0627\u062c \u0648 \u0647\u0630\u0627 \u0644\u0627 \u064a\u0624\u0644\u0645\u0646\u064a.",
    "\u05d0\u05e0\u05d9 \u05d9\u05db\u05d5\u05dc \u05dc\u05d0\u05db\u05d5\u05dc \u05d6\u05db\u05d5\u05db\u05d9\u05ea (abc) \u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd",
    "\u202eright to left override\u202c \u2066isolate\u2069 \u200e\u200f",
    "\U00020000\U0002a6d6 \U0001f130 \U00010330\U00010331 \U00012000\U00013000",
    # Emoji: joined, with skin tones, flags, key caps, variation selectors.
    "\U0001f600\U0001f603 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f44d\U0001f3fd \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1eb\U0001f1f7\U0001f1ef\U0001f1f5 1\ufe0f\u20e3 #\ufe0f\u20e3 \u2764\ufe0f \u2764\ufe0e",
    "\U0001f9d1\U0001f3ff\u200d\U0001f680text\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    # White space other than U+0020, and characters that look like white space.
    "a\u00a0b\u00a0\u00a0c", "a\u2003b\u2009c\u3000d\u1680e\u205ff\u202fg",
    "zero\u200bwidth\u200cjoin\u200der\u2060word\ufeffbom", "\ufeffleading byte order mark", "a\u0085b\u2028c\u2029d",
    "a\rb\r\rc\r", "\r", "v\x0bt f\x0cf", " \u00a0 \u2003 \t end", "soft\u00adhyphen non\u2011breaking\u2010hyphen",
    "\u180e mongolian \u180b",
    # Control characters and other invisible ones.
    "\x00\x01\x02\x03", "\x04\x05\x06\x07\x08", "\x0e\x0f\x10\x11\x12\x13\x14\x15\x16",
    "\x17\x18\x19\x1a\x1b[31mred\x1b[0m", "a\x1cb\x1dc\x1ed\x1fe", "\x7f\x80\x81\x9f",
    "\ufffd\ufffe\uffff \U0010fffd \ue000\uf8ff", "\U000f0000\U0003ffff\U0005ffff\U0007fffe", "nul\x00inside",
    "\U00040000 \U00080000 \U00100000",
    # Punctuation, code, markup, addresses.
    "!!!???...,,,;;;:::", "--- *** === ___ ~~~ ```", "def f(x):    return x**2  # squared",
    "    indented = [1, 2, 3]\t\t// both", "for (int i=0;i<10;++i){a[i]+=b[i];}",
    "<html><body class=\"x\">&nbsp;</body></html>",
    "https://example.com/a/b?c=d&e=f#g user@example.com C:\\dir\\file.txt",
    "$100 \u20ac50 \u00a330 \u00a51000 50% \u00b15\u00b0C \u221e\u2211\u222b",
    "\u201cquoted\u201d \u2018single\u2019 \u00abguillemets\u00bb \u2014 em \u2013 en \u2026",
    "CamelCaseWord snake_case_word SCREAMING_CASE kebab-case",
    "(\u256f\u00b0\u25a1\u00b0)\u256f\ufe35 \u253b\u2501\u253b", ".!\r,;\r\r (x)\r y",
    # Special tokens of the three tokenizers: complete, truncated, and adjacent to other text.
    "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c", "<|im_start|>user",
    "<|im_start|>system You are helpful.<|im_end|>", "<|im_end|> <|im_end|>\t<|im_end|>",
    "<repo_name><filename> <gh_stars><issue_start>", "<|begin_of_text|>Hello<|end_of_text|>",
    "<|start_header_id|>user<|end_header_id|> Hi<|eot_id|>",
    "<|reserved_special_token_0|><|reserved_special_token_250|>", "<|endoftext", "|endoftext|>",
    "<|end\u200boftext|>", "<|ENDOFTEXT|>", "<|endoftext|><|endoftext|>", " <|endoftext|> 12<|im_end|>34",
    "<<|endoftext|>>", "<|im_<|im_end|>end|>", "<empty_output>\U0001f600<jupyter_code>e\u0301",
]
MIXED_LINES = 60
PIECES = [" ", "  ", "\t", "\r", "\u00a0", "\u2003", "a", "Z", "the", " of", "\u00e9", "e\u0301", "\u017f", "'s", "'LL", "'",
          "0", "7", "\u00b2", "\u0663", "\u4e2d", "\u6587", "\u3042", "\ud55c", "\u0639", "\u05d0", "\U0001f600", "\u200d",
          "\ufe0f", "\U0001f468", ".", ",", "!!", "\u2014", "_", "\x00", "\x13", "\x1d", "\x85", "\u200b", "\ufeff",
          "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<", "|>", "\U00040000", "\U000f0000", "\ufffd"]


def page_lines():
    """The fixed lines, and random sequences of pieces that interact."""
    dice = random.Random(20260101)
    mixed = ["".join(dice.choice(PIECES) for _ in range(dice.randint(4, 24))) for _ in range(MIXED_LINES)]
    lines = LINES + mixed
    assert not any("\n" in line for line in lines)
    return lines


def ids_hash(ids):
    """64-bit FNV-1a of the ids as little-endian int32, in hexadecimal."""
    return f"{philox.fnv1a64(np.asarray(ids, dtype='<i4').tobytes()):016x}"


def text_hash(text):
    """64-bit FNV-1a of the text in UTF-8, in hexadecimal."""
    return f"{philox.fnv1a64(text):016x}"


def decodings(tokenizer, lines):
    """Lists of ids, some cut inside a character, with their decoded texts."""
    cases = []
    for text in ("Hello, world!", "\u79c1\u306f\U0001f600\U0001f468\u200d\U0001f469 \u0e09\u0e31\u0e19",
                 "a<|endoftext|>b <|im_end|> c<|eot_id|>", "  two  spaces \n\n\n lines "):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases += [ids] + [ids[start:stop] for start, stop in ((1, None), (None, -1), (2, -2)) if ids[start:stop]]
    cases.append([])
    return [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False),
             "text_without_special": tokenizer.decode(ids, skip_special_tokens=True)} for ids in cases]


def expected_of(tokenizer, lines, texts):
    """Entry of expected.json for one tokenizer."""
    page = "".join(line + "\n" for line in lines)
    line_ids = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines]
    page_ids = tokenizer.encode(page, add_special_tokens=False).ids
    decoded = [tokenizer.decode(ids, skip_special_tokens=False) for ids in line_ids]
    novels = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text, name
        novels[name] = {"bytes": len(text.encode()), "tokens": len(ids), "ids_fnv1a64": ids_hash(ids)}
    return {
        "entries": tokenizer.get_vocab_size(with_added_tokens=True),
        "lines": line_ids,
        "lossy_lines": [index for index, (line, back) in enumerate(zip(lines, decoded)) if line != back],
        "page": page_ids,
        "page_decoded_fnv1a64": text_hash(tokenizer.decode(page_ids, skip_special_tokens=False)),
        "page_decoded_without_special_fnv1a64": text_hash(tokenizer.decode(page_ids, skip_special_tokens=True)),
        "decode": decodings(tokenizer, lines),
        "novels": novels,
    }


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--inputs", default=os.path.join(root, "inputs"))
    parser.add_argument("--output", default=os.path.join(root, "tests", "golden", "tokenizers"))
    arguments = parser.parse_args()
    files = {
        "smollm2": os.path.join(arguments.inputs, "smollm2", "tokenizer.json"),
        "llama3": os.path.join(arguments.inputs, "tokenizers", "llama3", "tokenizer.json"),
        "quickstart": os.path.join(root, "recipes", "quickstart-tokenizer", "tokenizer.json"),
    }
    texts = {}
    folder = os.path.join(arguments.inputs, "text")
    for name in [f"austen/{file}" for file in sorted(os.listdir(os.path.join(folder, "austen")))] + ["moby-dick.txt"]:
        with open(os.path.join(folder, name), encoding="utf-8", newline="") as file:
            texts[name] = file.read()
    os.makedirs(arguments.output, exist_ok=True)
    lines = page_lines()
    with open(os.path.join(arguments.output, "hard_unicode.txt"), "wb") as file:
        file.write("".join(line + "\n" for line in lines).encode())
    result = {"made_with": {"tokenizers": tokenizers.__version__}, "tokenizers": {}}
    for name, path in files.items():
        result["tokenizers"][name] = part = expected_of(tokenizers.Tokenizer.from_file(path), lines, texts)
        total = sum(novel["tokens"] for novel in part["novels"].values())
        print(f"{name}: {len(lines)} lines, {len(part['page'])} tokens on the page, {len(part['lossy_lines'])} lines "
              f"not restored, {sum(novel['bytes'] for novel in part['novels'].values()) / total:.2f} bytes a token "
              f"on the novels", flush=True)
    write_json(os.path.join(arguments.output, "expected.json"), result)


if __name__ == "__main__":
    main()
