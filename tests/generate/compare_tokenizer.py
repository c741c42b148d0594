#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the generator's tokenizer with the package `tokenizers` or `sentencepiece`, whichever has the model's kind; both get
their tables through `gguf`: compare_tokenizer.py PROGRAM MODEL.gguf"""
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

from gguf import GGUFReader

ROOT = Path(__file__).resolve().parent.parent.parent
POOL = ("abcXYZ 019 \t\n\r'sdtlmrev.,;:!?-_()[]{}<>|@#äöüßéèñçøåœ中文字漢字かなカナ한국어русскийтекстαβγعربيहिन्दी"
        "๑๒٣½Ⅷ\u00a0\u2003\u3000\u200b😀👩\u200d💻e\u0301'll've")


def byte_level(fields):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {t: i for i, t in enumerate(fields["tokens"])}
    merges = [tuple(m.split(" ")) for m in fields["merges"]]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    made.decoder = decoders.ByteLevel()
    return lambda text: made.encode(text).ids


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def message(number, data):
    """A field of protobuf's wire format that holds bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def flag(number, value):
    return varint(number << 3) + varint(int(value))


def pieces(fields):
    """The package reads models in its own format only, so one is put together: pieces, then trainer_spec and normalizer_spec."""
    from sentencepiece import SentencePieceProcessor

    out = b""
    for index, (name, score, kind) in enumerate(zip(fields["tokens"], fields["scores"], fields["token_type"])):
        kind = 2 if index == fields["unknown_token_id"] else kind
        out += message(1, message(1, name.encode()) + b"\x15" + struct.pack("<f", score) + flag(3, kind))
    bpe, byte_fallback = flag(3, 2), flag(35, True)
    out += message(2, bpe + byte_fallback)
    # no space before the text, none removed, spaces become their mark
    out += message(3, message(1, b"identity") + flag(3, False) + flag(4, False) + flag(5, True))
    return SentencePieceProcessor(model_proto=out).encode


def reference(path):
    fields = {k.split(".")[-1]: f.contents() for k, f in GGUFReader(path).fields.items() if k.startswith("tokenizer")}
    return pieces(fields) if fields["model"] == "llama" else byte_level(fields)


def texts(seed):
    rng = random.Random(seed)
    for path in sorted(ROOT.glob("examples/prompts/*.txt")) + sorted(ROOT.glob("src/*.c")) + [ROOT / "LICENSE"]:
        yield path.read_text(encoding="utf-8")
    yield " " * 5000 + "x"
    yield "a" * 3000
    for _ in range(4000):
        yield "".join(rng.choice(POOL) for _ in range(rng.randrange(1, 40)))
    for _ in range(1000):
        codes = [rng.choice([rng.randrange(32, 0x250), rng.randrange(0x250, 0xD800), rng.randrange(0x10000, 0x1FFFF), 32, 10])
                 for _ in range(rng.randrange(1, 30))]
        yield "".join(map(chr, codes))


def main():
    program, path = sys.argv[1:]
    seed = int(os.environ.get("TREEATTN_TEST_SEED", "5"))
    encode = reference(path)
    all_texts = list(texts(seed))
    done = subprocess.run([program, path], input="".join(t.encode().hex() + "\n" for t in all_texts), text=True,
                          stdout=subprocess.PIPE, check=False)
    lines = done.stdout.split("\n")[:-1]
    if done.returncode != 0 or len(lines) != len(all_texts):
        sys.exit(f"{program} ended with status {done.returncode} after {len(lines)} of {len(all_texts)} texts")
    differ = total = 0
    for text, line in zip(all_texts, lines):
        got, expected = [int(t) for t in line.split()], encode(text)
        total += len(expected)
        if got != expected:
            differ += 1
            print(f"{text[:60]!r}: {got[:12]} instead of {expected[:12]}")
    print(f"{len(all_texts)} texts, {total} tokens, {differ} texts differ (seed {seed})")
    sys.exit(1 if differ else 0)


main()
