"""PyTorch's DataLoader over the records that `tutti-bench-data` reads; batches of 256.

Reads lines `DATA WORKERS WAY`: DATA is rows (2 KB, uint8, in memory) or fashion (crop by 2, flip, to float, normalise), WORKERS 0 or 2, WAY
item (a record at a time, with the default collation) or batched (a BatchSampler whose batches are fetched and changed as whole
tensors). Answers {"rate": records/s}; start-up of the workers and the first batches are not counted.
"""
import gzip
import json
import sys
import time

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

RECORD, RECORDS, BATCH = 2048, 262144, 256
SECONDS, WARM = 0.6, 20
MEAN, STD = 0.2860, 0.3530


class Rows(Dataset):
    def __init__(self):
        self.data = torch.randint(0, 256, (RECORDS, RECORD), dtype=torch.uint8)

    def __len__(self):
        return RECORDS

    def __getitem__(self, i):
        return self.data[i]


class BatchedRows(Rows):
    """The faster of the two ways to gather a batch: numpy's take, or torch's indexing."""

    def __init__(self):
        super().__init__()
        self.array = self.data.numpy()

    def __getitem__(self, i):
        return torch.from_numpy(self.array.take(i, axis=0))


class Fashion(Dataset):
    def __init__(self):
        with gzip.open("data/fashion-mnist/train-images-idx3-ubyte.gz") as f:
            self.images = torch.from_numpy(np.frombuffer(f.read(), np.uint8, offset=16).reshape(-1, 28, 28).copy())
        with gzip.open("data/fashion-mnist/train-labels-idx1-ubyte.gz") as f:
            self.labels = torch.from_numpy(np.frombuffer(f.read(), np.uint8, offset=8).astype(np.int64))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.nn.functional.pad(self.images[i], (2, 2, 2, 2))
        y, x = torch.randint(0, 5, (2,)).tolist()
        image = image[y:y + 28, x:x + 28]
        if torch.rand(()) < 0.5:
            image = image.flip(1)
        return image.float().div(255).sub(MEAN).div(STD), self.labels[i]


class BatchedFashion(Fashion):
    """Images padded once; a window of each is taken by one indexing of the batch, before anything becomes a float."""

    def __init__(self):
        super().__init__()
        self.windows = torch.nn.functional.pad(self.images, (2, 2, 2, 2)).unfold(1, 28, 1).unfold(2, 28, 1)

    def __getitem__(self, i):
        i = torch.as_tensor(i)
        images = self.windows[i, torch.randint(0, 5, (len(i),)), torch.randint(0, 5, (len(i),))]
        images = torch.where(torch.rand(len(i), 1, 1) < 0.5, images.flip(2), images)
        return images.float().mul_(1 / (255 * STD)).sub_(MEAN / STD), self.labels[i]


def loader(data, workers, batched):
    if batched:
        return DataLoader(data, sampler=BatchSampler(RandomSampler(data), BATCH, True), batch_size=None, num_workers=workers)
    return DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers)


def batches(data, workers, batched):
    while True:
        yield from loader(data, workers, batched)


def rate(data, workers, batched):
    endless = batches(data, workers, batched)
    for _ in range(WARM):
        next(endless)
    begin, n = time.perf_counter(), 0
    while time.perf_counter() - begin < SECONDS:
        next(endless)
        n += BATCH
    return n / (time.perf_counter() - begin)


def fastest_threads(data, batched):
    """Two threads for an operation help large ones and hurt small ones."""
    rates = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rates[threads] = rate(data, 0, batched)
    return max(rates, key=rates.get)


def main():
    made, threads = {}, {}
    for line in sys.stdin:
        name, workers, way = line.split()
        key = (name, way)
        if key not in made:
            made[key] = {("rows", "item"): Rows, ("rows", "batched"): BatchedRows,
                         ("fashion", "item"): Fashion, ("fashion", "batched"): BatchedFashion}[key]()
        if line not in threads:
            threads[line] = fastest_threads(made[key], way == "batched") if workers == "0" else 1
        torch.set_num_threads(threads[line])
        print(json.dumps({"rate": rate(made[key], int(workers), way == "batched"), "threads": threads[line]}), flush=True)


if __name__ == "__main__":
    main()
