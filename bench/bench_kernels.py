"""The CPU's kernels: the same bits on every code path, own matmuls against MKL's, and how near they come to the core's peak. All cores work
at once; rates are of one of them."""
import statistics

from bench_train import step_ms
from rows import BIN, Resident

# (in, out) of gpt-bench's linear layers, and how often each is there
LAYERS = {(384, 1152): 6, (384, 384): 6, (384, 1536): 6, (1536, 384): 6, (384, 256): 1}
ROWS = 2048  # of a micro-batch of gpt-bench
TRAINING = "kernels: gpt-bench, 2 ranks, own : MKL"
CASES, KINDS = 10**9, 15


def is_amd():
    return "AuthenticAMD" in open("/proc/cpuinfo").read()


def flags():
    return next(line for line in open("/proc/cpuinfo") if line.startswith("flags"))


def rate(program, path, kind, rows):
    """GFLOP/s over all layers: their operations by their seconds."""
    flops = seconds = 0
    for (width, out), times in LAYERS.items():
        part = times * rows * width * out
        flops += part
        seconds += part / program.ask(f"matmul {path} {kind} {rows} {width} {out}")["gflops"]
    return flops / seconds


def compare(table, name, target, ours, peer, unit="GFLOP/s"):
    if not table.wants(name):
        return
    a, b = [], []
    try:
        for _ in range(table.pairs):
            a.append(ours())
            b.append(peer())
    except RuntimeError as error:
        return table.missing(name, target, error)
    table.row(name, statistics.median(a), statistics.median(b), unit, [x / y for x, y in zip(a, b)], target)


def training(table):
    """The whole of gpt-bench by own matmuls and by MKL's."""
    command = [BIN / "tutti-bench-train", "gpt-bench", "layout.ranks=2"]
    with Resident("own", [*command, "numerics.matmul=own"]) as own, Resident("mkl", [*command, "numerics.matmul=mkl"]) as mkl:
        own.ask(3), mkl.ask(3)
        compare(table, TRAINING, 1.1 if is_amd() else 1.0, lambda: 1e3 / step_ms(own, 1), lambda: 1e3 / step_ms(mkl, 1), "steps/s")


def run(table):
    if table.wants(TRAINING):
        training(table)
    wide = "avx512bw" in flags()
    best = "avx512" if wide else "avx2"
    with Resident("kernels", [BIN / "tutti-bench-paths"]) as own, \
            Resident("MKL on AVX2", [BIN / "tutti-bench-paths"], {"MKL_CBWR": "AVX2"}) as narrow:
        compare(table, f"kernels: {best} : MKL, gpt-bench's layers", 1.1 if is_amd() else 1.0,
                lambda: rate(own, best, "own", ROWS), lambda: rate(own, best, "mkl", ROWS))
        for rows in (64, 512):
            compare(table, f"kernels: {best} : MKL, {rows} rows", 0.98,
                    lambda rows=rows: rate(own, best, "own", rows), lambda rows=rows: rate(own, best, "mkl", rows))
        compare(table, "kernels: avx2 : MKL on AVX2, gpt-bench's layers", 0.95,
                lambda: rate(own, "avx2", "own", ROWS), lambda: rate(narrow, "avx2", "mkl", ROWS))
        compare(table, "kernels: share of the FMA peak, gpt-bench's layers", 0.9,
                lambda: rate(own, best, "own", ROWS), lambda: own.ask(f"peak {best}")["gflops"])
        compare(table, "kernels: portable, with FMA : avx2, gpt-bench's layers", 0.083,
                lambda: rate(own, "portable", "own", ROWS), lambda: rate(own, "avx2", "own", ROWS))
        name = "kernels: values with equal bits on every code path"
        if table.wants(name):
            done = own.ask(f"trials {CASES // KINDS + 1}")
            if "fault" in done:
                return table.missing(name, 1, done["fault"])
            table.row(name, done["values"] / 1e6, CASES / 1e6, "millions", [done["values"] / CASES], 1)
