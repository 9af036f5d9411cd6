"""All-reduce of float32 compared with Gloo, Open MPI, DeepSpeed's shared memory and a plain memcpy."""
from rows import BIN, PEER_ENV, PEERS, Resident, torchrun

MB = 1 << 20


def ours(ranks, *options, lanes=None):
    return Resident("tutti", [BIN / "tutti-bench-comm", "--ranks", ranks, "--lanes", lanes or ranks, *options], {})


def peer(kind, ranks):
    if kind in ("gloo", "deepspeed"):
        return Resident(kind, torchrun(ranks, "bench/peers/allreduce_torch.py", kind), PEER_ENV)
    tcp = ["--mca", "btl", "tcp,self"] if kind == "mpi-tcp" else []
    return Resident(kind, ["mpirun", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo", *tcp, "-np", ranks, PEERS / "allreduce_mpi"],
                    PEER_ENV)


def iterations(size):
    return 5 if size >= 128 * MB else 15 if size >= 16 * MB else 400


def label(size):
    return f"{size // MB} MB" if size >= MB else f"{size // 1024} KB"


def against(table, left, right, what, targets):
    """targets: {bytes: ratio}."""
    rows = {size: f"{what}, {label(size)}" for size in targets}
    if not any(table.wants(name) for name in rows.values()):
        return
    with left() as a, right() as b:
        for size, target in targets.items():
            if table.wants(rows[size]):
                ask = f"{size} {iterations(size)}"
                table.compare(rows[size], lambda: a.ask(ask)["median_us"], lambda: b.ask(ask)["median_us"], target)


def run(table):
    shm = lambda: ours(2, "--transport", "shm", "--kind", "exact")
    against(table, shm, lambda: peer("gloo", 2), "exact shm, 2 ranks : Gloo", {128 * MB: 7, 16 * MB: 8})
    against(table, shm, lambda: peer("mpi", 2), "exact shm, 2 ranks : Open MPI", {128 * MB: 5, 16 * MB: 4, 64 * 1024: 3})
    against(table, shm, lambda: peer("deepspeed", 2), "exact shm, 2 ranks : DeepSpeed", {128 * MB: 3.5, 16 * MB: 4})
    against(table, shm, lambda: ours(2, "--kind", "memcpy"), "exact shm, 2 ranks : 2 memcpy", {128 * MB: 1})
    against(table, lambda: ours(4, "--transport", "shm"), lambda: peer("gloo", 4), "exact shm, 4 ranks : Gloo", {16 * MB: 3, 128 * MB: 3})
    against(table, lambda: ours(3, "--transport", "shm", lanes=8), lambda: peer("gloo", 3), "exact shm, 3 ranks on 8 lanes : Gloo",
            {16 * MB: 3, 128 * MB: 3})
    tcp = lambda: ours(2, "--transport", "tcp")
    against(table, tcp, lambda: peer("gloo", 2), "exact tcp, 2 ranks : Gloo", {16 * MB: 1.3})
    against(table, tcp, lambda: peer("mpi-tcp", 2), "exact tcp, 2 ranks : Open MPI tcp", {16 * MB: 0.9})
    for transport in ("shm", "tcp"):
        for ranks in (2, 4):
            against(table, lambda: ours(ranks, "--transport", transport, "--kind", "exact"),
                    lambda: ours(ranks, "--transport", transport, "--kind", "ring"),
                    f"exact : ring, {transport}, {ranks} ranks", {16 * MB: 1})
    for transport in ("shm", "tcp"):  # no target: which of the two the planner may choose
        against(table, lambda: ours(4, "--transport", transport, "--kind", "exact"),
                lambda: ours(4, "--transport", transport, "--kind", "root"),
                f"exact, fold at owners : at the root, {transport}, 4 ranks", {16 * MB: 0})
    bytes_between_hosts(table)


def bytes_between_hosts(table):
    name, limit = "bytes between 2 hosts of 2 ranks / gradient", 1.05
    if not table.wants(name):
        return
    with ours(4, "--transport", "shm", "--hosts", 2) as a:
        try:
            answer = a.ask(f"{16 * MB} 5")
        except RuntimeError as error:
            return table.missing(name, 1, error)
    share = answer["host_bytes"] / (16 * MB)
    table.row(name, share, limit, "share", [limit / share], 1)
