"""Writes random questions and answers as tables and arrays, and what Python's csv and json read back as messages.

usage: make_tables.py FOLDER

Prints the names of the tables and arrays. Each has the conversations of expected.jsonl, which is written from the files
as Python's csv.DictReader and json.load read them: all readings must agree.
"""

import csv
import json
import os
import random
import sys

PIECES = ["a", "word", " ", ",", "\t", ";", '"', '""', "\n", "\r\n", "\n\n", "'", "\\", "\\n", "{", "}", "[", "]", ":", "0", "-",
          "null"]
ROWS = 20000


def main():
    os.chdir(sys.argv[1])
    rng = random.Random(7)

    def text():
        return "x" + "".join(rng.choice(PIECES) for _ in range(rng.randrange(24)))
    rows = [{"id": str(i), "instruction": text(), "output": text(), "input": "" if i % 3 else text()} for i in range(ROWS)]
    names, readings = [], []

    def table(name, encoding="utf-8", blank=False, **dialect):
        with open(name, "w", newline="", encoding=encoding) as file:
            writer = csv.DictWriter(file, list(rows[0]), **dialect)
            writer.writeheader()
            for i, row in enumerate(rows):
                writer.writerow(row)
                if blank and i % 100 == 0:
                    file.write("\n")
        with open(name, newline="", encoding=encoding) as file:
            names.append(name)
            readings.append(list(csv.DictReader(file, delimiter=dialect.get("delimiter", ","))))

    table("excel.csv")
    table("lines.csv", lineterminator="\n")
    table("returns.csv", lineterminator="\r", quoting=csv.QUOTE_ALL)
    table("all.csv", quoting=csv.QUOTE_ALL, encoding="utf-8-sig")
    table("blank.csv", lineterminator="\n", blank=True)
    table("minimal.tsv", delimiter="\t", lineterminator="\n")
    table("all.tsv", delimiter="\t", quoting=csv.QUOTE_ALL)

    for name, layout in (("compact.json", {"separators": (",", ":")}), ("indented.json", {"indent": 1}),
                         ("ascii.json", {"ensure_ascii": True})):
        with open(name, "w", encoding="utf-8") as file:
            json.dump(rows, file, **layout)
        with open(name, encoding="utf-8") as file:
            names.append(name)
            readings.append(json.load(file))

    assert all(reading == rows for reading in readings), "Python's own readings differ"
    with open("expected.jsonl", "w", encoding="utf-8") as file:
        for row in readings[0]:
            asked = row["instruction"] + ("\n\n" + row["input"] if row["input"] else "")
            file.write(json.dumps({"messages": [{"role": "user", "content": asked},
                                                {"role": "assistant", "content": row["output"]}]}) + "\n")
    print("\n".join(names))


if __name__ == "__main__":
    main()
