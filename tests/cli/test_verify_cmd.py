# SPDX-License-Identifier: Apache-2.0
"""`treeattn verify`: the walk of a readable reference in exact fractions, on every kind of input, and clear refusals."""

import json
import math
import random
from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
import tensorfile
from conftest import ROOT
from tensorfile import tensor
from test_allocation import fail_each

CAPTURE = ROOT / "examples" / "data" / "code.safetensors"
METHODS = ["target-only", "residual", "without-replacement"]


# ---- the reference ----

def norm(weights):
    total = sum(weights)
    return [weight / total for weight in weights]


def reference(method, parents, tokens, probs, drafts, uniforms):
    """Path and tokens, everything in fractions."""
    coins = iter(uniforms)
    node, path, out = 0, [0], []
    while True:
        p = norm(probs[node])
        q = list(drafts[node])
        for child in [i for i in range(len(parents)) if parents[i] == node]:
            x = tokens[child]
            drawn = method != "target-only" and q[x] > 0
            a = min(1, p[x] / norm(q)[x]) if drawn else p[x]
            if next(coins) < a:
                path.append(child)
                out.append(x)
                node = child
                break
            p = [max(pt - qt, 0) for pt, qt in zip(p, norm(q))] if drawn else p[:x] + [Fraction(0)] + p[x + 1:]
            p = norm(p)
            if drawn and method == "without-replacement":
                q[x] = Fraction(0)
        else:
            u, total = next(coins), Fraction(0)
            for t, pt in enumerate(p):
                total += pt
                if u < total:
                    return path, out + [t]


# ---- helpers ----

def step(parents, tokens, **rows):
    """Tensors of a step. Rows are lists of lists and become f32, argmax and uniforms as their kind says."""
    tensors = {"parents": tensor("I32", [len(parents)], parents), "tokens": tensor("I32", [len(tokens)], tokens)}
    for name, value in rows.items():
        if name == "argmax":
            tensors[name] = tensor("I32", [len(value)], value)
        elif value and isinstance(value[0], (list, tuple)):
            tensors[name] = tensor("F32", [len(value), len(value[0])], [float(x) for row in value for x in row])
        else:
            tensors[name] = tensor("F32", [len(value)], [float(x) for x in value])
    return tensors


def verify(cli, tensors, *options):
    tensorfile.write(cli.folder / "in.safetensors", tensors)
    done = cli("verify", "in.safetensors", *options)
    assert done.status == 0 and done.err == "", done.err
    return [json.loads(line) for line in done.out.splitlines()]


def refuses(cli, tensors, *options, words, status=1):
    tensorfile.write(cli.folder / "in.safetensors", tensors)
    done = cli("verify", "in.safetensors", *options)
    assert done.status == status, (done.status, done.err)
    assert done.out == "" and done.err.startswith("treeattn verify: "), done.err
    for word in words:
        assert word in done.err, (word, done.err)


def random_row(rng, vocabulary):
    """Powers of two and zeros that add up to a power of two: sums in double are exact."""
    row = [Fraction(rng.choice([0, 1, 1, 2, 4])) for _ in range(vocabulary)]
    row[rng.randrange(vocabulary)] += 1
    total = sum(row)
    row[rng.randrange(vocabulary)] += 2 ** math.ceil(math.log2(total)) - total
    return row


# ---- greedy ----

def test_capture_gives_the_path_in_its_metadata(cli):
    content = CAPTURE.read_bytes()
    metadata = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    done = cli("verify", CAPTURE, "--method", "greedy")
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert result["path"] == json.loads(metadata["greedy_path"])
    assert result["tokens"][-1] == int(metadata["bonus_token"])
    assert list(result) == ["path", "tokens"] and len(result["tokens"]) == len(result["path"])


@pytest.mark.parametrize("source", ["argmax", "F32", "F16", "BF16", "F64", "probs"])
def test_greedy_from_every_source(cli, source):
    parents, tokens = [-1, 0, 0, 2, 3, 2], [9, 4, 3, 1, 7, 2]
    expected = [3, 0, 1, 7, 5, 0]
    if source == "argmax":
        tensors = step(parents, tokens, argmax=expected)
    else:
        rows = [[1.0 + (t == top) for t in range(10)] for top in expected]
        tensors = step(parents, tokens)
        dtype = "F32" if source == "probs" else source
        tensors["probs" if source == "probs" else "logits"] = tensor(dtype, [6, 10], [x for row in rows for x in row])
    assert verify(cli, tensors) == [{"path": [0, 2, 3, 4], "tokens": [3, 1, 7, 5]}]


def test_integer_tensors_of_other_types(cli):
    tensors = {"parents": tensor("I64", [2], [-1, 0]), "tokens": tensor("U16", [2], [0, 6]),
               "argmax": tensor("I64", [2], [6, 7])}
    assert verify(cli, tensors) == [{"path": [0, 1], "tokens": [6, 7]}]


def test_ties_one_node_and_no_node(cli):
    tie = [[0, 1, 9, 1, 1, 9, 1, 0]]
    assert verify(cli, step([-1], [0], logits=tie)) == [{"path": [0], "tokens": [2]}]
    assert verify(cli, step([], [], argmax=[])) == [{"path": [], "tokens": []}]


@pytest.mark.parametrize("method", METHODS + ["typical"])
def test_temperature_0_is_greedy_without_uniforms(cli, method):
    rng = random.Random(4)
    for _ in range(10):
        count = rng.randrange(1, 12)
        parents = [-1] + [rng.randrange(i) for i in range(1, count)]
        tokens = [rng.randrange(3) for _ in range(count)]
        logits = [[rng.randrange(-4, 5) for _ in range(3)] for _ in range(count)]
        tensors = step(parents, tokens, logits=logits)
        assert verify(cli, tensors, "-m", method, "-t", "0") == verify(cli, tensors, "-m", "greedy")


# ---- the methods that draw ----

@pytest.mark.parametrize("method", METHODS)
def test_walks_equal_the_reference(cli, method):
    rng = random.Random(11)
    for trial in range(25):
        count, vocabulary = rng.randrange(1, 10), rng.randrange(1, 6)
        parents = [-1] + [rng.randrange(-1, i) for i in range(1, count)]
        tokens = [rng.randrange(vocabulary) for _ in range(count)]
        probs = [random_row(rng, vocabulary) for _ in range(count)]
        drafts = [random_row(rng, vocabulary) if rng.random() < 0.9 else [Fraction(0)] * vocabulary for _ in range(count)]
        uniforms = [[Fraction(rng.randrange(2 ** 24), 2 ** 24) for _ in range(count + 1)] for _ in range(40)]
        tensors = step(parents, tokens, probs=probs, draft_probs=drafts, uniforms=uniforms)
        results = verify(cli, tensors, "--method", method)
        assert len(results) == 40
        for row, result in zip(uniforms, results):
            path, out = reference(method, parents, tokens, probs, drafts, row)
            assert (result["path"], result["tokens"]) == (path, out), (trial, row)


def test_law_over_a_grid_of_uniforms(cli):
    """Each coin visits the middles of 8 equal cells, so that counts are exactly the law's multiples of 1/8."""
    p, q = [2, 2, 4], [4, 2, 2]
    cells = [Fraction(2 * k + 1, 16) for k in range(8)]
    grid = [list(coins) for coins in product(cells, repeat=2)]
    law = Counter()
    for x, weight in enumerate(q):
        tensors = step([-1, 0], [0, x], probs=[p, p], draft_probs=[q, q], uniforms=grid)
        for result in verify(cli, tensors, "-m", "residual"):
            law[result["tokens"][0]] += weight
    assert [law[t] for t in range(3)] == [64 * weight for weight in p]


def test_explanation(cli):
    tensors = step([-1, 0, 0], [0, 1, 2], probs=[[1, 1, 2]] * 3, uniforms=[0.25, 0.5, 0.75, 0.125])
    [result] = verify(cli, tensors, "-m", "target-only", "--explain")
    assert result["decisions"] == [
        {"row": 0, "node": 1, "token": 1, "probability": 0.25, "uniform": 0.25, "accepted": False},
        {"row": 0, "node": 2, "token": 2, "probability": 2 / 3, "uniform": 0.5, "accepted": True},
        {"row": 2, "node": None, "token": 2, "probability": 0.5, "uniform": 0.75, "accepted": True},
    ]
    assert (result["path"], result["tokens"]) == ([0, 2], [2, 2])
    [result] = verify(cli, tensors, "-m", "typical", "--epsilon", "0.25", "--delta", "10", "--explain")
    assert [d.get("threshold") for d in result["decisions"]] == [0.25, 0.25, None]
    assert [d["accepted"] for d in result["decisions"]] == [False, True, True]
    assert result["decisions"][0]["uniform"] is None


def test_generated_uniforms(cli):
    tensors = step([-1, 0, 0, 1], [0, 1, 2, 0], logits=[[0, 0.5, 1]] * 4, uniforms=[2, 2])  # the tensor would be an error
    few = verify(cli, tensors, "-m", "target-only", "--seed", "7", "--runs", "300", "--threads", "1")
    many = verify(cli, tensors, "-m", "target-only", "--seed", "7", "--runs", "600", "--threads", "3")
    assert len(many) == 600 and many[:300] == few  # a run does not depend on how many follow it
    assert verify(cli, tensors, "-m", "target-only", "--seed", "8", "--runs", "300") != few
    counts = Counter(result["tokens"][0] for result in many)
    weights = norm([math.exp(x) for x in (0, 0.5, 1)])
    for token, weight in enumerate(weights):
        assert abs(counts[token] - 600 * weight) < 5 * math.sqrt(600 * weight * (1 - weight))
    assert verify(cli, tensors, "-m", "target-only", "--seed", "7", "--runs", "0") == []


def test_temperature_sharpens(cli):
    tensors = step([-1], [0], logits=[[1, 0]], uniforms=[0])
    for temperature in (0.5, 1, 2):
        [result] = verify(cli, tensors, "-m", "target-only", "-t", temperature, "--explain")
        assert abs(result["decisions"][0]["probability"] - 1 / (1 + math.exp(-1 / temperature))) < 1e-15


# ---- refusals ----

def test_uniforms(cli):
    parts = {"probs": [[1, 1]] * 2}
    chain = ([-1, 0], [0, 1])
    for bad in (1.0, -0.5, math.nan, math.inf):
        refuses(cli, step(*chain, uniforms=[0.75, bad], **parts), "-m", "target-only", words=["uniforms[1]"])
        verify(cli, step(*chain, uniforms=[0.75, 0.5, bad], **parts), "-m", "target-only")  # left over: ignored
    refuses(cli, step(*chain, uniforms=[0.75], **parts), "-m", "target-only", words=["num_uniforms", "1"])
    refuses(cli, step(*chain, **parts), "-m", "target-only", words=["uniforms", "target-only", "--seed"])
    refuses(cli, step(*chain, uniforms=[[0.75, 0.5], [0.75, 2]], **parts), "-m", "target-only",
            words=["verification 1", "uniforms[1]"])


def test_values(cli):
    chain = ([-1, 0], [0, 1])
    refuses(cli, step(*chain, logits=[[0, 1], [math.nan, 0]]), words=["logits[1][0]", "NaN", "node 1"])
    verify(cli, step(*chain, logits=[[1, 0], [math.nan, 0]]))  # not on the path
    refuses(cli, step(*chain, logits=[[-math.inf] * 2] * 2), words=["logits[0]", "-infinity"])
    refuses(cli, step(*chain, probs=[[1, -1]] * 2), words=["probs[0][1]", "-1"])
    refuses(cli, step(*chain, probs=[[0, 0]] * 2), words=["probs[0]", "sums to 0"])
    refuses(cli, step(*chain, probs=[[1, 1]] * 2, draft_probs=[[1, math.nan]] * 2, uniforms=[0, 0]), "-m", "residual",
            words=["draft_probs[0][1]", "NaN"])
    refuses(cli, step(*chain, probs=[[1, 1]] * 2, uniforms=[0, 0]), "-m", "target-only", "-t", "0.5",
            words=["temperature", "0.5", "probs"])
    refuses(cli, step([-1, 0], [0, 2], probs=[[1, 1]] * 2), words=["tokens[1]", "2"])
    refuses(cli, step(*chain, argmax=[1, -1]), words=["argmax[1]", "-1"])


@pytest.mark.parametrize("parents", [[0, 0], [-1, 1], [-1, 2], [-1, -2], [1, -1]])
def test_malformed_trees(cli, parents):
    bad = 0 if parents[0] != -1 else 1
    refuses(cli, step(parents, [0, 0], argmax=[0, 0]), words=[f"parents[{bad}]", str(parents[bad])])


def test_tensors(cli):
    chain = ([-1, 0], [0, 1])
    refuses(cli, {"tokens": tensor("I32", [1], [0])}, words=["parents"])
    refuses(cli, {"parents": tensor("I32", [1], [-1])}, words=["tokens"])
    refuses(cli, step([-1, 0], [0], argmax=[0, 0]), words=["tokens", "[2]", "[1]"])
    refuses(cli, step(*chain), words=["argmax", "logits", "probs"])
    refuses(cli, step(*chain, argmax=[0, 0]), "-m", "typical", words=["logits", "probs"])
    refuses(cli, step(*chain, argmax=[0]), words=["argmax", "[2]", "[1]"])
    refuses(cli, step(*chain, logits=[[0, 1]]), words=["logits", "[2]", "[1]"])
    refuses(cli, step(*chain, logits=[[0]] * 2, probs=[[1]] * 2), words=["logits", "probs", "--from"])
    assert verify(cli, step(*chain, logits=[[0, 1]] * 2, probs=[[1, 0]] * 2), "--from", "probs") == [
        {"path": [0], "tokens": [0]}]
    refuses(cli, step(*chain, probs=[[1, 1]] * 2, uniforms=[0, 0]), "-m", "residual", words=["draft_probs"])
    refuses(cli, step(*chain, probs=[[1, 1]] * 2, draft_probs=[[1, 1, 1]] * 2, uniforms=[0, 0]), "-m", "residual",
            words=["draft_probs", "[2]", "[3]"])
    integers = step(*chain)
    integers["logits"] = tensor("I32", [2, 1], [0, 0])
    refuses(cli, integers, words=["logits", "i32"])
    refuses(cli, dict(step(*chain), logits=("F32", [2, 0], b"")), words=["logits"])


def test_usage(cli):
    tensors = step([-1], [0], argmax=[0])
    for options, words in [(["-m", "best"], ["--method", "best"]), (["-t", "-1"], ["--temperature", "-1"]),
                           (["-t", "nan"], ["--temperature"]), (["-t", "1e-60"], ["--temperature", "1e-60"]),
                           (["--runs", "3"], ["--runs", "--seed"]), (["--from", "argmax", "-m", "residual"], ["--from"]),
                           (["--seed", "-1"], ["--seed"]), (["--no-such-option"], ["no-such-option"]),
                           (["more.safetensors"], ["one input file"])]:
        refuses(cli, tensors, *options, words=words, status=2)
    done = cli("verify", "--help")
    assert done.status == 0 and done.out.startswith("Usage: treeattn verify")
    assert all(method in done.out for method in METHODS)
    assert all(len(line) <= 100 for line in done.out.splitlines())


def test_every_allocation_may_fail(cli):
    tensors = step([-1, 0, 0], [0, 1, 2], logits=[[0, 1, 2]] * 3, draft_probs=[[1, 1, 2]] * 3)
    tensors["uniforms"] = tensor("F64", [2, 3], [0.25, 0.5, 0.75] * 2)
    tensorfile.write(cli.folder / "in.safetensors", tensors)
    arguments = ["verify", "in.safetensors", "-m", "residual", "--explain", "--threads", "1"]
    if cli(*arguments, TREEATTN_TEST_FAIL_ALLOCATION="2").status == 0:
        pytest.skip("not a build in which allocations can be made to fail (TREEATTN_TESTING)")
    assert fail_each(cli, arguments) > 10
