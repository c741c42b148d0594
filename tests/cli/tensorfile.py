# SPDX-License-Identifier: Apache-2.0
"""A small safetensors and .npy reader and writer of the tests' own, so that the program is not checked against itself.

A tensor is (type name as in safetensors, shape, bytes).
"""

import json
import struct

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
          "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b",
         "U64": "Q", "U32": "I", "U16": "H", "U8": "B", "BOOL": "?"}
DESCRS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
          "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"}


def count(shape):
    result = 1
    for length in shape:
        result *= length
    return result


def tensor(dtype, shape, values):
    """From numbers."""
    values = list(values)
    assert len(values) == count(shape), (len(values), shape)
    if dtype == "BF16":
        # Only for values that bf16 holds exactly.
        halves = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
        return dtype, list(shape), struct.pack(f"<{len(halves)}H", *halves)
    return dtype, list(shape), struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def values(entry):
    """To numbers."""
    dtype, shape, data = entry
    if dtype == "BF16":
        return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in struct.unpack(f"<{count(shape)}H", data)]
    return list(struct.unpack(f"<{count(shape)}{CODES[dtype]}", data))


def pack(header, data=b"", padded=True):
    """A safetensors file from a header (JSON as text or as an object) and its data."""
    text = header.encode() if isinstance(header, str) else json.dumps(header, separators=(",", ":")).encode()
    if padded:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write(path, tensors, metadata=None, padded=True):
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        assert len(content) == count(shape) * WIDTHS[dtype], (name, dtype, shape, len(content))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    path.write_bytes(pack(header, data, padded))


def parse(content):
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    metadata = header.pop("__metadata__", {})
    tensors = {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}
    return tensors, metadata


def read(path):
    return parse(path.read_bytes())[0]


def npy(entry, version=1, header=None):
    """An .npy file; `header` replaces the dictionary's text."""
    dtype, shape, content = entry
    if header is None:
        lengths = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        header = f"{{'descr': '{DESCRS[dtype]}', 'fortran_order': False, 'shape': ({lengths}), }}"
    start = 10 if version == 1 else 12
    text = header.encode()
    text += b" " * (-(start + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + content


def parse_npy(content):
    """The dictionary (as Python reads it) and the bytes that follow."""
    version = content[6]
    length = struct.unpack("<H", content[8:10])[0] if version == 1 else struct.unpack("<I", content[8:12])[0]
    start = 10 if version == 1 else 12
    header = eval(content[start:start + length].decode(), {"__builtins__": {}})  # the test's own program wrote it
    return header, content[start + length:]


# ---- a step to attend ----


def noise(seed, num):
    """Numbers in [-1, 1) that do not depend on any library."""
    result = []
    for index in range(num):
        x = (index * 2654435761 + seed * 2246822519) & 0xffffffff
        x ^= x >> 15
        x = x * 2246822519 & 0xffffffff
        x ^= x >> 13
        result.append((x >> 8) / 2.0**23 - 1.0)
    return result


def rounded(dtype, numbers):
    """The numbers as the type holds them (bf16 by cutting off)."""
    if dtype == "BF16":
        return [struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", x))[0] & 0xffff0000))[0]
                for x in numbers]
    return [struct.unpack("<" + CODES[dtype], struct.pack("<" + CODES[dtype], x))[0] for x in numbers]


def step(heads=2, kv_heads=1, nodes=6, capacity=40, dim=8, dim_v=None, dtype="F32", parents=(-1, 0, 0, 1, 1, 2), seed=1):
    """q, k, v and, unless None, parents."""
    dim_v = dim if dim_v is None else dim_v
    made = {
        "q": tensor("F32", [heads, nodes, dim], noise(seed, heads * nodes * dim)),
        "k": tensor(dtype, [kv_heads, capacity, dim], rounded(dtype, noise(seed + 1, kv_heads * capacity * dim))),
        "v": tensor(dtype, [kv_heads, capacity, dim_v], rounded(dtype, noise(seed + 2, kv_heads * capacity * dim_v))),
    }
    if parents is not None:
        made["parents"] = tensor("I32", [nodes], parents)
    return made


def mask_of(parents, columns, prefix, visible=0.0, hidden=-65504.0):
    """The dense mask of a tree whose node i is in column prefix + i."""
    rows = []
    for node in range(len(parents)):
        row = [visible] * prefix + [hidden] * (columns - prefix)
        at = node
        while at >= 0:
            row[prefix + at] = visible
            at = parents[at]
        rows += row
    return rows
