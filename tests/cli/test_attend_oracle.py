# SPDX-License-Identifier: Apache-2.0
"""Risk: an option of `attend` means something else than its help says. Each is held against float64."""

import itertools
import random

import pytest
import tensorfile
from tensorfile import mask_of, noise, step, tensor

np = pytest.importorskip("numpy")

import oracle  # noqa: E402  needs NumPy

BOUND = 2e-6  # relative, while all scores are within 16
PARENTS = (-1, 0, 0, 1, 1, 2)
FOREST = (-1, -1, 0, 1, 1, 3)


def check(cli, tensors, sees, bias, *options, sinks=None, scale=None, softcap=0.0):
    found = cli.attend(tensors, *options)
    assert list(found) == ["out", "lse"]
    q, k, v = (oracle.decode(tensors[name]) for name in ("q", "k", "v"))
    out, lse = oracle.attend(q, k, v, sees, bias, scale, softcap, sinks)
    assert found["out"][0] == found["lse"][0] == "F32"
    assert oracle.distance(oracle.decode(found["out"]), out) <= BOUND
    assert oracle.distance(oracle.decode(found["lse"]), lse) <= BOUND


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("parents", [PARENTS, FOREST, None])
def test_tree(cli, dtype, parents):
    tree = parents if parents is not None else range(-1, 5)
    sees, bias = oracle.tree_visibility(tree, 34, 40, 0)
    check(cli, step(dtype=dtype, parents=parents, heads=6, kv_heads=2, dim=64), sees, bias)


@pytest.mark.parametrize("heads,kv_heads", [(1, 1), (3, 1), (10, 2), (12, 2), (14, 2), (5, 5)])
def test_grouped_heads(cli, heads, kv_heads):
    sees, bias = oracle.tree_visibility(PARENTS, 34, 40, 0)
    check(cli, step(heads=heads, kv_heads=kv_heads, dim=16), sees, bias)


@pytest.mark.parametrize("dim,dim_v", [(8, 8), (24, 16), (64, 128), (192, 128), (576, 512)])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_dims_of_k_and_v(cli, dim, dim_v, dtype):
    sees, bias = oracle.tree_visibility(PARENTS, 34, 40, 0)
    check(cli, step(dim=dim, dim_v=dim_v, dtype=dtype), sees, bias)


@pytest.mark.parametrize("prefix_len,kv_len", [(None, None), (0, None), (10, None), (None, 20), (10, 30), (None, 6), (34, 40)])
def test_lengths(cli, prefix_len, kv_len):
    options = []
    if prefix_len is not None:
        options += ["--prefix-len", prefix_len]
    if kv_len is not None:
        options += ["--kv-len", kv_len]
    length = 40 if kv_len is None else kv_len
    prefix = length - 6 if prefix_len is None else prefix_len
    sees, bias = oracle.tree_visibility(PARENTS, prefix, 40, 0)
    check(cli, step(), sees, bias, *options)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 10, 36, 37, 38, 2**31 - 1, 2**63 - 1])
@pytest.mark.parametrize("parents", [PARENTS, FOREST])
def test_window(cli, window, parents):
    sees, bias = oracle.tree_visibility(parents, 34, 40, window)
    check(cli, step(parents=parents), sees, bias, "--window", window)


@pytest.mark.parametrize("window", [1, 3, 8, 36])
def test_window_over_a_mask(cli, window):
    tensors = step(parents=None)
    tensors["mask"] = tensor("F32", [6, 40], mask_of(PARENTS, 40, 34))
    by_mask = oracle.mask_visibility(oracle.decode(tensors["mask"]), 40, window)
    by_tree = oracle.tree_visibility(PARENTS, 34, 40, window)
    assert np.array_equal(by_mask[0], by_tree[0])
    check(cli, tensors, *by_mask, "--window", window)


def test_positions_of_a_mask(cli):
    """A window written out in the mask hides ancestors, so that only `positions` can tell where a node stands."""
    sees, _ = oracle.tree_visibility(PARENTS, 34, 40, 2)
    tensors = step(parents=None)
    tensors["mask"] = tensor("F32", [6, 40], np.where(sees, 0.0, -65504.0).ravel())
    positions = [34 + depth for depth in oracle.depths(PARENTS)]
    tensors["positions"] = tensor("I64", [6], positions)
    check(cli, tensors, sees, np.zeros(sees.shape), "--window", 2)


@pytest.mark.parametrize("scale", [0.0, 0.5, -0.25, 1.0])
def test_scale(cli, scale):
    sees, bias = oracle.tree_visibility(PARENTS, 34, 40, 0)
    check(cli, step(), sees, bias, "--scale", scale, scale=scale)


@pytest.mark.parametrize("softcap", [0.0, 0.5, 2.0, 50.0])
def test_softcap(cli, softcap):
    sees, bias = oracle.tree_visibility(PARENTS, 34, 40, 0)
    check(cli, step(dim=32), sees, bias, "--softcap", softcap, "--scale", 1, softcap=softcap, scale=1.0)


@pytest.mark.parametrize("dtype", ["F32", "F64", "F16", "BF16"])
def test_sinks(cli, dtype):
    sinks = [1.5, -2.0, 0.25, 4.0]
    tensors = step(heads=4, kv_heads=2)
    tensors["sinks"] = tensor(dtype, [4], sinks)
    sees, bias = oracle.tree_visibility(PARENTS, 34, 40, 0)
    check(cli, tensors, sees, bias, sinks=sinks)


def test_bias(cli):
    cells = mask_of(PARENTS, 40, 34)
    cells = [cell if cell < -60000 else 4 * extra for cell, extra in zip(cells, tensorfile.rounded("F32", noise(9, 240)))]
    tensors = step(parents=None, heads=4, kv_heads=2, dim=16)
    tensors["mask"] = tensor("F32", [6, 40], cells)
    check(cli, tensors, *oracle.mask_visibility(oracle.decode(tensors["mask"]), 40, 0), "--softcap", 3, softcap=3.0)


@pytest.mark.parametrize("hidden", [-65504.0, -1e9, float("-inf")])
def test_row_that_sees_nothing(cli, hidden):
    cells = mask_of(PARENTS, 40, 34, hidden=hidden)
    cells[2 * 40:3 * 40] = [hidden] * 40
    tensors = step(parents=None)
    tensors["mask"] = tensor("F32", [6, 40], cells)
    tensors["sinks"] = tensor("F32", [2], [0.5, 0.5])
    sees, bias = oracle.mask_visibility(oracle.decode(tensors["mask"]), 40, 0)
    assert not sees[2].any()
    check(cli, tensors, sees, bias, sinks=[0.5, 0.5])


@pytest.mark.parametrize("dtype", ["BOOL", "U8"])
def test_bool_mask_with_a_wider_stride(cli, dtype):
    """Columns beyond the cache hold what hides nothing and what would be seen."""
    cells = [int(cell == 0.0) for cell in mask_of(PARENTS, 40, 34)]
    rows = [cells[40 * node:40 * (node + 1)] + [1] * 7 for node in range(6)]
    tensors = step(parents=None)
    tensors["mask"] = tensor(dtype, [6, 47], itertools.chain(*rows))
    check(cli, tensors, *oracle.tree_visibility(PARENTS, 34, 40, 0))


def test_more_rows_than_slots(cli):
    """Then the prefix is empty and the mask alone says what is seen."""
    rng = random.Random(5)
    cells = [float(rng.choice([0.0, -65504.0])) for _ in range(6 * 4)]
    tensors = step(parents=None, capacity=4)
    tensors["mask"] = tensor("F32", [6, 4], cells)
    check(cli, tensors, *oracle.mask_visibility(oracle.decode(tensors["mask"]), 4, 0))


def test_mask_with_prefix_len_alone(cli):
    tensors = step(parents=None)
    tensors["mask"] = tensor("F32", [6, 16], mask_of(PARENTS, 16, 10))
    check(cli, tensors, *oracle.tree_visibility(PARENTS, 10, 40, 0), "--prefix-len", 10)


def test_random_steps(cli):
    """All options at once, drawn at random; the seed stands in the failure."""
    seed = int(__import__("os").environ.get("TREEATTN_TEST_SEED", "20"))
    for case in range(seed, seed + 25):
        rng = random.Random(case)
        nodes = rng.randint(1, 20)
        parents = [rng.randint(-1, node - 1) if node else -1 for node in range(nodes)]
        kv_heads, ratio = rng.randint(1, 3), rng.randint(1, 4)
        capacity = nodes + rng.randint(0, 600)
        kv_len = rng.randint(nodes, capacity)
        prefix = kv_len - nodes
        window = rng.choice([0, 0, rng.randint(1, kv_len)])
        softcap = rng.choice([0.0, 5.0])
        sinks = rng.choice([None, [rng.uniform(-3, 3) for _ in range(kv_heads * ratio)]])
        tensors = step(kv_heads * ratio, kv_heads, nodes, capacity, 8 * rng.randint(1, 12), 8 * rng.randint(1, 12),
                       rng.choice(["F32", "F16", "BF16"]), parents, case)
        if sinks is not None:
            tensors["sinks"] = tensor("F32", [kv_heads * ratio], sinks)
            sinks = tensorfile.rounded("F32", sinks)
        sees, bias = oracle.tree_visibility(parents, prefix, capacity, window)
        try:
            check(cli, tensors, sees, bias, "--kv-len", kv_len, "--window", window, "--softcap", softcap, "--threads",
                  rng.randint(1, 3), sinks=sinks, softcap=softcap)
        except AssertionError as error:
            raise AssertionError(f"TREEATTN_TEST_SEED={case}: {error}") from error
