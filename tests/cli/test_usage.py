# SPDX-License-Identifier: Apache-2.0
"""Risk: the program does not behave as a Unix tool: exit statuses, where messages go, what options accept."""

import json
import re

import pytest
import tensorfile

COMMANDS = ["attend", "tree", "verify", "compact", "check", "bench", "info"]


def test_version(cli):
    for option in ("--version", "-V"):
        done = cli(option)
        assert done.status == 0 and re.fullmatch(r"treeattn \d+\.\d+\.\d+\n", done.out) and done.err == ""


def test_help(cli):
    for arguments in (["--help"], ["-h"], ["help"]):
        done = cli(*arguments)
        assert done.status == 0 and done.err == ""
        assert all(re.search(rf"^  {command} ", done.out, re.M) for command in COMMANDS)
        assert max(map(len, done.out.splitlines())) <= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(cli, command):
    texts = []
    for arguments in ([command, "--help"], [command, "-h"], ["help", command]):
        done = cli(*arguments)
        assert done.status == 0 and done.err == "", arguments
        assert done.out.startswith(f"Usage: treeattn {command}")
        texts.append(done.out)
    assert texts[0] == texts[1] == texts[2]
    if command not in ("bench", "check"):  # these need no file, and nothing more than their name
        assert "xample" in texts[0]


def test_no_command(cli):
    done = cli()
    assert done.status == 2 and done.out == "" and done.err.startswith("Usage: treeattn")


@pytest.mark.parametrize("word,kind", [("atend", "command"), ("--frobnicate", "option"), ("", "command")])
def test_unknown_command(cli, word, kind):
    done = cli(word)
    assert done.status == 2 and done.out == ""
    assert done.err == f"treeattn: unknown {kind} '{word}'\nTry 'treeattn --help' for more information.\n"
    assert cli("help", "atend").status == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option(cli, command):
    done = cli(command, "--frobnicate")
    assert done.status == 2 and done.out == ""
    assert done.err == (f"treeattn {command}: unrecognized option '--frobnicate'\n"
                        f"Try 'treeattn {command} --help' for more information.\n")


USAGE = [
    ([], "an input file is needed"),
    (["in.safetensors"], "an output file is needed"),
    (["in.safetensors", "other.safetensors", "-o", "out.npz"], "one input file is expected, 2 are given"),
    (["in.safetensors", "-o"], "option requires an argument"),
    (["in.safetensors", "-o", "out.txt"], "extension must be"),
    (["in.safetensors", "-o", "out"], "extension must be"),
    (["in.safetensors", "-o", "folder.npz/out"], "extension must be"),
    (["--q", "q.npy", "--k", "k.npy", "-o", "out.npz"], "an input file is needed, or --q, --k and --v"),
    *[(["in.safetensors", "-o", "out.npz", f"--{option}", text], words) for option, text, words in [
        ("prefix-len", "-1", "--prefix-len: -1 is out of range"),
        ("prefix-len", "", "--prefix-len: '' is not a whole number"),
        ("prefix-len", "7x", "'7x' is not a whole number"),
        ("prefix-len", " 7", "' 7' is not a whole number"),
        ("prefix-len", "0x10", "'0x10' is not a whole number"),
        ("prefix-len", "1e3", "'1e3' is not a whole number"),
        ("prefix-len", "7.0", "'7.0' is not a whole number"),
        ("prefix-len", "9223372036854775808", "out of range"),
        ("prefix-len", "18446744073709551617", "out of range"),
        ("kv-len", "-9223372036854775809", "out of range"),
        ("layer", "2147483648", "out of range"),
        ("window", "-1", "out of range"),
        ("threads", "0", "from 1 to 1024"),
        ("threads", "1025", "from 1 to 1024"),
        ("threads", "two", "not a whole number"),
        ("scale", "nan", "'nan' is not a number"),
        ("scale", "inf", "out of range"),
        ("scale", "1e39", "out of range"),
        ("scale", "1e999", "out of range"),
        ("scale", "1e-60", "too small"),
        ("scale", "0x1p3", "not a number"),
        ("scale", "1,5", "not a number"),
        ("scale", "", "not a number"),
        ("scale", ".", "not a number"),
        ("softcap", "-1", "out of range"),
        ("softcap", "inf", "out of range"),
        ("isa", "sse", "'sse' is not one of auto, scalar, avx2, avx512 or neon"),
        ("mode", "quick", "'quick' is not one of exact or fast"),
        ("backend", "tpu", "'tpu' is not one of cpu, cuda or metal"),
        ("backend", "metal", "metal is not in this build"),
    ]],
]


@pytest.mark.parametrize("arguments,words", USAGE, ids=[" ".join(row[0][-2:]) or "nothing" for row in USAGE])
def test_wrong_command_line(cli, arguments, words):
    tensorfile.write(cli.folder / "in.safetensors", tensorfile.step())
    done = cli("attend", *arguments)
    assert done.status == 2 and done.out == "", done.err
    assert words in done.err and done.err.endswith("Try 'treeattn attend --help' for more information.\n"), done.err
    assert [path.name for path in cli.folder.iterdir()] == ["in.safetensors"]


@pytest.mark.parametrize("text", ["0.125", "+0.125", ".125", "1.25e-1", "125E-3"])
def test_numbers_as_people_write_them(cli, text):
    assert cli.attend(tensorfile.step(), "--scale", text) == cli.attend(tensorfile.step(), "--scale", "0.125")


def test_options_after_the_file_and_joined(cli):
    expected = cli.attend(tensorfile.step(), "--window", "5")
    done = cli("attend", "-oout.safetensors", "--window=5", "--", "in.safetensors")
    assert done.status == 0 and tensorfile.read(cli.folder / "out.safetensors") == expected


@pytest.mark.parametrize("path,words", [("absent.safetensors", "No such file"), (".", "Is a directory"),
                                        ("in.safetensors/x", "Not a directory")])
def test_input_that_cannot_be_read(cli, path, words):
    tensorfile.write(cli.folder / "in.safetensors", tensorfile.step())
    done = cli("attend", path, "-o", "out.npz")
    assert done.status == 1 and done.err.startswith(f"treeattn attend: {path}: ") and words in done.err


def test_info(cli):
    done = cli("info", "--json")
    assert done.status == 0 and done.err == ""
    info = json.loads(done.out)
    assert info["version"] == cli("--version").out.split()[1]
    assert info["backends"]["cpu"] is True and info["backends"]["metal"] is False
    assert "scalar" in info["isa"]["available"] and info["isa"]["chosen"] in info["isa"]["available"]
    assert info["attention"]["head_dims"] == {"min": 8, "max": 1024, "step": 8}
    assert info["attention"]["kv_dtypes"] == ["f32", "f16", "bf16"]
    assert all(info["attention"]["masks"].values()) and all(info["attention"]["features"].values())
    text = cli("info")
    assert text.status == 0 and f"treeattn {info['version']}" in text.out and "8 to 1024 in steps of 8" in text.out
    assert re.search(rf"{info['isa']['chosen']} +yes, chosen", text.out)
    assert cli("info", "extra").status == 2
