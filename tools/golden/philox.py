"""Philox4x32-10, and the sign projections with which golden files compare gradients.

A gradient of a hundred million numbers is too large for a golden file, and its norm does not show its direction. Golden
files contain 64 random projections of each gradient instead. The signs come from a counter-based generator: any program
can recompute them, for any slice of a parameter and in any order, from the name of the parameter and the index of an
element. `tests/golden/README.md` describes the format.

Run as a program, it checks the generator against the known answers of the Random123 distribution.
"""

import numpy as np

MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
PROJECTIONS = 64

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)

# Counter words, key words, output words: kat_vectors of Random123 for philox4x32 with 10 rounds.
KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)


def philox4x32(counter, key, rounds=10):
    """The four output words, as uint64 arrays with values below 2**32. Counter words are arrays or numbers."""
    c0, c1, c2, c3 = (np.atleast_1d(np.asarray(word, dtype=np.uint64)) for word in counter)
    k0, k1 = (int(word) for word in key)
    for _ in range(rounds):
        product0 = c0 * np.uint64(MULTIPLIER[0])
        product1 = c2 * np.uint64(MULTIPLIER[1])
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            product0 & _LOW,
        )
        k0 = (k0 + WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def fnv1a64(data):
    """64-bit FNV-1a of bytes, or of a string in UTF-8."""
    if isinstance(data, str):
        data = data.encode("utf-8")
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def sign_bits(name, start, stop):
    """The 64 sign bits of each element start..stop-1 of the parameter `name`, packed in a uint64."""
    key = fnv1a64(name)
    index = np.arange(start, stop, dtype=np.uint64)
    zero = np.zeros_like(index)
    w0, w1, _, _ = philox4x32((index & _LOW, index >> _SHIFT, zero, zero), (key & 0xFFFFFFFF, key >> 32))
    return w0 | (w1 << _SHIFT)


def project(name, values, chunk=1 << 16):
    """The 64 projections of an array, flattened in row-major order, in float64."""
    flat = np.ascontiguousarray(values).reshape(-1)
    total = np.zeros(PROJECTIONS, dtype=np.float64)
    for start in range(0, flat.size, chunk):
        stop = min(start + chunk, flat.size)
        octets = sign_bits(name, start, stop).astype("<u8").view(np.uint8).reshape(stop - start, 8)
        bits = np.unpackbits(octets, axis=1, bitorder="little")
        piece = flat[start:stop].astype(np.float64)
        total += 2.0 * (piece @ bits.astype(np.float64)) - piece.sum()
    return total


def check():
    """Raises AssertionError if a known answer differs."""
    for counter, key, expected in KNOWN_ANSWERS:
        words = tuple(int(word[0]) for word in philox4x32(counter, key))
        assert words == expected, (counter, key, [hex(word) for word in words])
    assert fnv1a64("") == 0xCBF29CE484222325
    assert fnv1a64("a") == 0xAF63DC4C8601EC8C
    assert fnv1a64("foobar") == 0x85944171F73967E8


if __name__ == "__main__":
    check()
    print("philox4x32-10 and fnv1a64: known answers agree")
