"""Write the results of ./quickstart to RUN/summary.json and print them.

usage: quickstart_summary.py RUN TRAINING_SECONDS

Exits with 1 unless the model's loss is below the bigram model's.
"""

import json
import pathlib
import sys

run = pathlib.Path(sys.argv[1])
score = json.loads((run / "score.json").read_text())
steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
# The first step is excluded: it also touches all memory for the first time.
seconds = sum(step["step_seconds"] for step in steps[1:])
tokens = sum(step["step_seconds"] * step["tokens_per_second"] for step in steps[1:])
summary = {
    "heldout_loss": score["loss"],
    "bigram_loss": score["bigram_loss"],
    "bits_per_byte": score["bits_per_byte"],
    "tokens_per_second": tokens / seconds,
    "seconds": float(sys.argv[2]),
}
(run / "score.json").unlink()
(run / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")

print(f"held-out loss    {summary['heldout_loss']:.4f} over {score['tokens']:,} tokens of `Persuasion`")
print(f"bigram model     {summary['bigram_loss']:.4f} (Witten-Bell, fitted on the same training tokens)")
print(f"bits per byte    {summary['bits_per_byte']:.4f}")
print(f"training         {summary['seconds']:.0f} s, {summary['tokens_per_second']:,.0f} tokens/s")
if summary["heldout_loss"] >= summary["bigram_loss"]:
    sys.exit("quickstart: the model's loss is not below the bigram model's: training does not work as expected")
