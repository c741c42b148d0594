# SPDX-License-Identifier: Apache-2.0
"""Risk: files are not what NumPy, safetensors and ml_dtypes read and write."""

import itertools
import zipfile

import pytest
import tensorfile
from tensorfile import step

np = pytest.importorskip("numpy")

import oracle  # noqa: E402  needs NumPy


def arrays(tensors):
    return {name: oracle.decode(entry) for name, entry in tensors.items()}


@pytest.mark.parametrize("source,target", itertools.product(["safetensors", "npz"], ["safetensors", "npz", "npy"]))
def test_every_format_gives_the_same(cli, source, target):
    tensors = step(dtype="F16", heads=4, kv_heads=2)
    expected = arrays(cli.attend(tensors))
    if source == "npz":
        np.savez(cli.folder / "in.npz", **arrays(tensors))
    assert cli("attend", f"in.{source}", "-o", f"file.{target}").status == 0
    if target == "safetensors":
        found = arrays(tensorfile.read(cli.folder / "file.safetensors"))
    elif target == "npz":
        with np.load(cli.folder / "file.npz", allow_pickle=False) as loaded:
            found = dict(loaded)
    else:
        found = {"out": np.load(cli.folder / "file.npy", allow_pickle=False)}
        expected = {"out": expected["out"]}
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == np.float32 and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_compressed_npz(cli):
    tensors = step()
    expected = cli.attend(tensors)
    np.savez_compressed(cli.folder / "in.npz", **arrays(tensors))
    assert cli("attend", "in.npz", "-o", "out.safetensors").status == 0
    assert tensorfile.read(cli.folder / "out.safetensors") == expected


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(cli, version):
    tensors = step(parents=None)
    expected = cli.attend(tensors)
    for name, array in arrays(tensors).items():
        with open(cli.folder / f"{name}.npy", "wb") as file:
            np.lib.format.write_array(file, array, version=version)
    assert cli("attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "-o", "out.safetensors").status == 0
    assert tensorfile.read(cli.folder / "out.safetensors") == expected


def test_files_without_a_telling_name(cli):
    """Then the first bytes tell the format."""
    tensors = step()
    expected = cli.attend(tensors)
    np.savez(cli.folder / "in.npz", **arrays(tensors))
    (cli.folder / "in.npz").rename(cli.folder / "some.bin")
    (cli.folder / "in.safetensors").rename(cli.folder / "other")
    for name in ("some.bin", "other"):
        assert cli("attend", name, "-o", "out.safetensors").status == 0
        assert tensorfile.read(cli.folder / "out.safetensors") == expected


def test_npz_is_a_good_archive(cli):
    tensorfile.write(cli.folder / "in.safetensors", step())
    assert cli("attend", "in.safetensors", "-o", "out.npz").status == 0
    with zipfile.ZipFile(cli.folder / "out.npz") as packed:
        assert packed.testzip() is None and packed.namelist() == ["out.npy", "lse.npy"]
        assert {info.compress_type for info in packed.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_safetensors_package_reads_what_is_written(cli):
    library = pytest.importorskip("safetensors.numpy")
    tensors = step(nodes=6, dim_v=24)
    expected = arrays(cli.attend(tensors))
    found = library.load_file(cli.folder / "out.safetensors")
    assert sorted(found) == ["lse", "out"]
    for name in found:
        assert found[name].dtype == np.float32 and found[name].tobytes() == expected[name].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_files_of_the_safetensors_package(cli, dtype):
    library = pytest.importorskip("safetensors.numpy")
    kind = getattr(pytest.importorskip("ml_dtypes"), dtype) if dtype == "bfloat16" else dtype
    rng = np.random.default_rng(3)
    q = rng.standard_normal((4, 6, 64)).astype(np.float32)
    k, v = (rng.standard_normal((2, 90, 64)).astype(kind) for _ in range(2))
    parents = np.array([-1, 0, 0, 1, 1, 2], np.int64)
    library.save_file({"q": q, "k": k, "v": v, "parents": parents}, cli.folder / "in.safetensors", {"made": "by a test"})
    assert cli("attend", "in.safetensors", "-o", "out.safetensors").status == 0
    found = library.load_file(cli.folder / "out.safetensors")
    sees, bias = oracle.tree_visibility(parents, 84, 90, 0)
    out, lse = oracle.attend(q, k, v, sees, bias)
    assert oracle.distance(found["out"], out) <= 2e-6 and oracle.distance(found["lse"], lse) <= 2e-6


def test_bf16_in_npy_is_refused_in_words(cli):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    tensors = arrays(step())
    tensors["k"], tensors["v"] = tensors["k"].astype(bfloat16), tensors["v"].astype(bfloat16)
    np.savez(cli.folder / "in.npz", **tensors)
    done = cli("attend", "in.npz", "-o", "out.npz")
    assert done.status == 1 and "bf16 has no .npy type" in done.err and "safetensors" in done.err


def test_numpy_layouts(cli):
    """Scalars, empty arrays and Fortran order, as NumPy writes them."""
    tensors = arrays(step())
    np.savez(cli.folder / "in.npz", **tensors, scalar=np.float64(3), empty=np.zeros((0, 7), np.uint16))
    assert cli("attend", "in.npz", "-o", "out.npz").status == 0
    np.savez(cli.folder / "in.npz", **{**tensors, "q": np.asfortranarray(tensors["q"])})
    done = cli("attend", "in.npz", "-o", "out.npz")
    assert done.status == 1 and "member 'q.npy'" in done.err and "Fortran order" in done.err


def test_real_capture(cli):
    """Every layer of the example's real step, against float64."""
    from conftest import ROOT
    path = ROOT / "examples" / "data" / "code.safetensors"
    if not path.exists():
        pytest.skip("examples/data/code.safetensors is not here")
    tensors, metadata = tensorfile.parse(path.read_bytes())
    parents = oracle.decode(tensors["parents"])
    layers = sorted({name.split(".")[0] for name in tensors if name.startswith("layer")})
    assert layers
    for layer in layers:
        assert cli("attend", path, "--layer", layer.removeprefix("layer"), "-o", "out.safetensors").status == 0
        found = tensorfile.read(cli.folder / "out.safetensors")
        q, k, v = (oracle.decode(tensors[f"{layer}.{name}"]) for name in ("q", "k", "v"))
        sees, bias = oracle.tree_visibility(parents, int(metadata["prefix_len"]), k.shape[1], 0)
        out, lse = oracle.attend(q, k, v, sees, bias)
        # Scores reach 37 here: the bound grows as their magnitude times 2^-23 beyond 16.
        bound = max(2e-6, 37 * 2.0**-23)
        assert oracle.distance(oracle.decode(found["out"]), out) <= bound
        assert oracle.distance(oracle.decode(found["lse"]), lse) <= bound
