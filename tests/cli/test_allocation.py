# SPDX-License-Identifier: Apache-2.0
"""Risk: a command that runs out of memory crashes, writes half a file, or says that all went well."""

import os

import pytest
import tensorfile
from tensorfile import step

# A few allocations are only for the best effort (syncing a folder): with one of them missing a command still succeeds.
IN_A_ROW = 4
LIMIT = 1500


def fail_each(cli, arguments, output=None):
    """Fails the first allocation, the second and so on until the command makes no more of them; gives their number."""
    expected = cli(*arguments)
    assert expected.status == 0, expected.err
    content = (cli.folder / output).read_bytes() if output else b""
    names = sorted(path.name for path in cli.folder.iterdir())
    good, failures = 0, 0
    step_width = 5 if os.environ.get("TREEATTN_TEST_QUICK") else 1
    for n in range(1, LIMIT, step_width):
        if output:
            (cli.folder / output).write_bytes(b"precious")
        done = cli(*arguments, TREEATTN_TEST_FAIL_ALLOCATION=str(n))
        if done.status == 0:
            assert done.out == expected.out
            assert not output or (cli.folder / output).read_bytes() == content
            good += 1
        else:
            assert done.status == 1 and "out of memory" in done.err and done.err.startswith("treeattn"), done.err
            assert not output or (cli.folder / output).read_bytes() == b"precious"
            good, failures = 0, failures + 1
        assert sorted(path.name for path in cli.folder.iterdir()) == names
        if good == IN_A_ROW:
            return failures
    pytest.fail(f"still failing at allocation {LIMIT}")


@pytest.fixture
def testing(cli):
    tensorfile.write(cli.folder / "in.safetensors", step(), {"key": "value"})
    if cli("attend", "in.safetensors", "-o", "out.npz", TREEATTN_TEST_FAIL_ALLOCATION="2").status == 0:
        pytest.skip("not a build in which allocations can be made to fail (TREEATTN_TESTING)")
    return cli


@pytest.mark.parametrize("extension", ["safetensors", "npz", "npy"])
def test_attend(testing, extension):
    assert fail_each(testing, ["attend", "in.safetensors", "-o", f"out.{extension}"], f"out.{extension}") > 10


def test_attend_from_npz(testing):
    assert testing("attend", "in.safetensors", "-o", "both.npz").status == 0
    import io
    import zipfile
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, entry in step().items():
            packed.writestr(f"{name}.npy", tensorfile.npy(entry))
    (testing.folder / "in.npz").write_bytes(stream.getvalue())
    assert fail_each(testing, ["attend", "in.npz", "-o", "out.npy"], "out.npy") > 3


def test_info(testing):
    assert fail_each(testing, ["info", "--json"]) > 10
