#!/usr/bin/python3
"""One training run by PyTorch after a recipe of chorale's; prints top-1 on the test set as JSON.

    torch_train.py --recipe=FILE [--data=FOLDER] [--seed=1] [--epochs=N] [--threads=1]

Knows cnn and resnet18, SGD with momentum or Nesterov's, cosine, warm-up by epochs, the three weight decays, label
smoothing and clipping; Fashion-MNIST, or a folder of WebDataset shards (train*.tar, test*.tar).
tests/nn/test_torchvision.c compares the losses of its steps with ours.
"""
import argparse
import gzip
import io
import json
import math
import os
import tarfile
import time

import numpy
import torch
import torch.nn.functional as F
from torch import nn

FASHION = "/usr/share/datasets/fashion-mnist"
KNOWN = {"model", "image-size", "batch", "augment", "epochs", "lr", "lr-batch", "lr-schedule", "warmup-epochs",
         "momentum", "weight-decay", "norm-weight-decay", "bias-weight-decay", "optimizer", "label-smoothing", "clip"}
RULES = ("sgd", "nesterov")


def read_recipe(path):
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                key, value = line.split("=", 1)
                settings[key.strip()] = value.strip()
    unknown = set(settings) - KNOWN
    if (unknown or settings["augment"] != "none" or settings["lr-schedule"] != "cosine"
            or settings.get("optimizer", "sgd") not in RULES):
        raise SystemExit(f"torch_train.py: {path}: it asks for what is not done here: {sorted(unknown)}")
    return settings


def find_idx(kind):
    for folder, _, names in os.walk(FASHION):
        for name in names:
            if name.startswith(kind):
                return os.path.join(folder, name)
    raise SystemExit(f"torch_train.py: {FASHION}: no {kind}: apt-get install dataset-fashion-mnist")


def read_idx(kind):
    path = find_idx(kind)
    with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
        raw = file.read()
    rank = raw[3]
    shape = numpy.frombuffer(raw, ">u4", rank, 4).astype(int)
    return numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * rank).reshape(shape)


def fashion(part):
    kind = "train" if part == "train" else "t10k"
    images = torch.from_numpy(read_idx(f"{kind}-images").astype(numpy.float32) / 255)
    images = ((images - 0.2860) / 0.3530).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()
    return images, torch.from_numpy(read_idx(f"{kind}-labels").astype(numpy.int64))


def shards(folder, part):
    from PIL import Image
    images, labels = [], {}
    mean, deviation = numpy.float32([0.485, 0.456, 0.406]), numpy.float32([0.229, 0.224, 0.225])
    for name in sorted(os.listdir(folder)):
        if not name.startswith(part) or not name.endswith(".tar"):
            continue
        with tarfile.open(os.path.join(folder, name)) as tar:
            for member in tar:
                key, extension = os.path.splitext(name + "/" + member.name)
                data = tar.extractfile(member).read() if member.isfile() else b""
                if extension == ".cls":
                    labels[key] = int(data)
                elif extension in (".jpg", ".jpeg"):
                    pixels = numpy.asarray(Image.open(io.BytesIO(data)).convert("RGB"), numpy.float32) / 255
                    images.append((key, ((pixels - mean) / deviation).transpose(2, 0, 1)))
    return (torch.from_numpy(numpy.stack([image for _, image in images])),
            torch.tensor([labels[key] for key, _ in images]))


def cnn(classes):
    layers, before = [], 3
    for stage, channels in enumerate((16, 32, 64, 64)):
        layers += [nn.Conv2d(before, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if stage < 3:
            layers.append(nn.MaxPool2d(3, 2, 1))
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def make_model(name, classes):
    if name == "cnn":
        model = cnn(classes)
    elif name == "resnet18":
        import torchvision
        model = torchvision.models.resnet18(num_classes=classes, zero_init_residual=True)
    else:
        raise SystemExit(f"torch_train.py: model {name}: cnn or resnet18")
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def rate_at(step, steps, warmup, rate):
    if step < warmup:
        return rate * (step + 1) / warmup
    return rate * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def make_optimizer(recipe, model):
    norms = {p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()}
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1 and p not in norms]
    groups = ((weights, "weight-decay"), ([p for p in model.parameters() if p in norms], "norm-weight-decay"),
              (biases, "bias-weight-decay"))
    return torch.optim.SGD([{"params": params, "weight_decay": float(recipe.get(key, 0))} for params, key in groups],
                           lr=0.1, momentum=float(recipe["momentum"]), nesterov=recipe.get("optimizer") == "nesterov")


def train_step(recipe, model, optimizer, rate, images, labels):
    """The loss before the step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = F.cross_entropy(model(images), labels, label_smoothing=float(recipe.get("label-smoothing", 0)))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if float(recipe.get("clip", 0)) > 0:
        nn.utils.clip_grad_norm_(model.parameters(), float(recipe["clip"]))
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    recipe = read_recipe(options.recipe)
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(options.seed)
    images, labels = shards(options.data, "train") if options.data else fashion("train")
    test_images, test_labels = shards(options.data, "test") if options.data else fashion("test")
    if images.shape[2] != int(recipe["image-size"]):
        raise SystemExit(f"torch_train.py: images of {images.shape[2]} pixels, the recipe wants {recipe['image-size']}")
    batch, classes = int(recipe["batch"]), int(labels.max()) + 1
    model = make_model(recipe["model"], classes).to(memory_format=torch.channels_last)
    optimizer = make_optimizer(recipe, model)
    in_epoch = len(images) // batch
    steps = math.ceil((options.epochs or float(recipe["epochs"])) * in_epoch - 1e-6)
    warmup = math.ceil(float(recipe.get("warmup-epochs", 0)) * in_epoch - 1e-6)
    rate = float(recipe["lr"]) * batch / float(recipe.get("lr-batch", 256))
    began, loss = time.time(), None
    model.train()
    for step in range(steps):
        if step % in_epoch == 0:
            order = torch.randperm(len(images))
        chosen = order[step % in_epoch * batch:(step % in_epoch + 1) * batch]
        loss = train_step(recipe, model, optimizer, rate_at(step, steps, warmup, rate),
                          images[chosen].contiguous(memory_format=torch.channels_last), labels[chosen])
    seconds = time.time() - began
    model.eval()
    with torch.no_grad():
        right = sum(int((model(test_images[k:k + 500]).argmax(1) == test_labels[k:k + 500]).sum())
                    for k in range(0, len(test_images), 500))
    print(json.dumps({"top1": right / len(test_images), "steps": steps, "loss_last": loss, "seconds": seconds}))


if __name__ == "__main__":
    main()
