"""Read a checkpoint of hawser: full tensors, assembled from boxes. src/checkpoint/manifest.h has the format."""

import itertools
import json
import struct

WIDTHS = {"float32": 4, "bfloat16": 2}


def read_tensors(folder):
    """{name: (dtype, shape, bytes of the full tensor)} of a checkpoint, assembled from its boxes."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [(folder / name).read_bytes() for name, _ in manifest["files"]]
    tensors = {}
    for tensor in manifest["tensors"]:
        shape, boxes = tensor["shape"], tensor["boxes"]
        width = WIDTHS[tensor["dtype"]]
        strides = [width]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        full = bytearray(strides[0] * shape[0] if shape else width)
        filled = 0
        for file, begin, size, offset, extent, _ in boxes:
            length = extent[-1] * width  # of a run of the last dimension
            for count, index in enumerate(itertools.product(*map(range, extent[:-1]))):
                to = offset[-1] * width + sum((o + i) * s for o, i, s in zip(offset, index, strides))
                full[to:to + length] = files[file][begin + count * length:begin + (count + 1) * length]
            filled += size
        if filled != len(full):
            raise ValueError(f"{folder}: {tensor['name']}: boxes of {filled} bytes, expected {len(full)}")
        tensors[tensor["name"]] = tensor["dtype"], shape, bytes(full)
    return tensors


def element(dtype, data, at):
    """The element that contains byte `at`, for a message: index and value."""
    width = WIDTHS[dtype]
    at -= at % width
    word = data[at:at + width] if width == 4 else b"\0\0" + data[at:at + width]
    return at // width, struct.unpack("<f", word)[0]
