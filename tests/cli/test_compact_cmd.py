# SPDX-License-Identifier: Apache-2.0
"""`treeattn compact`: only the destination rows of the cache tensors change, and every other byte of the file stays."""

import json
import os
import struct
import subprocess

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from conftest import program

SAFETENSORS_NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(np.int8): "I8",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
}


def write_safetensors(path, tensors, metadata=None, gap_after_header=3):
    """By hand, so that order of header, order of data and padding are this test's choice and not a library's."""
    header = {}
    data = b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, tensor in tensors:
        raw = tensor.tobytes()
        header[name] = {
            "dtype": SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header, indent=1).encode() + b" " * gap_after_header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return 8 + len(text)


def compact(*arguments):
    done = subprocess.run([program(), "compact", *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env=dict(os.environ, LC_ALL="C"))
    # A sanitizer's report or a crash is never what a test expects, whatever status it comes with.
    assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr and done.returncode >= 0, done.stderr
    return done


def fails(code, *arguments, words):
    result = compact(*arguments)
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("treeattn compact: "), result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def random_tensor(rng, shape, dtype):
    """Any bytes, NaNs of all kinds included: rows must move as bytes."""
    raw = rng.integers(0, 256, size=int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


def moved(tensor, prefix_len, path):
    result = tensor.copy()
    for i, node in enumerate(path):
        result[:, prefix_len + i] = tensor[:, prefix_len + node]
    return result


def moved_paged(tensor, table, prefix_len, path):
    page_size = tensor.shape[2]
    place = lambda slot: (table[slot // page_size], slice(None), slot % page_size)
    result = tensor.copy()
    for i, node in enumerate(path):
        result[place(prefix_len + i)] = tensor[place(prefix_len + node)]
    return result


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8])
@pytest.mark.parametrize("path", [[0, 2, 5], [0, 1, 2], [5, 0, 2], [1, 0], [3], [7, 6, 5, 4, 3, 2, 1, 0]])
def test_contiguous(tmp_path, dtype, path):
    rng = np.random.default_rng([len(path), path[0]])
    k, v = random_tensor(rng, (3, 20, 24), dtype), random_tensor(rng, (3, 20, 16), dtype)
    write_safetensors(tmp_path / "in.safetensors", [("k", k), ("v", v)])
    before = (tmp_path / "in.safetensors").read_bytes()
    result = compact(tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--prefix-len", 9, "--path",
                     ",".join(map(str, path)))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    after = (tmp_path / "out.safetensors").read_bytes()
    assert len(after) == len(before)
    header = len(before) - k.nbytes - v.nbytes
    assert after == before[:header] + moved(k, 9, path).tobytes() + moved(v, 9, path).tobytes()
    assert (tmp_path / "in.safetensors").read_bytes() == before


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("page_size", [1, 2, 4, 5])
def test_paged(tmp_path, page_size, from_file):
    rng = np.random.default_rng(page_size)
    table = rng.permutation(9)[:7].astype(np.int64)
    prefix_len, path = 2 * page_size - 1, [3, 0, 1, 4]
    k, v = (random_tensor(rng, (9, 2, page_size, 8), np.float16) for _ in range(2))
    tensors = [("layer3.v", v), ("layer3.k", k)]
    arguments = ["--page-table", ",".join(map(str, table))]
    if from_file:
        tensors.insert(1, ("page_table", np.append(table, -1)))
        arguments = []
    write_safetensors(tmp_path / "in.safetensors", tensors)
    result = compact(tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--prefix-len", prefix_len,
                     "--path", "3,0,1,4", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    out = load_file(tmp_path / "out.safetensors")
    assert same_bytes(out["layer3.k"], moved_paged(k, table, prefix_len, path))
    assert same_bytes(out["layer3.v"], moved_paged(v, table, prefix_len, path))


def test_option_goes_before_the_tensor(tmp_path):
    rng = np.random.default_rng(1)
    k = random_tensor(rng, (3, 1, 4, 8), np.float32)
    write_safetensors(tmp_path / "in.safetensors", [("k", k), ("page_table", np.array([0, 1, 2], np.int32))])
    result = compact(tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--prefix-len", 2, "--path", "0,3",
                     "--page-table", "2,0")
    assert (result.returncode, result.stderr) == (0, "")
    out = load_file(tmp_path / "out.safetensors")
    assert same_bytes(out["k"], moved_paged(k, [2, 0], 2, [0, 3]))


def test_everything_else_stays(tmp_path):
    """Names that only look like a cache's, metadata in an odd order, and the header's own spelling."""
    rng = np.random.default_rng(2)
    tensors = [
        ("parents", np.array([-1, 0, 0, 1, 1, 2], np.int32)),
        ("layer10.k", random_tensor(rng, (2, 12, 8), np.float16)),
        ("layer.k", random_tensor(rng, (2, 12, 8), np.float16)),
        ("layer2.q", random_tensor(rng, (4, 6, 8), np.float32)),
        ("layer2x.v", random_tensor(rng, (2, 12, 8), np.float16)),
        ("kk", random_tensor(rng, (2, 12, 8), np.float16)),
        ("layer10.v", random_tensor(rng, (2, 12, 4), np.float16)),
        ("k", random_tensor(rng, (1, 12, 3), np.float32)),
        ("K", random_tensor(rng, (1, 12, 3), np.float32)),
    ]
    metadata = {"zeta": "1", "alpha": "\u00fc \" \\ /", "greedy_path": "[0, 2, 5]"}
    offset = write_safetensors(tmp_path / "in.safetensors", tensors, metadata)
    expected = bytearray((tmp_path / "in.safetensors").read_bytes())
    for name, tensor in tensors:
        raw = moved(tensor, 5, [0, 2, 5]).tobytes() if name in ("k", "layer10.k", "layer10.v") else tensor.tobytes()
        expected[offset : offset + len(raw)] = raw
        offset += len(raw)
    result = compact(tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--prefix-len", 5, "--path", "0,2,5")
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "out.safetensors").read_bytes() == bytes(expected)


def test_in_place_and_verbose(tmp_path):
    rng = np.random.default_rng(3)
    k = random_tensor(rng, (2, 8, 8), np.float32)
    file = tmp_path / "cache.safetensors"
    write_safetensors(file, [("k", k)])
    result = compact(file, "-o", file, "--prefix-len", 2, "--path", "0,2,3", "--verbose")
    assert result.returncode == 0
    assert "tensors: 1, rows moved in each head: 2, moves: 1; tokens 0 to 4 are in place" in result.stderr
    assert same_bytes(load_file(file)["k"], moved(k, 2, [0, 2, 3]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache.safetensors"]


def test_scales_move_too(tmp_path):
    rng = np.random.default_rng(4)
    k, scale = random_tensor(rng, (2, 8, 8), np.int8), random_tensor(rng, (2, 8), np.float32)
    write_safetensors(tmp_path / "in.safetensors", [("k", k), ("k_scale", scale)])
    result = compact(tmp_path / "in.safetensors", "-o", tmp_path / "out.safetensors", "--prefix-len", 2, "--path", "1,4",
                     "--tensor", "k_scale")
    assert (result.returncode, result.stderr) == (0, "")
    out = load_file(tmp_path / "out.safetensors")
    assert same_bytes(out["k"], moved(k, 2, [1, 4]))
    assert same_bytes(out["k_scale"], moved(scale, 2, [1, 4]))


def test_npz(tmp_path):
    rng = np.random.default_rng(5)
    k, v = random_tensor(rng, (2, 8, 8), np.float16), random_tensor(rng, (2, 8, 4), np.float16)
    other = np.arange(7)
    np.savez(tmp_path / "in.npz", k=k, other=other, v=v)
    result = compact(tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--prefix-len", 3, "--path", "2,1")
    assert (result.returncode, result.stderr) == (0, "")
    with np.load(tmp_path / "out.npz") as out:
        assert list(out) == ["k", "other", "v"]
        assert same_bytes(out["k"], moved(k, 3, [2, 1]))
        assert same_bytes(out["v"], moved(v, 3, [2, 1]))
        assert same_bytes(out["other"], other)


def test_real_capture(tmp_path):
    """The repository's own capture, along the greedy path that its metadata states."""
    folder = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "data")
    captures = [name for name in sorted(os.listdir(folder)) if name.endswith(".safetensors")]
    assert captures
    for name in captures:
        source = os.path.join(folder, name)
        with open(source, "rb") as stream:
            header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        path = json.loads(header["__metadata__"]["greedy_path"])
        before = load_file(source)
        prefix_len = int(before["positions"][0])
        result = compact(source, "-o", tmp_path / name, "--prefix-len", prefix_len, "--path", ",".join(map(str, path)))
        assert (result.returncode, result.stderr) == (0, "")
        after = load_file(tmp_path / name)
        assert list(before) == list(after)
        num_moved = 0
        for key, tensor in before.items():
            if key.endswith((".k", ".v")):
                assert same_bytes(after[key], moved(tensor, prefix_len, path))
                num_moved += 1
            else:
                assert same_bytes(after[key], tensor)
        assert num_moved >= 2


@pytest.fixture
def cache(tmp_path):
    rng = np.random.default_rng(6)
    file = tmp_path / "in.safetensors"
    write_safetensors(file, [("k", random_tensor(rng, (2, 8, 8), np.float32)), ("parents", np.full(5, -1, np.int32)),
                             ("paged", random_tensor(rng, (2, 9, 2, 8), np.float32))])
    return file


def test_refusals(tmp_path, cache):
    out = tmp_path / "out.safetensors"
    good = [cache, "-o", out, "--prefix-len", 2]
    fails(1, *good, "--path", "0,5", words=["node 5", "5 of 'parents'"])
    fails(1, *good, "--path", "0,3,3", words=["path[2] is 3", "path[1]"])
    fails(1, cache, "-o", out, "--prefix-len", 5, "--path", "0,3", words=["node 3", "8 slots", "5"])
    fails(1, cache, "-o", out, "--prefix-len", 2**63 - 1, "--path", "0", words=["8 slots"])
    fails(1, *good, "--path", "0,1", "--page-table", "0", words=["'k'", "3 dimensions", "pages has 4"])
    fails(1, *good, "--path", "0,1", "--tensor", "none", words=["no tensor 'none'"])
    fails(1, *good, "--path", "0,1", "--tensor", "paged", words=["'k'", "'paged'"])
    fails(2, *good, words=["--path is needed", "--help"])
    fails(2, cache, "-o", out, "--path", "0", words=["--prefix-len is needed"])
    fails(2, cache, "--prefix-len", 2, "--path", "0", words=["-o FILE"])
    fails(2, "-o", out, "--prefix-len", 2, "--path", "0", words=["one input file"])
    for bad in ["", "0,", "0,-1", "a", "0,,1", "1e0", "4294967296"]:
        fails(2, *good, "--path", bad, words=["--path"])
    fails(2, *good, "--path", "0", "--page-table", "0,x", words=["--page-table"])
    fails(2, cache, "-o", tmp_path / "out.txt", "--prefix-len", 2, "--path", "0", words=["out.txt"])
    fails(1, cache, "-o", tmp_path / "out.npz", "--prefix-len", 2, "--path", "0", words=["format"])
    fails(1, tmp_path / "none.safetensors", "-o", out, "--prefix-len", 2, "--path", "0", words=["none.safetensors"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.safetensors"]


def test_bad_pages(tmp_path):
    rng = np.random.default_rng(7)
    file, out = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    write_safetensors(file, [("k", random_tensor(rng, (4, 2, 4, 8), np.float32))])
    good = [file, "-o", out, "--prefix-len", 2]
    fails(1, *good, "--path", "0,3", words=["'k'", "4 dimensions", "without a page table has 3"])
    fails(1, *good, "--path", "0,3", "--page-table", "0,4", words=["page_table[1] is 4", "num_pages (4)"])
    fails(1, *good, "--path", "0,3", "--page-table", "1,1", words=["page 1 twice"])
    fails(1, *good, "--path", "0,3", "--page-table", "1", words=["node 3", "4 slots"])
    assert not out.exists()
    write_safetensors(file, [("k", random_tensor(rng, (4, 2, 4, 8), np.float32)),
                             ("v", random_tensor(rng, (4, 2, 5, 8), np.float32))])
    fails(1, *good, "--path", "0,3", "--page-table", "1,2", words=["'v'", "of 5 slots", "'k'"])
    write_safetensors(file, [("x", random_tensor(rng, (4, 2, 4), np.float32))])
    fails(1, *good, "--path", "0,3", words=["no tensor 'k'"])


def test_help():
    result = compact("--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: treeattn compact ")
    assert all(len(line) <= 100 for line in result.stdout.splitlines())
