# SPDX-License-Identifier: Apache-2.0
"""Risk: an output file is left half written, an old one is lost, or the input is touched."""

import os
import pty
import resource
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import tensorfile
from tensorfile import step


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def ready(cli):
    tensorfile.write(cli.folder / "in.safetensors", step())
    return cli


def test_input_is_not_touched(ready):
    before = (ready.folder / "in.safetensors").read_bytes(), (ready.folder / "in.safetensors").stat().st_mtime_ns
    assert ready("attend", "in.safetensors", "-o", "out.npz").status == 0
    after = (ready.folder / "in.safetensors").read_bytes(), (ready.folder / "in.safetensors").stat().st_mtime_ns
    assert before == after and names(ready.folder) == ["in.safetensors", "out.npz"]


def test_output_over_the_input(ready):
    expected = ready.attend(step())
    assert ready("attend", "in.safetensors", "-o", "in.safetensors").status == 0
    assert tensorfile.read(ready.folder / "in.safetensors") == expected


def test_equal_runs_give_equal_files(ready):
    for extension in ("safetensors", "npz", "npy"):
        contents = []
        for _ in range(2):
            assert ready("attend", "in.safetensors", "-o", f"out.{extension}").status == 0
            contents.append((ready.folder / f"out.{extension}").read_bytes())
        assert contents[0] == contents[1]


def test_failure_keeps_the_old_output(ready):
    (ready.folder / "out.safetensors").write_bytes(b"precious")
    assert ready("attend", "in.safetensors", "-o", "out.safetensors", "--kv-len", 99).status == 1
    assert (ready.folder / "out.safetensors").read_bytes() == b"precious"
    assert names(ready.folder) == ["in.safetensors", "out.safetensors"]


@pytest.mark.parametrize("extension", ["safetensors", "npz", "npy"])
def test_full_disk(ready, extension):
    """A limit on the size of files stands for a disk that fills up in the middle of the data."""
    (ready.folder / f"out.{extension}").write_bytes(b"precious")
    tensorfile.write(ready.folder / "in.safetensors", step(heads=8, nodes=64, capacity=100, dim=64, parents=None))
    done = subprocess.run([ready.path, "attend", "in.safetensors", "-o", f"out.{extension}"], cwd=ready.folder, check=False,
                          capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000)))
    assert done.returncode == 1 and b"File too large" in done.stderr and f"out.{extension}".encode() in done.stderr
    assert (ready.folder / f"out.{extension}").read_bytes() == b"precious"
    assert names(ready.folder) == ["in.safetensors", f"out.{extension}"]


@pytest.mark.parametrize("path,words", [("absent/out.npz", "No such file"), ("folder.npz", "Is a directory"),
                                        ("in.safetensors/out.npz", "Not a directory")])
def test_output_that_cannot_be_written(ready, path, words):
    (ready.folder / "folder.npz").mkdir()
    done = ready("attend", "in.safetensors", "-o", path)
    assert done.status == 1 and done.err.startswith(f"treeattn attend: {path}: ") and words in done.err
    assert names(ready.folder) == ["folder.npz", "in.safetensors"]


@pytest.mark.parametrize("protected", ["file", "folder"])
def test_protected(ready, protected):
    """As somebody who may not write there; the superuser becomes nobody for it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.safetensors").write_bytes((ready.folder / "in.safetensors").read_bytes())
        if protected == "file":
            (folder / "out.npz").write_bytes(b"precious")
            (folder / "out.npz").chmod(0o444)
        folder.chmod(0o777 if protected == "file" else 0o555)
        nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        try:
            done = subprocess.run([ready.path, "attend", "in.safetensors", "-o", "out.npz"], cwd=folder, check=False,
                                  capture_output=True, **nobody)
        except PermissionError:
            pytest.skip("nobody may not run the program where it is")
        finally:
            left = names(folder)
            folder.chmod(0o755)
        assert done.returncode == 1 and b"out.npz: " in done.stderr and b"Permission denied" in done.stderr
        assert left == (["in.safetensors", "out.npz"] if protected == "file" else ["in.safetensors"])
        assert protected == "folder" or (folder / "out.npz").read_bytes() == b"precious"


def test_mode_of_files(ready):
    old = os.umask(0o027)
    try:
        assert ready("attend", "in.safetensors", "-o", "fresh.npz").status == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((ready.folder / "fresh.npz").stat().st_mode) == 0o640
    (ready.folder / "fresh.npz").chmod(0o604)
    assert ready("attend", "in.safetensors", "-o", "fresh.npz").status == 0
    assert stat.S_IMODE((ready.folder / "fresh.npz").stat().st_mode) == 0o604


def test_links_are_followed(ready):
    (ready.folder / "real").mkdir()
    (ready.folder / "real" / "file.safetensors").write_bytes(b"old")
    (ready.folder / "link.safetensors").symlink_to("real/file.safetensors")
    expected = ready.attend(step())
    assert ready("attend", "in.safetensors", "-o", "link.safetensors").status == 0
    assert (ready.folder / "link.safetensors").is_symlink()
    assert tensorfile.read(ready.folder / "real" / "file.safetensors") == expected
    assert names(ready.folder / "real") == ["file.safetensors"]


def test_devices_are_written_directly(ready):
    (ready.folder / "null.npz").symlink_to("/dev/null")
    assert ready("attend", "in.safetensors", "-o", "null.npz").status == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and names(ready.folder) == ["in.safetensors", "null.npz"]
    (ready.folder / "full.npz").symlink_to("/dev/full")
    done = ready("attend", "in.safetensors", "-o", "full.npz")
    assert done.status == 1 and "No space left" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_while_writing(ready, number):
    """Caught in the act: a large output from a step of no work, and the signal once the temporary file is there."""
    heads, nodes = 16, 2048
    tensorfile.write(ready.folder / "in.safetensors", {
        "q": ("F32", [heads, nodes, 8], bytes(4 * heads * nodes * 8)),
        "k": ("F32", [1, 1, 8], bytes(32)),
        "v": ("F32", [1, 1, 1024], bytes(4096)),
        "mask": ("BOOL", [nodes, 1], b"\1" * nodes),
    })
    target = ready.folder / "out.safetensors"
    target.write_bytes(b"precious")
    for _ in range(10):
        child = subprocess.Popen([ready.path, "attend", "in.safetensors", "-o", "out.safetensors"], cwd=ready.folder)
        while child.poll() is None and not list(ready.folder.glob(".out.safetensors.*.tmp")):
            pass
        child.send_signal(number)
        if child.wait(timeout=60) == -number:
            assert target.read_bytes() == b"precious"
            assert names(ready.folder) == ["in.safetensors", "out.safetensors"]
            return
        # It was through before the signal came: then the output is complete and nothing else is left.
        assert child.returncode == 0 and target.stat().st_size > 100_000_000
        assert names(ready.folder) == ["in.safetensors", "out.safetensors"]
        target.write_bytes(b"precious")
    pytest.fail("the program was never caught while it wrote")


def test_input_that_shrinks(ready):
    """The mapped pages are gone: a message and no output, instead of a core."""
    arguments = slow_step(ready)
    child = subprocess.Popen([ready.path, *map(str, arguments)], cwd=ready.folder, stderr=subprocess.PIPE)
    time.sleep(0.5)
    os.truncate(ready.folder / "slow.safetensors", 4096)
    _, message = child.communicate(timeout=60)
    assert child.returncode == 1 and message == b"treeattn: an input file became shorter while it was read\n"
    assert names(ready.folder) == ["in.safetensors", "slow.safetensors"]


def test_standard_output_that_is_full(ready):
    for arguments in (["--help"], ["--version"], ["info"], ["info", "--json"], ["attend", "--help"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([ready.path, *arguments], stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 1 and b"standard output: No space left" in done.stderr, arguments


# ---- progress ----


def on_terminal(cli, *arguments):
    """Runs with stderr on a terminal and gives back what was written there."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([cli.path, *map(str, arguments)], cwd=cli.folder, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert child.wait(timeout=300) == 0
    return seen


def slow_step(cli, nodes=16):
    """Seconds of work for the scalar reference, and tensors of zeros that need no time to make."""
    heads, capacity, dim = 16, 3000, 256
    tensorfile.write(cli.folder / "slow.safetensors", {
        "q": ("F32", [heads, nodes, dim], bytes(4 * heads * nodes * dim)),
        "k": ("F16", [heads, capacity, dim], bytes(2 * heads * capacity * dim)),
        "v": ("F16", [heads, capacity, dim], bytes(2 * heads * capacity * dim)),
    })
    return ["attend", "slow.safetensors", "-o", "out.npy", "--isa", "scalar", "--threads", 1]


def test_progress_bar(ready):
    assert on_terminal(ready, "attend", "in.safetensors", "-o", "out.npz") == b""
    seconds, nodes = 0.0, 4
    while seconds < 2.5:
        nodes *= 2
        arguments = slow_step(ready, nodes)
        started = time.monotonic()
        done = ready(*arguments)
        seconds = time.monotonic() - started
        assert done.status == 0 and done.err == "", "no bar where stderr is not a terminal"
    seen = on_terminal(ready, *arguments)
    assert b"attending" in seen and b"%" in seen and seen.endswith(b"\r\x1b[K")
