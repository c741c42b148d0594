#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention on workloads G1 to G7 of treeattn-cuda-bench, on one GPU.

SDPA with a boolean mask, FlexAttention compiled, and cuDNN without a mask over leaves of 512 and 1024 positions that
nobody merges: a bound, not a peer. For each the median time with a cold L2 cache, GB/s of the cache, TFLOP/s, share of
the floor, error against float64, rows that NaN spoils in a slot hidden from them, and rows whose bits are the same
alone and in the batch. Heads of a group are folded into rows, the fastest way to ask. Prints a Markdown table.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

WORKLOADS = {  # heads, KV heads, head_dim, nodes, kv_len
    "G1": (32, 8, 128, 64, 32768), "G2": (32, 8, 128, 16, 131072), "G3": (40, 8, 128, 64, 8192),
    "G4": (16, 8, 256, 64, 16384), "G5": (32, 8, 128, 1, 32768), "G6": (32, 8, 128, 256, 8192),
    "G7": (16, 2, 512, 32, 8192),
}
HEADINGS = ["", "peer", "us", "GB/s", "TFLOP/s", "floor us", "share", "error", "spoiled rows", "same alone", "note"]


class Problem:
    """One workload: a random tree, folded queries, and sets of caches that together exceed the L2 cache."""

    def __init__(self, name, device):
        self.heads, self.kv_heads, self.dim, self.nodes, self.kv_len = WORKLOADS[name]
        self.name, self.group = name, self.heads // self.kv_heads
        self.prefix = self.kv_len - self.nodes
        chosen = torch.Generator().manual_seed(1)
        parents = [-1] + [int(torch.randint(i, (1,), generator=chosen)) for i in range(1, self.nodes)]
        tree = torch.zeros(self.nodes, self.nodes, dtype=torch.bool)
        for i, parent in enumerate(parents):
            if parent >= 0:
                tree[i] = tree[parent]
            tree[i, i] = True
        self.tree = tree.to(device)
        seen = torch.ones(self.nodes, self.kv_len, dtype=torch.bool, device=device)
        seen[:, self.prefix:] = self.tree
        self.seen = seen.repeat(self.group, 1)  # row = head within the group * nodes + node
        self.bytes = 4 * self.kv_heads * self.kv_len * self.dim
        sets = max(4, -(-256_000_000 // self.bytes))
        random = torch.Generator(device=device).manual_seed(2)
        self.q = self.normal(random, device, self.group * self.nodes)
        self.k = [self.normal(random, device, self.kv_len) for _ in range(sets)]
        self.v = [self.normal(random, device, self.kv_len) for _ in range(sets)]

    def normal(self, random, device, rows):
        return torch.randn(1, self.kv_heads, rows, self.dim, generator=random, device=device, dtype=torch.float16)

    @property
    def flops(self):
        return 4 * self.heads * self.nodes * self.kv_len * self.dim

    def exact(self, g):
        """Rows of one KV head in float64."""
        scores = self.q[0, g].double() @ self.k[0][0, g].double().T / self.dim ** 0.5
        return scores.masked_fill(~self.seen, -float("inf")).softmax(-1) @ self.v[0][0, g].double()


def median_us(call, sets, repeat=9):
    """Of one call: call(n) for each set, in a graph where that can be captured, so that the host is left out."""
    for n in range(min(sets, 2)):
        call(n)
    torch.cuda.synchronize()
    replay = None
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for n in range(sets):
                call(n)
        replay = graph.replay
    except Exception:  # what cannot be captured is timed call by call
        torch.cuda.synchronize()
    run = replay or (lambda: [call(n) for n in range(sets)])
    times = []
    for n in range(repeat + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if n >= 2:
            times.append(1e3 * begin.elapsed_time(end) / sets)
    return statistics.median(times), replay is not None


def relative_error(p, out):
    difference = norm = 0.0
    for g in sorted({0, p.kv_heads - 1}):
        exact = p.exact(g)
        difference += float((out[0, g].double() - exact).square().sum())
        norm += float(exact.square().sum())
    return (difference / norm) ** 0.5


def spoiled_rows(p, attend):
    """NaN in the last slot, which its own node alone sees: how many other rows change."""
    if p.nodes == 1:
        return "-"
    clean = attend(p.q, p.k[0], p.v[0], p.seen)
    k, v = p.k[0].clone(), p.v[0].clone()
    k[:, :, -1] = v[:, :, -1] = float("nan")
    dirty = attend(p.q, k, v, p.seen)
    others = torch.arange(p.q.shape[2], device=p.q.device) % p.nodes != p.nodes - 1
    changed = (clean.view(torch.int16) != dirty.view(torch.int16)).any(-1)[:, :, others]
    return f"{int(changed.sum())} of {changed.numel()}"


def same_alone(p, attend):
    batch = attend(p.q, p.k[0], p.v[0], p.seen)
    rows = range(0, p.q.shape[2], max(1, p.q.shape[2] // 8))
    same = sum(torch.equal(attend(p.q[:, :, r:r + 1], p.k[0], p.v[0], p.seen[r:r + 1])[:, :, 0], batch[:, :, r]) for r in rows)
    return f"{same} of {len(rows)}"


def masked_sdpa(q, k, v, seen):
    return sdpa(q, k, v, attn_mask=seen)


def measure_sdpa(p, _):
    us, graph = median_us(lambda n: masked_sdpa(p.q, p.k[n], p.v[n], p.seen), len(p.k))
    return {"us": us, "error": relative_error(p, masked_sdpa(p.q, p.k[0], p.v[0], p.seen)),
            "spoiled": spoiled_rows(p, masked_sdpa), "alone": same_alone(p, masked_sdpa), "note": "" if graph else "no graph"}


def measure_flex(p, _):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    nodes, prefix, tree = p.nodes, p.prefix, p.tree

    def visible(b, h, row, slot):
        return (slot < prefix) | tree[row % nodes, (slot - prefix).clamp(min=0)]

    mask = create_block_mask(visible, None, None, p.q.shape[2], p.kv_len, device=p.q.device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def attend(q, k, v, _):
        return compiled(q, k, v, block_mask=mask)

    start = time.monotonic()
    out = attend(p.q, p.k[0], p.v[0], None)
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    us, graph = median_us(lambda n: attend(p.q, p.k[n], p.v[n], None), len(p.k))
    return {"us": us, "error": relative_error(p, out), "spoiled": spoiled_rows(p, attend),
            "alone": "-", "note": f"compiled in {seconds:.0f} s" + ("" if graph else ", no graph")}


def leaves_of(length):
    def measure(p, _):
        count = p.kv_len // length

        def cut(cache):
            return cache[0].view(p.kv_heads, count, length, p.dim).transpose(0, 1)

        q = p.q.expand(count, -1, -1, -1).contiguous()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            us, graph = median_us(lambda n: sdpa(q, cut(p.k[n]), cut(p.v[n])), len(p.k))
        return {"us": us, "error": None, "spoiled": "-", "alone": "-",
                "note": "no mask, no merge: a bound" + ("" if graph else ", no graph")}
    return measure


def measure_copy_rate(device):
    size = 1 << 30
    a, b = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    us, _ = median_us(lambda n: b.copy_(a), 1)
    return 2 * size / us * 1e6


def one_row(p, peer, measure, options):
    row = {"name": p.name, "peer": peer}
    try:
        row.update(measure(p, options))
    except Exception as error:  # a peer that does not serve a row is a result
        torch.cuda.synchronize()
        words = str(error).strip().splitlines() or [""]
        row["note"] = f"fails: {type(error).__name__}: {words[0][:90]}".replace("|", "/")
        return row
    row["gb_per_s"] = p.bytes / row["us"] / 1e3
    row["tflop_per_s"] = p.flops / row["us"] / 1e6
    row["floor_us"] = 1e6 * max(p.bytes / options.copy_rate, p.flops / (1e12 * options.flop_rate))
    row["share"] = row["floor_us"] / row["us"]
    return row


def line(row):
    if "us" not in row:
        return f"| {row['name']} | {row['peer']} " + "| - " * 8 + f"| {row['note']} |"
    error = "-" if row["error"] is None else f"{row['error']:.2e}"
    return (f"| {row['name']} | {row['peer']} | {row['us']:.1f} | {row['gb_per_s']:.0f} | {row['tflop_per_s']:.1f} | "
            f"{row['floor_us']:.1f} | {row['share']:.2f} | {error} | {row['spoiled']} | {row['alone']} | {row['note']} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(WORKLOADS), help="G1 to G7, comma-separated (default: all)")
    parser.add_argument("--flex-rows", default="G2,G3,G6", help="rows for FlexAttention, a compilation each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=80, help="start nothing new after so long (default: %(default)s)")
    parser.add_argument("--flop-rate", type=float, default=671, help="TFLOP/s of the floor (default: %(default)s)")
    parser.add_argument("--output", metavar="DIR", help="write gpu-peers.json there")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args()
    start = time.monotonic()
    if not torch.cuda.is_available():
        print("gpu_peers.py: PyTorch sees no CUDA device", file=sys.stderr)
        return 1
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    device = torch.device("cuda")
    options.copy_rate = measure_copy_rate(device)
    facts = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
             "copy_gb_per_s": options.copy_rate / 1e9, "floor_tflop_per_s": options.flop_rate, "rows": []}
    print(f"{facts['device']}, PyTorch {facts['torch']}, cuDNN {facts['cudnn']}; copy {facts['copy_gb_per_s']:.0f} GB/s; "
          f"f16, cold L2, median of 9 replays")
    print("FlashInfer is " + ("here, but this script does not call it" if importlib.util.find_spec("flashinfer")
                              else "not installed: not measured"))
    print("\n| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS))
    # The cheap peers first: FlexAttention gets what time is left.
    peers = [("SDPA, boolean mask", measure_sdpa, options.rows), ("cuDNN, leaves of 1024", leaves_of(1024), options.rows),
             ("cuDNN, leaves of 512", leaves_of(512), options.rows), ("FlexAttention", measure_flex, options.flex_rows)]
    left_out = []
    for group in (peers[:3], peers[3:]):
        for name in WORKLOADS:
            wanted = [peer for peer in group if name in peer[2].split(",") and name in options.rows.split(",")]
            if wanted and time.monotonic() - start > options.seconds:
                left_out += [f"{name} {peer}" for peer, _, _ in wanted]
            elif wanted:
                p = Problem(name, device)
                for peer, measure, _ in wanted:
                    facts["rows"].append(one_row(p, peer, measure, options))
                    print(line(facts["rows"][-1]), flush=True)
                del p
                torch.cuda.empty_cache()
    for what in left_out:
        print(f"\nnot run, {options.seconds:.0f} s were over: {what}")
    facts["not_run"] = left_out
    print(f"\nThe whole took {time.monotonic() - start:.0f} s.")
    paths = [Path(options.json)] if options.json else []
    if options.output:
        Path(options.output).mkdir(parents=True, exist_ok=True)
        paths.append(Path(options.output) / "gpu-peers.json")
    for path in paths:
        path.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
