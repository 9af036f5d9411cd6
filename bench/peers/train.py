"""Trains the model of `gpt-bench` with a peer, as a resident process: rank 0 reads lines "STEPS" and answers each with one line of
JSON {"seconds": [slowest rank's time of each step], "loss": x, "pids": [...]}. Every peer runs in its fastest configuration.

usage: train.py eager|compile [--batch N] [--context T]               one process, OMP_NUM_THREADS=2
       torchrun --nproc-per-node=2 train.py MODE ...                  two ranks, OMP_NUM_THREADS=1
MODE: ddp, fsdp2, pipeline (1F1B) of PyTorch; zero1, zero2, zero3 of DeepSpeed
"""
import argparse
import glob
import json
import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, VOCAB = 6, 384, 6, 256
LR, DECAY, CLIP = 3e-4, 0.01, 1.0
MICRO_BATCHES = 8  # of the pipeline


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class GPT(nn.Module):
    """The whole model, or one stage of a pipeline."""

    def __init__(self, context, stage=0, stages=1):
        super().__init__()
        first, last = stage == 0, stage == stages - 1
        self.tok = nn.Embedding(VOCAB, WIDTH) if first else None
        self.pos = nn.Parameter(torch.randn(context, WIDTH) * 0.02) if first else None
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS // stages))
        self.norm = nn.LayerNorm(WIDTH) if last else None
        self.head = nn.Linear(WIDTH, VOCAB) if last else None
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, x):
        if self.tok is not None:
            x = self.tok(x) + self.pos[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def batch(step, n, context):
    """The global batch of a step, the same for every peer and rank: a learnable random walk over the bytes."""
    g = torch.Generator().manual_seed(1_000_003 + step)
    walk = torch.randint(0, 5, (n, context + 1), generator=g).cumsum(1) + torch.randint(0, VOCAB, (n, 1), generator=g)
    walk %= VOCAB
    return walk[:, :-1].contiguous(), walk[:, 1:].contiguous()


def loss_of(logits, y):
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)


def deepspeed_stepper(stage, n, context, mine, world):
    import deepspeed

    config = {
        "train_batch_size": n,
        "train_micro_batch_size_per_gpu": n // world,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": DECAY}},  # its own CPU Adam
        "steps_per_print": 10**9,
    }
    model = GPT(context)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(i):
        x, y = batch(i, n, context)
        loss = loss_of(engine(x[mine]), y[mine])
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step


def pipeline_stepper(n, context, rank, world):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = GPT(context, rank, world)
    size = n // MICRO_BATCHES
    hidden = torch.zeros(size, context, WIDTH)
    inputs = torch.zeros(size, context, dtype=torch.long) if rank == 0 else hidden
    outputs = torch.zeros(size, context, VOCAB) if rank == world - 1 else hidden
    stage = PipelineStage(model, rank, world, torch.device("cpu"), input_args=(inputs,), output_args=(outputs,))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)

    def step(i):
        x, y = batch(i, n, context)
        losses = []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=losses)
        # The norm goes over both stages.
        square = torch.stack([p.grad.norm() for p in parameters]).norm() ** 2
        dist.all_reduce(square)
        torch._foreach_mul_([p.grad for p in parameters], torch.clamp(CLIP / (square.sqrt() + 1e-6), max=1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.all_reduce(loss)
        return loss.item()

    return step


def stepper(mode, n, context, rank, world):
    mine = slice(rank * n // world, (rank + 1) * n // world)
    if mode.startswith("zero"):
        return deepspeed_stepper(int(mode[-1]), n, context, mine, world)
    if mode == "pipeline":
        return pipeline_stepper(n, context, rank, world)
    net = model = GPT(context)
    if mode == "ddp":
        net = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif mode == "compile":
        net = torch.compile(model)
    optimizer = optimizer_of(model)

    def step(i):
        x, y = batch(i, n, context)
        loss = loss_of(net(x[mine]), y[mine])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["eager", "compile", "ddp", "fsdp2", "pipeline", "zero1", "zero2", "zero3"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rank, world = 0, 1
    if arguments.mode.startswith("zero"):
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    elif arguments.mode not in ("eager", "compile"):
        dist.init_process_group("gloo")
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    step = stepper(arguments.mode, arguments.batch, arguments.context, rank, world)
    pids = [os.getpid()]
    if world > 1:
        pids = [None] * world
        dist.all_gather_object(pids, os.getpid())
    done = 0
    while True:
        order = torch.zeros(1, dtype=torch.long)
        if rank == 0:
            line = sys.stdin.readline().strip()
            order[0] = int(line) if line else 0
        if world > 1:
            dist.broadcast(order, 0)
        if order.item() == 0:
            break
        times = []
        for _ in range(order.item()):
            begin = time.perf_counter()
            loss = step(done)
            times.append(time.perf_counter() - begin)
            done += 1
        slowest = torch.tensor(times, dtype=torch.float64)
        if world > 1:
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if rank == 0:
            # DeepSpeed's shared memory, which a killed peer would leave behind; both ranks have it mapped by now.
            for left in glob.glob(f"/dev/shm/deepspeed_*_{os.environ.get('MASTER_PORT')}_*"):
                os.unlink(left)
            print(json.dumps({"seconds": slowest.tolist(), "loss": loss, "pids": pids}), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
