# SPDX-License-Identifier: Apache-2.0
"""`treeattn bench --peer`: what a peer is told, what is said about its results, and peers that misbehave."""

import json
import sys

import pytest

SMALL = ["--heads", 6, "--kv-heads", 2, "--head-dim", 40, "--nodes", 5, "--kv-len", 130, "-r", 2, "-t", 2]

# A peer in float64. With `leaky` it adds to hidden scores instead of leaving keys out, and takes the mean over all rows
# into each, so that neither isolation nor the same bits can be.
PEER = '''
import mmap, sys, time
import numpy as np

def tensor(file, dtype, *shape):
    return np.frombuffer(mmap.mmap(file, int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)

leaky = "leaky" in sys.argv
print("peer NumPy", flush=True)
for line in sys.stdin:
    words = line.split()
    if words[0] == "load":
        H, G, D, N, T = map(int, words[1:6])
        if words[6] != "f16":
            print("refused f16 only", flush=True)
            continue
        scale, files = float(words[7]), list(map(int, words[9:]))
        assert int(words[8]) == 2
        q = tensor(files[0], "f4", H, N, D).astype("f8")
        k, v = (tensor(f, "f2", G, T, D).astype("f8") for f in files[1:3])
        seen = tensor(files[3], "u1", N, T).astype(bool)
        out = tensor(files[4], "f4", N, H, D)
        print("ready", flush=True)
    else:
        for h in range(H):
            g = h // (H // G)
            scores = q[h] @ k[g].T * scale + np.where(seen, 0, -1e9)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            for n in range(N):
                out[n, h] = weights[n] @ v[g] if leaky else weights[n][seen[n]] @ v[g][seen[n]]
            if leaky:
                out[:, h] += 1e-3 * out[:, h].mean(0)
        print("done 0.25", flush=True)
'''


@pytest.fixture
def peer(cli):
    (cli.folder / "peer.py").write_text(PEER)
    return f"{sys.executable} peer.py"


def test_a_peer_is_measured_and_judged(cli, peer):
    done = cli("bench", *SMALL, "--json", "--peer", peer, "--peer", peer + " leaky")
    assert done.status == 0, done.err
    (work,) = json.loads(done.out)["workloads"]
    good, leaky = work["peers"]
    assert good["name"] == "NumPy" and good["times"]["all_ms"] == [250, 250] and good["times"]["median_ms"] == 250
    assert 0 < good["error"] < 1e-7
    assert good["rows_alone"] == good["rows_same"] == 4 * 6
    assert good["rows_spoiled"] == 0
    assert leaky["error"] > 1e-5
    assert leaky["rows_same"] < leaky["rows_alone"] == 4 * 6
    assert leaky["rows_spoiled"] == work["rows"] == 5 * 6
    # Our own rows, and the seed's, which multiplies a hidden value by zero.
    assert work["rows_spoiled"] == 0 and work["seed_rows_spoiled"] == 5 * 6


def test_the_table_shows_peers(cli, peer):
    done = cli("bench", *SMALL, "--peer", peer)
    assert done.status == 0, done.err
    assert "NumPy" in done.out and " 250.00 " in done.out and "0/30" in done.out and "30/30" in done.out


def test_a_peer_may_refuse(cli, peer):
    done = cli("bench", *SMALL, "--kv-dtype", "bf16", "--json", "--peer", peer)
    assert done.status == 0, done.err
    (work,) = json.loads(done.out)["workloads"]
    assert work["peers"] == [{"name": "NumPy", "refused": "f16 only"}]
    assert "not served: f16 only" in cli("bench", *SMALL, "--kv-dtype", "bf16", "--peer", peer).out


@pytest.mark.parametrize("command, word", [
    ("exit 3", "ended"),
    ("echo hello", "'hello'"),
    ("echo peer x", "ended"),
    ("echo peer x; read line; echo what", "'what'"),
    ("echo peer x; read line; echo ready; read line; echo done soon; cat", "'done soon'"),
])
def test_peers_that_misbehave(cli, command, word):
    done = cli("bench", *SMALL, "--peer", command)
    assert done.status == 1 and done.out == ""
    assert word in done.err and "peer" in done.err
