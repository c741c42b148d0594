#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time against nodes and against KV length, with the floor: measures both sweeps and draws them as SVG.

    bench/plot.py [--name NAME] [--draw] [--treeattn build/release/treeattn] [--peers] [OPTIONS OF `treeattn bench`]

Data goes to bench/results/sweep-NAME.csv with hardware, commit and command in its head; pictures go to docs/. --draw leaves out the
measuring. Needs gnuplot (Debian: gnuplot-nox).
"""
import argparse
import csv
import json
import pathlib
import re
import shlex
import shutil
import subprocess

from report import ROOT, commit, hardware, portable, run

SHAPE = {"heads": 40, "kv-heads": 8, "head-dim": 128}
SWEEPS = {
    "nodes": {"title": "8192 keys, f16 cache, 40 heads over 8 KV heads, head_dim 128", "label": "nodes of the tree",
              "nodes": [1, 2, 4, 8, 16, 32, 63, 64, 65, 96, 128], "kv_len": [8192]},
    "keys": {"title": "32 nodes, f16 cache, 40 heads over 8 KV heads, head_dim 128", "label": "keys in the cache",
             "nodes": [32], "kv_len": [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]},
}
COLOURS = ["#0060a0", "#c04000", "#408000", "#806000", "#804080", "#008080", "#808080"]


def measure(options, passed_on):
    """Rows of {sweep, nodes, kv_len, who, ms}; the floor is one of those who."""
    rows, command = [], []
    for sweep, points in SWEEPS.items():
        for nodes in points["nodes"]:
            for kv_len in points["kv_len"]:
                command = [options.treeattn, "bench", "--json", *passed_on]
                for name, value in {**SHAPE, "nodes": nodes, "kv-len": kv_len}.items():
                    command += [f"--{name}", str(value)]
                if options.peers:
                    for peer in run("bench/peers/available", str(pathlib.Path(options.treeattn).parent)).splitlines():
                        command += ["--peer", peer]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
                result = json.loads(done.stdout)
                (work,) = result["workloads"]
                times = {"treeattn": work["library"]["median_ms"], "floor": work["floor_ms"]}
                if "seed" in work:
                    times["seed's algorithm"] = work["seed"]["median_ms"]
                for peer in work.get("peers", []):
                    if "times" in peer:
                        times[peer["name"]] = peer["times"]["median_ms"]
                rows += [{"sweep": sweep, "nodes": nodes, "kv_len": kv_len, "who": who, "ms": f"{ms:.4g}"}
                         for who, ms in times.items()]
                print(f"{sweep}: {nodes} nodes, {kv_len} keys: " + ", ".join(f"{k} {v:.3g} ms" for k, v in times.items()),
                      flush=True)
    return rows, command, result


def read(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def draw(rows, sweep, target):
    points = SWEEPS[sweep]
    x = "nodes" if sweep == "nodes" else "kv_len"
    rows = [row for row in rows if row["sweep"] == sweep]
    names = list(dict.fromkeys(row["who"] for row in rows))
    names.sort(key=lambda name: (name != "floor", name != "treeattn"))
    script = ["set terminal svg size 760,460 font 'sans-serif,12' background '#ffffff'", f"set output '{target}'",
              "set logscale xy", f"set xrange [{points[x][0]}:{points[x][-1]}]", f"set xlabel '{points['label']}'", "set ylabel 'milliseconds'", "set key left top",
              f"set title \"{points['title']}\" noenhanced", "set grid ytics xtics lc rgb '#dddddd'",
              "set xtics (" + ", ".join(f"'{v}' {v}" for v in points[x] if not (x == "nodes" and v in (63, 65, 96))) + ")"]
    plots = []
    for n, name in enumerate(names):
        script.append(f"$data{n} << END")
        script += [f"{row[x]} {row['ms']}" for row in rows if row["who"] == name]
        script.append("END")
        if name == "floor":
            style = "with lines lw 2 dt 2 lc rgb '#000000'"
        else:
            style = f"with linespoints lw 2 pt 7 ps 0.5 lc rgb '{COLOURS[(n - 1) % len(COLOURS)]}'"
        plots.append(f"$data{n} using 1:2 {style} title \"{name}\" noenhanced")
    script.append("plot " + ", ".join(plots))
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)
    print(target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="here")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--treeattn", default="build/release/treeattn")
    parser.add_argument("--peers", action="store_true", help="beside the peers that bench/peers/available finds")
    options, passed_on = parser.parse_known_args()
    if shutil.which("gnuplot") is None:
        raise SystemExit("gnuplot is not installed (Debian: gnuplot-nox)")
    name = re.sub(r"[^a-z0-9]+", "-", options.name.lower()).strip("-")
    path = ROOT / "bench" / "results" / f"sweep-{name}.csv"
    if not options.draw:
        rows, command, result = measure(options, passed_on)
        machine = "; ".join(f"{key}: {value}" for key, value in hardware().items())
        head = [f"# treeattn {result['version']}, commit {commit()}, {result['threads']} threads, median of "
                f"{result['repeat']} runs in turn", f"# {machine}", f"# last command: {shlex.join(portable(command))}"]
        with path.open("w", newline="") as file:
            file.write("\n".join(head) + "\n")
            writer = csv.DictWriter(file, ["sweep", "nodes", "kv_len", "who", "ms"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(path)
    rows = read(path)
    for sweep in SWEEPS:
        draw(rows, sweep, ROOT / "docs" / f"time-{sweep}.svg")


if __name__ == "__main__":
    main()
