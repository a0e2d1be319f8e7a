#!/usr/bin/python3
"""Training speed of ResNet-50 v1.5 in PyTorch, for resnet50.sh and bench/train_cpu.sh: written out here, so that it needs
no torchvision.

    torch_resnet50.py [--image-size=64] [--batch=16] [--threads=1] [--steps=12] [--skip=2] [--channels-last]
                      [--workers=1] [--device=cpu|cuda] [--compile] [--ceilings]

Does what chorale train does in a step: forward, loss, backward, SGD with momentum 0.9 and weight decay 1e-4 on weights
of convolutions and the linear layer; 10 classes. Tuned: gradients set to None, foreach SGD, in-place ReLU, one batch that
lies ready; on the processor oneDNN in f32; on a card bf16 by autocast, cudnn.benchmark, fused SGD, and no wait for the
device before the last timed step. Prints CSV, images_per_s over the steps after the skipped ones.

--workers: so many processes of this program, on the processor, each with its own batch and a core for each thread;
DistributedDataParallel over gloo averages the gradients while backward goes on. images_per_s is that of all together.

--ceilings: what the card reaches at most, beside which the training's figures stand: bf16 products of 8192 x 8192
matrices in TFLOP/s, and copies of 1 GiB in device memory in GB/s, read and written.
"""

import argparse
import os
import socket
import subprocess
import sys
import time

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("torch_resnet50.py: no PyTorch here: apt-get install python3-torch, then run it with /usr/bin/python3")

CLASSES = 10
PARAMETERS = {10: 23_528_522, 1000: 25_557_032}  # of the published network: 25.56 million with 1000 classes


class Bottleneck(nn.Module):
    """1x1, 3x3 (which has the stride), 1x1 with four times the channels."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += shortcut
        return self.relu(y)


def resnet50(classes):
    layers = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, padding=1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers)


def check_size(model, classes):
    count = sum(p.numel() for p in model.parameters())
    if count != PARAMETERS[classes]:
        sys.exit(f"torch_resnet50.py: {count} parameters with {classes} classes instead of {PARAMETERS[classes]}: "
                 "this is not ResNet-50, mend resnet50()")


def optimizer_for(model, cuda):
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    fast = {"fused": True} if cuda else {"foreach": True}
    return torch.optim.SGD([{"params": decays, "weight_decay": 1e-4}, {"params": others}], lr=0.01, momentum=0.9, **fast)


def train(model, images, labels, steps):
    """Seconds of each step; the last loss."""
    optimizer, loss_of, times = optimizer_for(model, False), nn.CrossEntropyLoss(), []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        value = loss.item()
        times.append(time.perf_counter() - begin)
    return times, value


def start_workers(workers):
    """This program once for each worker; the first exit code that is not 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "GLOO_SOCKET_IFNAME": "lo"}
    children = [subprocess.Popen([sys.executable, *sys.argv], env={**environment, "RANK": str(rank)})
                for rank in range(workers)]
    return next((code for code in [child.wait() for child in children] if code != 0), 0)


def join_workers(model, threads):
    """The model that averages gradients over the workers; each worker keeps to its own cores where there are enough."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= workers * threads:
        os.sched_setaffinity(0, cores[rank * threads:(rank + 1) * threads])
    torch.distributed.init_process_group("gloo")
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)


def train_on_card(model, images, labels, steps, skip):
    """Seconds of the steps after the skipped ones, together; the last loss."""
    optimizer, loss_of = optimizer_for(model, True), nn.CrossEntropyLoss()
    begin = 0.0
    for step in range(steps):
        if step == skip:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
    value = loss.item()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, value


def seconds_on_card(work, times):
    """Of one call of `work`, by the card's events, the fastest of five runs of `times` calls."""
    best = float("inf")
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3 / times)
    return best


def ceilings():
    side, count = 8192, 1 << 30
    a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    source, target = (torch.zeros(count, device="cuda", dtype=torch.uint8) for _ in range(2))
    product = seconds_on_card(lambda: torch.matmul(a, b), 10)
    copy = seconds_on_card(lambda: target.copy_(source), 10)
    print("card,bf16_tflops,copy_gb_per_s")
    print(f"{torch.cuda.get_device_name()},{2 * side ** 3 / product / 1e12:.5g},{2 * count / copy / 1e9:.5g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("image-size", 64), ("batch", 16), ("threads", 1), ("steps", 12), ("skip", 2), ("workers", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--channels-last", action="store_true", help="images as NHWC")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--ceilings", action="store_true", help="what the card reaches at most, and nothing else")
    options = parser.parse_args()
    cuda = options.device == "cuda" or options.ceilings
    if cuda and not torch.cuda.is_available():
        sys.exit("torch_resnet50.py: this PyTorch sees no card: take a build with CUDA, on a machine with one")
    if options.ceilings:
        return ceilings()
    if min(options.image_size, options.batch, options.threads, options.workers) < 1 or not 0 <= options.skip < options.steps:
        parser.error("numbers have to be positive, and fewer steps skipped than made")
    if options.workers > 1 and "RANK" not in os.environ:
        return start_workers(options.workers)
    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(1)
    with torch.no_grad():
        check_size(resnet50(1000), 1000)
    model = resnet50(CLASSES).train()
    check_size(model, CLASSES)
    images = torch.randn(options.batch, 3, options.image_size, options.image_size)
    labels = torch.randint(0, CLASSES, (options.batch,))
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    if options.workers > 1:
        model = join_workers(model, options.threads)
    timed = options.steps - options.skip
    if cuda:
        torch.backends.cudnn.benchmark = True
        model, images, labels = model.cuda(), images.cuda(), labels.cuda()
    if options.compile:
        model = torch.compile(model)
    if cuda:
        seconds, loss = train_on_card(model, images, labels, options.steps, options.skip)
    else:
        times, loss = train(model, images, labels, options.steps)
        seconds = sum(times[options.skip:])
    if loss != loss:
        sys.exit("torch_resnet50.py: the loss is not a number: the training is broken, don't use its speed")
    if os.environ.get("RANK", "0") != "0":
        return 0
    print("image_size,batch,threads,workers,steps,images_per_s")
    print(f"{options.image_size},{options.batch},{options.threads},{options.workers},{options.steps},"
          f"{options.workers * options.batch * timed / seconds:.6g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
