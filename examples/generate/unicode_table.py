#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes unicode_table.c: ranges of letters and of numbers, which the tokenizer's word pattern asks for."""
import sys
import unicodedata


def ranges(first_letter):
    found, start = [], None
    for code in range(0x110001):
        inside = code < 0x110000 and unicodedata.category(chr(code))[0] == first_letter
        if inside and start is None:
            start = code
        if not inside and start is not None:
            found.append((start, code - 1))
            start = None
    return found


def table(name, pairs):
    print(f"\nconst uint32_t gen_unicode_{name}[][2] = {{")
    for k in range(0, len(pairs), 5):
        row = ", ".join(f"{{0x{a:x}, 0x{b:x}}}" for a, b in pairs[k:k + 5])
        print(f"    {row},")
    print("};")
    print(f"const size_t gen_unicode_num_{name} = sizeof gen_unicode_{name} / sizeof gen_unicode_{name}[0];")


print("/* SPDX-License-Identifier: Apache-2.0 */")
print(f"/* Letters and numbers of Unicode {unicodedata.unidata_version}, as unicode_table.py wrote them. */")
print('#include "unicode.h"')
print("\n/* clang-format off */")
table("letters", ranges("L"))
table("numbers", ranges("N"))
print("/* clang-format on */")
