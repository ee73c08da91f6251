"""Read the character vectors of an R package's data files, without R.

R stores a package's data in two files. `Rdata.rdb` is a sequence of values, each a 4-byte big-endian length
(uncompressed) and a zlib stream; `Rdata.rdx` is a compressed list with the offset and size of each name. Both use R's
XDR serialization, of which this module supports lists, strings and numbers. Uses only the standard library.
"""

import struct
import zlib

# Type codes of R values in the serialization.
_SYMBOL, _PAIRLIST, _CHARS, _LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST = 1, 2, 9, 10, 13, 14, 16, 19
_NILVALUE, _REFERENCE = 254, 255
_LATIN1 = 1 << 2


class _Reader:
    def __init__(self, data):
        if data[:2] != b"X\n":
            raise ValueError("not R's XDR serialization")
        self.data, self.at, self.symbols = data, 2, []
        version = self.integer()
        self.at += 8  # R version of the writer, and the oldest version that can read it
        if version == 3:
            self.take(self.integer())  # the native encoding
        elif version != 2:
            raise ValueError(f"R serialization version {version} is not supported")

    def take(self, count):
        self.at += count
        if self.at > len(self.data):
            raise ValueError("R data are truncated")
        return self.data[self.at - count:self.at]

    def integer(self):
        return struct.unpack(">i", self.take(4))[0]

    def length(self):
        count = self.integer()
        if count < 0:
            raise ValueError("R vectors above 2**31 elements are not supported")
        return count

    def item(self):
        """(value, attributes)"""
        flags = self.integer()
        kind, has_attributes, has_tag = flags & 0xFF, bool(flags & 0x200), bool(flags & 0x400)
        if kind == _NILVALUE:
            return None, {}
        if kind == _REFERENCE:
            index = flags >> 8 or self.integer()
            return self.symbols[index - 1], {}
        if kind == _SYMBOL:
            self.symbols.append(self.item()[0])
            return self.symbols[-1], {}
        if kind == _PAIRLIST:
            if has_attributes:
                self.item()
            pairs = {}
            tag = self.item()[0] if has_tag else None
            pairs[tag] = self.item()[0]
            rest = self.item()[0]
            pairs.update(rest or {})
            return pairs, {}
        if kind == _CHARS:
            count = self.integer()
            if count < 0:
                return None, {}
            return self.take(count).decode("latin-1" if (flags >> 12) & _LATIN1 else "utf-8"), {}
        count = self.length()
        if kind in (_LOGICAL, _INTEGER):
            value = list(struct.unpack(f">{count}i", self.take(4 * count)))
        elif kind == _REAL:
            value = list(struct.unpack(f">{count}d", self.take(8 * count)))
        elif kind in (_STRINGS, _LIST):
            value = [self.item()[0] for _ in range(count)] if kind == _STRINGS else [self.named() for _ in range(count)]
        else:
            raise ValueError(f"R values of type {kind} are not supported")
        return value, (self.item()[0] or {}) if has_attributes else {}

    def named(self):
        """A value; a list with names becomes a dict."""
        value, attributes = self.item()
        names = attributes.get("names")
        return dict(zip(names, value)) if names and isinstance(value, list) else value


def load(rdb, rdx):
    """{name: value} of all values in the data files."""
    index = _Reader(zlib.decompress(rdx, wbits=47)).named()
    values = {}
    for name, (offset, size) in index["variables"].items():
        expected = struct.unpack(">I", rdb[offset:offset + 4])[0]
        data = zlib.decompress(rdb[offset + 4:offset + size])
        if len(data) != expected:
            raise ValueError(f"{name}: {len(data)} bytes, not {expected}")
        values[name] = _Reader(data).named()
    return values
