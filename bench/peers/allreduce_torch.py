"""All-reduce (float32 sum, in place) of torch.distributed over Gloo, or of DeepSpeed's shared memory, as a resident peer:
rank 0 reads lines "BYTES ITERATIONS" and answers each with one line of JSON; an iteration's time is the slowest rank's.

usage, under torchrun: allreduce_torch.py gloo|deepspeed
"""
import json
import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))  # DeepSpeed's shared memory needs it
import torch
import torch.distributed as dist


def all_reduce_of(backend):
    if backend == "gloo":
        dist.init_process_group("gloo")
        return dist.all_reduce
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    if getattr(comm.comm.cdb, "shm_comm_op", None) is None:
        raise SystemExit("DeepSpeed's shared-memory operator was not built")
    return comm.inference_all_reduce


def main():
    all_reduce = all_reduce_of(sys.argv[1])
    rank, size = dist.get_rank(), dist.get_world_size()
    while True:
        order = torch.zeros(2, dtype=torch.long)
        if rank == 0:
            line = sys.stdin.readline().split()
            if line:
                order = torch.tensor([int(v) for v in line])
        dist.broadcast(order, 0)
        nbytes, iterations = order.tolist()
        if nbytes == 0:
            break
        x = torch.full((nbytes // 4,), float(rank + 1))
        all_reduce(x)
        assert bool((x == size * (size + 1) / 2).all()), "wrong sum"
        x.zero_()
        times = []
        for i in range(-2, iterations):
            begin = time.perf_counter()
            all_reduce(x)
            if i >= 0:
                times.append(time.perf_counter() - begin)
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if rank == 0:
            answer = {"bytes": nbytes, "median_us": slowest.median().item() * 1e6, "min_us": slowest.min().item() * 1e6}
            print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


main()
