"""Training `gpt-bench` compared with PyTorch (eager, compile, DDP) and DeepSpeed, and `fashion-cnn` compared with PyTorch DDP."""
import statistics
import threading

import bench_optim
from rows import BIN, PEER_ENV, PEERS, Resident, torchrun

SCRIPT = "bench/peers/train.py"


def ours(*settings):
    return Resident("tutti", [BIN / "tutti-bench-train", "gpt-bench", "layout.ranks=2", *settings])


def peer(mode, *options):
    if mode not in ("eager", "compile"):
        return Resident(mode, torchrun(2, SCRIPT, mode, *options), PEER_ENV)
    return Resident(mode, [PEERS / "bin/python", SCRIPT, mode, *options], {**PEER_ENV, "OMP_NUM_THREADS": "2"})


def step_ms(resident, steps):
    return statistics.median(resident.ask(steps)["seconds"]) * 1e3


def pss_mb(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Pss:")) / 1024


def peak_pss_mb(resident, steps):
    """The largest proportional set of one rank, sampled while it runs."""
    pids = resident.ask(1)["pids"]
    peak, stop = [0.0], threading.Event()

    def watch():
        while not stop.wait(0.02):
            peak[0] = max(peak[0], *(pss_mb(pid) for pid in pids))

    watcher = threading.Thread(target=watch)
    watcher.start()
    resident.ask(steps)
    stop.set()
    watcher.join()
    return peak[0]


def versus(table, name, left, mode, options, target, steps):
    if not table.wants(name):
        return None
    try:
        with peer(mode, *options) as other:
            other.ask(2)  # compilation and first allocations are not what is compared
            pair = table.compare(name, lambda: step_ms(left, steps), lambda: step_ms(other, steps), target, "ms/step")
            return pair and statistics.median(pair[1])
    except RuntimeError as error:
        table.missing(name, target, error)
    return None


def run(table):
    with ours() as tutti:
        tutti.ask(2)
        versus(table, "gpt-bench, 2 ranks : PyTorch DDP (Gloo)", tutti, "ddp", [], 1.3, 2)
        versus(table, "gpt-bench, 2 ranks : PyTorch eager, 2 threads", tutti, "eager", [], 1.15, 2)
        versus(table, "gpt-bench, 2 ranks : torch.compile, 2 threads", tutti, "compile", [], 1.15, 2)
        versus(table, "gpt-bench, 2 ranks : DeepSpeed ZeRO-2", tutti, "zero2", [], 1.15, 2)
        name = "gpt-bench, 8 lanes : 2 lanes"
        if table.wants(name):
            with ours("train.lanes=8", "train.micro_batch_size=2") as eight:
                eight.ask(2)
                table.compare(name, lambda: step_ms(eight, 2), lambda: step_ms(tutti, 2), 0.95, "ms/step")
        share_of_matmul(table, tutti)
        memory(table, tutti)
    small = ["train.micro_batch_size=1", "model.context=64"]
    options = ["--batch", "2", "--context", "64"]
    with ours(*small) as tutti:
        tutti.ask(5)
        versus(table, "batch 2, context 64, 2 ranks : PyTorch DDP (Gloo)", tutti, "ddp", options, 2, 10)
        versus(table, "batch 2, context 64, 2 ranks : PyTorch eager, 2 threads", tutti, "eager", options, 1.3, 10)
    fashion(table)
    bench_optim.run(table)


def fashion(table):
    name, target, steps = "fashion-cnn, 2 ranks : PyTorch DDP (Gloo)", 1.1, 20
    if not table.wants(name):
        return
    try:
        with Resident("tutti", [BIN / "tutti-bench-train", "fashion-cnn", "layout.ranks=2"]) as tutti, Resident(
                "ddp", torchrun(2, "bench/peers/fashion.py"), PEER_ENV) as ddp:
            tutti.ask(10), ddp.ask(10)
            table.compare(name, lambda: step_ms(tutti, steps), lambda: step_ms(ddp, steps), target, "ms/step")
    except RuntimeError as error:
        table.missing(name, target, error)


def share_of_matmul(table, tutti):
    name = "gpt-bench: model FLOPs / the 2 cores' matmul rate"
    if not table.wants(name):
        return
    shares, rates = [], []
    for _ in range(table.pairs):
        answer = tutti.ask(1)
        rates.append(tutti.ask("matmul")["gflops"])
        shares.append(answer["flops"] / answer["seconds"][0] / 1e9 / rates[-1])
    table.row(name, statistics.median(shares) * statistics.median(rates), statistics.median(rates), "GFLOP/s", shares, 0, "printed alongside")


def memory(table, tutti):
    name, limit = "gpt-bench, peak PSS of a rank : 0.8 of DDP's", 0.8
    if not table.wants(name):
        return
    try:
        with peer("ddp") as ddp:
            theirs, mine = peak_pss_mb(ddp, 2), peak_pss_mb(tutti, 2)
    except (RuntimeError, OSError) as error:
        return table.missing(name, 1, error)
    table.row(name, mine, limit * theirs, "MB", [limit * theirs / mine], 1)
