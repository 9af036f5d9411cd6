"""Trains the GPT-2 of `gpt2-124m` with PyTorch, as a resident process, from the weights, batches and learning rates that
`tutti-bench-gpu write FOLDER` left. Reads lines
  STEPS    runs that many steps; answers {"seconds": of all of them, "losses": [...], "tokens": a step, "attention": ...}
  memory   answers {"tensors": torch's peak of allocated bytes, "reserved": of reserved ones, "taken": bytes of the device that the process
           took since it first asked, with all that libraries keep for themselves}

usage: gpt2_gpu.py FOLDER [--attention auto|flash|cudnn|efficient|math] [--precision bfloat16|float32] [--compile] [--device cuda|cpu]

Eager is what PyTorch users run: autocast to bfloat16 over float32 weights, F.scaled_dot_product_attention, fused AdamW, gradients set to none,
losses read once a block. `auto` times the attention kernels at the start and keeps the fastest. `float32` is with TF32 matmuls.
"""
import argparse
import json
import math
import pathlib
import sys
import time

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Parameters are called as in our files: embed.tok.weight, blocks.0.norm1.weight, head.norm.weight, ..."""

    def __init__(self, job):
        super().__init__()
        width = job["width"]
        self.embed = nn.ModuleDict({"tok": nn.Embedding(job["vocab"], width), "pos": nn.Embedding(job["context"], width)})
        self.blocks = nn.ModuleList(Block(width, job["heads"]) for _ in range(job["layers"]))
        self.head = nn.ModuleDict({"norm": nn.LayerNorm(width)})

    def forward(self, tokens, targets):
        x = self.embed["tok"](tokens) + self.embed["pos"].weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.head["norm"](x), self.embed["tok"].weight)  # the head is tied
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def load_weights(path):
    """All tensors of a safetensors file of float32."""
    raw = bytearray(path.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, tensor in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            at, shape = 8 + size + tensor["data_offsets"][0], tensor["shape"]
            tensors[name] = torch.frombuffer(raw, dtype=torch.float32, offset=at, count=math.prod(shape)).view(shape)
    return tensors


def fastest_attention(job, device):
    """By forward and backward at the job's shape."""
    times = {}
    q = torch.randn(3, job["batch"], job["heads"], job["context"], job["width"] // job["heads"], device=device, dtype=torch.bfloat16)
    q.requires_grad_()
    for name in ("flash", "cudnn"):
        try:
            with sdpa_kernel(ATTENTION[name]):
                for turn in range(4):
                    if turn == 1:
                        torch.cuda.synchronize()
                        begin = time.perf_counter()
                    F.scaled_dot_product_attention(*q, is_causal=True).sum().backward()
            torch.cuda.synchronize()
            times[name] = time.perf_counter() - begin
        except RuntimeError as error:
            print(f"no {name} attention: {error}", file=sys.stderr)
    return min(times, key=times.get) if times else "math"


class Peer:
    def __init__(self, arguments):
        folder, self.device = pathlib.Path(arguments.folder), arguments.device
        self.on_gpu = self.device == "cuda"
        self.free = torch.cuda.mem_get_info()[0] if self.on_gpu else 0
        self.job = json.loads((folder / "job.json").read_text())
        self.autocast = arguments.precision == "bfloat16"
        torch.set_float32_matmul_precision("high")
        self.attention = arguments.attention
        if self.attention == "auto":
            fast = self.on_gpu and self.autocast
            self.attention = fastest_attention(self.job, self.device) if fast else "efficient" if self.on_gpu else "math"
        self.model = GPT2(self.job)
        self.model.load_state_dict(load_weights(folder / "weights.safetensors"))
        self.model.to(self.device)
        # Every parameter decays: the job has no groups.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.job["rates"][0], betas=self.job["betas"], eps=self.job["eps"],
                                           weight_decay=self.job["weight_decay"], fused=True)
        self.call = torch.compile(self.model) if arguments.compile else self.model
        steps, rows = len(self.job["rates"]), self.job["batch"]
        self.batches = torch.from_numpy(numpy.fromfile(folder / "batches.bin", dtype=numpy.int64)).view(steps, 2, rows, self.job["context"])
        if self.on_gpu:
            self.batches = self.batches.pin_memory()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self.done = 0

    def step(self):
        at = self.done % len(self.batches)
        self.done += 1
        tokens, targets = self.batches[at].to(self.device, non_blocking=True)
        for group in self.optimizer.param_groups:
            group["lr"] = self.job["rates"][at]
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            loss = self.call(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.job["clip"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def answer(self, line):
        if line == "memory":
            if not self.on_gpu:
                return {"tensors": 0, "reserved": 0, "taken": 0}
            return {"tensors": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
                    "taken": self.free - torch.cuda.mem_get_info()[0]}
        self.wait()
        begin = time.perf_counter()
        with sdpa_kernel(ATTENTION[self.attention]):
            losses = [self.step() for _ in range(int(line))]
        self.wait()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "losses": torch.stack(losses).tolist(), "tokens": self.job["batch"] * self.job["context"],
                "attention": self.attention}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--attention", choices=["auto", *ATTENTION], default="auto")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    peer = Peer(parser.parse_args())
    for line in sys.stdin:
        print(json.dumps(peer.answer(line.strip())), flush=True)


main()
