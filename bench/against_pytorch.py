#!/usr/bin/env python3
"""Whole training steps of minim and PyTorch in turn on the same cores; prints medians and ratios.

usage: bench/against_pytorch.py [--models lenet5,cnn-small] [--threads 2] [--rounds 5] [--json FILE]
                                [--markdown FILE]

Needs PyTorch; `bench/against_pytorch.py --help` tells the rest. Every configuration of PyTorch (both memory
layouts, eager and compiled, FP32 and 16-bit autocast, default and tuned malloc) lives in a process that
sleeps while others run. The first round measures all of them; those that are far behind the best of their
precision then end, so that their memory is free again, and the best median counts.
"""
import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

SHAPES = {  # batch, channels, size of an image
    "lenet5": (64, 1, 28),
    "cnn-small": (64, 1, 28),
    "resnet8": (128, 3, 32),
    "resnet20": (128, 3, 32),
    "resnet18": (64, 3, 32),
}
# Freed blocks stay in the process: without it every step's buffers are fresh pages.
TUNED_MALLOC = {
    "MALLOC_TOP_PAD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
}
# For PyTorch, oneDNN and MKL.
ONLY_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
PRECISIONS = ("fp32", "bf16", "fp16")
FAR_BEHIND = 0.8


# ---- one configuration of PyTorch, in a process of its own ---------------------------------------


def residual_net(torch, blocks, width, stages, channels):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inside, outside, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(outside)
            self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(outside)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if stride != 1 or inside != outside:
                self.downsample = nn.Sequential(
                    nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

        def forward(self, x):
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + (x if self.downsample is None else self.downsample(x)))

    layers = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    inside = width
    for stage in range(stages):
        for i in range(blocks):
            outside = width << stage
            layers.append(Block(inside, outside, 2 if stage > 0 and i == 0 else 1))
            inside = outside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10)]
    return nn.Sequential(*layers)


def net_of(torch, model, channels, size):
    nn = torch.nn
    if model == "resnet8":
        return residual_net(torch, 1, 16, 3, channels)
    if model == "resnet20":
        return residual_net(torch, 3, 16, 3, channels)
    if model == "resnet18":
        return residual_net(torch, 2, 64, 4, channels)
    if model == "lenet5":
        side = (size // 2 - 4) // 2
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16 * side * side, 120), nn.ReLU(inplace=True),
            nn.Linear(120, 84), nn.ReLU(inplace=True), nn.Linear(84, 10))
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128 * side * side, 10))


def serve(request):
    """A child: answers "steps N" with images per second and peak memory, one line of JSON each."""
    model, layout, mode, precision, threads, batch, channels, size = request.split(":")
    threads, batch, channels, size = int(threads), int(batch), int(channels), int(size)
    import torch
    torch.set_num_threads(threads)
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    torch.manual_seed(1)
    net = net_of(torch, model, channels, size)
    x, y = torch.randn(batch, channels, size, size), torch.randint(0, 10, (batch,))
    if layout == "nhwc":
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    run = torch.compile(net) if mode == "compiled" else net

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(run(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    step()
    print(json.dumps({"first_step": time.time(), "version": torch.__version__}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line.split()[1])):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"images_per_s": batch / statistics.median(times), "peak_rss": peak,
                          "imported_rss": imported}), flush=True)


class TorchRun:
    def __init__(self, model, layout, mode, precision, malloc, args):
        self.name = f"{layout} {mode} {malloc} malloc"
        self.precision = precision
        self.values, self.peak, self.imported = [], 0, 0
        batch, channels, size = SHAPES[model]
        request = f"{model}:{layout}:{mode}:{precision}:{args.threads}:{args.batch or batch}:{channels}:{size}"
        env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), MKL_NUM_THREADS=str(args.threads))
        if malloc == "tuned":
            env.update(TUNED_MALLOC)
        if args.avx2:
            env.update(ONLY_AVX2)
        start = time.time()
        self.child = subprocess.Popen([sys.executable, __file__, "--serve", request], env=env, text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        line = self.child.stdout.readline()
        self.failed = not line
        if line:
            answer = json.loads(line)
            self.version, self.first_step = answer["version"], answer["first_step"] - start

    def steps_for(self, seconds):
        """Steps that take about so long, by a short trial that also warms up."""
        self.measure(2)
        start = time.time()
        self.measure(2)
        return max(3, int(seconds / max((time.time() - start) / 2, 1e-4)))

    def measure(self, steps):
        self.child.stdin.write(f"steps {steps}\n")
        self.child.stdin.flush()
        answer = json.loads(self.child.stdout.readline())
        self.peak, self.imported = answer["peak_rss"], answer["imported_rss"]
        return answer["images_per_s"]

    def close(self):
        if self.child:
            self.child.stdin.close()
            self.child.wait()
            self.child = None


# ---- minim ---------------------------------------------------------------------------------------


class MinimRun:
    def __init__(self, model, precision, args):
        batch, channels, size = SHAPES[model]
        self.name, self.precision, self.values, self.failed = "minim", precision, [], False
        self.batch = args.batch or batch
        self.command = [args.minim, "bench", "--model", model, "--batch", str(args.batch or batch), "--threads",
                        str(args.threads), "--amp", "off" if precision == "fp32" else precision, "--data",
                        f"synthetic:{size}x{size}x{channels}:10", "--json"]
        self.command += ["--direct"] * args.direct + ["--kernels", "avx2"] * args.avx2

    def steps_for(self, seconds):
        return max(3, int(seconds * self.measure(3) / self.batch))

    def measure(self, steps):
        answer = json.loads(subprocess.run(self.command + ["--steps", str(steps), "--warmup", "3"], check=True,
                                           capture_output=True, text=True).stdout)
        self.peak, self.tensors = answer["peak_rss_bytes"], answer["peak_tensor_bytes"]
        return answer["images_per_s"]["median"]

    def first_step_seconds(self):
        start = time.time()
        subprocess.run(self.command + ["--steps", "1", "--warmup", "0"], check=True, capture_output=True)
        return time.time() - start

    def close(self):
        pass


# ---- comparison ----------------------------------------------------------------------------------


def first_round(model, args):
    """Starts and measures one after the other; what is far behind the best so far ends at once."""
    runs, steps, best = [], {}, {}

    def add(run):
        if run.failed:
            print(f"  (PyTorch {run.precision} {run.name} does not run here)", flush=True)
            run.close()
            return
        steps[run] = run.steps_for(args.seconds)
        run.values.append(run.measure(steps[run]))
        runs.append(run)
        if run.name != "minim":
            best[run.precision] = max(best.get(run.precision, 0), run.values[0])
            end_those_behind(runs, best)

    for precision in args.precisions:
        add(MinimRun(model, precision, args))
        for malloc in args.malloc:
            for mode in args.modes:
                for layout in ("nchw", "nhwc"):
                    add(TorchRun(model, layout, mode, precision, malloc, args))
    return runs, steps


def end_those_behind(runs, best):
    for run in runs:
        if run.name != "minim" and run.values[0] < FAR_BEHIND * best[run.precision]:
            run.close()


def compare(model, args):
    runs, steps = first_round(model, args)
    active = [run for run in runs if run.name == "minim" or run.child]
    for _ in range(1, args.rounds):
        for run in active:
            run.values.append(run.measure(steps[run]))
    report(model, runs, args)
    result = {"model": model, "threads": args.threads, "batch": args.batch or SHAPES[model][0], "runs": [
        {"name": r.name, "precision": r.precision, "images_per_s": r.values, "peak_rss": r.peak,
         "imported_rss": getattr(r, "imported", 0)} for r in runs]}
    for run in runs:
        run.close()
    return result


def report(model, runs, args):
    batch, channels, size = SHAPES[model]
    print(f"\n{model}, {args.batch or batch} images of {size}x{size}x{channels}, {args.threads} thread(s), "
          f"{args.rounds} rounds; median images/s (lowest to highest), peak resident MiB")
    own32 = None
    for precision in args.precisions:
        here = [r for r in runs if r.precision == precision]
        torch = sorted((r for r in here if r.name != "minim"), key=lambda r: -statistics.median(r.values))
        best = next(r for r in torch if len(r.values) == max(len(o.values) for o in torch))
        minim = next(r for r in here if r.name == "minim")
        median = statistics.median(minim.values)
        own32 = own32 or median
        by_round = statistics.median(m / b for m, b in zip(minim.values, best.values))
        print(f"  {precision}: minim {median:9.1f} ({min(minim.values):.0f} to {max(minim.values):.0f}), "
              f"{minim.peak / 2**20:.0f} MiB, tensors {minim.tensors / 2**20:.1f} MiB;  "
              f"x{median / statistics.median(best.values):.2f} of PyTorch's best (rounds x{by_round:.2f}), "
              f"x{median / own32:.2f} of own FP32")
        for r in torch:
            own = (r.peak - r.imported) / 2**20
            print(f"      PyTorch {r.name:30s} {statistics.median(r.values):9.1f} ({min(r.values):.0f} to "
                  f"{max(r.values):.0f}), {r.peak / 2**20:.0f} MiB, {own:.0f} without its import; first step "
                  f"after {r.first_step:.2f} s" + (", ended" if len(r.values) < len(best.values) else ""))
    first = min(next(r for r in runs if r.name == "minim").first_step_seconds() for _ in range(3))
    torch_first = min(r.first_step for r in runs if r.name != "minim")
    print(f"  from start to the first finished step: minim {first:.3f} s, PyTorch {torch_first:.2f} s "
          f"(x{torch_first / first:.0f})", flush=True)


def best_of(runs, precision):
    """minim and the fastest of PyTorch's that went through all rounds."""
    here = [r for r in runs if r["precision"] == precision]
    rounds = max(len(r["images_per_s"]) for r in here)
    torch = [r for r in here if r["name"] != "minim" and len(r["images_per_s"]) == rounds]
    return (next(r for r in here if r["name"] == "minim"),
            max(torch, key=lambda r: statistics.median(r["images_per_s"]), default=None))


def write_markdown(results, args):
    """A table of ratios, minim over PyTorch's best; memory without what importing PyTorch takes."""
    with open(args.markdown, "w", encoding="utf-8") as out:
        out.write(f"{cpu_name()}, {args.threads} thread(s), {args.rounds} rounds of {args.seconds:g} s; ratios of "
                  "medians, in brackets the lowest and the highest ratio of a round.\n\n"
                  "| model | precision | minim images/s | PyTorch's best | speed | resident memory |\n"
                  "|---|---|---|---|---|---|\n")
        for result in results:
            for precision in args.precisions:
                minim, torch = best_of(result["runs"], precision)
                if torch is None:
                    continue
                own, other = minim["images_per_s"], torch["images_per_s"]
                rounds = [m / t for m, t in zip(own, other)]
                memory = minim["peak_rss"] / (torch["peak_rss"] - torch["imported_rss"])
                out.write(f"| `{result['model']}` | {precision} | {statistics.median(own):.0f} | {torch['name']} | "
                          f"x{statistics.median(own) / statistics.median(other):.2f} [{min(rounds):.2f}, "
                          f"{max(rounds):.2f}] | {memory:.2f} |\n")


def cpu_name():
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda text: text.split(",")
    parser.add_argument("--models", type=listed, default=list(SHAPES), help="default: all")
    parser.add_argument("--precisions", type=listed, default=list(PRECISIONS))
    parser.add_argument("--modes", type=listed, default=["eager", "compiled"])
    parser.add_argument("--malloc", type=listed, default=["default", "tuned"])
    parser.add_argument("--batch", type=int, help="default: 64; 128 for resnet8 and resnet20")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--direct", action="store_true", help="minim without Winograd's algorithm")
    parser.add_argument("--avx2", action="store_true", help="both without AVX-512")
    parser.add_argument("--minim", default="build/minim")
    parser.add_argument("--json", help="write all measurements to this file")
    parser.add_argument("--markdown", help="write a table of ratios to this file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve)
    for name in args.models:
        if name not in SHAPES:
            parser.error(f"there is no model {name!r}; there are {', '.join(SHAPES)}")
    print(f"{cpu_name()}, {os.cpu_count()} processors, Python {platform.python_version()}")
    results = [compare(model, args) for model in args.models]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)
    if args.markdown:
        write_markdown(results, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
