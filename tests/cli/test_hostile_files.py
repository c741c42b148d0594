# SPDX-License-Identifier: Apache-2.0
"""Risk: a broken or hostile file crashes the reader, is half believed, or fails without saying what is wrong with it."""

import io
import json
import struct
import zipfile
import zlib

import pytest
from tensorfile import count, npy, pack, step, tensor

ONE = b"\x01\x02\x03\x04"


def header(**changes):
    """A header of one good tensor `a` of four bytes, with fields changed (None: left out)."""
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    entry.update(changes)
    return {"a": {key: value for key, value in entry.items() if value is not None}}


def length(value, rest=b"{}"):
    return struct.pack("<Q", value) + rest


def two(first, second, data):
    return pack({"a": {"dtype": "U8", "shape": [first[1] - first[0]], "data_offsets": first},
                 "b": {"dtype": "U8", "shape": [second[1] - second[0]], "data_offsets": second}}, data)


SAFETENSORS = {
    "empty file": (b"", "0 bytes"),
    "seven bytes": (b"1234567", "7 bytes"),
    "header length 0": (length(0), "does not begin with '{'"),
    "header length beyond the file": (length(1000), "header length of 1000 exceeds"),
    "header length one too long": (length(3), "header length of 3 exceeds the 2 bytes"),
    "header length 2^64 - 1": (length(2**64 - 1), "header length of 18446744073709551615 is above the limit"),
    "header length 2^63": (length(2**63), "is above the limit"),
    "not JSON": (pack("{nonsense"), "header, byte"),
    "JSON that ends early": (pack('{"a": {"dtype": "U8"'), "header, byte"),
    "JSON that is a list": (pack("[]"), "does not begin with '{'"),
    "text after the JSON": (pack('{} {"a":1}'), "header, byte"),
    "a trailing comma": (pack('{"a": 1,}'), "header, byte"),
    "not UTF-8": (struct.pack("<Q", 7) + b'{"\xff":1}', "decode byte 0xff"),
    "a NUL in a name": (pack('{"a\\u0000b": 1}'), "header, byte"),
    "deep nesting": (pack('{"a":' + "[" * 5000 + "]" * 5000 + "}"), "depth"),
    "the same name twice": (pack('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
                                 '"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', ONE), "duplicate"),
    "the same field twice": (pack('{"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}', ONE), "duplicate"),
    "an entry that is a number": (pack({"a": 7}), "entry is an integer"),
    "no dtype": (pack(header(dtype=None), ONE), "has no dtype"),
    "no shape": (pack(header(shape=None), ONE), "has no shape"),
    "no data_offsets": (pack(header(data_offsets=None), ONE), "has no data_offsets"),
    "an unknown field": (pack(header(extra=1), ONE), "fields beyond"),
    "dtype that is a number": (pack(header(dtype=8), ONE), "dtype is an integer"),
    "dtype with a line break": (pack(header(dtype="U8\n"), ONE), "not the name of a type"),
    "shape that is text": (pack(header(shape="4"), ONE), "shape is a string"),
    "a length that is a real": (pack('{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}', ONE), "shape[0] is a real"),
    "a length that is true": (pack(header(shape=[True]), ONE), "shape[0] is a boolean"),
    "a negative length": (pack(header(shape=[-4]), ONE), "shape[0] is -4"),
    "two negative lengths": (pack(header(shape=[-2, -2]), ONE), "cannot be negative"),
    "a length beyond 2^63": (pack('{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,4]}}', ONE), "big"),
    "lengths whose product wraps to 4": (pack(header(shape=[2**62, 4, 4, 2**62 + 1, 4]), ONE), "overflows"),
    "bytes that wrap to 4": (pack(header(dtype="F64", shape=[2**61, 2]), ONE), "overflows"),
    "17 dimensions": (pack(header(shape=[1] * 16 + [4]), ONE), "17 dimensions"),
    "shape too small for the data": (pack(header(shape=[3]), ONE), "needs 3 bytes"),
    "shape too large for the data": (pack(header(dtype="F32", shape=[4]), ONE), "needs 16 bytes"),
    "offsets that are one number": (pack(header(data_offsets=[4]), ONE), "two integers"),
    "offsets that are text": (pack(header(data_offsets=["0", "4"]), ONE), "two integers"),
    "offsets in the wrong order": (pack(header(data_offsets=[4, 0]), ONE), "out of order"),
    "a negative offset": (pack(header(data_offsets=[-4, 0]), ONE), "out of order"),
    "offsets past the end": (pack(header(shape=[8], data_offsets=[0, 8]), ONE), "end past the 4 bytes"),
    "offsets at 2^63 - 1": (pack(header(data_offsets=[2**63 - 5, 2**63 - 1]), ONE), "end past"),
    "tensors that overlap": (two([0, 3], [2, 5], b"12345"), "overlaps"),
    "tensors that are the same bytes": (two([0, 4], [0, 4], ONE), "overlaps"),
    "a hole between tensors": (two([0, 2], [3, 5], b"12345"), "belong to no tensor"),
    "a hole before the first": (pack(header(data_offsets=[1, 5]), b"x" + ONE), "belong to no tensor"),
    "bytes after the last": (pack(header(), ONE + b"xyz"), "3 bytes at the end"),
    "data that is cut off": (pack(header(), ONE[:3]), "end past the 3 bytes of data (is the file truncated?)"),
    "an odd number of 4-bit values": (pack(header(dtype="F4", shape=[7]), ONE), "not whole"),
    "metadata that is text": (pack('{"__metadata__": "x"}'), "__metadata__ is a string"),
    "metadata with a number": (pack('{"__metadata__": {"layers": 3}}'), "'layers' is an integer"),
    "an .npz under this name": (b"PK\3\4" + b"\0" * 40, "safetensors"),
}

GOOD = tensor("F32", [2, 3], range(6))


def described(text):
    return npy(GOOD, header=text)


NPY = {
    "empty file": (b"", "magic"),
    "the magic alone": (b"\x93NUMPY", "truncated"),
    "wrong magic": (b"\x92" + npy(GOOD)[1:], "magic"),
    "version 0": (b"\x93NUMPY\0\0" + npy(GOOD)[8:], "version 0.0"),
    "version 4": (b"\x93NUMPY\4\0" + npy(GOOD)[8:], "version 4.0"),
    "version 1.1": (b"\x93NUMPY\1\1" + npy(GOOD)[8:], "version 1.1"),
    "header longer than the file": (b"\x93NUMPY\1\0\xff\xff" + npy(GOOD)[10:], "header length of 65535 exceeds"),
    "header of 4 GiB": (b"\x93NUMPY\2\0\xff\xff\xff\xff" + b"x" * 64, "header length of 4294967295"),
    "not a dictionary": (described("[1, 2]"), "not a dictionary"),
    "a dictionary that ends early": (described("{'descr': '<f4', "), "not a dictionary"),
    "text after the dictionary": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} 1"), "text follows"),
    "no descr": (described("{'fortran_order': False, 'shape': (2, 3)}"), "lacks descr"),
    "no fortran_order": (described("{'descr': '<f4', 'shape': (2, 3)}"), "lacks fortran_order"),
    "no shape": (described("{'descr': '<f4', 'fortran_order': False}"), "lacks shape"),
    "an unknown key": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': 1}"), "unknown key 'x'"),
    "descr twice": (described("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"), "twice"),
    "Fortran order": (described("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}"), "Fortran order"),
    "fortran_order 0": (described("{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}"), "neither True nor False"),
    "big-endian": (described("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3)}"), "big-endian"),
    "bf16 of ml_dtypes": (described("{'descr': '<V2', 'fortran_order': False, 'shape': (2, 3)}"), "bf16"),
    "objects": (described("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}"), "'|O' is not supported"),
    "a structure": (described("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2, 3)}"), "structured"),
    "a shape that is a list": (described("{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}"), "not a tuple"),
    "a number in brackets": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (6)}"), "not a tuple"),
    "a negative length": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}"), "not a length"),
    "a length beyond 2^63": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}"), "2^63"),
    "a size that wraps": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}"),
                          "overflows"),
    "17 dimensions": (described("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 17 + ")}"), "more than the 16 dimensions"),
    "data that is cut off": (npy(GOOD)[:-1], "needs 24 bytes of data, found 23 (is the file truncated?)"),
    "bytes after the data": (npy(GOOD) + b"x", "needs 24 bytes of data, found 25"),
}


def archive(members, method=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return stream.getvalue()


def patched(content, old, new):
    assert content.count(old) >= 1 and len(old) == len(new)
    return content.replace(old, new)


def with_sizes(content, size):
    """Claims another unpacked size in the local and in the central header."""
    real = struct.pack("<I", len(npy(GOOD)))
    at = content.index(real, 22)
    content = content[:at] + struct.pack("<I", size) + content[at + 4:]
    central = content.index(b"PK\1\2")
    return content[:central + 24] + struct.pack("<I", size) + content[central + 28:]


def bad_crc():
    content = bytearray(archive([("q.npy", npy(GOOD))]))
    content[content.index(b"NUMPY") + 100] ^= 0x20
    return bytes(content)


def same_bytes_twice():
    """Nine central entries for one local one: what zip bombs are made of."""
    content = archive([("0.npy", npy(GOOD))])
    central, end = content.index(b"PK\1\2"), content.index(b"PK\5\6")
    entries = b"".join(content[central:end].replace(b"0.npy", b"%d.npy" % n) for n in range(9))
    record = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 9, 9, len(entries), central, 0)
    return content[:central] + entries + record


NPZ = {
    "empty file": (b"", "not a zip archive"),
    "not a zip archive": (b"PK\3\4 and nothing more", "not a zip archive"),
    "an archive that is cut off": (archive([("q.npy", npy(GOOD))])[:-30], "not a zip archive"),
    "a member that is text": (archive([("notes.txt", "hello")]), "'notes.txt' is not an .npy array"),
    "a folder": (archive([("q/", "")]), "'q/' is not an .npy array"),
    "a member that is cut off": (archive([("q.npy", npy(GOOD)[:-1])]), "member 'q.npy': F32 [2][3] needs 24 bytes"),
    "a member in Fortran order": (archive([("q.npy", NPY["Fortran order"][0])]), "Fortran order"),
    "a member of objects": (archive([("q.npy", NPY["objects"][0])]), "not supported"),
    "a wrong checksum": (bad_crc(), "member 'q.npy'"),
    "bzip2": (archive([("q.npy", npy(GOOD))], zipfile.ZIP_BZIP2), "compression method 12"),
    "LZMA": (archive([("q.npy", npy(GOOD))], zipfile.ZIP_LZMA), "compression method 14"),
    "a size of 4 GiB": (with_sizes(archive([("q.npy", npy(GOOD))], zipfile.ZIP_DEFLATED), 0xfffffffe), "cannot come out of"),
    "a size too small": (with_sizes(archive([("q.npy", npy(GOOD))], zipfile.ZIP_DEFLATED), 100), "member 'q.npy'"),
    "encrypted": (patched(archive([("q.npy", npy(GOOD))]), b"PK\1\2\x14\x03\x14\x00\x00\x00",
                          b"PK\1\2\x14\x03\x14\x00\x01\x00"), "encrypted"),
    "bytes that members share": (same_bytes_twice(), "more than the file has left"),
}


def twice():
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return archive([("q.npy", npy(GOOD)), ("q.npy", npy(GOOD))])


NPZ["a member twice"] = (twice(), "'q.npy' is twice")

TABLE = [(extension, what, content, words) for extension, cases in
         (("safetensors", SAFETENSORS), ("npy", NPY), ("npz", NPZ)) for what, (content, words) in cases.items()]


@pytest.mark.parametrize("extension,what,content,words", TABLE, ids=[f"{row[0]}: {row[1]}" for row in TABLE])
def test_refused(cli, extension, what, content, words):
    name = f"bad.{extension}"
    (cli.folder / name).write_bytes(content)
    done = cli("attend", name, "-o", "out.safetensors")
    assert done.status == 1
    assert done.err.startswith(f"treeattn attend: {name}: ") and words in done.err, done.err
    assert done.err.count("\n") == 1 and done.out == ""
    assert sorted(path.name for path in cli.folder.iterdir()) == [name]
    assert (cli.folder / name).read_bytes() == content


def test_every_prefix_of_a_file_is_refused(cli):
    """Cut anywhere, a file is never taken for a smaller one."""
    entry = tensor("F32", [1, 1, 8], range(8))
    whole = pack({name: {"dtype": "F32", "shape": [1, 1, 8], "data_offsets": [32 * n, 32 * n + 32]}
                  for n, name in enumerate("qkv")}, entry[2] * 3)
    for end in [*range(0, len(whole), 7), len(whole) - 1]:
        (cli.folder / "cut.safetensors").write_bytes(whole[:end])
        done = cli("attend", "cut.safetensors", "-o", "out.npz")
        assert done.status == 1, end
    (cli.folder / "cut.safetensors").write_bytes(whole)
    assert cli("attend", "cut.safetensors", "-o", "out.npz").status == 0


# ---- good files that do not fit together ----


def changed(**entries):
    made = step(heads=4, kv_heads=2)
    made.update(entries)
    return {name: entry for name, entry in made.items() if entry is not None}


def zeros(dtype, *shape):
    return tensor(dtype, shape, [0] * count(shape))


NAN, INF = float("nan"), float("inf")
MISFITS = {
    "no q": (changed(q=None), [], "no tensor 'q'"),
    "no k": (changed(k=None), [], "no tensor 'k'"),
    "no v": (changed(v=None), [], "no tensor 'v'"),
    "q of f16": (changed(q=zeros("F16", 4, 6, 8)), [], "'q': expected f32 [*][*][*], found f16 [4][6][8]"),
    "q of two dimensions": (changed(q=zeros("F32", 4, 48)), [], "found f32 [4][48]"),
    "k of i32": (changed(k=zeros("I32", 2, 40, 8)), [], "'k': expected f32, f16 or bf16 [*][*][8], found i32"),
    "k of a type only carried": (changed(k=("F8_E4M3", [2, 40, 8], bytes(640))), [], "found F8_E4M3"),
    "k of another dim": (changed(k=zeros("F32", 2, 40, 16)), [], "expected f32, f16 or bf16 [*][*][8]"),
    "v of another type": (changed(v=zeros("F16", 2, 40, 8)), [], "'v': expected f32 [2][40][*], found f16"),
    "v of another capacity": (changed(v=zeros("F32", 2, 41, 8)), [], "found f32 [2][41][8]"),
    "v of other heads": (changed(v=zeros("F32", 1, 40, 8)), [], "found f32 [1][40][8]"),
    "heads that do not divide": (changed(k=zeros("F32", 3, 40, 8), v=zeros("F32", 3, 40, 8)), [], "num_heads"),
    "no heads": (changed(q=zeros("F32", 0, 6, 8)), [], "num_heads"),
    "no KV heads": (changed(k=zeros("F32", 0, 40, 8), v=zeros("F32", 0, 40, 8)), [], "num_kv_heads"),
    "head dim 12": (changed(q=zeros("F32", 4, 6, 12), k=zeros("F32", 2, 40, 12), v=zeros("F32", 2, 40, 12)), [], "head_dim"),
    "head dim 1032": (changed(q=zeros("F32", 4, 1, 1032), k=zeros("F32", 2, 4, 1032), v=zeros("F32", 2, 4, 1032),
                              parents=zeros("I32", 1)), [], "head_dim"),
    "head dim 0": (changed(q=zeros("F32", 4, 6, 0), k=zeros("F32", 2, 40, 0), v=zeros("F32", 2, 40, 0)), [], "head_dim"),
    "parents of f32": (changed(parents=zeros("F32", 6)), [], "'parents'"),
    "parents of another length": (changed(parents=tensor("I32", [5], range(-1, 4))), [], "[6]"),
    "a parent out of order": (changed(parents=tensor("I32", [6], [-1, 0, 3, 0, 0, 0])), [], "parents[2] is 3"),
    "a parent that is itself": (changed(parents=tensor("I32", [6], [-1, 1, 0, 0, 0, 0])), [], "parents[1] is 1"),
    "a parent of -2": (changed(parents=tensor("I32", [6], [-1, 0, 0, -2, 0, 0])), [], "parents[3] is -2"),
    "a parent beyond i32": (changed(parents=tensor("I64", [6], [-1, 0, 2**32, 0, 0, 0])), [], "element 2 is 4294967296"),
    "parents and mask": (changed(mask=zeros("F32", 6, 40)), [], "only one of them"),
    "mask of i32": (changed(parents=None, mask=zeros("I32", 6, 40)), [], "'mask': expected f32, u8 or bool [6][*]"),
    "mask of other rows": (changed(parents=None, mask=zeros("F32", 5, 40)), [], "found f32 [5][40]"),
    "mask too narrow": (changed(parents=None, mask=zeros("F32", 6, 39)), [], "39 columns, fewer than the 40 slots"),
    "mask of no columns": (changed(parents=None, mask=zeros("F32", 6, 0)), [], "0 columns"),
    "NaN in the mask": (changed(parents=None, mask=tensor("F32", [6, 40], [0] * 239 + [NAN])), [], "mask"),
    "+inf in the mask": (changed(parents=None, mask=tensor("F32", [6, 40], [0] * 239 + [INF])), [], "mask"),
    "sinks of another length": (changed(sinks=zeros("F32", 5)), [], "'sinks'"),
    "NaN in the sinks": (changed(sinks=tensor("F32", [4], [0, 0, NAN, 0])), [], "sinks[2]"),
    "positions of another length": (changed(positions=zeros("I32", 5)), [], "'positions'"),
    "positions against the depths": (changed(positions=tensor("I32", [6], range(34, 40))), [], "positions[2]"),
    "kv-len beyond the capacity": (changed(), ["--kv-len", 41], "--kv-len 41 exceeds the 40 slots"),
    "kv-len below the nodes": (changed(), ["--kv-len", 5], "6 nodes, more than the 5 slots"),
    "prefix beyond the cache": (changed(), ["--prefix-len", 35], "--prefix-len 35 and 6 nodes exceed the 40 slots"),
    "prefix of 2^63 - 1": (changed(), ["--prefix-len", 2**63 - 1], "overflow"),
    "prefix against the mask": (changed(parents=None, mask=zeros("F32", 6, 40)), ["--prefix-len", 3, "--kv-len", 20],
                                "prefix_len"),
    "mask and prefix beyond the cache": (changed(parents=None, mask=zeros("F32", 6, 40)), ["--prefix-len", 35],
                                         "41 exceeds the 40 slots"),
    "mode fast": (changed(), ["--mode", "fast"], "fast"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_misfit(cli, what):
    import tensorfile
    tensors, options, words = MISFITS[what]
    tensorfile.write(cli.folder / "in.safetensors", tensors)
    done = cli("attend", "in.safetensors", "-o", "out.safetensors", *options)
    assert done.status == 1
    assert done.err.startswith("treeattn attend: ") and words in done.err, done.err
    assert done.err.count("\n") == 1 and done.out == ""
    assert sorted(path.name for path in cli.folder.iterdir()) == ["in.safetensors"]


def test_names_cannot_drive_the_terminal(cli):
    (cli.folder / "bad.safetensors").write_bytes(pack(json.dumps({"\x1b[31mred\nline": 7})))
    done = cli("attend", "bad.safetensors", "-o", "out.npz")
    assert done.status == 1 and "\x1b" not in done.err and done.err.count("\n") == 1 and "\\x1b[31mred\\nline" in done.err


def test_checksums_are_what_the_table_thinks():
    """The table's own archives are good before they are broken."""
    assert zipfile.ZipFile(io.BytesIO(archive([("q.npy", npy(GOOD))]))).testzip() is None
    assert zlib.crc32(b"") == 0
