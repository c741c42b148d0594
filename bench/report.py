#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures this machine and writes bench/results/NAME-ISA.json and .md, with hardware, commit and command.

    bench/report.py [--name NAME] [--treeattn build/release/treeattn] [OPTIONS OF `treeattn bench`]

NAME defaults to the processor. Everything that is not an option of this script goes to `treeattn bench`.
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def hardware():
    fields = {}
    for line in run("lscpu").splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    wanted = ("Model name", "CPU family", "Model", "Stepping", "CPU(s)", "Thread(s) per core", "L1d cache", "L2 cache",
              "L3 cache", "Hypervisor vendor")
    found = {key: fields[key] for key in wanted if key in fields}
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    if memory:
        found["Memory"] = f"{int(memory.group(1)) / 2**20:.0f} GiB"
    return found


def commit():
    revision = run("git", "rev-parse", "HEAD") or "unknown"
    return revision + (" with changes" if run("git", "status", "--porcelain", "--untracked-files=no") else "")


def compilers(build):
    """What built the library, as CMake remembers it."""
    cache = build / "CMakeCache.txt"
    text = cache.read_text() if cache.exists() else ""
    compiler = re.search(r"^CMAKE_C_COMPILER:\w+=(.*)$", text, re.M)
    kind = re.search(r"^CMAKE_BUILD_TYPE:\w+=(.*)$", text, re.M)
    version = run(compiler.group(1), "--version").splitlines()[:1] if compiler else []
    return ", ".join(version + ([kind.group(1)] if kind else []))


def portable(command):
    """A command line without the folders of one machine."""
    return [" ".join(pathlib.PurePath(part).name if part.startswith("/") else part for part in word.split(" "))
            for word in command]


def table(results):
    head = ["", "H", "HKV", "D", "N", "KV", "cache", "median ms", "min ms", "floor ms", "share", "GB/s", "GFLOP/s",
            "seed's algorithm ms", "ratio", "plan µs", "scratch MB", "all scores MB", "seed's MB", "error", "seed's error",
            "same bits"]
    rows = [head, ["---"] + ["--:"] * (len(head) - 1)]
    for w in results["workloads"]:
        seed = w.get("seed")
        rows.append([
            w["name"], w["heads"], w["kv_heads"], w["head_dim"], w["nodes"], w["kv_len"], w["kv_dtype"],
            f"{w['library']['median_ms']:.2f}", f"{w['library']['min_ms']:.2f}",
            f"{w['floor_ms']:.2f} ({w['floor_kind']})",
            f"{100 * w['share_of_floor']:.0f} %", f"{w['gb_per_s']:.1f}", f"{w['gflop_per_s']:.0f}",
            f"{seed['median_ms']:.2f}" if seed else "–", f"{w['seed_ratio']:.2f}" if seed else "–",
            f"{w['plan_us']:.1f}", f"{w['scratch_bytes'] / 1e6:.2f}", f"{w['unfused_bytes'] / 1e6:.2f}",
            f"{w['seed_bytes'] / 1e6:.2f}", f"{w['error']:.1e}",
            f"{w['seed_error']:.1e}" if seed else "–", f"{w['rows_same']}/{w['rows_alone']}"])
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def peers_table(results):
    """Everybody on one workload after the other; empty where nobody but the seed's algorithm was measured."""
    rows = [["", "", "median ms", "ours is faster by", "error", "same bits alone", "rows spoiled by a masked NaN"],
            ["---", "---"] + ["--:"] * 5]
    for w in results["workloads"]:
        if "peers" not in w:
            return ""
        ours = w["library"]["median_ms"]

        def spoiled(count):
            return "–" if count is None else f"{count}/{w['rows']}"
        rows.append([w["name"], "treeattn", f"{ours:.2f}", "", f"{w['error']:.1e}", f"{w['rows_same']}/{w['rows_alone']}",
                     spoiled(w.get("rows_spoiled"))])
        if "seed" in w:
            rows.append(["", "seed's algorithm", f"{w['seed']['median_ms']:.2f}", f"{w['seed_ratio']:.2f}",
                         f"{w['seed_error']:.1e}", "–", spoiled(w.get("seed_rows_spoiled"))])
        for peer in w["peers"]:
            if "refused" in peer:
                rows.append(["", peer["name"], "–", "–", "–", "–", peer["refused"]])
                continue
            median = peer["times"]["median_ms"]
            rows.append(["", peer["name"], f"{median:.2f}", f"{median / ours:.2f}", f"{peer['error']:.1e}",
                         f"{peer['rows_same']}/{peer['rows_alone']}", spoiled(peer.get("rows_spoiled"))])
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name")
    parser.add_argument("--treeattn", default="build/release/treeattn")
    parser.add_argument("--output", default="bench/results", type=pathlib.Path)
    parser.add_argument("--peers", action="store_true", help="beside the peers that bench/peers/available finds")
    options, passed_on = parser.parse_known_args()
    command = [options.treeattn, "bench", "--json", *passed_on]
    if options.peers:
        for peer in run("bench/peers/available", str(pathlib.Path(options.treeattn).parent)).splitlines():
            command += ["--peer", peer]
    # Its progress bar and its messages go to the terminal.
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    results = json.loads(done.stdout)
    results["command"] = portable(command)
    results["commit"] = commit()
    results["compiler"] = compilers((ROOT / options.treeattn).parent)
    results["hardware"] = hardware()

    name = options.name or re.sub(r"[^a-z0-9]+", "-", results["cpu"].lower()).strip("-")
    stem = f"{name}-{results['workloads'][0]['isa']}"
    folder = ROOT / options.output
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    lines = [
        f"# {results['cpu']}, {results['threads']} threads, {results['workloads'][0]['isa']}", "",
        f"treeattn {results['version']}, commit {results['commit']}, {results['compiler']}.  ",
        f"`{shlex.join(results['command'])}`; median of {results['repeat']} runs, library and seed's algorithm "
        f"({results['seed_isa']}) in turn.  ",
        f"Measured in the same run ({results['peak_instructions']}): {results['peak_gflop_per_s']:.0f} GFLOP/s, "
        f"{results['peak_gexp_per_s']:.1f} Gexp/s, {results['memory_gb_per_s']:.1f} GB/s read from memory.  ",
        "; ".join(f"{key}: {value}" for key, value in results["hardware"].items()) + ".", "",
        table(results), ""]
    if peers_table(results):
        lines += ["Everybody in turn in the same run, on the same data and number of threads; threads rest between them. "
                  "Same bits: rows of up to four nodes computed alone (ours: decoded after their path). Spoiled: rows with a NaN "
                  "after one was put into V for each KV head, in a slot that every row masks.", "", peers_table(results), ""]
    (folder / f"{stem}.md").write_text("\n".join(lines))
    print(f"{folder / stem}.md")


if __name__ == "__main__":
    main()
