# SPDX-License-Identifier: Apache-2.0
"""Risk: `treeattn tree` misreads a tree, draws another one, or writes a picture that other programs cannot read."""

import json
import random
import re
import struct
import subprocess
import xml.etree.ElementTree as xml
import zlib
from pathlib import Path

import pytest
import tensorfile

PARENTS = [-1, 0, 0, 1, 1, 2]
CAPTURE = Path(__file__).resolve().parent.parent.parent / "examples" / "data" / "code.safetensors"


def sees(parents):
    """The square mask, row by row, by walking up."""
    rows = []
    for node in range(len(parents)):
        row = [0] * len(parents)
        while node >= 0:
            row[node] = 1
            node = parents[node]
        rows.append(row)
    return rows


def random_parents(num, seed):
    source = random.Random(seed)
    return [-1 if i == 0 or source.random() < 0.05 else source.randrange(i) for i in range(num)]


def write_json(cli, value, name="tree.json"):
    (cli.folder / name).write_text(json.dumps(value))
    return name


def described(cli, *arguments):
    done = cli("tree", *arguments, "--json")
    assert done.status == 0, done.err
    assert done.err == ""
    return json.loads(done.out)


# ---- making ----


def test_shapes(cli):
    assert described(cli, "--chain", 4)["parents"] == [-1, 0, 1, 2]
    assert described(cli, "--chain", 0)["parents"] == []
    assert described(cli, "--kary", 2, "--depth", 2)["parents"] == [-1, 0, 0, 1, 1, 2, 2]
    assert described(cli, "--branching", "2,1,0")["parents"] == [-1, 0, 0, 1, 2]
    medusa = described(cli, "--medusa")
    assert medusa["num_nodes"] == 64 and medusa["num_leaves"] == 42 and medusa["num_levels"] == 5
    eagle = described(cli, "--eagle")
    assert eagle["num_nodes"] == 26 and eagle["num_levels"] == 6
    assert described(cli, "--shape", "medusa-mc_sim_7b_63") == medusa


def test_named_shapes_are_listed(cli):
    names = cli("tree", "--shape", "list").out.split()
    assert "eagle-mc_sim_7b_63" in names and len(names) == len(set(names)) == 10
    for name in names:
        assert described(cli, "--shape", name)["num_nodes"] in (26, 64)
    done = cli("tree", "--shape", "medusa")
    assert done.status == 1 and "medusa" in done.err


def test_random_is_a_function_of_the_seed(cli):
    first = described(cli, "--random", 200, "--seed", 7)
    assert first == described(cli, "--random", 200, "--seed", 7)
    assert first["parents"] != described(cli, "--random", 200, "--seed", 8)["parents"]
    assert described(cli, "--random", 200) == described(cli, "--random", 200, "--seed", 0)


def test_choices(cli):
    name = write_json(cli, [[1, 0], [0], [1], [0, 2], [0], []])
    made = described(cli, "--choices", name)
    assert made["parents"] == [-1, 0, 0, 1, 2]
    assert made["ranks"] == [-1, 0, 1, 2, 0]
    assert described(cli, "--choices", write_json(cli, {"choices": [[0], [0, 0]]}))["parents"] == [-1, 0, 1]


@pytest.mark.parametrize("value,words", [
    ([[0], [1, 2]], "choices[1] is [1, 2]: its ancestor [1]"),
    ([[0], 3], "choices[1]"),
    ([[0], [-1]], "choices[1][0]"),
    ([[0], [0.5]], "choices[1][0]"),
    ([[0], [2**31]], "choices[1][0]"),
    ({"parents": [-1]}, "list of choices"),
    (7, "expected near"),
])
def test_bad_choices(cli, value, words):
    done = cli("tree", "--choices", write_json(cli, value))
    assert done.status == 1 and done.out == "" and words in done.err and "tree.json" in done.err


# ---- reading ----


def test_everything_that_follows(cli):
    for seed, num in enumerate([1, 2, 5, 31, 32, 33, 64, 65, 300]):
        parents = random_parents(num, seed)
        made = described(cli, write_json(cli, parents), "--prefix-len", 10)
        masks = sees(parents)
        depths = [sum(row) - 1 for row in masks]
        assert made["parents"] == parents and made["depths"] == depths
        assert made["positions"] == [10 + depth for depth in depths] and made["prefix_len"] == 10
        assert made["leaves"] == [i for i in range(num) if i not in parents]
        assert made["num_roots"] == parents.count(-1) and made["num_levels"] == max(depths) + 1
        assert made["max_children"] == max(parents.count(i) for i in range(num))
        for i, (begin, _) in enumerate(made["intervals"]):
            assert [int(b <= begin < e) for b, e in made["intervals"]] == masks[i]


def test_object_and_standard_input(cli):
    text = json.dumps({"parents": PARENTS, "texts": list("abcdef"), "tokens": [5, 4, 3, 2, 1, 0], "path": [0, 2]})
    done = subprocess.run([cli.path, "tree", "-", "--json"], input=text.encode(), capture_output=True, check=True)
    made = json.loads(done.stdout)
    assert made["texts"] == list("abcdef") and made["tokens"] == [5, 4, 3, 2, 1, 0] and made["path"] == [0, 2]


@pytest.mark.parametrize("dtype", ["I32", "I64"])
def test_tensor_files(cli, dtype):
    tensors = {"parents": tensorfile.tensor(dtype, [6], PARENTS), "tokens": tensorfile.tensor("I32", [6], range(6))}
    metadata = {"node_texts": json.dumps(list("abcdef")), "greedy_path": "[0, 1, 4]"}
    tensorfile.write(cli.folder / "in.safetensors", tensors, metadata)
    made = described(cli, "in.safetensors")
    assert made["parents"] == PARENTS and made["tokens"] == list(range(6))
    assert made["texts"] == list("abcdef") and made["path"] == [0, 1, 4]
    (cli.folder / "in.npy").write_bytes(tensorfile.npy(tensors["parents"]))
    assert described(cli, "in.npy")["parents"] == PARENTS


def test_capture(cli):
    tensors, metadata = tensorfile.parse(CAPTURE.read_bytes())
    made = described(cli, CAPTURE)
    assert made["parents"] == tensorfile.values(tensors["parents"])
    assert made["texts"] == json.loads(metadata["node_texts"])
    assert made["path"] == json.loads(metadata["greedy_path"])
    drawing = cli("tree", CAPTURE).out
    assert len(re.findall("\u2713", drawing)) == len(made["path"])
    assert cli("tree", CAPTURE, "--ascii").out.isascii()


@pytest.mark.parametrize("value,words", [
    ([-1, 0, 5], "parents[2] is 5"),
    ([-1, 1], "parents[1] is 1"),
    ([-1, -2], "parents[1] is -2"),
    ([1, 0], "parents[0] is 1"),
    ([-1, 2**31], "parents[1]"),
    ([-1, 0.0], "parents[1]"),
    ([-1, "0"], "parents[1]"),
    ({"parent": [-1]}, "parents"),
    ({"parents": [-1, 0], "texts": ["a"]}, "texts"),
    ({"parents": [-1, 0], "texts": ["a", 1]}, "texts[1]"),
    ({"parents": [-1, 0], "tokens": [1, -1]}, "tokens[1]"),
    ({"parents": [-1, 0], "tokens": [1, 2, 3]}, "tokens has 3"),
    ({"parents": [-1, 0, 0], "path": [0, 1, 2]}, "path: 2"),
    ({"parents": [-1, 0, 0], "path": [1]}, "path: 1"),
    ({"parents": [-1, 0, 0], "path": [0, 3]}, "path: 3"),
    ("x", "expected near"),
])
def test_bad_trees(cli, value, words):
    done = cli("tree", write_json(cli, value))
    assert done.status == 1 and done.out == "", done.out
    assert done.err.startswith("treeattn tree: tree.json: ") and words in done.err and done.err.count("\n") == 1


def test_bad_files(cli):
    (cli.folder / "broken.json").write_text("[-1, 0")
    (cli.folder / "twice.json").write_text('{"parents": [-1], "parents": [-1]}')
    tensorfile.write(cli.folder / "other.safetensors", {"parent": tensorfile.tensor("I32", [1], [-1])})
    tensorfile.write(cli.folder / "flat.safetensors", {"parents": tensorfile.tensor("F32", [1], [-1])})
    tensorfile.write(cli.folder / "texts.safetensors", {"parents": tensorfile.tensor("I32", [1], [-1])},
                     {"node_texts": "[1"})
    tensorfile.write(cli.folder / "path.safetensors", {"parents": tensorfile.tensor("I32", [1], [-1])},
                     {"greedy_path": "[7]"})
    for name, words in [("broken.json", "line 1"), ("twice.json", "uplicate"), ("none.json", "No such file"),
                        ("other.safetensors", "parents"), ("flat.safetensors", "f32"), ("texts.safetensors", "node_texts"),
                        ("path.safetensors", "greedy_path: 7")]:
        done = cli("tree", name)
        assert done.status == 1 and done.out == "" and words in done.err and name in done.err, done.err


# ---- drawing ----


def test_drawing(cli):
    tree = {"parents": [-1, 0, 1, 1, 3, 0, -1, 6], "texts": [";", "\n", "b", "c", "d", "e", "\u65e5", "\\\""], "path": [0, 1]}
    assert cli("tree", write_json(cli, tree)).out.splitlines() == [
        '0 ";" \u2713',
        '\u251c\u2500 1 "\\n" \u2713',
        '\u2502  \u251c\u2500 2 "b"',
        '\u2502  \u2514\u2500 3 "c" \u2500 4 "d"',
        '\u2514\u2500 5 "e"',
        '6 "\u65e5" \u2500 7 "\\\\\\""',
    ]
    assert cli("tree", "tree.json", "--ascii").out.splitlines() == [
        '0 ";" *', '|- 1 "\\n" *', '|  |- 2 "b"', '|  `- 3 "c" - 4 "d"', '`- 5 "e"', '6 "\\u{65e5}" - 7 "\\\\\\""',
    ]


def test_every_node_is_drawn_once(cli):
    for seed in range(12):
        parents = random_parents(1 + seed * 40, seed)
        for option in ([], ["--ascii"]):
            drawing = cli("tree", write_json(cli, parents), *option).out
            nodes = [int(number) for number in re.findall(r"(?<!\+)\b\d+\b", drawing)]
            begins = [begin for begin, _ in described(cli, "tree.json")["intervals"]]
            assert nodes == sorted(range(len(parents)), key=lambda i: begins[i])


def test_deep_trees_stay_narrow(cli):
    comb = [-1] + [i - 1 if i % 2 else i - 2 for i in range(1, 5001)]
    drawing = cli("tree", write_json(cli, comb)).out
    assert max(map(len, drawing.splitlines())) < 120 and "(+" in drawing
    done = cli("tree", "--chain", 100000)
    assert done.status == 0 and max(map(len, done.out.splitlines())) < 120


@pytest.mark.parametrize("text", ["\x1b[31m", "\r", "\x7f", "\u202e", "\u200b", "\ufeff", "\u0085", "\U000e0041"])
def test_nothing_reaches_the_terminal_unescaped(cli, text):
    write_json(cli, {"parents": [-1], "texts": ["a" + text + "b"]})
    for options in ([], ["--ascii"], ["--dot", "-"], ["--svg", "-"]):
        done = cli("tree", "tree.json", *options)
        assert done.status == 0 and text not in done.out and text[0] not in done.out


def test_long_texts_are_cut(cli):
    drawing = cli("tree", write_json(cli, {"parents": [-1, 0], "texts": ["x" * 1000, "y"]})).out
    assert len(drawing) < 60 and "\u2026" in drawing and '"y"' in drawing


def test_mark(cli):
    assert cli("tree", write_json(cli, PARENTS), "--mark", "0,2,5", "--ascii").out == "0 *\n|- 1\n|  |- 3\n|  `- 4\n`- 2 * - 5 *\n"
    done = cli("tree", "tree.json", "--mark", "0,5")
    assert done.status == 1 and "--mark: 5" in done.err


# ---- masks ----


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("num,prefix", [(0, 0), (1, 0), (31, 0), (32, 0), (33, 0), (64, 0), (65, 0), (129, 0), (6, 5), (64, 63)])
def test_words(cli, bits, num, prefix):
    parents = random_parents(num, num)
    done = cli("tree", write_json(cli, parents), "--words", bits, "--prefix-len", prefix)
    assert done.status == 0 and done.err == ""
    rows = [[int(word, 16) for word in line.split()] for line in done.out.splitlines()]
    assert all(re.fullmatch(rf"0x[0-9a-f]{{{bits // 4}}}", word) for word in done.out.split())
    expected = []
    for row in sees(parents):
        columns = [1] * prefix + row
        columns += [0] * (-len(columns) % bits)
        expected.append([sum(bit << lane for lane, bit in enumerate(columns[at:at + bits])) for at in range(0, len(columns), bits)])
    assert rows == expected


def read_png(content):
    """Width, height and the colour of each pixel; every checksum is checked."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        length, name = struct.unpack(">I4s", content[at:at + 8])
        data = content[at + 8:at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length:at + 12 + length])[0] == zlib.crc32(name + data)
        chunks[name] = data
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    width, height, depth, kind = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 2 and kind == 3
    raw = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + (width + 3) // 4
    assert len(raw) == height * stride
    palette = [tuple(chunks[b"PLTE"][3 * k:3 * k + 3]) for k in range(4)]
    pixels = []
    for y in range(height):
        assert raw[y * stride] == 0
        pixels.append([palette[raw[y * stride + 1 + x // 4] >> (6 - 2 * (x % 4)) & 3] for x in range(width)])
    return width, height, pixels


@pytest.mark.parametrize("num,prefix", [(1, 0), (6, 0), (6, 9), (63, 0), (65, 1), (300, 0), (1500, 7)])
def test_mask_png(cli, num, prefix):
    parents = random_parents(num, num)
    done = cli("tree", write_json(cli, parents), "--mask", "mask.png", "--prefix-len", prefix)
    assert done.status == 0 and done.out == "" and done.err == ""
    width, height, pixels = read_png((cli.folder / "mask.png").read_bytes())
    cell = height // num
    band = 4 * cell if prefix else 0
    assert height == num * cell and width == band + num * cell
    hidden = pixels[0][width - 1] if num > 1 else None
    for i, row in enumerate(sees(parents)):
        assert [int(pixels[i * cell][band + j * cell] != hidden) for j in range(num)] == row
    assert not prefix or pixels[0][0] != hidden


def test_mask_svg(cli):
    parents = random_parents(40, 1)
    for prefix in (0, 3):
        assert cli("tree", write_json(cli, parents), "--mask", "mask.svg", "--prefix-len", prefix).status == 0
        root = xml.parse(cli.folder / "mask.svg").getroot()
        seen = sum(path.attrib["d"].count("M") for path in root.iter("{http://www.w3.org/2000/svg}path"))
        assert seen == sum(map(sum, sees(parents)))


def test_pictures_have_limits(cli):
    for arguments in (["--chain", 0, "--mask", "a.png"], ["--chain", 0, "--svg", "a.svg"], ["--chain", 10000, "--mask", "a.png"],
                      ["--chain", 3000, "--mask", "a.svg"], ["--chain", 30000, "--svg", "a.svg"],
                      ["--chain", 100000, "--words", 32], ["--chain", 64, "--words", 32, "--prefix-len", 2**31 - 1]):
        done = cli("tree", *arguments)
        assert done.status == 1 and done.out == "" and "at " in done.err, arguments
    assert not (cli.folder / "a.png").exists() and not (cli.folder / "a.svg").exists()


# ---- files ----


def test_svg_and_dot(cli):
    tree = {"parents": PARENTS, "texts": ["<", "&", '"', "\\", "x]]>", "\n"], "tokens": list(range(6)), "path": [0, 2, 5]}
    done = cli("tree", write_json(cli, tree), "--svg", "tree.svg", "--dot", "tree.dot")
    assert done.status == 0 and done.out == "" and done.err == ""
    root = xml.parse(cli.folder / "tree.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in root.iter(space + "text")] == ['0 "<"', '1 "&"', '2 "\\""', '3 "\\\\"', '4 "x]]>"', '5 "\\n"']
    assert [node.text.split(",")[0] for node in root.iter(space + "title")] == [f"node {i}" for i in range(6)]
    assert len(list(root.iter(space + "path"))) == 5
    dot = (cli.folder / "tree.dot").read_text()
    assert re.findall(r"n(\d+) -> n(\d+)", dot) == [(str(parent), str(i)) for i, parent in enumerate(PARENTS) if parent >= 0]
    labels = re.findall(r'label="((?:[^"\\]|\\.)*)"', dot)
    assert [re.sub(r"\\(.)", r"\1", label) for label in labels] == [text.text for text in root.iter(space + "text")]


@pytest.mark.parametrize("name", ["out.safetensors", "out.json"])
def test_output_leads_back(cli, name):
    tree = {"parents": PARENTS, "texts": ["\n", "b", "\u65e5", "\\", '"', ""], "tokens": [9, 8, 7, 6, 5, 4], "ranks": [-1, 0, 1, 0, 1, 0]}
    done = cli("tree", write_json(cli, tree), "-o", name, "--prefix-len", 3)
    assert done.status == 0 and done.out == "" and done.err == ""
    again = described(cli, name)
    assert again["parents"] == PARENTS and again["texts"] == tree["texts"] and again["tokens"] == tree["tokens"]
    if name.endswith(".safetensors"):
        tensors = tensorfile.read(cli.folder / name)
        assert tensorfile.values(tensors["positions"]) == [3, 4, 4, 5, 5, 5]
        assert tensors["intervals"][1] == [6, 2] and tensorfile.values(tensors["ranks"]) == tree["ranks"]


def test_files_are_whole_or_untouched(cli):
    (cli.folder / "tree.svg").write_text("before")
    assert cli("tree", write_json(cli, [-1, 7]), "--svg", "tree.svg").status == 1
    assert (cli.folder / "tree.svg").read_text() == "before"
    done = cli("tree", "--chain", 3, "--svg", "missing/tree.svg")
    assert done.status == 1 and "missing/tree.svg" in done.err
    assert sorted(entry.name for entry in cli.folder.iterdir()) == ["tree.json", "tree.svg"]


# ---- the command line ----


@pytest.mark.parametrize("arguments", [
    [],
    ["a.json", "b.json"],
    ["a.json", "--chain", 3],
    ["--chain", 3, "--medusa"],
    ["--kary", 3],
    ["--depth", 3],
    ["--chain", 3, "--depth", 3],
    ["--chain", 3, "--seed", 1],
    ["--chain", -1],
    ["--chain", 2**20 + 1],
    ["--branching", "3,,1"],
    ["--branching", "3,-1"],
    ["--chain", 3, "--words", 16],
    ["--chain", 3, "--mask", "mask.gif"],
    ["--chain", 3, "--mask", ".png"],
    ["--chain", 3, "-o", "out.txt"],
    ["--chain", 3, "--prefix-len", -1],
    ["--chain", 3, "--mark", "a"],
])
def test_wrong_command_lines(cli, arguments):
    done = cli("tree", *arguments)
    assert done.status == 2 and done.out == "" and done.err.startswith("treeattn tree: "), done.err
    assert list(cli.folder.iterdir()) == []


def test_sizes_beyond_the_limit(cli):
    done = cli("tree", "--kary", 2, "--depth", 20)
    assert done.status == 1 and "1048576" in done.err
    done = cli("tree", "--chain", 3, "--prefix-len", 2**31 - 1, "--json")
    assert done.status == 1 and "prefix_len" in done.err
