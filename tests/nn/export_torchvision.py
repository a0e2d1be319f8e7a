#!/usr/bin/python3
"""What torchvision's networks make of weights and images that test_torchvision.c makes as well.

    /usr/bin/python3 tests/nn/export_torchvision.py [FILE]

writes tests/nn/golden/torchvision.txt (or FILE): of each network its parameter count, its logits in evaluation mode, and
of some the losses of training steps. Weights, running statistics and images are numbers of golden.py's formula, so only
results are stored.

    /usr/bin/python3 tests/nn/export_torchvision.py --weights=NAME FILE

writes torchvision's own initial weights of network NAME, for test_torchvision.c: a line "tensor NAME COUNT" for each parameter and running
statistic, in order, then an empty line, then their f32; and the logits, as a tensor "logits" of images by the formula.

    /usr/bin/python3 tests/nn/export_torchvision.py --recipe [FILE]

writes tests/nn/golden/recipe.txt (or FILE): losses of steps by experiments/bench/torch_train.py, in double precision, with all
that it knows switched on, and the loss of the first batch afterwards, by the running statistics.
"""
import os
import sys

import numpy
import torch
import torch.nn.functional as F
import torchvision

import golden

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "experiments", "bench"))
import torch_train

FILE = os.path.join(golden.FOLDER, "torchvision.txt")
CLASSES = 10
SEED_MEAN, SEED_VARIANCE = 10000, 20000  # of running statistics of batch norm number k: these + k

# name, pixels, images of the logits
EVALUATED = [("resnet18", 64, 2), ("resnet34", 64, 2), ("resnet50", 64, 2), ("resnet101", 64, 2), ("resnet152", 64, 2),
             ("vgg16", 64, 2)]
# name, pixels, batch, rate, precision: well conditioned, since the last gamma of each block is 0 at first and no map is too
# small: PyTorch's resnet50 in single precision is within 1e-5 of the largest loss. In double it takes minutes.
TRAINED = [("resnet18", 96, 8, 0.01, torch.float32), ("resnet50", 64, 8, 0.004, torch.float64)]
STEPS = 20
# Their classes are many, so that the counts are the published ones.
COUNTED = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg16"]


# test_torchvision.c has the same. Each counts: without any of them losses differ by 28 times the test's tolerance or more.
RECIPE = {"optimizer": "nesterov", "lr": "8", "lr-batch": "256", "momentum": "0.9", "weight-decay": "0.1",
          "norm-weight-decay": "0.2", "bias-weight-decay": "0.4", "label-smoothing": "0.1", "clip": "0.5"}
RECIPE_STEPS, RECIPE_WARMUP, RECIPE_BATCH = 10, 3, 8
RECIPE_NETWORKS = [("cnn", 28)]  # name, pixels


def make(name):
    if name == "vgg16":
        return torchvision.models.vgg16(num_classes=CLASSES)
    return getattr(torchvision.models, name)(num_classes=CLASSES)


def modules_with_parameters(model):
    return [m for m in model.modules() if list(m.parameters(recurse=False))]


def fill(model, residual):
    """Formula weights: convolutions by fan out, linear by fan in; norms around 1, those that end a block times residual."""
    ends = {m.bn3 if hasattr(m, "bn3") else m.bn2 for m in model.modules()
            if isinstance(m, (torchvision.models.resnet.BasicBlock, torchvision.models.resnet.Bottleneck))}
    number, norms = 0, 0
    with torch.no_grad():
        for module in modules_with_parameters(model):
            for parameter in module.parameters(recurse=False):
                values = golden.tensor(golden.SEED_PARAMETER + number, *parameter.shape)
                gamma = isinstance(module, torch.nn.BatchNorm2d) and parameter is module.weight
                if isinstance(module, torch.nn.Conv2d) and parameter.dim() > 1:
                    values = values * (6 / (parameter.shape[0] * parameter.shape[2] * parameter.shape[3]))**0.5
                elif isinstance(module, torch.nn.Conv2d):
                    values = 0.05 * values  # with larger ones the images would hardly move VGG's logits
                elif isinstance(module, torch.nn.Linear):
                    values = values / module.in_features**0.5
                else:
                    values = 0.5 * values + (1 if gamma else 0)
                if gamma and module in ends:
                    values = residual * values
                parameter.copy_(golden.f32(values))
                number += 1
            if isinstance(module, torch.nn.BatchNorm2d):
                count = module.num_features
                module.running_mean.copy_(golden.f32(0.5 * golden.tensor(SEED_MEAN + norms, count)))
                module.running_var.copy_(golden.f32(1 + 0.5 * golden.tensor(SEED_VARIANCE + norms, count)))
                norms += 1


def images(batch, size):
    return golden.tensor(golden.SEED_INPUT, batch, 3, size, size)


def write_logits(file, name, size, batch):
    model = make(name).double()
    fill(model, 0.5)
    model.eval()
    with torch.no_grad():
        logits = model(images(batch, size)).reshape(-1)
    file.write(f"logits {name} size={size} batch={batch} count={logits.numel()}\n")
    file.write(" ".join(f"{v:.9e}" for v in logits.tolist()) + "\n")


def write_losses(file, name, size, batch, rate, dtype):
    model = make(name)
    fill(model, 0)
    model.to(dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    x, labels = images(batch, size).to(dtype), torch.arange(batch) * 7 % CLASSES
    file.write(f"losses {name} size={size} batch={batch} rate={rate} count={STEPS}\n")
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    file.write(" ".join(f"{v:.9e}" for v in losses) + "\n")


def recipe_losses(name, size, recipe, steps=RECIPE_STEPS, warmup=RECIPE_WARMUP, batch=RECIPE_BATCH, dtype=torch.float64):
    model = torch_train.make_model(name, CLASSES)
    fill(model, 0)
    model.to(dtype)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
    x, labels = images(steps * batch, size).to(dtype), torch.arange(steps * batch) * 7 % CLASSES
    optimizer, losses = torch_train.make_optimizer(recipe, model), []
    rate = float(recipe["lr"]) * batch / float(recipe["lr-batch"])
    model.train()
    for step in range(steps):
        part = slice(step * batch, (step + 1) * batch)
        losses.append(torch_train.train_step(recipe, model, optimizer, torch_train.rate_at(step, steps, warmup, rate),
                                             x[part], labels[part]))
    model.eval()
    with torch.no_grad():
        losses.append(F.cross_entropy(model(x[:batch]), labels[:batch]).item())
    return losses


def write_recipe(path):
    with open(path, "w") as file:
        file.write("# Made by tests/nn/export_torchvision.py --recipe, with experiments/bench/torch_train.py.\n")
        for name, size in RECIPE_NETWORKS:
            file.write(f"recipe {name} size={size}\n")
            file.write(" ".join(f"{v:.9e}" for v in recipe_losses(name, size, RECIPE)) + "\n")


def write_all(path):
    with open(path, "w", buffering=1) as file:
        file.write("# Made by tests/nn/export_torchvision.py with torchvision: logits and resnet50's losses in double precision.\n")
        for name in COUNTED:
            count = sum(p.numel() for p in getattr(torchvision.models, name)().parameters())
            file.write(f"parameters {name} count={count}\n")
        for case in EVALUATED:
            write_logits(file, *case)
        for case in TRAINED:
            write_losses(file, *case)


def write_weights(name, path, size=64, batch=2):
    torch.manual_seed(1)
    model = make(name)
    model.eval()
    tensors = [(key, value) for key, value in model.state_dict().items() if value.dtype == torch.float32]
    with torch.no_grad():
        tensors.append(("logits", model(images(batch, size).float()).reshape(-1)))
    with open(path, "wb") as file:
        for key, value in tensors:
            file.write(f"tensor {key} {value.numel()}\n".encode())
        file.write(b"\n")
        for _, value in tensors:
            file.write(value.numpy().astype("<f4").tobytes())


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].startswith("--weights="):
        write_weights(sys.argv[1].split("=", 1)[1], sys.argv[2])
    elif sys.argv[1:2] == ["--recipe"]:
        write_recipe(sys.argv[2] if len(sys.argv) > 2 else os.path.join(golden.FOLDER, "recipe.txt"))
    else:
        write_all(sys.argv[1] if len(sys.argv) > 1 else FILE)
