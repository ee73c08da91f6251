"""Generate tests/golden/fp8: from which bfloat16 on PyTorch rounds to each FP8 number.

usage: make_fp8.py [--output tests/golden/fp8]

e4m3.txt and e5m2.txt have a line for each finite number of the format from 0 up: its code, its value, and the bits of
the smallest bfloat16 that becomes it, all values beyond the largest number becoming that number. Rounding is monotonic
and symmetric, so that these lines are the cast of every bfloat16 but NaN.
"""

import argparse
import os

import torch

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def table(dtype):
    """(code, value, bfloat16 bits) of each finite number from 0 up."""
    bits = torch.arange(0x7F81, dtype=torch.int32)
    values = (bits << 16).view(torch.float32).clamp(max=torch.finfo(dtype).max)
    codes = values.to(dtype).view(torch.uint8).tolist()
    for code in range(max(codes) + 1):
        number = torch.tensor([code], dtype=torch.uint8).view(dtype).to(torch.float32).item()
        yield code, number, codes.index(code)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, "..", "..", "tests", "golden", "fp8"))
    output = parser.parse_args().output
    os.makedirs(output, exist_ok=True)
    for name, dtype in FORMATS.items():
        with open(os.path.join(output, name + ".txt"), "w", encoding="ascii") as file:
            for code, value, bits in table(dtype):
                file.write(f"{code} {value:.17g} {bits}\n")


if __name__ == "__main__":
    main()
