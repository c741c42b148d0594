# SPDX-License-Identifier: Apache-2.0
"""Risk: the same question put in another form, or to another number of threads, gets other bits."""

import json

import pytest
import tensorfile
from conftest import program
from tensorfile import mask_of, step, tensor

PARENTS = (-1, 0, 0, 1, 1, 2)


@pytest.fixture
def expected(cli):
    return cli.attend(step(heads=6, kv_heads=2, dim=64, capacity=700))


def same(found, expected):
    assert found == expected


def forms():
    hidden = mask_of(PARENTS, 700, 694)
    yield "parents as i64", {"parents": tensor("I64", [6], PARENTS)}
    yield "f32 mask", {"mask": tensor("F32", [6, 700], hidden)}
    yield "f32 mask of -inf", {"mask": tensor("F32", [6, 700], mask_of(PARENTS, 700, 694, hidden=float("-inf")))}
    yield "bool mask", {"mask": tensor("BOOL", [6, 700], [cell == 0.0 for cell in hidden])}
    yield "u8 mask", {"mask": tensor("U8", [6, 700], [7 * (cell == 0.0) for cell in hidden])}
    yield "parents with positions", {"parents": tensor("I32", [6], PARENTS),
                                     "positions": tensor("I32", [6], [694, 695, 695, 696, 696, 696])}


@pytest.mark.parametrize("name,extra", forms(), ids=[name for name, _ in forms()])
def test_forms_of_the_tree(cli, expected, name, extra):
    tensors = step(heads=6, kv_heads=2, dim=64, capacity=700, parents=None)
    same(cli.attend({**tensors, **extra}), expected)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads(cli, expected, threads):
    same(cli.attend(step(heads=6, kv_heads=2, dim=64, capacity=700), "--threads", threads), expected)


@pytest.mark.parametrize("isa", ["auto", "scalar", "avx2", "avx512", "neon"])
def test_isa(cli, expected, isa):
    """The same bits, or a refusal where the machine lacks it."""
    available = json.loads(cli("info", "--json").out)["isa"]["available"]
    if isa != "auto" and isa not in available:
        tensorfile.write(cli.folder / "in.safetensors", step())
        done = cli("attend", "in.safetensors", "-o", "other.safetensors", "--isa", isa)
        assert done.status == 1 and isa in done.err and "not available" in done.err
        assert not (cli.folder / "other.safetensors").exists()
        return
    same(cli.attend(step(heads=6, kv_heads=2, dim=64, capacity=700), "--isa", isa), expected)


def test_chain_without_parents(cli):
    chain = cli.attend(step(parents=range(-1, 5)))
    same(cli.attend(step(parents=None)), chain)


def test_poison_in_slots_that_are_not_data(cli):
    """Slots past kv-len and branches that a node does not see."""
    plain = step(capacity=60)
    poisoned = step(capacity=60)
    for name in ("k", "v"):
        dtype, shape, data = poisoned[name]
        data = bytearray(data)
        data[50 * 8 * 4:] = bytes([0xff]) * (10 * 8 * 4)
        poisoned[name] = (dtype, shape, bytes(data))
    same(cli.attend(poisoned, "--kv-len", 50), cli.attend(plain, "--kv-len", 50))


def test_layers(cli):
    """--layer takes that layer's tensors, and what all layers share without the prefix."""
    layers = [step(seed=seed) for seed in (1, 4)]
    both = {f"layer{n}.{name}": layers[n][name] for n in (0, 1) for name in ("q", "k", "v")}
    both["parents"] = layers[0]["parents"]
    both["sinks"] = tensor("F32", [2], [1.0, 2.0])
    both["layer1.sinks"] = tensor("F32", [2], [-1.0, 3.0])
    for n in (0, 1):
        alone = dict(layers[n], sinks=both["sinks"] if n == 0 else both["layer1.sinks"])
        same(cli.attend(both, "--layer", n), cli.attend(alone))


def test_layer_that_is_not_there(cli):
    tensorfile.write(cli.folder / "in.safetensors", {f"layer{n}.{name}": t for n in (3, 14) for name, t in step().items()})
    done = cli("attend", "in.safetensors", "-o", "out.npz")
    assert done.status == 1 and "no tensor 'q'" in done.err and "3, 14" in done.err and "--layer" in done.err
    done = cli("attend", "in.safetensors", "-o", "out.npz", "--layer", 7)
    assert done.status == 1 and "no tensor 'layer7.q'" in done.err and "3, 14" in done.err
    assert sorted(p.name for p in cli.folder.iterdir()) == ["in.safetensors"]


def test_tensors_in_files_of_their_own(cli, expected):
    tensors = step(heads=6, kv_heads=2, dim=64, capacity=700)
    options = []
    for name, entry in tensors.items():
        (cli.folder / f"x_{name}.npy").write_bytes(tensorfile.npy(entry))
        options += [f"--{name}", f"x_{name}.npy"]
    assert cli("attend", *options, "-o", "out.safetensors").status == 0
    same(tensorfile.read(cli.folder / "out.safetensors"), expected)
    assert cli("attend", *options, "-o", "out.npy").status == 0
    header, data = tensorfile.parse_npy((cli.folder / "out.npy").read_bytes())
    assert header == {"descr": "<f4", "fortran_order": False, "shape": (6, 6, 64)} and data == expected["out"][2]


def test_own_file_outweighs_the_common_one(cli, expected):
    tensors = step(heads=6, kv_heads=2, dim=64, capacity=700, parents=range(-1, 5))
    tensorfile.write(cli.folder / "in.safetensors", tensors)
    (cli.folder / "m.npy").write_bytes(tensorfile.npy(tensor("F32", [6, 700], mask_of(PARENTS, 700, 694))))
    assert cli("attend", "in.safetensors", "--mask", "m.npy", "-o", "out.safetensors").status == 0
    same(tensorfile.read(cli.folder / "out.safetensors"), expected)


def test_data_that_is_not_aligned(cli, expected):
    """A header of odd length puts every element across word edges."""
    tensors = step(heads=6, kv_heads=2, dim=64, capacity=700)
    for extra in range(4):
        tensorfile.write(cli.folder / "odd.safetensors", tensors, {"pad": "x" * extra}, padded=False)
        assert cli("attend", "odd.safetensors", "-o", "out.safetensors").status == 0
        same(tensorfile.read(cli.folder / "out.safetensors"), expected)


def test_from_a_pipe(cli, expected):
    import subprocess
    tensorfile.write(cli.folder / "in.safetensors", step(heads=6, kv_heads=2, dim=64, capacity=700))
    done = subprocess.run([cli.path, "attend", "/dev/stdin", "-o", "out.safetensors"], cwd=cli.folder, check=False,
                          input=(cli.folder / "in.safetensors").read_bytes(), capture_output=True)
    assert done.returncode == 0, done.stderr
    same(tensorfile.read(cli.folder / "out.safetensors"), expected)


@pytest.mark.parametrize("nodes,heads", [(0, 2), (1, 1)])
def test_few_nodes(cli, nodes, heads):
    found = cli.attend(step(nodes=nodes, heads=heads, parents=[-1] * nodes))
    assert found["out"][1] == [nodes, heads, 8] and found["lse"][1] == [nodes, heads]


def test_verbose_speaks_on_stderr_only(cli):
    tensorfile.write(cli.folder / "in.safetensors", step())
    done = cli("attend", "in.safetensors", "-o", "out.npz", "-v")
    assert done.status == 0 and done.out == "" and "6 nodes" in done.err and "ms" in done.err


def test_program_is_named():
    assert program() is not None
