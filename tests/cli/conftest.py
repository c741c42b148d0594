# SPDX-License-Identifier: Apache-2.0
"""Where the program is, and how tests call it."""

import os
import subprocess
from pathlib import Path

import pytest

import tensorfile

ROOT = Path(__file__).resolve().parent.parent.parent


def program():
    """TREEATTN_CLI, or TREEATTN_BIN, names the program."""
    for name in ("TREEATTN_CLI", "TREEATTN_BIN"):
        if os.environ.get(name):
            return os.environ[name]
    return None


# Either name works for every test file; conftest is imported before them.
if program() is not None:
    for variable in ("TREEATTN_CLI", "TREEATTN_BIN"):
        os.environ[variable] = str(Path(program()).resolve())


class Done:
    """What a finished call left."""

    def __init__(self, completed):
        self.status = completed.returncode
        self.out = completed.stdout.decode("utf-8", "replace")
        self.err = completed.stderr.decode("utf-8", "replace")


class Cli:
    """Calls the program in a folder of its own."""

    def __init__(self, path, folder):
        self.path = str(Path(path).resolve())
        self.folder = folder

    def __call__(self, *arguments, **environment):
        completed = subprocess.run([self.path, *map(str, arguments)], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, timeout=300,
                                   env=dict(os.environ, LC_ALL="C", **environment))
        done = Done(completed)
        # A sanitizer's report or a crash is never what a test expects, whatever status it comes with.
        assert "Sanitizer" not in done.err and "runtime error" not in done.err, done.err
        assert done.status >= 0, f"killed by signal {-done.status}: {done.err}"
        return done

    def attend(self, tensors, *options, name="in.safetensors", output="out.safetensors"):
        """Writes the tensors, attends, and gives (out, lse) back as lists of arrays from the output file."""
        tensorfile.write(self.folder / name, tensors)
        done = self("attend", name, "-o", output, *options)
        assert done.status == 0, done.err
        assert done.err == "" and done.out == ""
        return tensorfile.read(self.folder / output)


@pytest.fixture
def cli(tmp_path):
    path = program()
    if path is None:
        pytest.fail("set TREEATTN_CLI to the program under test")
    return Cli(path, tmp_path)
