"""Reads a token file in the layout of Megatron-LM's indexed dataset, and prints its contents as one JSON object.

usage: read_indexed.py PREFIX

Shares no code with Hawser, so that a mistake of its reader is not repeated here. The layout: a magic of nine bytes, the
version (u64), a code for the type (u8; 4 is int32, 8 uint16), the numbers of sequences and document bounds (u64 each),
then the lengths (i32), the byte offsets (i64) and the bounds (i64), all little-endian and without gaps. Megatron maps the
lengths, offsets and bounds in place, and reads `length` elements of the type at each byte offset of PREFIX.bin.
"""

import json
import os
import struct
import sys

CODES = {1: ("B", 1), 2: ("b", 1), 3: ("h", 2), 4: ("i", 4), 5: ("q", 8), 8: ("H", 2)}


def main():
    prefix = sys.argv[1]
    with open(prefix + ".idx", "rb") as file:
        assert file.read(9) == b"MMIDIDX\x00\x00", "magic"
        version, = struct.unpack("<Q", file.read(8))
        assert version == 1, "version"
        code, = struct.unpack("<B", file.read(1))
        letter, size = CODES[code]
        sequences, bounds = struct.unpack("<QQ", file.read(16))
        lengths = struct.unpack(f"<{sequences}i", file.read(4 * sequences))
        offsets = struct.unpack(f"<{sequences}q", file.read(8 * sequences))
        documents = struct.unpack(f"<{bounds}q", file.read(8 * bounds))
        assert file.read() == b"", "bytes after the index"
    assert documents[0] == 0 and documents[-1] == sequences, "document bounds"
    assert sum(lengths) * size == os.path.getsize(prefix + ".bin"), "size of the data"
    ids = []
    with open(prefix + ".bin", "rb") as file:
        for length, offset in zip(lengths, offsets):
            file.seek(offset)
            ids.append(list(struct.unpack(f"<{length}{letter}", file.read(length * size))))
    print(json.dumps({"type": letter, "documents": [ids[a:b] for a, b in zip(documents, documents[1:])]}))


if __name__ == "__main__":
    main()
