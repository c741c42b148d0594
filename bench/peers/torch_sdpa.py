#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention on workloads A to F of `treeattn bench`.

For each workload: the median time, the error against float64, whether a row keeps its bits alone and in the batch, and
how many rows NaN spoils in a slot that every row hides. Heads of a group are folded into rows, which is the fastest
way to ask PyTorch for it. Needs the package `torch`.
"""

import argparse
import statistics
import time

import torch

WORKLOADS = {  # heads, KV heads, head_dim, nodes, kv_len, cache of ours
    "A": (40, 8, 128, 1, 8192, "f16"), "B": (40, 8, 128, 64, 8192, "f16"), "C": (40, 8, 128, 16, 32768, "f16"),
    "D": (16, 8, 256, 32, 4096, "f16"), "E": (32, 8, 128, 64, 1024, "f16"), "F": (4, 1, 256, 32, 2048, "f16"),
}


def problem(name, seed=1):
    heads, kv_heads, dim, nodes, kv_len, _ = WORKLOADS[name]
    random = torch.Generator().manual_seed(seed)
    group = heads // kv_heads
    prefix = kv_len - nodes
    parents = [-1] + [int(torch.randint(i, (1,), generator=random)) for i in range(1, nodes)]
    seen = torch.zeros(nodes, kv_len, dtype=torch.bool)
    seen[:, :prefix] = True
    for i, parent in enumerate(parents):
        if parent >= 0:
            seen[i] = seen[parent]
        seen[i, prefix + i] = True
    q = torch.randn(kv_heads, nodes * group, dim, generator=random)
    k = torch.randn(kv_heads, kv_len, dim, generator=random)
    v = torch.randn(kv_heads, kv_len, dim, generator=random)
    return q, k, v, seen.repeat_interleave(group, 0), nodes > 1


def attend(q, k, v, seen, masked):
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], seen if masked else None)[0]


def median_ms(call, repeat):
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def facts(q, k, v, seen, masked):
    """Error, rows with the same bits alone, rows spoiled by NaN in a hidden slot."""
    out = attend(q, k, v, seen, masked)
    rows = range(0, q.shape[1], max(1, q.shape[1] // 8))
    exact = attend(q.double(), k.double(), v.double(), seen, masked)
    error = float((out.double() - exact).norm() / exact.norm())
    alone = sum(torch.equal(attend(q[:, r:r + 1], k, v, seen[r:r + 1], masked)[:, 0], out[:, r]) for r in rows)
    spoiled = "-"
    if masked:
        hidden = seen.clone()
        hidden[:, 0] = False
        poisoned = v.clone()
        poisoned[:, 0] = float("nan")
        spoiled = int(attend(q, k, poisoned, hidden, True).isnan().any(-1).all(0).sum())
    return error, f"{alone}/{len(rows)}", spoiled


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--workloads", default="ABCDEF")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads")
    print("| | f32 ms | error | same bits alone | spoiled by NaN | bf16 ms | error | same bits alone | spoiled by NaN |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.workloads:
        q, k, v, seen, masked = problem(name)
        cells = []
        for dtype in (torch.float32, torch.bfloat16):
            a = [x.to(dtype) for x in (q, k, v)]
            attend(*a, seen, masked)
            cells.append(f"{median_ms(lambda: attend(*a, seen, masked), options.repeat):.2f}")
            error, alone, spoiled = facts(*a, seen, masked)
            cells += [f"{error:.1e}", alone, str(spoiled)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
