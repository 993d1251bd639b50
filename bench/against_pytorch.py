#!/usr/bin/env python3
"""Whole FP32 training steps of minim and PyTorch in turn on the same cores; prints medians and ratios.

usage: bench/against_pytorch.py [--model cnn-small] [--batch 64] [--threads 2] [--rounds 5] [--minim build/minim]
Needs PyTorch (Debian: python3-torch). PyTorch runs in both memory layouts; the better one counts.
"""
import argparse
import json
import statistics
import subprocess
import time


def nets(name, torch):
    nn = torch.nn
    if name == "lenet5":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(6272, 10))


class TorchRun:
    def __init__(self, torch, args, channels_last):
        torch.manual_seed(1)
        self.torch = torch
        self.net = nets(args.model, torch)
        self.x = torch.randn(args.batch, 1, 28, 28)
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.y = torch.randint(0, 10, (args.batch,))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        self.batch = args.batch

    def step(self):
        self.opt.zero_grad(set_to_none=True)
        self.torch.nn.functional.cross_entropy(self.net(self.x), self.y).backward()
        self.opt.step()

    def images_per_s(self, steps):
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return self.batch / statistics.median(times)


def minim(args, amp):
    line = subprocess.run(
        [args.minim, "bench", "--model", args.model, "--batch", str(args.batch), "--threads",
         str(args.threads), "--steps", str(args.steps), "--amp", amp, "--json"],
        check=True, capture_output=True, text=True).stdout
    return json.loads(line)["images_per_s"]["median"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="cnn-small", choices=["lenet5", "cnn-small"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--minim", default="build/minim")
    args = parser.parse_args()
    import torch
    torch.set_num_threads(args.threads)
    runs = {"pytorch nchw": TorchRun(torch, args, False), "pytorch nhwc": TorchRun(torch, args, True)}
    for run in runs.values():
        run.images_per_s(5)
    results = {}
    for _ in range(args.rounds):
        for name, run in runs.items():
            results.setdefault(name, []).append(run.images_per_s(args.steps))
        for amp in ("off", "bf16", "fp16"):
            results.setdefault("minim " + amp, []).append(minim(args, amp))
    best = max(statistics.median(results[name]) for name in runs)
    print(f"{args.model}, batch {args.batch}, {args.threads} threads, PyTorch {torch.__version__}, "
          f"median of {args.rounds} rounds")
    for name, values in results.items():
        median = statistics.median(values)
        print(f"{name:14s} {median:9.1f} images/s   x{median / best:.2f} of PyTorch's best FP32")


if __name__ == "__main__":
    main()
