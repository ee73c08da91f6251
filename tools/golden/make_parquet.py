"""Generate tests/golden/parquet: small Parquet files as pyarrow writes them, and their rows as JSONL.

usage: make_parquet.py [--golden tests/golden]

NAME.parquet has the rows of NAME.jsonl. The lines are written by pyarrow's own conversion to Python objects: null fields
of structs are left out, as only Arrow adds them; dates, times and decimals are texts. tests/golden/README.md lists the
files. Needs pyarrow alone (tools/requirements-golden.txt). Takes a second.
"""

import argparse
import datetime
import decimal
import json
import math
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def as_json(value, kind):
    """What a value of pyarrow's to_pylist() is in JSON."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json":
        return json.loads(value)
    if isinstance(kind, pa.BaseExtensionType):
        return as_json(value, kind.storage_type)
    if pa.types.is_dictionary(kind):
        return as_json(value, kind.value_type)
    if pa.types.is_struct(kind):
        fields = {field.name: as_json(value[field.name], field.type) for field in kind}
        return {name: field for name, field in fields.items() if field is not None}
    if pa.types.is_map(kind):
        return {key: as_json(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [as_json(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if pa.types.is_float32(kind):
        return Verbatim(shortest(value, 32))
    if pa.types.is_float16(kind):
        return Verbatim(shortest(float(value), 32))
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return value


class Verbatim(float):
    """A number that json writes with these digits."""

    def __new__(cls, text):
        number = super().__new__(cls, float(text))
        number.text = text
        return number

    def __repr__(self):
        return self.text


def shortest(value, bits):
    """The shortest digits that are read as the same float32."""
    assert bits == 32
    for digits in range(1, 10):
        text = repr(float(f"{value:.{digits}g}"))
        if pa.scalar(float(text), pa.float32()).as_py() == value:
            return text
    raise AssertionError(value)


def dumped(value):
    """json.dumps without spaces that honours Verbatim."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{dumped(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumped, value)) + "]"
    return value.text if isinstance(value, Verbatim) else json.dumps(value, ensure_ascii=False)


def lines_of(table, columns=None):
    """The rows of a table as lines of JSON."""
    lines = []
    for row in table.to_pylist():
        fields = {field.name: as_json(row[field.name], field.type) for field in table.schema
                  if columns is None or field.name in columns}
        kept = {name: value for name, value in fields.items() if value is not None}
        lines.append(dumped(kept) + "\n")
    return "".join(lines)


class Folder:
    """tests/golden/parquet."""

    def __init__(self, path):
        self.path = path
        os.makedirs(path, exist_ok=True)

    def write(self, name, table, columns=None, rows=True, **options):
        """NAME.parquet and, with `rows`, NAME.jsonl of some columns."""
        pq.write_table(table, os.path.join(self.path, name + ".parquet"), **options)
        if rows:
            self.write_lines(name, table, columns)

    def write_lines(self, name, table, columns=None):
        with open(os.path.join(self.path, name + ".jsonl"), "w", encoding="utf-8") as file:
            file.write(lines_of(table, columns))

    def read(self, name):
        with open(os.path.join(self.path, name + ".parquet"), "rb") as file:
            return file.read()

    def write_bytes(self, name, data):
        with open(os.path.join(self.path, name + ".parquet"), "wb") as file:
            file.write(data)


def chats():
    """Conversations with tools, as `datasets` stores them: every message has every field. And columns that no line has."""
    call = pa.struct([("id", pa.string()), ("type", pa.string()),
                      ("function", pa.struct([("name", pa.string()), ("arguments", pa.struct([
                          ("city", pa.string()), ("days", pa.int64()), ("exact", pa.bool_())]))]))])
    message = pa.struct([("role", pa.string()), ("content", pa.string()), ("tool_calls", pa.list_(call)),
                         ("tool_call_id", pa.string()), ("weight", pa.int64())])
    tool = pa.struct([("type", pa.string()), ("function", pa.struct([
        ("name", pa.string()), ("description", pa.string()),
        ("parameters", pa.struct([("type", pa.string()), ("required", pa.list_(pa.string()))]))]))])
    rows = []
    for i in range(11):
        messages = [{"role": "user", "content": f"Weather in \"{'ABCDEFGHIJK'[i]}\"?\n\t\\ \u0001 é \U0001f30a"},
                    {"role": "assistant", "content": f"Sunny, {i}.", "weight": i % 2 or None}]
        if i % 3 == 0:
            messages[1:1] = [
                {"role": "assistant", "content": "", "tool_calls": [{
                    "id": f"c{i}", "type": "function",
                    "function": {"name": "weather", "arguments": {"city": "ABCDEFGHIJK"[i]} if i else {"days": 2}}}]},
                {"role": "tool", "content": "sunny", "tool_call_id": f"c{i}"}]
        rows.append({"id": i, "messages": messages,
                     "tools": [{"type": "function", "function": {
                         "name": "weather", "description": "Looks it up",
                         "parameters": {"type": "object", "required": ["city"]}}}] if i % 3 == 0 else None,
                     "image": {"bytes": b"\x89PNG\xff", "path": None}, "embedding": [0.5, float("inf")]})
    schema = pa.schema([("id", pa.int64()), ("messages", pa.list_(message)), ("tools", pa.list_(tool)),
                        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
                        ("embedding", pa.list_(pa.float32()))])
    return pa.Table.from_pylist(rows, schema)


def types():
    """Every type that has JSON: a column each, and four rows, the last with nulls only."""
    day, noon = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 30, 5, 250000)
    old = datetime.datetime(1901, 1, 1, 23, 59, 59)
    number = decimal.Decimal
    columns = [
        ("string", pa.string(), ["a", "", "\"\\\n\u2028é"]),
        ("large_string", pa.large_string(), ["a", "b" * 40, ""]),
        ("string_view", pa.string_view(), ["short", "longer than twelve bytes", "twelve bytes"]),
        ("binary", pa.binary(), [b"abc", "é".encode(), b""]),
        ("large_binary", pa.large_binary(), [b"abc", b"d", b""]),
        ("binary_view", pa.binary_view(), [b"abc", b"longer than twelve bytes", b""]),
        ("fixed_binary", pa.binary(3), [b"abc", "aé".encode(), b"xyz"]),
        ("dictionary", pa.dictionary(pa.int32(), pa.string()), ["same", "other", "same"]),
        ("bool", pa.bool_(), [True, False, True]),
        ("int8", pa.int8(), [-128, 0, 127]),
        ("uint8", pa.uint8(), [0, 1, 255]),
        ("int16", pa.int16(), [-32768, 0, 32767]),
        ("uint16", pa.uint16(), [0, 1, 65535]),
        ("int32", pa.int32(), [-2**31, 0, 2**31 - 1]),
        ("uint32", pa.uint32(), [0, 1, 2**32 - 1]),
        ("int64", pa.int64(), [-2**63, 0, 2**63 - 1]),
        ("uint64", pa.uint64(), [0, 1, 2**64 - 1]),
        ("half", pa.float16(), [1.0, -0.5, 0.333251953125]),
        ("float", pa.float32(), [0.1, 1e10, -16777216.0]),
        ("double", pa.float64(), [0.1, 1e22, 5e-324]),
        ("nan", pa.float64(), [float("nan"), 1.0, float("nan")]),
        ("decimal", pa.decimal128(10, 2), [number("12.30"), number("-0.05"), number("0.00")]),
        ("wide_decimal", pa.decimal256(50, 0), [number(10**49), number(-(10**49)), number(7)]),
        ("date32", pa.date32(), [day, datetime.date(1969, 12, 31), datetime.date(1, 1, 1)]),
        ("date64", pa.date64(), [day, datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]),
        ("time_ms", pa.time32("ms"), [noon.time(), datetime.time(0, 0, 0), datetime.time(23, 59, 59, 999000)]),
        ("time_us", pa.time64("us"), [noon.time(), datetime.time(0, 0, 0), datetime.time(23, 59, 59, 999999)]),
        ("timestamp_us", pa.timestamp("us"), [noon.replace(microsecond=250001), old, datetime.datetime(1970, 1, 1)]),
        ("timestamp_utc", pa.timestamp("us", "UTC"), [noon.replace(microsecond=7, tzinfo=datetime.timezone.utc),
                                                      old.replace(tzinfo=datetime.timezone.utc), None]),
        ("list", pa.list_(pa.int64()), [[1, None, 3], [], [4]]),
        ("large_list", pa.large_list(pa.string()), [["a", None], [], ["b"]]),
        ("fixed_list", pa.list_(pa.int32(), 2), [[1, 2], [3, None], [5, 6]]),
        ("list_of_dictionary", pa.list_(pa.dictionary(pa.int32(), pa.string())), [["x", "y", "x"], [None], []]),
        ("struct", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
         [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": {"c": None}}, {"a": 2, "b": None}]),
        ("list_of_struct", pa.list_(pa.struct([("a", pa.int64())])), [[{"a": 1}, None, {"a": None}], [], [{"a": 2}]]),
        ("map", pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], [("é\"", 3)]]),
        ("null", pa.null(), [None, None, None]),
        ("json", pa.json_(), ['{"a": [1, null, "}\\""],\n "b": {}}', "[]", '"text"']),
    ]
    arrays, fields = [], []
    for name, kind, values in columns:
        fields.append(pa.field(name, kind))
        storage = pa.array(values + [None], kind.storage_type if name == "json" else kind)
        arrays.append(pa.ExtensionArray.from_storage(kind, storage) if name == "json" else storage)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def list_views():
    views = pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int64()))
    large = pa.array([["a"], [], None, ["b", None]], pa.large_list_view(pa.string()))
    return pa.table({"list_view": views, "large_list_view": large})


def documents(count):
    """Texts of some words, all different."""
    random.seed(7)
    words = "the sea of whales said Ahab under 1851 again".split()
    return pa.table({"text": [f"{i}: " + " ".join(random.choices(words, k=5 + i % 23)) for i in range(count)]})


def ids():
    return pa.table({
        "input_ids": pa.array([[(7 * i + j) % 96 for j in range(2 + i % 5)] for i in range(40)], pa.list_(pa.int32())),
        "labels": pa.array([None if i % 2 else [-100] + [(i + j) % 96 for j in range(1 + i % 5)] for i in range(40)],
                           pa.list_(pa.int64()))})


class PlainKeys(encryption.KmsClient):
    """Keys that are not wrapped."""

    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key_bytes, _):
        return key_bytes.hex()

    def unwrap_key(self, wrapped_key, _):
        return bytes.fromhex(wrapped_key)


def write_encrypted(folder, name, plain_footer):
    table = documents(3)
    factory = encryption.CryptoFactory(PlainKeys)
    settings = encryption.EncryptionConfiguration(footer_key="footer", column_keys={"column": ["text"]},
                                                  plaintext_footer=plain_footer)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    with pq.ParquetWriter(os.path.join(folder.path, name + ".parquet"), table.schema,
                          encryption_properties=properties) as writer:
        writer.write_table(table)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--golden", default=os.path.join(ROOT, "tests", "golden"))
    folder = Folder(os.path.join(parser.parse_args().golden, "parquet"))

    folder.write("chats", chats(), columns=["messages", "tools"], row_group_size=3, compression="zstd")
    users = pq.read_table(os.path.join(folder.path, "pandas_tools.parquet"))  # written by a user's pandas, and kept
    folder.write_lines("pandas_tools", users, ["messages", "tools"])
    folder.write("types", types(), row_group_size=3)
    folder.write("views", list_views())
    folder.write("texts", documents(300), row_group_size=50)
    folder.write("ids", ids(), row_group_size=16, data_page_version="2.0")
    folder.write("empty", documents(0), rows=False)
    for codec in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]:
        folder.write(f"codec_{codec}", documents(3), rows=False, compression=codec)

    # Snappy's number in the description of the column replaced by that of LZO, which Arrow does not read.
    snappy = folder.read("codec_snappy")
    before, after = b"\x19\x18\x04text\x15\x02", b"\x19\x18\x04text\x15\x06"
    assert snappy.count(before) == 1
    folder.write_bytes("codec_lzo", snappy.replace(before, after))

    write_encrypted(folder, "encrypted", plain_footer=False)
    write_encrypted(folder, "encrypted_columns", plain_footer=True)

    texts = [f"text {i}".encode() for i in range(5)]
    texts[3] = b"caf\xe9"
    folder.write("latin1", pa.table({"text": pa.array(texts, pa.binary())}), rows=False, row_group_size=2)
    weights = [[{"role": "user", "content": "a", "weight": None}, {"role": "assistant", "content": "b", "weight": w}]
               for w in (1.0, math.inf)]
    folder.write("infinite", pa.table({"messages": weights}), rows=False)
    folder.write("duration", pa.table({"text": pa.array([1, 2], pa.duration("s"))}), rows=False)
    folder.write("prompts", pa.table({"messages": [[{"role": "user", "content": "ab", "name": None}]],
                                      "answer_of": [None]}), rows=False)
    folder.write("several_forms", pa.table({"text": ["a", "b"], "prompt": ["c", None], "completion": ["d", None]}),
                 rows=False)


if __name__ == "__main__":
    main()
