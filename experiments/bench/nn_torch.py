#!/usr/bin/python3
"""Training speed of ResNet in PyTorch, and beside it that of another program, in turns.

    /usr/bin/python3 experiments/bench/nn_torch.py --image-size=64 --batch=16 --threads=1 --steps=5 --rounds=3 \\
        --against='build/release/chorale train -n 1 --allreduce=ring --model=resnet50 ...'

A round is `steps` steps of PyTorch, then one run of the other command; on a shared machine only such neighbours are
comparable. The other command's speed is the last number before "images/s" that it prints. PyTorch is tuned:
gradients are dropped rather than zeroed, SGD updates all tensors at once.
"""
import argparse
import os
import re
import shlex
import statistics
import subprocess
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["resnet50", "resnet18"], default="resnet50")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--against", help="another command to time in turns")
    return parser.parse_args()


def make_network(torch, name, classes):
    """torchvision's ResNet (v1.5), written out: torchvision may be missing."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, channels, width, stride, bottleneck):
            super().__init__()
            out = 4 * width if bottleneck else width
            shapes = [(channels, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)] if bottleneck else [
                (channels, width, 3, stride), (width, out, 3, 1)]
            layers = []
            for i, o, k, s in shapes:
                layers += [nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
            self.main = nn.Sequential(*layers[:-1])
            self.shortcut = nn.Identity()
            if stride > 1 or channels != out:
                self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.main(x) + self.shortcut(x))

    bottleneck, counts = name == "resnet50", {"resnet50": (3, 4, 6, 3), "resnet18": (2, 2, 2, 2)}[name]
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, count in enumerate(counts):
        for k in range(count):
            width = 64 << stage
            layers.append(Block(channels, width, 2 if stage > 0 and k == 0 else 1, bottleneck))
            channels = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def main():
    args = options()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # before torch reads it
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    network = make_network(torch, args.model, args.classes)
    images = torch.randn(args.batch, 3, args.image_size, args.image_size)
    if args.channels_last:
        network, images = network.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    labels = torch.arange(args.batch) % args.classes
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, foreach=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    def other():
        output = subprocess.run(shlex.split(args.against), check=True, capture_output=True, text=True).stdout
        return float(re.findall(r"([0-9.]+) *images/s", output)[-1])

    step()
    ours, theirs = [], []
    for k in range(args.rounds):
        seconds = []
        for _ in range(args.steps):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        theirs.append(args.batch / statistics.median(seconds))
        line = f"round {k + 1}: torch {torch.__version__} {theirs[-1]:.2f} images/s"
        if args.against:
            ours.append(other())
            line += f", other {ours[-1]:.2f} images/s, ratio {ours[-1] / theirs[-1]:.2f}"
        print(line, flush=True)
    print(f"median: torch {statistics.median(theirs):.2f} images/s", end="")
    if ours:
        ratio = statistics.median(a / b for a, b in zip(ours, theirs))
        print(f", other {statistics.median(ours):.2f} images/s, median of the ratios {ratio:.2f}", end="")
    print()


if __name__ == "__main__":
    main()
