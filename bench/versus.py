#!/usr/bin/env python3
"""Two builds of Tutti, block by block in turns: `bench/versus.py OLD NEW [--pairs N] [--only PART]`.

OLD and NEW are folders with tutti-bench-comm and tutti-bench-train, on a host with a GPU with tutti-bench-gpu. A ratio is OLD's time by
NEW's: above 1 NEW is faster. Printed are the median of the pairs' ratios and the lower bound of its 95 % interval, and for a training the
peak memory of a rank. Who goes first changes with every pair, and a pair waits until no build runs.
"""
import argparse
import contextlib
import math
import pathlib
import statistics
import subprocess
import time

from bench_comm import MB, iterations
from bench_gpu import has_gpu
from bench_train import peak_pss_mb, step_ms
from rows import Resident

SMALL = ["train.micro_batch_size=1", "model.context=64"]
TRAININGS = {  # name: steps of a block, job and settings
    "gpt-bench": (1, ["gpt-bench", "layout.ranks=2"]),
    "batch 2, context 64": (10, ["gpt-bench", "layout.ranks=2", *SMALL]),
    "gpt-bench, tcp": (1, ["gpt-bench", "layout.ranks=2", "layout.transport=tcp"]),
    "batch 2, context 64, tcp": (10, ["gpt-bench", "layout.ranks=2", "layout.transport=tcp", *SMALL]),
    "fashion-cnn": (30, ["fashion-cnn", "layout.ranks=2"]),
    "fashion-mlp": (100, ["fashion-mlp", "layout.ranks=2"]),
    "wide-deep": (30, ["wide-deep", "layout.ranks=2"]),
}
GPU_TRAININGS = {  # name: steps of a block, settings of gpt2-124m
    "gpt2-124m, B=32": (10, ["train.micro_batch_size=32"]),
    "gpt2-124m, B=64": (6, ["train.micro_batch_size=64"]),
}
SUMS = [(transport, kind, size) for transport in ("shm", "tcp") for kind in ("exact", "ring") for size in (16, 128)]


def await_quiet():
    while any(subprocess.run(["pgrep", "-x", name], stdout=subprocess.DEVNULL).returncode == 0 for name in ("ninja", "clang", "clang++")):
        time.sleep(2)


def lower_bound(ratios):
    """Of the median's 95 % interval, by order statistics."""
    n = len(ratios)
    return sorted(ratios)[max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))]


def compare(name, programs, cost, pairs, unit, note=""):
    old, new = programs
    costs = {old: [], new: []}
    for pair in range(pairs):
        await_quiet()
        for program in (old, new) if pair % 2 == 0 else (new, old):
            costs[program].append(cost(program))
    ratios = [a / b for a, b in zip(costs[old], costs[new])]
    print(f"{name:40} old {statistics.median(costs[old]):10.2f} {unit}, new {statistics.median(costs[new]):10.2f} {unit}, ratio "
          f"{statistics.median(ratios):.3f}, at least {lower_bound(ratios):.3f} ({pairs} pairs){note}", flush=True)


def compare_on_gpu(folders, name, steps, settings, pairs):
    command = ["tutti-bench-gpu", "train", "gpt2-124m", "train.steps=2000", *settings]
    programs, losses, peaks = [], [], []
    with contextlib.ExitStack() as stack:
        for folder in folders:  # one after the other: what a program takes is told from what is free before it
            programs.append(stack.enter_context(Resident(str(folder), [folder / command[0], *command[1:]])))
            losses.append(programs[-1].ask(10)["losses"])
            peaks.append(programs[-1].ask("memory"))
        note = "".join(f"; {key} {peaks[0][key] / 2**30:.2f} and {peaks[1][key] / 2**30:.2f} GiB" for key in peaks[0])
        note += "; equal losses" if losses[0] == losses[1] else f"; LOSSES DIFFER: {losses}"
        compare(name, programs, lambda program: program.ask(steps)["seconds"] / steps * 1e3, pairs, "ms", note)


def main():
    parser = argparse.ArgumentParser(prog="versus.py")
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("--pairs", type=int, default=41)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    folders = arguments.old.resolve(), arguments.new.resolve()
    for name, (steps, settings) in GPU_TRAININGS.items() if has_gpu() else ():
        if arguments.only in name:
            compare_on_gpu(folders, name, steps, settings, arguments.pairs)
    for name, (steps, settings) in TRAININGS.items():
        if arguments.only not in name:
            continue
        command = ["tutti-bench-train", *settings]
        with Resident("old", [folders[0] / command[0], *command[1:]]) as old, Resident("new", [folders[1] / command[0], *command[1:]]) as new:
            old.ask(3), new.ask(3)
            peaks = [peak_pss_mb(program, 2 * steps) for program in (old, new)]
            note = f"; peak PSS of a rank {peaks[0]:.1f} and {peaks[1]:.1f} MB"
            compare(name, (old, new), lambda program: step_ms(program, steps), arguments.pairs, "ms", note)
    for transport, kind, megabytes in SUMS:
        name, size = f"{kind} sum of {megabytes} MB over {transport}", megabytes * MB
        if arguments.only not in name:
            continue
        command = ["tutti-bench-comm", "--ranks", "2", "--lanes", "2", "--transport", transport, "--kind", kind]
        with Resident("old", [folders[0] / command[0], *command[1:]]) as old, Resident("new", [folders[1] / command[0], *command[1:]]) as new:
            compare(name, (old, new), lambda program: program.ask(f"{size} {3 * iterations(size)}")["median_us"], arguments.pairs, "us")


if __name__ == "__main__":
    main()
