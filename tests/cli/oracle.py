# SPDX-License-Identifier: Apache-2.0
"""Tree attention in float64, written from the definition and one row at a time."""

import numpy as np


def decode(entry):
    """A tensor of tensorfile as an array, f16 and bf16 as the numbers they hold."""
    dtype, shape, data = entry
    if dtype == "BF16":
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "BOOL": "?", "U8": "u1"}
    return np.frombuffer(data, kinds[dtype]).reshape(shape)


def depths(parents):
    result = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return np.array(result, np.int64)


def tree_visibility(parents, prefix, kv_len, window):
    """What each node sees, and a bias of zero."""
    num_nodes = len(parents)
    depth = depths(parents)
    sees = np.zeros((num_nodes, kv_len), bool)
    for node in range(num_nodes):
        own = prefix + depth[node]
        for slot in range(prefix):
            sees[node, slot] = window == 0 or own - slot < window
        at = node
        while at >= 0:
            sees[node, prefix + at] = window == 0 or depth[node] - depth[at] < window
            at = parents[at]
    return sees, np.zeros((num_nodes, kv_len))


def mask_visibility(mask, kv_len, window, positions=None):
    """The rows of a dense mask are the last slots; a slot's position is its place among those of them that the row sees."""
    mask = mask[:, :kv_len]
    num_nodes = len(mask)
    if mask.dtype == np.float32:
        sees, bias = mask > -65504.0, np.where(mask > -65504.0, mask, 0).astype(np.float64)
    else:
        sees, bias = mask != 0, np.zeros(mask.shape)
    sees = sees.copy()
    prefix = max(kv_len - num_nodes, 0)
    if window == 0:
        return sees, bias
    for node in range(num_nodes):
        place = np.arange(kv_len)
        seen = np.flatnonzero(sees[node, prefix:]) + prefix
        if positions is None:
            place[seen] = prefix + np.arange(len(seen))
            own = place[seen[-1]] if len(seen) else prefix
        else:
            place[prefix:] = positions[-(kv_len - prefix):]
            own = positions[node]
        sees[node] &= own - place < window
    return sees, bias


def attend(q, k, v, sees, bias, scale=None, softcap=0.0, sinks=None):
    """out [N][H][E] and lse [N][H]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    num_heads, num_nodes, dim = q.shape
    ratio = num_heads // len(k)
    scale = np.float64(np.float32(1 / np.sqrt(dim) if scale is None else scale))
    out = np.zeros((num_nodes, num_heads, v.shape[2]))
    lse = np.full((num_nodes, num_heads), -np.inf)
    for node in range(num_nodes):
        slots = np.flatnonzero(sees[node])
        if len(slots) == 0:
            continue
        for head in range(num_heads):
            scores = scale * (k[head // ratio, slots] @ q[head, node])
            if softcap > 0:
                cap = np.float64(np.float32(softcap))
                scores = cap * np.tanh(scores / cap)
            scores = scores + bias[node, slots]
            top = max(scores.max(), sinks[head] if sinks is not None else -np.inf)
            weights = np.exp(scores - top)
            total = weights.sum() + (np.exp(sinks[head] - top) if sinks is not None else 0.0)
            out[node, head] = weights @ v[head // ratio, slots] / total
            lse[node, head] = top + np.log(total)
    return out, lse


def distance(found, expected):
    """Norm of the difference over the norm; a NaN or an infinity on one side only is a failure."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), finite)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    size = np.linalg.norm(expected[finite])
    gap = np.linalg.norm(found[finite] - expected[finite])
    return gap / size if size > 0 else gap
