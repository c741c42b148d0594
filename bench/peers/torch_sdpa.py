#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention as a peer: `treeattn bench --peer 'bench/peers/torch_sdpa.py [f32|bf16]'`.

Speaks the protocol of peer.h. Heads of a group are folded into rows, which is the fastest way to ask PyTorch for it;
the cache is converted to f32 or bf16 outside the time. Needs the package `torch`.
"""

import mmap
import sys
import time

import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def tensor(file, dtype, *shape):
    count = 1
    for size in shape:
        count *= size
    mapped = mmap.mmap(file, count * dtype.itemsize)
    return torch.frombuffer(mapped, dtype=dtype).view(*shape)


class Problem:
    def __init__(self, words, dtype):
        heads, kv_heads, dim, nodes, slots = map(int, words[:5])
        self.scale = float(words[6])
        torch.set_num_threads(int(words[7]))
        q, k, v, seen, out = map(int, words[8:])
        group = heads // kv_heads
        cache = DTYPES[words[5]]
        self.q = tensor(q, torch.float32, kv_heads, group * nodes, dim).to(dtype)[None].clone()
        self.k = tensor(k, cache, kv_heads, slots, dim).to(dtype)[None].clone()
        self.v = tensor(v, cache, kv_heads, slots, dim).to(dtype)[None].clone()
        seen = tensor(seen, torch.uint8, nodes, slots).bool()
        self.seen = None if seen.all() else seen.repeat(group, 1)
        self.out = tensor(out, torch.float32, nodes, heads, dim)
        self.shape = (heads, nodes, dim)

    def run(self):
        start = time.perf_counter()
        result = torch.nn.functional.scaled_dot_product_attention(self.q, self.k, self.v, self.seen, scale=self.scale)
        seconds = time.perf_counter() - start
        self.out.copy_(result.reshape(self.shape).transpose(0, 1))
        return seconds


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "f32"
    print(f"peer PyTorch {torch.__version__} (SDPA; {name} cache)", flush=True)
    problem = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "load":
            problem = None
            problem = Problem(words[1:], DTYPES[name])
            print("ready", flush=True)
        else:
            print(f"done {problem.run():.9f}", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
