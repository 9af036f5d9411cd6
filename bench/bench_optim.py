"""The optimizers compared with the speed of memory: bytes that a step must move per second, against the fastest stream kernel of the same run."""
import statistics

from rows import BIN, Resident

OPTIMIZERS = ["sgd", "sgd-momentum", "adagrad", "rmsprop", "rmsprop-momentum", "adam", "adamw", "lion", "lamb"]
TARGET = 0.8


def run(table):
    wanted = {optimizer: f"optimizer {optimizer} : stream" for optimizer in OPTIMIZERS}
    wanted = {optimizer: name for optimizer, name in wanted.items() if table.wants(name)}
    if not wanted:
        return
    with Resident("tutti-bench-optim", [BIN / "tutti-bench-optim"]) as bench:
        for optimizer, name in wanted.items():
            try:
                rates = bench.ask(f"{optimizer} {table.pairs}")["gbs"]
            except RuntimeError as error:
                table.missing(name, TARGET, error)
                continue
            ours = rates.pop("ours")
            limit = max(rates, key=lambda kernel: statistics.median(rates[kernel]))
            table.row(name, statistics.median(ours), statistics.median(rates[limit]), "GB/s",
                      [a / b for a, b in zip(ours, rates[limit])], TARGET, f"limit: {limit}")
