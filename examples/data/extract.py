# SPDX-License-Identifier: Apache-2.0
"""Takes the layers that the demo shows out of a full capture: extract.py CAPTURE.safetensors OUT.safetensors [LAYER ...]"""
import sys

from safetensors import safe_open
from safetensors.numpy import save_file

KEPT = ("parents", "tokens", "positions", "argmax")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    layers = [int(layer) for layer in sys.argv[3:]] or [0, 14]
    with safe_open(sys.argv[1], "np") as capture:
        names = list(KEPT) + [f"layer{layer}.{tensor}" for layer in layers for tensor in "qkv"]
        tensors = {name: capture.get_tensor(name) for name in names}
        metadata = dict(capture.metadata(), layers=",".join(map(str, layers)))
    save_file(tensors, sys.argv[2], metadata)


if __name__ == "__main__":
    main()
