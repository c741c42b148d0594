#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds a captured step's logits against a forward pass in NumPy, written from the models' definitions with float32 weights:
compare_logits.py MODEL.gguf STEP.safetensors (of treeattn-generate --capture --capture-logits)"""
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import load_file

# ggml rounds activations to 8 bits, which moved logits by 0.04 to 0.14 of their spread. A window left out moved them by 1.9, half a
# window by 0.37, another base of rotation by 1.4.
TOLERANCE = 0.25


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        self.kind = reader.fields["general.architecture"].contents()
        self.fields = {k.split(".", 1)[1]: f.contents() for k, f in reader.fields.items() if k.startswith(self.kind + ".")}
        self.heads = self.fields["attention.head_count"]
        self.kv_heads = self.fields["attention.head_count_kv"]
        self.head_dim = self.fields.get("attention.key_length", self.fields["embedding_length"] // self.heads)
        self.gemma = self.kind == "gemma3"

    def weight(self, name):
        tensor = self.tensors[name + ".weight"]
        return dequantize(tensor.data, tensor.tensor_type)

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.fields["attention.layer_norm_rms_epsilon"])
        return x * scale * self.weight(name)

    def rotate(self, x, positions, base):
        """x: [row][head][channel]; llama turns neighbouring channels, gemma3 channels half a head apart."""
        half = self.head_dim // 2
        angle = positions[:, None, None] * base ** (-np.arange(half, dtype=np.float64) / half)
        cos, sin = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        first, second = (slice(0, half), slice(half, None)) if self.gemma else (slice(0, None, 2), slice(1, None, 2))
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def attention(self, x, layer, positions, seen):
        name = f"blk.{layer}."
        query, key, value = (
            (x @ self.weight(name + part).T).reshape(len(x), -1, self.head_dim) for part in ("attn_q", "attn_k", "attn_v"))
        windowed = self.gemma and (layer + 1) % 6 != 0
        base = 10000.0 if windowed else self.fields["rope.freq_base"]
        if self.gemma:
            query, key = self.norm(query, name + "attn_q_norm"), self.norm(key, name + "attn_k_norm")
        query, key = self.rotate(query, positions, base), self.rotate(key, positions, base)
        if windowed:
            seen = seen & (positions[:, None] - positions[None, :] < self.fields["attention.sliding_window"])
        out = np.empty_like(query)
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            scores = np.where(seen, query[:, h] @ key[:, g].T / np.sqrt(self.head_dim), -np.inf)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, h] = shares / shares.sum(axis=1, keepdims=True) @ value[:, g]
        return out.reshape(len(x), -1) @ self.weight(name + "attn_output").T

    def feed_forward(self, x, layer):
        name = f"blk.{layer}."
        gate, up = x @ self.weight(name + "ffn_gate").T, x @ self.weight(name + "ffn_up").T
        if self.gemma:
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return (gate * up) @ self.weight(name + "ffn_down").T

    def logits(self, tokens, positions, seen, num_rows):
        embedding = self.weight("token_embd")
        x = embedding[tokens] * (np.sqrt(self.fields["embedding_length"]) if self.gemma else 1)
        for layer in range(self.fields["block_count"]):
            name = f"blk.{layer}."
            mixed = self.attention(self.norm(x, name + "attn_norm"), layer, positions, seen)
            x = x + (self.norm(mixed, name + "post_attention_norm") if self.gemma else mixed)
            fed = self.feed_forward(self.norm(x, name + "ffn_norm"), layer)
            x = x + (self.norm(fed, name + "post_ffw_norm") if self.gemma else fed)
        output = self.weight("output") if "output.weight" in self.tensors else embedding
        return self.norm(x[-num_rows:], "output_norm") @ output.T


def main():
    path, captured = sys.argv[1:]
    step = load_file(captured)
    prefix, parents = step["prefix_tokens"], step["parents"]
    num_prefix, num_nodes = len(prefix), len(parents)
    num = num_prefix + num_nodes
    positions = np.concatenate([np.arange(num_prefix), step["positions"]]).astype(np.float64)
    seen = np.tril(np.ones((num, num), dtype=bool))
    seen[num_prefix:, num_prefix:] = False
    for i, parent in enumerate(parents):
        if parent >= 0:
            seen[num_prefix + i] = seen[num_prefix + parent]
        seen[num_prefix + i, num_prefix + i] = True
    model = Model(path)
    expected = model.logits(np.concatenate([prefix, step["tokens"]]), positions, seen, num_nodes)
    got = step["logits"]
    error = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected - expected.mean(axis=1, keepdims=True), axis=1)
    same = int((got.argmax(axis=1) == expected.argmax(axis=1)).sum())
    print(f"{num_nodes} nodes behind {num_prefix} tokens, {model.kind}: logits differ by {error.max():.4f} at most "
          f"({np.median(error):.4f} in the middle), the likeliest token is the same in {same}")
    sys.exit(0 if np.all(error < TOLERANCE) and np.isfinite(error).all() else 1)


main()
