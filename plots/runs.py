"""What both plots need of a sweep's runs.csv."""

import csv
import json
import math
import os
import sys
import tempfile

MODES = ("measured", "replayed", "simulated")
WIDE = 0.10  # a cell whose confidence interval is wider than this share of its mean, to either side, is marked


class Unreadable(Exception):
    """A table that is missing or not one of a sweep: the text says what to do."""


def number(text):
    """A field as a number; nan where it is empty."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def load(path):
    """The rows of a runs.csv as dicts."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}: give the runs.csv of a sweep") from None
    for row in rows:
        if None in row or None in row.values() or "allreduce" not in row:
            raise Unreadable(f"{path}: not a table of a sweep, or damaged: run the sweep again, it repairs its table")
    return rows


def spread(row):
    """Half width of the confidence interval of a step, as a share of the mean step; nan where it is unknown."""
    rate, batch, workers = (number(row[name]) for name in ("images_per_s", "batch", "workers"))
    if not rate > 0:
        return math.nan
    return number(row["step_ms_ci95"]) / (1e3 * batch * workers / rate)


def wide(row):
    """True for a cell that is not known well: wider than 10 %, or by one value only."""
    return row["status"] == "ok" and row["mode"] != "simulated" and not spread(row) <= WIDE


def baseline_of(row, by_key):
    """The row that the efficiency of this one refers to, or None."""
    return by_key.get(row["baseline"].partition("key=")[2])


def algorithms(rows):
    """Specs in the order of the table; the one that moves nothing, which stands first as the baseline, comes last."""
    return sorted(dict.fromkeys(row["allreduce"] for row in rows), key=lambda spec: spec == "none")


def provenance(path):
    """What the sweep wrote beside its table, {} where it is missing."""
    try:
        with open(os.path.join(os.path.dirname(os.path.abspath(path)), "provenance.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write(path, data):
    """Old or new content, never half of it."""
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".plot-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def run(name, work):
    """A plot program's main: two arguments, one-line errors; 0, 1 failed, 2 wrong usage."""
    if len(sys.argv) != 3:
        print(f"usage: {name} RUNS.csv RESULT", file=sys.stderr)
        return 2
    try:
        work(*sys.argv[1:])
    except Unreadable as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{name}: {error.filename or sys.argv[2]}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
