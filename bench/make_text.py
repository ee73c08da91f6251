"""Generate text of any size, to measure `hawser prepare`: novels, repeated with noise so that no two lines are equal.

usage: make_text.py --bytes 2e9 OUTPUT.jsonl [--inputs inputs]

Each line of JSONL is a passage of 200 to 4,000 bytes. One word in twelve is replaced by a random word of the novels or
a random number.
"""

import argparse
import json
import os
import pathlib
import random


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bytes", type=float, required=True)
    parser.add_argument("--inputs", type=pathlib.Path, default=root / "inputs")
    parser.add_argument("output")
    arguments = parser.parse_args()
    words = " ".join(path.read_text(encoding="utf-8") for path in sorted(arguments.inputs.glob("text/**/*.txt"))).split(" ")
    draw = random.Random(1)
    written = at = 0
    with open(arguments.output, "w", encoding="utf-8") as file:
        while written < arguments.bytes:
            count = int(40 * 20 ** draw.random())
            passage = words[at:at + count]
            at = (at + count) % (len(words) - 1000)
            for _ in range(count // 12):
                passage[draw.randrange(len(passage))] = (
                    draw.choice(words) if draw.random() < 0.7 else str(draw.randrange(10 ** 6)))
            line = json.dumps({"text": " ".join(passage)}, ensure_ascii=False) + "\n"
            file.write(line)
            written += len(line.encode())
    print(f"{os.path.getsize(arguments.output)} bytes")


if __name__ == "__main__":
    main()
