"""Plans: memory and step time as predicted, ZeRO-3's memory compared with DDP's, and `gpt-bench` on meshes compared with FSDP2, DeepSpeed and
torch.distributed.pipelining."""
import json
import statistics
import subprocess
import tempfile

import bench_schedules
from bench_gpu import NO_GPU, has_gpu
from bench_train import ours, pss_mb, step_ms, versus
from rows import BIN, Resident

MB = 1e6
HELD = ["train.lanes=4", "train.micro_batches=2", "train.micro_batch_size=2"]
SLICES = ["train.tensor_slices=2"]
# Data parallelism with next to nothing in it: what processes take besides the plan's buffers.
TRIVIAL = [*HELD, "model.layers=4", "model.width=16", "model.heads=2", "model.context=16"]
# By name: ranks and what is set besides the defaults. `job` is no part of the layout.
LAYOUTS = {
    "DDP": (2, {"zero": 0}),
    "ZeRO-1": (2, {"zero": 1}),
    "ZeRO-2": (2, {"zero": 2}),
    "ZeRO-3": (2, {"zero": 3}),
    "ZeRO-3 by tcp": (2, {"zero": 3, "transport": "tcp"}),
    "ZeRO-3 on 4": (4, {"zero": 3, "depth": 2}),
    "ZeRO-3 over 2 of 4": (4, {"zero": 3, "shards": 2}),
    "ZeRO-3, fold owner": (4, {"zero": 3, "fold": "owner", "job": ["numerics.order=micro"]}),
    "tensor": (2, {"tensor": 2, "job": SLICES}),
    "GPipe": (4, {"pipeline": 4, "schedule": "gpipe"}),
    "1F1B": (2, {"pipeline": 2}),
    "interleaved": (2, {"pipeline": 2, "schedule": "interleaved"}),
    "zero-bubble": (4, {"pipeline": 4, "schedule": "zero-bubble"}),
    "zbv": (2, {"pipeline": 2, "schedule": "zbv"}),
    "1F1B, recompute": (2, {"pipeline": 2, "recompute": "full"}),
    "ZeRO-2, recompute attention": (2, {"zero": 2, "recompute": "selective"}),
    "ZeRO-1, optimizer offloaded": (2, {"zero": 1, "offload": "optimizer"}),
    "ZeRO-1 x pipeline": (4, {"zero": 1, "pipeline": 2}),
    "ZeRO-2 x tensor": (4, {"zero": 2, "tensor": 2, "job": SLICES}),
    "tensor x pipeline": (4, {"tensor": 2, "pipeline": 2, "job": SLICES}),
}
# Of the step's time: all of one job on 2 ranks, so that its planner's choice can be compared with them.
TIMED = ["DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "tensor", "1F1B", "interleaved", "zbv", "1F1B, recompute", "ZeRO-2, recompute attention"]
TIMED_TOO = {"GPipe, 2 stages": {"pipeline": 2, "schedule": "gpipe"}, "zero-bubble, 2 stages": {"pipeline": 2, "schedule": "zero-bubble"}}
TIMED_JOB = ["train.lanes=2", "train.micro_batches=4", "train.micro_batch_size=2", *SLICES]

# On a GPU that all ranks share. The third step is the first that is captured.
DEVICE_MEMORY = ("device memory of every layout : predicted", 0.9)
DEVICE_JOB = ["train.lanes=4", "train.micro_batches=2", "train.micro_batch_size=4", "train.eval_every=0", "train.eval_batches=0"]
DEVICE_LAYOUTS = {
    "one rank, full recompute": {"ranks": 1, "recompute": "full"},
    "one rank, all offloaded": {"ranks": 1, "offload": "all"},
    "DDP": {"ranks": 2},
    "ZeRO-3": {"ranks": 2, "zero": 3},
    "ZeRO-2, optimizer offloaded": {"ranks": 2, "zero": 2, "offload": "optimizer"},
    "1F1B": {"ranks": 2, "pipeline": 2},
    "zbv": {"ranks": 2, "pipeline": 2, "schedule": "zbv"},
    "tensor": {"ranks": 2, "tensor": 2, "job": SLICES},
    "ZeRO-3 on 4": {"ranks": 4, "zero": 3},
    "ZeRO-1 x pipeline": {"ranks": 4, "zero": 1, "pipeline": 2},
    "tensor x pipeline": {"ranks": 4, "tensor": 2, "pipeline": 2, "job": SLICES},
}


def settings_of(layout):
    return layout.get("job", []) + [f"layout.{key}={value}" for key, value in layout.items() if key != "job"]


def resident(name, ranks, *settings):
    return Resident(f"tutti ({name})", [BIN / "tutti-bench-train", "gpt-bench", f"layout.ranks={ranks}", *settings])


def run(table):
    memory(table)
    device_memory(table)
    zero3_share(table)
    predictions(table)
    compare_with_peers(table)
    bench_schedules.rows(table)


def missing(table, targets, reason):
    for name, target in targets.items():
        if table.wants(name) and all(row["name"] != name for row in table.rows):
            table.missing(name, target, reason)


def total(ranks, kinds):
    return [sum(rank[kind] for kind in kinds) for rank in ranks]


def held(name, ranks, *settings):
    """Of a run's ranks after two steps: what is accounted, and their proportional sets together. Windows are shared by all ranks, so
    that only the sum says what they take."""
    with resident(name, ranks, *settings) as tutti:
        tutti.ask(2)
        accounts = tutti.ask("memory")["ranks"]
        return accounts, sum(pss_mb(rank["pid"]) for rank in accounts) * 2**20


def memory(table):
    arenas, sets = "peak arenas of every layout : predicted", "PSS of every layout : predicted + an empty process's"
    if not (table.wants(arenas) or table.wants(sets)):
        return
    base, peaks, proportional = {}, {}, {}
    try:
        for name, (ranks, layout) in LAYOUTS.items():
            if ranks not in base:
                accounts, pss = held(f"a trivial model on {ranks} ranks", ranks, *TRIVIAL)
                base[ranks] = pss - sum(total(accounts, ["total"]))
            accounts, pss = held(name, ranks, *HELD, *settings_of(layout))
            worst = max(accounts, key=lambda rank: abs(rank["total"] - rank["forecast"]) / rank["forecast"])
            peaks[name] = (worst["total"], worst["forecast"])
            proportional[name] = (pss, base[ranks] + sum(total(accounts, ["forecast"])))
    except (RuntimeError, OSError) as error:
        return missing(table, {arenas: 0.98, sets: 0.9}, error)
    for name, pairs, target in ((arenas, peaks, 0.98), (sets, proportional, 0.9)):
        near = {layout: 1 - abs(measured - predicted) / predicted for layout, (measured, predicted) in pairs.items()}
        worst = min(near, key=near.get)
        measured, predicted = pairs[worst]
        if table.wants(name):
            table.row(name, measured / MB, predicted / MB, "MB", list(near.values()), target, f"worst of {len(near)}: {worst}", of=min)


def taken_of_device(layout, folder):
    """What a run takes of the GPU at most, and what its ranks forecast together, in bytes."""
    used = subprocess.Popen(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0", "-lms", "50"],
                            stdout=subprocess.PIPE, text=True)
    before = int(used.stdout.readline())
    settings = [part for setting in [*DEVICE_JOB, *settings_of(layout)] for part in ("--set", setting)]
    done = subprocess.run([BIN / "tutti", "train", "gpt2-124m", "--steps", "3", "--out", folder, *settings], capture_output=True, text=True)
    used.terminate()
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    most = max(int(line) for line in used.communicate()[0].split())
    with open(f"{folder}/events.jsonl") as events:
        start = next(event for line in events if (event := json.loads(line))["event"] == "start")
    return (most - before) * 2**20, start["device_bytes_forecast"]


def device_memory(table):
    name, target = DEVICE_MEMORY
    if not table.wants(name):
        return
    if not has_gpu():
        return table.missing(name, target, NO_GPU)
    near, shown = {}, {}
    try:
        for layout, settings in DEVICE_LAYOUTS.items():
            with tempfile.TemporaryDirectory() as folder:
                taken, forecast = shown[layout] = taken_of_device(settings, f"{folder}/run")
            near[layout] = 1 - abs(taken - forecast) / forecast
            print(f"    {layout:40} taken {taken / MB:8.0f} MB, predicted {forecast / MB:8.0f} MB", flush=True)
    except (RuntimeError, OSError) as error:
        return table.missing(name, target, error)
    worst = min(near, key=near.get)
    table.row(name, shown[worst][0] / MB, shown[worst][1] / MB, "MB", list(near.values()), target, f"worst of {len(near)}: {worst}", of=min)


def zero3_share(table):
    """Parameters, gradients and moments of the rank that holds most of them."""
    job = ["model.layers=24", "model.width=128", "model.heads=4", "model.context=32", "train.micro_batches=1", "train.micro_batch_size=1"]
    for lanes, fold, limit in ((4, "local", 0.31), (8, "owner", 0.36)):
        name = f"24 layers, ZeRO-3 on 4 ranks, {lanes} lanes, fold {fold} : {limit} of DDP's"
        if not table.wants(name):
            continue
        try:
            most = [max(total(held(name, 4, *job, f"train.lanes={lanes}", *layout)[0], ["parameter", "gradient", "moment"]))
                    for layout in (["layout.zero=3", "layout.depth=1", f"layout.fold={fold}"], ["layout.zero=0"])]
        except (RuntimeError, OSError) as error:
            table.missing(name, 1, error)
            continue
        table.row(name, most[0] / MB, limit * most[1] / MB, "MB", [limit * most[1] / most[0]], 1)


def planned(folder):
    """The layouts of the timed job on 2 ranks as `tutti plan` predicts them on the machine as it is now, its choice first."""
    out, calibration, layouts = f"{folder}/plan.json", f"{folder}/calibration.json", []
    subprocess.run([BIN / "tutti", "calibrate", "--out", calibration], check=True, capture_output=True)
    # What fits without it is never recomputed unless asked for.
    for asked in ([], ["layout.recompute=selective"], ["layout.recompute=full"]):
        settings = [part for setting in [*TIMED_JOB, *asked] for part in ("--set", setting)]
        done = subprocess.run([BIN / "tutti", "plan", "gpt-bench", "--ranks", "2", "--calibration", calibration, "--json", out, *settings],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"tutti plan: {done.stderr}")
        with open(out) as f:
            layouts += json.load(f)["layouts"]
    return layouts


def same(candidate, layout):
    """Whether a candidate of `tutti plan` is the layout: what is not set has its default."""
    defaults = {"tensor": 1, "pipeline": 1, "zero": 0, "shards": 0, "schedule": "1f1b", "chunks": 2, "in_flight": 0,
                "recompute": "none", "fold": "local"}
    return all(candidate["layout"][key] == layout.get(key, default) for key, default in defaults.items())


def predictions(table):
    """Every layout's step in turns, `tutti calibrate` and `plan` among them: the machine's speed drifts, and both must see the same one."""
    errors, choice = "step of every layout : predicted", "the planner's choice : the best measured"
    if not (table.wants(errors) or table.wants(choice)):
        return
    layouts = {name: LAYOUTS[name][1] for name in TIMED} | TIMED_TOO
    running, measured, predicted = {}, {}, {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            chosen = planned(folder)[0]
            picked = next((name for name, layout in layouts.items() if same(chosen, layout)), chosen["name"])
            layouts.setdefault(picked, {key: value for key, value in chosen["layout"].items() if key != "ranks"})
            for name, layout in layouts.items():
                running[name] = resident(name, 2, *TIMED_JOB, *settings_of(layout))
                running[name].ask(2)
            for _ in range(table.pairs):
                candidates = planned(folder)
                for name, layout in layouts.items():
                    found = [c["seconds"] for c in candidates if same(c, layout)]
                    if not found:
                        raise RuntimeError(f"tutti plan did not simulate {name}")
                    predicted.setdefault(name, []).append(found[0] * 1e3)
                    measured.setdefault(name, []).append(step_ms(running[name], 1))
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        return missing(table, {errors: 0.85, choice: 0.95}, error)
    finally:
        for tutti in running.values():
            tutti.close()
    middle = {name: statistics.median(times) for name, times in measured.items()}
    near = {name: 1 - statistics.median(abs(p / m - 1) for p, m in zip(predicted[name], measured[name])) for name in layouts}
    if table.wants(errors):
        for name in sorted(near, key=middle.get):
            print(f"    {name:40} measured {middle[name]:8.1f} ms, predicted {statistics.median(predicted[name]):8.1f} ms, "
                  f"off by {100 - 100 * near[name]:.0f} %")
        worst = min(near, key=near.get)
        table.row(errors, middle[worst], statistics.median(predicted[worst]), "ms/step", list(near.values()), 0.85,
                  f"median of {len(near)} layouts; shown: the worst, {worst}")
    if table.wants(choice):
        best = min(middle, key=middle.get)
        ratios = [b / c for b, c in zip(measured[best], measured[picked])]
        table.row(choice, middle[picked], middle[best], "ms/step", ratios, 0.95, f"{picked} : {best}")


def compare_with_peers(table):
    small = ["train.micro_batch_size=1", "model.context=64"]
    options = ["--batch", "2", "--context", "64"]
    # Batch 16 as 8 micro-batches of 2.
    pipeline = ["layout.pipeline=2", "layout.schedule=zbv", "layout.in_flight=4", "train.micro_batches=4", "train.micro_batch_size=2"]
    compared = [
        (["layout.zero=3"], 2, [
            ("gpt-bench, ZeRO-3 on 2 ranks : FSDP2 (Gloo)", "fsdp2", [], 1.25),
            ("gpt-bench, ZeRO-3 on 2 ranks : DeepSpeed ZeRO-3", "zero3", [], 1.2)]),
        (["layout.zero=2"], 2, [("gpt-bench, ZeRO-2 on 2 ranks : DeepSpeed ZeRO-2", "zero2", [], 1.2)]),
        (["layout.zero=1"], 2, [("gpt-bench, ZeRO-1 on 2 ranks : DeepSpeed ZeRO-1", "zero1", [], 1.2)]),
        (pipeline, 2, [("gpt-bench, pipeline on 2 ranks : torch.distributed.pipelining, 1F1B", "pipeline", [], 1.4)]),
        ([*small, "layout.zero=3"], 10, [("batch 2, context 64, ZeRO-3 on 2 ranks : FSDP2 (Gloo)", "fsdp2", options, 3)]),
        ([*small, "layout.zero=2"], 10, [("batch 2, context 64, ZeRO-2 on 2 ranks : DeepSpeed ZeRO-2", "zero2", options, 2)]),
    ]
    for settings, steps, peers in compared:
        if not any(table.wants(name) for name, *_ in peers):
            continue
        try:
            with ours(*settings) as tutti:
                tutti.ask(2)
                for name, mode, arguments, target in peers:
                    versus(table, name, tutti, mode, arguments, target, steps)
        except RuntimeError as error:
            missing(table, {name: target for name, _, _, target in peers}, error)
