#!/usr/bin/env python3
"""`./tutti bench [comm|train|data|plans|start|kernels|checkpoint|build|gpu|chaos]...`: side-by-side tables; every target is a row.

A pair is a block of work of two resident processes that take turns, the other one stopped; a ratio is the median over the pairs, with
its spread (10th to 90th percentile). Ratios are written so that larger is better. Exits 0 when every row was measured or explained.
"""
import argparse
import json
import pathlib
import platform
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench_build
import bench_chaos
import bench_checkpoint
import bench_comm
import bench_data
import bench_gpu
import bench_kernels
import bench_plans
import bench_start
import bench_train
from rows import ROOT, Table

SUITES = {"comm": bench_comm.run, "train": bench_train.run, "data": bench_data.run, "plans": bench_plans.run,
          "start": bench_start.run, "kernels": bench_kernels.run, "checkpoint": bench_checkpoint.run, "build": bench_build.run, "gpu": bench_gpu.run, "chaos": bench_chaos.run}


def machine():
    names = [l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")]
    memory = int(open("/proc/meminfo").readline().split()[1]) / 2**20
    return f"{len(names)} cores of {names[0]}, {memory:.0f} GiB, {platform.freedesktop_os_release()['PRETTY_NAME']}"


def machine_of(suites):
    """What a table was measured on: of the GPU's table the GPU too."""
    gpu = bench_gpu.gpu_name() if "gpu" in suites else ""
    return f"{gpu}; {machine()}" if gpu else machine()


INTRODUCTION = """# Performance

Written by `./tutti bench comm train data plans start kernels checkpoint build --docs`, on a host with a GPU by `./tutti bench gpu --docs`. Ratios are medians over interleaved
pairs; larger is better, 1 is a tie with the peer or the limit. [bench/](../bench) shows how each row is measured.
"""
HEAD = ["| | ours | peer or limit | | ratio | spread | target | |", "|---|---|---|---|---|---|---|---|"]


def docs_line(row):
    if "ratio" not in row:
        return f"| {row['name']} | | | | not measured: {row['reason']} | | {row['target']} | |"
    low, high = row["spread"]
    return (f"| {row['name']} | {row['ours']:,.2f} | {row['peer']:,.2f} | {row['unit']} | **{row['ratio']:.2f}** | "
            f"{low:.2f} to {high:.2f} | {row['target']} | {'met' if row['met'] else 'not met'} |")


def write_docs(path, rows):
    """The tables as a page: what was measured, on which machine, when nothing else ran there. Rows that were not measured now stay, and
    so does the machine of a table without any."""
    tables = {"cpu": {}, "gpu": {}}
    machines = {"cpu": "", "gpu": ""}
    names = {name for name, _ in [*bench_gpu.ALL, bench_plans.DEVICE_MEMORY]}
    kind = "cpu"
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("## "):
            kind = "gpu"
        elif line.startswith("Machine: "):
            machines[kind] = line
        elif line.startswith("| ") and not line.startswith("| |"):
            tables[kind][line.split(" | ")[0][2:]] = line
    for row in rows:
        kind = "gpu" if row["name"] in names else "cpu"
        if row.get("reason") == bench_gpu.NO_GPU and row["name"] in tables[kind]:
            continue
        tables[kind][row["name"]] = docs_line(row)
        if "ratio" in row:
            machines[kind] = f"Machine: {machine_of([kind])}."
    page = [INTRODUCTION, machines["cpu"], "", *HEAD, *tables["cpu"].values()]
    if tables["gpu"]:
        page += ["", "## On a GPU", "", *([machines["gpu"], ""] if machines["gpu"] else []), *HEAD, *tables["gpu"].values()]
        if (path.parent / "gpu-loss.svg").exists():
            page += ["", "![losses of 200 steps](gpu-loss.svg)"]
    path.write_text("\n".join(page) + "\n")


def install_peers(suites):
    """An unpacked bundle installs nothing: there the peer is the host's own PyTorch."""
    setup = pathlib.Path(__file__).parent / "peers" / "setup"
    if not setup.exists() or suites in (["chaos"], ["kernels"]) or (suites == ["gpu"] and not bench_gpu.has_gpu()):
        return
    done = subprocess.run([setup], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"the peers could not be installed: {done.stderr.strip()[-400:]}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(prog="tutti bench")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="which tables (default: comm and train)")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of each comparison; of chaos: parts of 45 seconds")
    parser.add_argument("--only", default="", help="only comparisons whose name contains this")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # resident processes are stopped: they would stay
    suites = arguments.suites or ["comm", "train"]
    install_peers(suites)
    table = Table(arguments.pairs, arguments.only)
    print(f"machine: {machine_of(suites)}\n")
    for suite in suites:
        print(f"{suite}\n{Table.HEAD}")
        SUITES[suite](table)
        print()
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": machine_of(suites), "rows": table.rows}, indent=1) + "\n")
    if arguments.docs:
        write_docs(ROOT / "docs" / "performance.md", table.rows)
    met = sum(row["met"] for row in table.rows)
    print(f"{met} of {len(table.rows)} targets met")
    return 0 if all("ratio" in row or "reason" in row for row in table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
