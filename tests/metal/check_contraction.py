#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No product feeds an addition in what clang makes of the kernels: then no compiler that may only contract can change a bit.

Prints TAP. Metal's compiler is a clang too; this one is asked to contract as much as it can, and what it is about to contract is looked
for in its intermediate language, after its own simplifications.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EMULATOR = ROOT / "tests" / "metal" / "emulator"


def contractible(source):
    """Additions with a product as an operand, as the lines of both."""
    command = ["clang++", "-std=c++17", "-O2", "-ffp-contract=fast", "-Wno-attributes", "-Wno-unknown-attributes", "-Wno-ignored-attributes",
               "-I", EMULATOR, "-S", "-emit-llvm", "-o", "-", EMULATOR / source]
    text = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE).stdout.decode()
    found, products, additions = [], {}, 0
    for line in text.splitlines():
        if line.startswith("define"):
            products = {}
        match = re.match(r"\s*(%\S+) = fmul ", line)
        if match:
            products[match.group(1)] = line.strip()
        match = re.match(r"\s*%\S+ = f(?:add|sub) (.*)", line)
        if match:
            additions += 1
            found += [f"{products[operand]}; {line.strip()}" for operand in re.findall(r"%[\w.]+", match.group(1)) if operand in products]
    return additions, found


def main():
    if shutil.which("clang++") is None:
        print("1..1\nok 1 # SKIP contraction: there is no clang++")
        return 0
    additions, found = contractible("kernels.cpp")
    fine = additions > 10 and not found
    print("1..2")
    print(f"{'ok' if fine else 'not ok'} 1 - no product of the kernels feeds one of their {additions} additions")
    for line in found:
        print(f"# {line}")
    _, wrong = contractible("broken.cpp")
    print(f"{'ok' if len(wrong) == 1 else 'not ok'} 2 - a product that does is found")
    return 0 if fine and len(wrong) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
