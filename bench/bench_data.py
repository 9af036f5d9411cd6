"""The loader compared with PyTorch's DataLoader and a C loop; stall and resumption compared with their limits."""
import statistics

import bench_tokenizer
from rows import BIN, PEER_ENV, PEERS, Resident

WAYS = [f"{workers} {way}" for workers in (0, 2) for way in ("item", "batched")]
STALL_LIMIT, RESUME_LIMIT_MS = 0.01, 100
STALL_STEPS = 200


def cost(resident, line):
    return 1e6 / resident.ask(line)["rate"]


def versus_dataloader(table, ours, name, line, target):
    """The peer is the configuration of DataLoader that is the fastest here, now."""
    name = f"{name} : the fastest DataLoader"
    if not table.wants(name):
        return
    try:
        with Resident("dataloader", [PEERS / "bin/python", "-P", "bench/peers/dataloader.py"], {**PEER_ENV, "OMP_NUM_THREADS": "2"}) as peer:
            rates = {way: peer.ask(f"{line} {way}")["rate"] for way in WAYS}
            best = max(rates, key=rates.get)
            print("    DataLoader, records/s: " + ", ".join(f"{way} {rate:,.0f}" for way, rate in rates.items()), flush=True)
            ours.ask(line)  # opens the data
            table.compare(name, lambda: cost(ours, line), lambda: cost(peer, f"{line} {best}"), target, "us/record")
    except RuntimeError as error:
        table.missing(name, target, error)


def stall(table):
    name = f"fashion-mlp with augmentation, 2 ranks: stall of a step : {STALL_LIMIT:.0%}"
    if not table.wants(name):
        return
    settings = ["layout.ranks=2", "augment.crop=2", "augment.flip=0.5"]
    try:
        with Resident("tutti", [BIN / "tutti-bench-train", "fashion-mlp", *settings]) as ours:
            ours.ask(STALL_STEPS)
            answers = [ours.ask(STALL_STEPS) for _ in range(table.pairs)]
    except RuntimeError as error:
        return table.missing(name, 1, error)
    # No stall at all would be an endless ratio.
    shares = [max(a["stall"] / sum(a["seconds"]), STALL_LIMIT / 1000) for a in answers]
    table.row(name, statistics.median(shares) * 100, STALL_LIMIT * 100, "%", [STALL_LIMIT / s for s in shares], 1)


def resume(table, ours):
    name = f"resuming at sample 10^9 : {RESUME_LIMIT_MS} ms"
    if not table.wants(name):
        return
    times = [ours.ask("resume")["seconds"] * 1e3 for _ in range(table.pairs)]
    table.row(name, statistics.median(times), RESUME_LIMIT_MS, "ms", [RESUME_LIMIT_MS / t for t in times], 1)


def run(table):
    with Resident("tutti", [BIN / "tutti-bench-data"]) as ours:
        versus_dataloader(table, ours, "2 KB records, batches of 256", "rows", 1.5)
        name = "2 KB records, batches of 256 : a C loop that gathers"
        if table.wants(name):
            ours.ask("gather")
            table.compare(name, lambda: cost(ours, "rows"), lambda: cost(ours, "gather"), 0.5, "us/record")
        versus_dataloader(table, ours, "Fashion-MNIST, crop and flip", "fashion", 3)
        resume(table, ours)
    stall(table)
    bench_tokenizer.run(table)
