"""Generate src/text/tokenizers/unicode_tables.inc: character properties as the `tokenizers` library has them.

usage: make_tables.py [--output src/text/tokenizers/unicode_tables.inc]

The parts of that library have Unicode tables of different versions (its regular expressions those of version 16, its
normal forms older ones, its punctuation even older ones), and equal ids need equal tables. No single version of the
Unicode database matches, so this script queries the library for every code point. Needs the version of `tokenizers` in
tools/requirements-golden.txt; takes two minutes.
"""

import argparse
import os
import unicodedata

from tokenizers import Regex
from tokenizers import __version__ as version
from tokenizers import normalizers
from tokenizers import pre_tokenizers

CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co").split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ALL = "".join(map(chr, POINTS))
HANGUL = range(0xAC00, 0xAC00 + 11172)


def removed_by(pre_tokenizer):
    """Code points that a pre-tokenizer removes."""
    found, last = set(), 0
    for _, (begin, end) in pre_tokenizer.pre_tokenize_str(ALL) + [("", (len(ALL), len(ALL)))]:
        found.update(POINTS[last:begin])
        last = end
    return found


def changed_by(normalizer):
    """{code point: its normalized text}, for the code points that the normalizer changes."""
    out = {}
    for c in POINTS:
        text = normalizer.normalize_str(chr(c))
        if text != chr(c):
            out[c] = text
    return out


def properties():
    """Runs (first code point, category index, flags) of characters with equal properties; flags as in unicode.h."""
    category = {}
    for index, name in enumerate(CATEGORIES):
        for c in removed_by(pre_tokenizers.Split(Regex(f"\\p{{{name}}}"), "removed")):
            assert c not in category
            category[c] = index
    regex_word = removed_by(pre_tokenizers.Split(Regex("\\w"), "removed"))
    whitespace = pre_tokenizers.Whitespace()
    word = {c for c in POINTS if len(whitespace.pre_tokenize_str("a" + chr(c) + "a")) == 1}
    digits = pre_tokenizers.Digits(individual_digits=False)
    numeric = {c for c in POINTS if len(digits.pre_tokenize_str("a" + chr(c))) == 2}
    punctuation = removed_by(pre_tokenizers.Punctuation("removed"))
    bert = dict(handle_chinese_chars=False, strip_accents=False, lowercase=False)
    control = {c for c, text in changed_by(normalizers.BertNormalizer(clean_text=True, **bert)).items() if text == ""}
    mark = {c for c, text in changed_by(normalizers.StripAccents()).items() if text == ""}
    bert = dict(clean_text=False, handle_chinese_chars=False, lowercase=False)
    accent = {c for c, text in changed_by(normalizers.BertNormalizer(strip_accents=True, **bert)).items() if text == ""}
    runs, before = [], None
    for c in POINTS:
        flags = sum((c in group) << bit for bit, group in
                    enumerate((regex_word, word, numeric, punctuation, control, mark, accent)))
        now = (category[c], flags)
        if now != before:
            runs.append((c, *now))
            before = now
    return runs


def combining_classes(canonical):
    """{code point: canonical combining class}, verified by the reordering of NFD."""
    nfd = normalizers.NFD()
    samples = {}
    for c in POINTS:
        if unicodedata.combining(chr(c)) and c not in canonical:
            samples.setdefault(unicodedata.combining(chr(c)), chr(c))

    def reorders(first, second):
        return nfd.normalize_str("a" + first + second) != "a" + first + second

    out = {}
    for c in POINTS:
        if not unicodedata.category(chr(c)).startswith("M") or c in canonical:
            continue
        # A mark moves before c if its class is lower and not 0.
        lower = [value for value, sample in samples.items() if reorders(chr(c), sample)]
        higher = [value for value, sample in samples.items() if reorders(sample, chr(c))]
        value = unicodedata.combining(chr(c))
        if not lower and not higher:
            continue
        assert all(v < value for v in lower) and all(v > value for v in higher), hex(c)
        out[c] = value
    return out


def compositions(canonical, composed):
    """(first, second, composed) of every pair that NFC composes, except Hangul syllables."""
    nfc = normalizers.NFC()
    out = []
    for c, text in canonical.items():
        if len(text) < 2 or c in composed:
            continue
        first = nfc.normalize_str(text[:-1])
        assert len(first) == 1 and nfc.normalize_str(first + text[-1]) == chr(c), hex(c)
        out.append((ord(first), ord(text[-1]), c))
    return sorted(out)


def table(out, name, kind, values, comment):
    out.append(f"// {comment}\nconstexpr {kind} {name}[] = {{")
    line = "   "
    for value in values:
        item = f" {value:#x},"
        if len(line) + len(item) > 120:
            out.append(line)
            line = "   "
        line += item
    out.append(line + "\n};\n")


def mapping(pairs):
    """Flat list: for each entry the code point, the number of mapped code points, and these."""
    return [value for c, text in sorted(pairs.items()) for value in (c, len(text), *map(ord, text))]


def main():
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", default=os.path.join(root, "src/text/tokenizers/unicode_tables.inc"))
    arguments = parser.parse_args()

    def without_hangul(changes):
        return {c: text for c, text in changes.items() if c not in HANGUL}

    canonical = without_hangul(changed_by(normalizers.NFD()))
    composed = without_hangul(changed_by(normalizers.NFC()))
    compatible = {c: text for c, text in without_hangul(changed_by(normalizers.NFKD())).items()
                  if canonical.get(c) != text}
    lower = changed_by(normalizers.Lowercase())
    classes = combining_classes(canonical)
    out = [f"// Generated by tools/unicode/make_tables.py with tokenizers {version}; do not edit.\n"
           "// clang-format off\n"]
    table(out, "kProperties", "std::uint64_t", [c << 16 | category << 8 | flags for c, category, flags in properties()],
          "Runs of like characters: first code point << 16 | general category << 8 | flags.")
    table(out, "kCanonical", "char32_t", mapping(canonical),
          "Full canonical decompositions: code point, length, characters. Hangul is computed.")
    table(out, "kCompatible", "char32_t", mapping(compatible), "Full compatibility decompositions that differ from those.")
    table(out, "kCompositions", "char32_t", [v for triple in compositions(canonical, composed) for v in triple],
          "First, second, composed.")
    table(out, "kCombining", "std::uint32_t", [c << 8 | value for c, value in sorted(classes.items())],
          "Code point << 8 | canonical combining class, where that is not 0.")
    table(out, "kLower", "char32_t", mapping(lower), "Lower case: code point, length, characters.")
    out.append("// clang-format on\n")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write("\n".join(out))


if __name__ == "__main__":
    main()
