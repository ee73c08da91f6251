"""Compare `hawser prepare` of a Parquet file with that of the same lines as JSONL: time, rate and peak memory.

usage: parquet_speed.py --hawser BIN [--bytes 1e9] [--rows 1000] [--kind texts|chats|ids] [--threads 2] [--rounds 3]
                        [--folder DIR]

Writes FOLDER/KIND.jsonl of about --bytes and FOLDER/KIND.parquet with the same rows, --rows of them in a row group
(Zstandard, as `datasets` writes it), unless they are there. Then runs `hawser prepare` of each in turn and prints the best
of --rounds: seconds, MB of JSONL a second, and the peak of resident memory. The token files must be equal. `ids` needs
no tokenizer, so it is the fastest to encode and shows what reading costs. Needs pyarrow (tools/requirements-golden.txt).
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
# Prints seconds and peak bytes of a command. A process of its own: a child's peak is at least its parent's memory.
MEASURE = """
import os, sys, time
began = time.monotonic()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet), 0)
print(time.monotonic() - began, usage.ru_maxrss * 1024)
sys.exit(status != 0)
"""
WORDS = "the sea of whales said Ahab under 1851 again his white boat and harpoon".split()


def rows(kind, total):
    """Rows until their lines have `total` bytes, with the line of each."""
    draw = random.Random(1)
    written = 0
    while written < total:
        text = " ".join(draw.choices(WORDS, k=draw.randrange(100, 900)))
        half = len(text) // 2
        row = {"texts": lambda: {"text": text},
               "chats": lambda: {"messages": [{"role": "user", "content": text[:half]},
                                              {"role": "assistant", "content": text[half:]}]},
               "ids": lambda: {"input_ids": [draw.randrange(4000) for _ in range(len(text) // 5)]}}[kind]()
        line = json.dumps(row, separators=(",", ":")) + "\n"
        written += len(line)
        yield row, line


def write(kind, total, group, folder):
    """KIND.jsonl and KIND.parquet."""
    lines, table = folder / f"{kind}.jsonl", folder / f"{kind}.parquet"
    if lines.exists() and table.exists():
        return lines, table
    schema = {"texts": pa.schema([("text", pa.string())]),
              "chats": pa.schema([("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])))]),
              "ids": pa.schema([("input_ids", pa.list_(pa.int32()))])}[kind]
    with open(lines, "w") as out, pq.ParquetWriter(table, schema, compression="zstd") as writer:
        some = []
        for row, line in rows(kind, total):
            out.write(line)
            some.append(row)
            if len(some) == group:
                writer.write_table(pa.Table.from_pylist(some, schema))
                some = []
        if some:
            writer.write_table(pa.Table.from_pylist(some, schema))
    return lines, table


def prepare(hawser, source, output, threads):
    """Seconds and peak bytes of `hawser prepare`, and its train.bin."""
    model, tokenizer = ROOT / "recipes/quickstart-model.json", ROOT / "recipes/quickstart-tokenizer"
    recipe = output.with_suffix(".yaml")
    recipe.write_text(f"model: {{config: {model}}}\n"
                      f"data: {{train: [{source}], tokenizer: {tokenizer}, chat_template: chatml, sequence_length: 512}}\n"
                      f"train: {{steps: 1}}\nrun: {{threads: {threads}}}\noutput: {output}\n")
    shutil.rmtree(output, ignore_errors=True)
    measured = subprocess.run([sys.executable, "-S", "-c", MEASURE, hawser, "prepare", str(recipe), "--json"],
                              stdout=subprocess.PIPE, text=True, check=False)
    if measured.returncode != 0:
        raise SystemExit(f"{source}: hawser prepare failed")
    seconds, peak = map(float, measured.stdout.split())
    return seconds, peak, output / "data" / "train.bin"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hawser", required=True)
    parser.add_argument("--bytes", type=float, default=1e9)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--kind", choices=["texts", "chats", "ids"], default="texts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    hawser = os.path.abspath(options.hawser)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hawser-parquet-"))
    folder.mkdir(parents=True, exist_ok=True)
    sources = write(options.kind, options.bytes, options.rows, folder)
    size = sources[0].stat().st_size
    print(f"{options.kind}: {size / 1e6:.0f} MB of JSONL, {sources[1].stat().st_size / 1e6:.0f} MB of Parquet, "
          f"{options.rows} rows in a row group, {options.threads} threads")
    best, tokens = {}, {}
    for _ in range(options.rounds):
        for source in sources:
            seconds, peak, tokens[source] = prepare(hawser, source, folder / f"of-{source.suffix[1:]}", options.threads)
            before = best.get(source, (seconds, peak))
            best[source] = min(seconds, before[0]), max(peak, before[1])
    for source in sources:
        seconds, peak = best[source]
        print(f"{source.suffix[1:]:8} {seconds:7.2f} s  {size / seconds / 1e6:7.1f} MB/s  {peak / 1e6:7.1f} MB at the peak")
    if tokens[sources[0]].read_bytes() != tokens[sources[1]].read_bytes():
        raise SystemExit("the token files differ")


if __name__ == "__main__":
    main()
