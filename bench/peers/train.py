"""Trains the model of `gpt-bench` with a peer, as a resident process: rank 0 reads lines "STEPS" and answers each with one line of
JSON {"seconds": [slowest rank's time of each step], "loss": x, "pids": [...]}. Every peer runs in its fastest configuration.

usage: train.py eager|compile [--batch N] [--context T]               one process, OMP_NUM_THREADS=2
       torchrun --nproc-per-node=2 train.py ddp|zero2 ...             two ranks, OMP_NUM_THREADS=1
"""
import argparse
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
    def __init__(self, context):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(torch.randn(context, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = self.tok(x) + self.pos[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch(step, n, context):
    """The global batch of a step, the same for every peer and rank: a learnable random walk over the bytes."""
    g = torch.Generator().manual_seed(1_000_003 + step)
    walk = torch.randint(0, 5, (n, context + 1), generator=g).cumsum(1) + torch.randint(0, VOCAB, (n, 1), generator=g)
    walk %= VOCAB
    return walk[:, :-1].contiguous(), walk[:, 1:].contiguous()


def loss_of(logits, y):
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1))


def stepper(mode, n, context, rank, world):
    model = GPT(context)
    mine = slice(rank * n // world, (rank + 1) * n // world)
    if mode == "zero2":
        import deepspeed

        config = {
            "train_batch_size": n,
            "train_micro_batch_size_per_gpu": n // world,
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": DECAY}},  # its own CPU Adam
            "steps_per_print": 10**9,
        }
        engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

        def step(i):
            x, y = batch(i, n, context)
            loss = loss_of(engine(x[mine]), y[mine])
            engine.backward(loss)
            engine.step()
            return loss.item()

        return step
    net = model
    if mode == "ddp":
        net = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    elif mode == "compile":
        net = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY, fused=True)

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
    parser.add_argument("mode", choices=["eager", "compile", "ddp", "zero2"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rank, world = 0, 1
    if arguments.mode == "zero2":
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    elif arguments.mode == "ddp":
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
            print(json.dumps({"seconds": slowest.tolist(), "loss": loss, "pids": pids}), flush=True)
    if world > 1:
        dist.destroy_process_group()


main()
