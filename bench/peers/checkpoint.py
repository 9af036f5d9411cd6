"""Checkpoints of a GPT of 100 M parameters with its Adam state by torch.distributed.checkpoint, FSDP2 on two ranks, as a resident process:
rank 0 reads lines and answers each with one line of JSON, of the slowest rank.
  save FOLDER   synchronous, with fsync, by one thread of each rank and by two; {"seconds": of the faster}
  async FOLDER  {"stall": until the call returns, "seconds": until it is written}
  load FOLDER   {"seconds": x}

usage: torchrun --nproc-per-node=2 checkpoint.py
"""
import json
import os
import shutil
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train

train.LAYERS, train.WIDTH, train.HEADS = 12, 832, 13


def state_of(model, optimizer):
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}


def load(model, optimizer, folder):
    state = state_of(model, optimizer)
    dcp.load(state, storage_reader=FileSystemReader(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def timed(work):
    dist.barrier()
    begin = time.perf_counter()
    work()
    dist.barrier()
    return time.perf_counter() - begin


def main():
    dist.init_process_group("cpu:gloo")
    first = dist.get_rank() == 0
    torch.manual_seed(0)
    model = train.GPT(context=64)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model(torch.zeros(1, 64, dtype=torch.long)).sum().backward()  # the moments come with a step
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    own_group = dist.new_group(backend="gloo")  # the group of the steps would hang

    while True:
        order = [sys.stdin.readline() if first else ""]
        dist.broadcast_object_list(order)
        if not order[0]:
            break
        word, folder = order[0].split()
        answer = {}
        if word == "save":
            def save(threads):
                if first:
                    shutil.rmtree(folder, ignore_errors=True)
                return timed(lambda: dcp.save(state_of(model, optimizer),
                                              storage_writer=FileSystemWriter(folder, thread_count=threads)))
            answer["seconds"] = min(save(1), save(2))
        elif word == "async":
            if first:
                shutil.rmtree(folder, ignore_errors=True)
            dist.barrier()
            begin = time.perf_counter()
            written = dcp.async_save(state_of(model, optimizer), storage_writer=FileSystemWriter(folder), process_group=own_group)
            stall = torch.tensor([time.perf_counter() - begin])
            written.result()
            dist.barrier()
            answer["seconds"] = time.perf_counter() - begin
            dist.all_reduce(stall, op=dist.ReduceOp.MAX)
            answer["stall"] = stall.item()
        else:
            answer["seconds"] = timed(lambda: load(model, optimizer, folder))
        if first:
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
