"""Checkpoints: of 100 M parameters with Adam's moments on two ranks, next to torch.distributed.checkpoint (DCP), memcpy and dd; and what
saving every ten steps costs a training."""
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

from rows import BIN, PEER_ENV, ROOT, Resident, torchrun

# The model and the layout of bench/peers/checkpoint.py: 100 M parameters, all state in slices.
LARGE = ["gpt-bench", "layout.ranks=2", "layout.zero=3", "model.layers=12", "model.width=832", "model.heads=13", "model.context=64", "train.micro_batch_size=1"]
NAMES = {"sync": ("checkpoint: stall : DCP's synchronous save", 20), "async": ("checkpoint: stall : DCP's asynchronous save's", 1),
         "copy": ("checkpoint: stall : memcpy of the same bytes", 0.5), "dd": ("checkpoint: write rate : dd with fsync", 0.8),
         "load": ("checkpoint: load : DCP's", 1), "steps": ("checkpoint: gpt-bench that saves every 10 steps : without", 0.98)}


# A disk may lend speed to whoever has not used it for a while: everybody writes to one that has rested.
REST = 5  # seconds


def rested(work):
    time.sleep(REST)
    return work()


def dd_seconds(path, count):
    """Of so many MiB, by the system's own tool."""
    begin = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={count}", "conv=fsync"], check=True, capture_output=True)
    seconds = time.monotonic() - begin
    path.unlink()
    return seconds


def large(table, folder):
    wanted = [kind for kind in ["sync", "async", "copy", "dd", "load"] if table.wants(NAMES[kind][0])]
    if not wanted:
        return
    saved, theirs = [], {"sync": [], "async": [], "load": []}
    disk, loads = [], []
    try:
        with Resident("tutti", [BIN / "tutti-bench-train", *LARGE]) as ours, \
                Resident("DCP", torchrun(2, ROOT / "bench/peers/checkpoint.py"), PEER_ENV) as peer:
            ours.ask(f"save {folder}/ours")  # room for the copies
            peer.ask(f"async {folder}/async")
            for _ in range(table.pairs):
                shutil.rmtree(folder / "ours")  # every save makes its files anew
                saved.append(rested(lambda: ours.ask(f"save {folder}/ours")))
                theirs["sync"].append(rested(lambda: peer.ask(f"save {folder}/theirs"))["seconds"])
                theirs["async"].append(rested(lambda: peer.ask(f"async {folder}/async"))["stall"])
                disk.append(rested(lambda: dd_seconds(folder / "dd", saved[-1]["bytes"] >> 20)))
                loads.append(ours.ask(f"load {saved[-1]['path']}")["seconds"])
                theirs["load"].append(peer.ask(f"load {folder}/theirs")["seconds"])
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        for kind in wanted:
            table.missing(*NAMES[kind], error)
        return
    stalls = [answer["stall"] for answer in saved]
    pairs = {"sync": (stalls, theirs["sync"]), "async": (stalls, theirs["async"]), "copy": (stalls, [answer["copy"] for answer in saved]),
             "dd": ([answer["seconds"] for answer in saved], disk), "load": (loads, theirs["load"])}
    for kind in wanted:
        a, b = pairs[kind]
        name, target = NAMES[kind]
        table.row(name, statistics.median(a) * 1000, statistics.median(b) * 1000, "ms", [y / x for x, y in zip(a, b)], target)


def beside_steps(table, folder):
    """Blocks of ten steps of one process, every other one with a checkpoint that is begun before its first step."""
    name, target = NAMES["steps"]
    if not table.wants(name):
        return
    try:
        with Resident("tutti", [BIN / "tutti-bench-train", "gpt-bench", "layout.ranks=2"]) as ours:
            ours.ask(f"2 {folder}/steps")
            table.compare(name, lambda: ours.ask(f"10 {folder}/steps")["whole"], lambda: ours.ask("10")["whole"], target, "s")
    except (RuntimeError, OSError) as error:
        table.missing(name, target, error)


def run(table):
    # On the disk that holds runs, and not in memory.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        large(table, pathlib.Path(folder))
        beside_steps(table, pathlib.Path(folder))
