"""GPT-2 124M on one GPU compared with PyTorch: speed, idle time, memory, the course of the loss; and that layouts share one hash there.

The loss: both sides start from the same weights (Tutti's, written to a file) and see the same batches and learning rates for 200 steps. Two
correct programs that round to bfloat16 at different places drift apart, so the limit is what rounding alone does to PyTorch: its eager run is
repeated with another attention kernel, and in float32 (TF32 matmuls, three bits more than bfloat16), and the distance to the first run (mean of
|difference| over the last 50 steps) is taken, the larger of the two. One or two pairs say little of how far chaos carries runs apart, so the
limit is at least 0.01 nats, under half a percent of the loss at that point. A wrong gradient, decay or rate shows up as tenths.
"""
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from rows import BIN, PEERS, ROOT, Resident

JOB, STEPS, BLOCK, LAST = "gpt2-124m", 200, 10, 50
NO_GPU = "this host has no GPU"
FLOOR = 0.01  # nats

SPEED = (f"{JOB}, B=32, bfloat16 : PyTorch eager", 1.1)
COMPILED = (f"{JOB}, B=32, bfloat16 : torch.compile", 0)
IDLE = (f"{JOB}: idle compute stream : 2 % of a step", 1)
TENSORS = (f"{JOB}: peak memory of tensors : PyTorch eager", 1)
TAKEN = (f"{JOB}: device memory taken : PyTorch eager", 1)
LOSS = (f"{JOB}: loss of {STEPS} steps : bfloat16 noise", 1)
REPEATED = (f"{JOB}: repeated runs with one hash", 1)
VERIFIED = ("gpt-kjv on the GPU: layouts with one hash", 1)
SAVED = (f"{JOB} that saves every 10 steps : without", 0.98)
ALL = [SPEED, COMPILED, IDLE, TENSORS, TAKEN, LOSS, SAVED, REPEATED, VERIFIED]


def has_gpu():
    return os.path.exists("/dev/nvidiactl")


def gpu_name():
    """The GPU, its memory and its driver, as the driver says; empty without one."""
    with contextlib.suppress(OSError):
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"],
                               capture_output=True, text=True)
        if asked.returncode == 0 and asked.stdout.strip():
            name, memory, driver = asked.stdout.strip().splitlines()[0].split(", ")
            return f"{name}, {int(memory) / 1024:.0f} GiB, driver {driver}"
    for path in pathlib.Path("/proc/driver/nvidia/gpus").glob("*/information"):
        return re.search(r"Model:\s*(.+)", path.read_text())[1]
    return "a GPU" if has_gpu() else ""


def command(*words):
    """Runs `tutti` to its end; its exit code and all that it said."""
    done = subprocess.run([BIN / "tutti", *words], cwd=ROOT, capture_output=True, text=True, errors="replace",
                          env={"TUTTI_DATA": str(ROOT / "data"), **os.environ})
    return done.returncode, done.stdout + done.stderr


class Bench:
    """The processes that the rows need, started once each."""

    def __init__(self, table, folder):
        self.table, self.folder, self.stack = table, pathlib.Path(folder), contextlib.ExitStack()
        self.losses = {}
        done = subprocess.run([BIN / "tutti-bench-gpu", "write", self.folder, JOB, f"train.steps={STEPS}"], cwd=ROOT, capture_output=True, text=True,
                              env={"TUTTI_DATA": str(ROOT / "data"), **os.environ})
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def start(self, resident):
        return self.stack.enter_context(resident)

    def ours(self, mode="train"):
        return self.start(Resident("tutti", [BIN / "tutti-bench-gpu", mode, JOB, f"train.steps={STEPS}"], {"TUTTI_DATA": str(ROOT / "data")}))

    def peer(self, name, *options):
        python = PEERS / "bin/python" if (PEERS / "bin/python").exists() else sys.executable
        return self.start(Resident(name, [python, ROOT / "bench/peers/gpt2_gpu.py", self.folder, *options]))

    def course(self, name, resident):
        answer = resident.ask(STEPS)
        self.losses[name] = answer["losses"]
        return answer

    def distance(self, name):
        pairs = list(zip(self.losses[name], self.losses["PyTorch eager"]))[-LAST:]
        return statistics.mean(abs(a - b) for a, b in pairs)

    def picture(self):
        runs = []
        for name, losses in self.losses.items():
            runs.append(self.folder / "runs" / name)
            runs[-1].mkdir(parents=True)
            (runs[-1] / "metrics.jsonl").write_text(
                "".join(json.dumps({"event": "step", "step": i + 1, "loss": loss}) + "\n" for i, loss in enumerate(losses)))
        (ROOT / "docs").mkdir(exist_ok=True)
        code, text = command("plot", *runs, "-o", ROOT / "docs/gpu-loss.svg")
        print(text.strip() if code == 0 else f"no picture of the losses: {text}", flush=True)


def versus(table, row, ours, other, note=""):
    if not table.wants(row[0]):
        return
    mine, theirs = [], []
    for _ in range(table.pairs):
        for resident, rates in ((ours, mine), (other, theirs)):
            answer = resident.ask(BLOCK)
            rates.append(BLOCK * answer["tokens"] / answer["seconds"])
    table.row(row[0], statistics.median(mine), statistics.median(theirs), "tok/s", [a / b for a, b in zip(mine, theirs)], row[1], note)


def compared(bench):
    """Speed, memory and loss: the runs of 200 steps are also the warm-up of what is timed after them."""
    table = bench.table
    ours = bench.ours()
    bench.course("Tutti", ours)
    mine = ours.ask("memory")  # before the peer takes memory of the same device
    eager = bench.peer("PyTorch eager")
    attention = bench.course("PyTorch eager", eager)["attention"]
    theirs = eager.ask("memory")
    versus(table, SPEED, ours, eager, f"{attention} attention there")
    for row, key in ((TENSORS, "tensors"), (TAKEN, "taken")):
        if table.wants(row[0]):
            table.row(row[0], mine[key] / 2**30, theirs[key] / 2**30, "GiB", [theirs[key] / max(mine[key], 1)], row[1])
    eager.close()
    if table.wants(LOSS[0]):
        for name, options in (("PyTorch, other attention", ["--attention", "flash" if attention == "cudnn" else "efficient"]),
                              ("PyTorch float32", ["--precision", "float32"])):
            other = bench.peer(name, *options)
            bench.course(name, other)
            other.close()
        limit = max(FLOOR, bench.distance("PyTorch, other attention"), bench.distance("PyTorch float32"))
        apart = bench.distance("Tutti")
        table.row(LOSS[0], 1e3 * apart, 1e3 * limit, "mnats", [limit / max(apart, 1e-9)], LOSS[1],
                  f"last loss {bench.losses['Tutti'][-1]:.4f}, PyTorch {bench.losses['PyTorch eager'][-1]:.4f}")
        bench.picture()
    if table.wants(COMPILED[0]):
        compiled = bench.peer("torch.compile", "--compile")
        compiled.ask(BLOCK)
        versus(table, COMPILED, ours, compiled, "printed alongside")
        compiled.close()
    ours.close()


def idle(bench):
    watched = bench.ours("gaps")
    watched.ask(BLOCK)
    answers = [watched.ask(f"gaps {BLOCK}") for _ in range(3)]
    watched.close()
    if any(answer["records"] == 0 or answer["dropped"] > 0 for answer in answers):
        return bench.table.missing(*IDLE, f"CUPTI kept {answers[0]['records']} records and lost {answers[0]['dropped']}")
    gaps = [gap for answer in answers for gap in answer["longest"]]
    longest = max(gaps, key=lambda gap: gap["us"], default={"us": 0, "before": "", "after": ""})
    shares = [answer["share"] for answer in answers]
    watched_ms = statistics.median(answer["span"] for answer in answers) / BLOCK * 1e3
    bench.table.row(IDLE[0], statistics.median(shares) * 100, 2, "%", [0.02 / max(share, 1e-6) for share in shares], IDLE[1],
                    f"{watched_ms:.1f} ms per step while watched; longest {longest['us']:.0f} us, "
                    f"between {longest['before'][:40]} and {longest['after'][:40]}")


def saved(bench):
    """Blocks of one process. A checkpoint takes longer than ten steps do: the next one waits its turn."""
    ours = bench.ours()
    ours.ask(f"{BLOCK} {bench.folder}/saved")
    mine, plain = [], []
    for _ in range(bench.table.pairs):
        mine.append(ours.ask(f"{5 * BLOCK} {bench.folder}/saved")["seconds"])
        plain.append(ours.ask(5 * BLOCK)["seconds"])
    ours.close()
    scale = 1000 / (5 * BLOCK)
    bench.table.row(SAVED[0], statistics.median(mine) * scale, statistics.median(plain) * scale, "ms", [b / a for a, b in zip(mine, plain)], SAVED[1])


def repeated(bench):
    hashes = []
    for turn in range(2):
        code, text = command("train", JOB, "--steps", "10", "--out", bench.folder / f"repeated-{turn}")
        if not (found := re.search(r"^state sha256 ([0-9a-f]{64})$", text, re.M)):
            raise RuntimeError(f"exit {code}: {text}")
        hashes.append(found[1])
    same = sum(h == hashes[0] for h in hashes)
    bench.table.row(REPEATED[0], same, len(hashes), "runs", [same / len(hashes)], REPEATED[1], hashes[0][:12])


def verified(bench):
    code, text = command("verify", "gpt-kjv", "--set", "numerics.device=cuda")
    if found := re.search(r"^(\d+) layouts, one state", text, re.M):
        ran, differ = int(found[1]), 0
    elif found := re.search(r"^(\d+) of (\d+) layouts differ", text, re.M):
        ran, differ = int(found[2]), int(found[1])
    else:
        raise RuntimeError(f"exit {code}: {text}")
    bench.table.row(VERIFIED[0], ran - differ, ran, "layouts", [(ran - differ) / ran], VERIFIED[1])


def run(table):
    wanted = [row for row in ALL if table.wants(row[0])]
    if not has_gpu():
        for row in wanted:
            table.missing(*row, NO_GPU)
        return
    parts = ((compared, [SPEED, COMPILED, TENSORS, TAKEN, LOSS]), (idle, [IDLE]), (saved, [SAVED]), (repeated, [REPEATED]), (verified, [VERIFIED]))
    with tempfile.TemporaryDirectory(prefix="tutti-gpu-") as folder:
        try:
            bench = Bench(table, folder)
        except (RuntimeError, OSError) as error:
            for row in wanted:
                table.missing(*row, error)
            return
        for part, rows in parts:
            if not any(row in wanted for row in rows):
                continue
            try:
                with bench.stack:  # leaves no process on the device
                    part(bench)
            except (RuntimeError, OSError, ValueError, LookupError) as error:  # an answer that is none is a reason too
                known = {row["name"] for row in table.rows}
                for row in rows:
                    if row in wanted and row[0] not in known:
                        table.missing(*row, error)
