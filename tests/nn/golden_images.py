#!/usr/bin/python3
"""Golden values for tests/nn/test_images.c, from Pillow.

    /usr/bin/python3 tests/nn/golden_images.py

writes tests/nn/golden/images.txt: small JPEG files of a pattern, and what Pillow makes of them. Lines:
    file NAME HEX                                         a JPEG file
    crop NAME LEFT TOP WIDTH HEIGHT SIZE HEX              convert("RGB").crop().resize((SIZE, SIZE), BILINEAR)
    middle NAME SIDE SIZE HEX                             shorter side to SIDE, the middle SIZE x SIZE: torchvision's
                                                          Resize(SIDE) and CenterCrop(SIZE)
"""
import io
import os

import numpy
from PIL import Image

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "images.txt")


def pattern(width, height):
    """Smooth colours with edges: chroma and luma differ from pixel to pixel, yet the file stays small."""
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    red = 127 + 120 * numpy.sin(x / 5) * numpy.cos(y / 7)
    green = 255 * ((x // 11 + y // 9) % 2)
    blue = 255 * (x + y) / (width + height)
    return Image.fromarray(numpy.stack([red, green, blue], axis=2).astype(numpy.uint8), "RGB")


def encoded(image, **options):
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def files():
    image = pattern(61, 45)
    return {
        "h2v2": encoded(image, quality=85),
        "h1v1": encoded(pattern(37, 52), quality=90, subsampling=0),
        "h2v1": encoded(image, quality=80, subsampling=1),
        "progressive": encoded(image, quality=70, progressive=True),
        "grey": encoded(pattern(40, 33).convert("L"), quality=85),
        "cmyk": encoded(pattern(34, 30).convert("CMYK"), quality=85),
        "pixel": encoded(pattern(1, 1)),
        "narrow": encoded(pattern(3, 70), quality=85),
    }


def crops(name, image):
    width, height = image.size
    if name == "pixel":
        return [(0, 0, 1, 1, 4)]
    if name == "narrow":
        return [(0, 0, 3, 70, 5), (1, 31, 1, 9, 4)]
    return [(0, 0, width, height, 6), (0, 0, width, height, 70), (9, 7, 17, 21, 8), (width - 5, height - 9, 5, 9, 5),
            (1, 2, width - 2, 3, 6)][:5 if name == "h2v2" else 4]


def middles(name, image):
    if name in ("pixel", "narrow"):
        return [(8, 8)]
    return [(16, 14), (image.size[1] + 20, 9)]


def hexed(image):
    return image.tobytes().hex()


def main():
    lines = ["# Made by tests/nn/golden_images.py with Pillow: lines are told there."]
    for name, data in files().items():
        image = Image.open(io.BytesIO(data)).convert("RGB")
        lines.append(f"file {name} {data.hex()}")
        for left, top, width, height, size in crops(name, image):
            if size > 40 and name != "h1v1":
                size = 12
            piece = image.crop((left, top, left + width, top + height)).resize((size, size), Image.BILINEAR)
            lines.append(f"crop {name} {left} {top} {width} {height} {size} {hexed(piece)}")
        for side, size in middles(name, image):
            width, height = image.size
            wide, high = (side * width // height, side) if width > height else (side, side * height // width)
            whole = image.resize((wide, high), Image.BILINEAR)
            left, top = round((wide - size) / 2), round((high - size) / 2)
            lines.append(f"middle {name} {side} {size} {hexed(whole.crop((left, top, left + size, top + size)))}")
    with open(PATH, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


main()
