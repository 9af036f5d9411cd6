"""How fast things start: the answer of a command that needs no LibTorch, a first step on two ranks, and 64 ranks on this machine. Fixed
limits stand in for the peer."""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from rows import BIN

LIGHT = ["--version", "help", "jobs", "explain gpt-kjv --set numerics.device=cpu", "docs"]
JOB = """
[model]
kind = "mlp"
inputs = 4
hidden = [8]
classes = 2
[data]
kind = "points"
[train]
lanes = 64
micro_batch_size = 1
steps = 1
eval_batches = 0
[numerics]
device = "cpu"
"""


def seconds_of(command):
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-600:])
    return time.monotonic() - begin


def seconds_to_begin(folder, number, ranks):
    """From the command to the moment at which all of its ranks are ready for their first step."""
    run = pathlib.Path(folder, f"run-{ranks}-{number}")
    job = pathlib.Path(folder, "job.toml")
    job.write_text(JOB)
    begin = time.time()
    seconds_of([BIN / "tutti", "train", job, "--ranks", str(ranks), "--out", run])
    first = next(json.loads(line) for line in (run / "events.jsonl").open() if '"start"' in line)
    # The launcher's origin is when it has the run's folder; what came before it is in the folder's time.
    return os.stat(run / "job.toml").st_mtime - begin + first["startup_seconds"]


def limited(table, name, limit, unit, scale, measure):
    if not table.wants(name):
        return
    try:
        seconds = sorted(measure(number) for number in range(table.pairs))
    except (RuntimeError, OSError, StopIteration) as error:
        return table.missing(name, 1, error)
    table.row(name, statistics.median(seconds) * scale, limit * scale, unit, [limit / s for s in seconds], 1)


def run(table):
    with tempfile.TemporaryDirectory() as folder:
        limited(table, "start: a command that needs no LibTorch", 0.05, "ms", 1000,
                lambda number: max(seconds_of([BIN / "tutti", *light.split()]) for light in LIGHT))
        limited(table, "start: 2 ranks to their first step", 1, "s", 1, lambda number: seconds_to_begin(folder, number, 2))
        limited(table, "start: 64 ranks to their first step", 3, "s", 1, lambda number: seconds_to_begin(folder, number, 64))
