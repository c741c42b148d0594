# SPDX-License-Identifier: Apache-2.0
"""`treeattn bench` and `treeattn check`: what they print, in every form, and what they refuse."""

import csv
import io
import json

import pytest
from conftest import ROOT

CAPTURE = ROOT / "examples" / "data" / "code.safetensors"
SMALL = ["--heads", 6, "--kv-heads", 2, "--head-dim", 40, "--nodes", 5, "--kv-len", 130, "-r", 2, "-t", 2]


def test_check_holds_and_counts(cli):
    done = cli("check", "--quick", "--json", "--seed", 7)
    assert done.status == 0, done.out + done.err
    report = json.loads(done.out)
    lines = {line["name"]: line for line in report["lines"]}
    assert [name.split()[0] for name in lines] == ["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "accuracy"]
    for name, line in lines.items():
        assert line["differing"] == 0 and "first" not in line
        assert line["compared"] > 0 or name.startswith("P5"), name
    assert 0 < report["worst_error"] <= report["worst_error_bound"]


def test_check_reads_a_capture(cli):
    done = cli("check", "--quick", "--input", CAPTURE)
    assert done.status == 0 and done.err == ""
    assert "and 2 of" in done.out and done.out.count("  ok\n") == 9 and "FAILED" not in done.out


def test_same_seed_same_checks(cli):
    first, second, other = (cli("check", "--quick", "--isa", "scalar", "--seed", seed).out for seed in (3, 3, 4))
    assert first == second != other


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_bench_forms_agree_on_the_work(cli, dtype):
    done = cli("bench", *SMALL, "--kv-dtype", dtype, "--json")
    assert done.status == 0 and done.err == ""
    report = json.loads(done.out)
    (work,) = report["workloads"]
    size = 4 if dtype == "f32" else 2
    assert work["bytes"] == 2 * 2 * 130 * 40 * size
    assert work["flops"] == 4 * 6 * 5 * 130 * 40
    assert work["exponentials"] == 6 * 5 * 130
    assert len(work["library"]["all_ms"]) == 2 and work["library"]["min_ms"] == min(work["library"]["all_ms"])
    assert work["rows_alone"] == work["rows_same"] == 4 * 6
    assert 0 < work["error"] < 1e-5
    # The seed's algorithm reads f32 and f16 only; its queries are halves.
    assert ("seed" in work) == (dtype != "bf16")
    assert dtype == "bf16" or 1e-6 < work["seed_error"] < 1e-2
    floor = max(work["bytes"] / report["memory_gb_per_s"] / 1e6,
                work["flops"] / report["peak_gflop_per_s"] / 1e6 + work["exponentials"] / report["peak_gexp_per_s"] / 1e6)
    assert work["floor_ms"] == pytest.approx(floor)
    assert work["share_of_floor"] == pytest.approx(floor / work["library"]["median_ms"])

    (row,) = csv.DictReader(io.StringIO(cli("bench", *SMALL, "--kv-dtype", dtype, "--csv").out))
    assert (row["heads"], row["kv_len"], row["kv_dtype"], row["rows_same"]) == ("6", "130", dtype, "24")
    assert None not in row and None not in row.values()
    assert (row["seed_ratio"] == "") == (dtype == "bf16")


def test_bench_table_and_dense_masks(cli):
    done = cli("bench", *SMALL, "--mask", "dense")
    assert done.status == 0 and " 24/24 " in done.out and "custom" in done.out


def test_bench_of_a_capture(cli):
    done = cli("bench", "--input", CAPTURE, "--layer", 14, "-r", 1, "--json")
    assert done.status == 0
    (work,) = json.loads(done.out)["workloads"]
    assert (work["name"], work["heads"], work["nodes"], work["kv_len"]) == ("layer 14", 9, 48, 1111)
    assert work["rows_alone"] == work["rows_same"] == 36


@pytest.mark.parametrize("arguments, word", [
    (["bench", "-w", "G"], "'G'"),
    (["bench", "-w", ""], "workload"),
    (["bench", "-r", "0"], "--repeat"),
    (["bench", "-t", "x"], "--threads"),
    (["bench", "--heads", "7", "--kv-heads", "2"], "7 heads"),
    (["bench", "--nodes", "9", "--kv-len", "8"], "9 nodes"),
    (["bench", "--isa", "mmx"], "--isa"),
    (["bench", "--layer", "3"], "--input"),
    (["bench", "--input", "x", "-w", "A"], "--input"),
    (["bench", "more"], "more"),
    (["check", "--seed", "-1"], "--seed"),
    (["check", "more"], "more"),
])
def test_wrong_command_lines(cli, arguments, word):
    done = cli(*arguments)
    assert done.status == 2 and done.out == ""
    assert word in done.err and "--help" in done.err


@pytest.mark.parametrize("arguments, word", [
    (["bench", "--input", "missing.safetensors"], "missing.safetensors"),
    (["bench", "--input", CAPTURE, "--layer", "5"], "layer5.q"),
    (["check", "--quick", "--input", "missing.safetensors"], "missing.safetensors"),
    (["bench", "-w", "A", "--kv-len", str(2**30), "--heads", "64", "--kv-heads", "64"], "memory"),
])
def test_what_cannot_be_done(cli, arguments, word):
    done = cli(*arguments)
    assert done.status == 1 and done.out == ""
    assert word in done.err and done.err.count("\n") == 1
