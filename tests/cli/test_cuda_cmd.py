# SPDX-License-Identifier: Apache-2.0
"""Risk: a build without CUDA, or a machine without a GPU, is not told from one that has it; a GPU gives other bits.

What is right depends on the build and the machine: the tests ask `info`, and hold everything else against its answer.
"""

import json

import pytest

import tensorfile


@pytest.fixture
def cuda(cli):
    """What `info --json` says about CUDA."""
    info = json.loads(cli("info", "--json").out)
    return {"compiled": info["backends"]["cuda"], **info["cuda"]}


def usable(cuda):
    return bool(cuda["devices"]) and cuda["devices"][0]["usable"]


def test_info_gives_devices_or_the_reason(cli, cuda):
    text = cli("info").out
    assert bool(cuda["devices"]) != bool(cuda["reason"]), cuda
    if cuda["devices"]:
        assert cuda["compiled"]
        for number, device in enumerate(cuda["devices"]):
            assert f"  cuda {number}" in text and device["name"] in text
            assert device["usable"] or device["reason"]
    else:
        assert f"  cuda         {cuda['reason']}\n" in text
        assert ("not in this build" in cuda["reason"]) == (not cuda["compiled"])


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_attend_without_a_gpu(cli, cuda, mode):
    tensorfile.write(cli.folder / "in.safetensors", tensorfile.step())
    done = cli("attend", "in.safetensors", "-o", "out.safetensors", "--backend", "cuda", "--mode", mode)
    if not cuda["compiled"]:
        assert done.status == 2
        assert done.err == ("treeattn attend: option --backend: cuda is not in this build\n"
                            "Try 'treeattn attend --help' for more information.\n")
    elif not usable(cuda):
        assert done.status == 1 and done.err.startswith("treeattn attend: --backend cuda: "), done.err
        if not cuda["devices"] and "there is no device" in cuda["reason"]:
            assert done.err == "treeattn attend: --backend cuda: there is no CUDA device, or no driver for it\n"
    elif mode == "exact":
        assert done.status == 0 and done.err == ""
        assert tensorfile.read(cli.folder / "out.safetensors") == cli.attend(tensorfile.step(), output="cpu.safetensors")
        return
    else:  # a cache of f32 has no fast mode
        assert done.status == 1 and "mode" in done.err
    assert done.out == "" and not (cli.folder / "out.safetensors").exists()


def test_the_gpu_is_missed_before_files_are_read(cli, cuda):
    done = cli("attend", "absent.safetensors", "-o", "out.safetensors", "--backend", "cuda")
    assert done.status == (2 if not cuda["compiled"] else 1)
    assert ("absent.safetensors" in done.err) == usable(cuda), done.err


def test_cpu_by_name(cli):
    assert cli.attend(tensorfile.step(), "--backend", "cpu") == cli.attend(tensorfile.step())
