#!/usr/bin/python3
"""Golden values for tests/nn, from PyTorch in double precision.

    /usr/bin/python3 tests/nn/golden.py

writes tests/nn/golden/layers.txt (each kind of layer: outputs and gradients) and tests/nn/golden/steps.txt (training
steps of a small ResNet). Inputs come from a counter-based formula that support_golden.c computes as well, so only results
are stored: of each tensor its L2 norm, its product with formula numbers, and evenly spread samples.
"""
import os

import numpy
import torch
import torch.nn.functional as F

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
SAMPLES = 64

# Seeds of the formula; support_golden.h has the same.
SEED_INPUT, SEED_GRADIENT, SEED_PROBE, SEED_PARAMETER = 1, 2, 3, 100


def formula(seed, count):
    """`count` numbers in [-1, 1), multiples of 2^-23: splitmix64 of (seed << 32) + index."""
    with numpy.errstate(over="ignore"):
        z = (numpy.uint64(seed) << numpy.uint64(32)) + numpy.arange(count, dtype=numpy.uint64)
        z = z + numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(40)).astype(numpy.float64) / 2.0**23 - 1.0


def tensor(seed, *shape):
    return torch.tensor(formula(seed, int(numpy.prod(shape))).reshape(shape), dtype=torch.float64)


def f32(values):
    """What the C side gets: the product of a formula number and a constant, rounded to single precision."""
    return values.to(torch.float32).to(torch.float64)


def write_tensor(file, name, values):
    flat = values.detach().numpy().astype(numpy.float64).reshape(-1)
    step = max(1, flat.size // SAMPLES) | 1  # odd, so that samples don't all lie in one channel
    probe = float(numpy.dot(flat, formula(SEED_PROBE, flat.size)))
    sample = flat[::step]
    file.write(f"tensor {name} count={flat.size} step={step} l2={numpy.linalg.norm(flat):.12e} probe={probe:.12e}\n")
    for start in range(0, sample.size, 8):
        file.write(" ".join(f"{v:.9e}" for v in sample[start:start + 8]) + "\n")


# ---- single layers ----

def conv(channels, size, batch, out, kernel, stride):
    return dict(kind="conv", channels=channels, size=size, batch=batch, out=out, kernel=kernel, stride=stride)


def other(kind, channels, size, batch, out=0):
    return dict(kind=kind, channels=channels, size=size, batch=batch, out=out, kernel=0, stride=0)


def with_kind(kind, case):
    return dict(case, kind=kind)


CASES = [
    # blocked: the layers that read images, then the library's kernels, then 3x3 whose weights' gradient takes columns
    conv(3, 32, 2, 64, 7, 2), conv(3, 12, 2, 16, 3, 1),
    conv(16, 16, 1, 32, 1, 1), conv(32, 31, 1, 16, 1, 2), conv(16, 30, 1, 16, 3, 1),
    conv(16, 16, 2, 16, 3, 1), conv(16, 30, 1, 32, 3, 2), conv(16, 33, 1, 16, 3, 2),
    # from blocked to folded
    conv(16, 16, 2, 32, 3, 2), conv(16, 16, 2, 32, 1, 2), conv(16, 27, 1, 16, 3, 2),
    # folded
    conv(16, 8, 2, 32, 1, 1), conv(16, 8, 2, 32, 3, 1), conv(16, 5, 3, 16, 3, 1), conv(16, 9, 1, 16, 3, 2),
    conv(16, 8, 3, 32, 3, 2), conv(16, 8, 3, 32, 1, 2), conv(16, 7, 3, 32, 3, 2),
    conv(32, 4, 3, 16, 1, 1), conv(32, 4, 3, 16, 3, 1), conv(16, 4, 2, 32, 3, 2), conv(16, 4, 2, 32, 1, 2),
    conv(32, 3, 2, 32, 3, 1), conv(32, 2, 3, 16, 1, 1), conv(32, 2, 3, 32, 3, 1), conv(16, 2, 2, 32, 3, 2),
    conv(32, 1, 4, 16, 1, 1), conv(32, 1, 1, 32, 3, 1),
    # both layouts
    other("norm", 16, 15, 2), other("norm", 16, 6, 3), other("norm", 32, 3, 5), other("norm", 16, 1, 6),
    other("norm_relu", 16, 17, 2), other("norm_relu", 16, 7, 3), other("norm_relu", 32, 2, 4),
    other("norm_relu", 16, 4, 1),
    other("add_relu", 16, 15, 2), other("add_relu", 16, 6, 2), other("add_relu", 32, 4, 3),
    other("max_pool", 16, 32, 1), other("max_pool", 16, 17, 2), other("max_pool", 16, 9, 2),
    other("max_pool", 16, 12, 1), other("max_pool", 16, 4, 3),
    other("average_pool", 16, 15, 2), other("average_pool", 16, 7, 2), other("average_pool", 32, 1, 2),
    other("linear", 64, 1, 3, 10), other("linear", 32, 2, 5, 16),
    # without batch norm: bias and ReLU, pooling by 2x2 and to several pixels (`kernel` a side), linear layers of those
    with_kind("conv_relu", conv(3, 32, 2, 16, 3, 1)), with_kind("conv_relu", conv(16, 17, 2, 32, 3, 1)),
    with_kind("conv_relu", conv(16, 6, 3, 32, 3, 1)), with_kind("conv_relu", conv(32, 2, 3, 16, 1, 1)),
    other("max_pool_2x2", 16, 32, 1), other("max_pool_2x2", 16, 17, 2), other("max_pool_2x2", 16, 14, 2),
    other("max_pool_2x2", 32, 2, 3),
    with_kind("linear_relu", conv(16, 14, 2, 24, 7, 0)), with_kind("linear_relu", conv(16, 3, 3, 10, 7, 0)),
    with_kind("linear_relu", conv(32, 17, 2, 8, 3, 0)), with_kind("linear_relu", conv(16, 1, 2, 8, 2, 0)),
]


def norm(x, gamma, beta, state):
    """Training mode; state: running mean and variance, updated as PyTorch does."""
    return F.batch_norm(x, state[0], state[1], gamma, beta, training=True, momentum=0.1, eps=1e-5)


def norm_parameters(first, channels):
    return f32(1 + 0.5 * tensor(SEED_PARAMETER + first, channels)), f32(0.5 * tensor(SEED_PARAMETER + first + 1, channels))


def apply_case(case, x, state):
    """(output, parameters in the order of the model's tensors)"""
    kind, channels = case["kind"], case["channels"]
    if kind == "conv":
        w = tensor(SEED_PARAMETER, case["out"], channels, case["kernel"], case["kernel"]).requires_grad_()
        return F.conv2d(x, w, stride=case["stride"], padding=case["kernel"] // 2), [w]
    if kind in ("norm", "norm_relu"):
        gamma, beta = (p.requires_grad_() for p in norm_parameters(0, channels))
        y = norm(x, gamma, beta, state[0])
        return (F.relu(y) if kind == "norm_relu" else y), [gamma, beta]
    if kind == "add_relu":
        p = [q.requires_grad_() for q in norm_parameters(0, channels) + norm_parameters(2, channels)]
        return F.relu(norm(x, p[0], p[1], state[0]) + norm(x, p[2], p[3], state[1])), p
    if kind == "conv_relu":
        w = tensor(SEED_PARAMETER, case["out"], channels, case["kernel"], case["kernel"]).requires_grad_()
        b = tensor(SEED_PARAMETER + 1, case["out"]).requires_grad_()
        return F.relu(F.conv2d(x, w, b, stride=case["stride"], padding=case["kernel"] // 2)), [w, b]
    if kind == "linear_relu":
        w = tensor(SEED_PARAMETER, case["out"], channels * case["kernel"]**2).requires_grad_()
        b = tensor(SEED_PARAMETER + 1, case["out"]).requires_grad_()
        return F.relu(F.linear(F.adaptive_avg_pool2d(x, case["kernel"]).flatten(1), w, b)), [w, b]
    if kind == "max_pool_2x2":
        return F.max_pool2d(x, 2), []
    if kind == "max_pool":
        return F.max_pool2d(x, 3, 2, 1), []
    if kind == "average_pool":
        return x.mean((2, 3)), []
    w = tensor(SEED_PARAMETER, case["out"], channels).requires_grad_()
    b = tensor(SEED_PARAMETER + 1, case["out"]).requires_grad_()
    return F.linear(x.mean((2, 3)), w, b), [w, b]


def write_case(file, case):
    channels, size = case["channels"], case["size"]
    x = tensor(SEED_INPUT, case["batch"], channels, size, size)
    if "norm" in case["kind"]:
        x = x + 4  # statistics must not cancel
    x.requires_grad_()
    state = [[torch.zeros(channels, dtype=torch.float64), torch.ones(channels, dtype=torch.float64)] for _ in range(2)]
    y, parameters = apply_case(case, x, state)
    y.backward(tensor(SEED_GRADIENT, *y.shape))
    file.write("case " + " ".join(f"{k}={v}" for k, v in case.items()) + "\n")
    write_tensor(file, "output", y)
    if channels != 3:
        write_tensor(file, "input_gradient", x.grad)
    if parameters:
        write_tensor(file, "gradient", torch.cat([p.grad.reshape(-1) for p in parameters]))
    norms = {"norm": 1, "norm_relu": 1, "add_relu": 2}.get(case["kind"], 0)
    if norms:
        write_tensor(file, "state", torch.cat([t for s in state[:norms] for t in s]))


def write_loss(file, batch, classes, scale):
    logits = f32(scale * tensor(SEED_INPUT, batch, classes)).requires_grad_()
    labels = torch.arange(batch) * 7 % classes
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    file.write(f"case kind=loss channels={scale} size=1 batch={batch} out={classes} kernel=0 stride=0\n")
    write_tensor(file, "output", loss.reshape(1) * batch)
    write_tensor(file, "input_gradient", logits.grad)


def write_layers():
    with open(os.path.join(FOLDER, "layers.txt"), "w") as file:
        file.write("# Made by tests/nn/golden.py with PyTorch in double precision.\n")
        for case in CASES:
            write_case(file, case)
        write_loss(file, 5, 10, 8)
        write_loss(file, 3, 1000, 200)


# ---- training steps of ResNet-18 ----

class ResNet18:
    """Parameters in PyTorch's order, as nn/models/resnet.c lists them; the last gamma of each block starts at 0."""

    def __init__(self, classes):
        self.parameters, self.decays, self.norms = [], [], 0
        self.conv1, self.norm1 = self.conv(3, 64, 7), self.norm(64)
        self.blocks, channels = [], 64
        for stage in range(4):
            for k in range(2):
                width, stride = 64 << stage, 2 if stage > 0 and k == 0 else 1
                block = dict(stride=stride, conv1=self.conv(channels, width, 3), norm1=self.norm(width),
                             conv2=self.conv(width, width, 3), norm2=self.norm(width, zero=True))
                if stage > 0 and k == 0:
                    block.update(conv3=self.conv(channels, width, 1), norm3=self.norm(width))
                self.blocks.append(block)
                channels = width
        self.fc = self.add(tensor(self.seed(), classes, 512) / 512**0.5, True), self.add(
            tensor(self.seed(), classes) / 512**0.5, False)

    def seed(self):
        return SEED_PARAMETER + len(self.parameters)

    def add(self, values, decays):
        values = f32(values).requires_grad_()
        self.parameters.append(values)
        self.decays.append(decays)
        return values

    def conv(self, channels, out, kernel):
        return self.add(tensor(self.seed(), out, channels, kernel, kernel) * (6 / (kernel**2 * out))**0.5, True)

    def norm(self, channels, zero=False):
        return (self.add(torch.zeros(channels, dtype=torch.float64) if zero else 1 + 0.5 * tensor(self.seed(), channels),
                         False), self.add(0.5 * tensor(self.seed(), channels), False))

    def logits(self, x):
        def conv_norm(x, w, p, stride):
            return F.batch_norm(F.conv2d(x, w, stride=stride, padding=w.shape[2] // 2), None, None, p[0], p[1],
                                training=True, eps=1e-5)

        x = F.max_pool2d(F.relu(conv_norm(x, self.conv1, self.norm1, 2)), 3, 2, 1)
        for b in self.blocks:
            y = F.relu(conv_norm(x, b["conv1"], b["norm1"], b["stride"]))
            y = conv_norm(y, b["conv2"], b["norm2"], 1)
            x = F.relu(y + (conv_norm(x, b["conv3"], b["norm3"], b["stride"]) if "conv3" in b else x))
        return F.linear(x.mean((2, 3)), *self.fc)


def write_steps(size=64, batch=8, classes=10, steps=5, lr=0.01, momentum=0.9, decay=1e-3):
    net = ResNet18(classes)
    images = tensor(SEED_INPUT, batch, 3, size, size)
    labels = torch.arange(batch) * 7 % classes
    buffers = [torch.zeros_like(p) for p in net.parameters]
    before = torch.cat([p.detach().reshape(-1).clone() for p in net.parameters])
    with open(os.path.join(FOLDER, "steps.txt"), "w") as file:
        file.write("# Made by tests/nn/golden.py with PyTorch in double precision: SGD steps of resnet18.\n")
        file.write(f"steps count={steps} size={size} batch={batch} classes={classes} lr={lr} momentum={momentum} "
                   f"decay={decay}\n")
        for _ in range(steps):
            loss = F.cross_entropy(net.logits(images), labels)
            gradients = torch.autograd.grad(loss, net.parameters)
            file.write(f"loss {loss.item():.12e}\n")
            with torch.no_grad():
                for p, g, m, d in zip(net.parameters, gradients, buffers, net.decays):
                    m.mul_(momentum).add_(g + decay * p if d else g)
                    p.sub_(lr * m)
        after = torch.cat([p.detach().reshape(-1) for p in net.parameters])
        write_tensor(file, "parameters", after)
        write_tensor(file, "change", after - before)


if __name__ == "__main__":
    torch.manual_seed(0)
    os.makedirs(FOLDER, exist_ok=True)
    write_layers()
    write_steps()
