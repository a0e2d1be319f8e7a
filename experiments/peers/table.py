#!/usr/bin/python3
"""Collects rows of the comparisons with other programs in one CSV file, and makes Markdown tables of medians from it.

    table.py add --to=FILE --from=ROWS --exit=CODE KEY=VALUE...   append what a program printed, with the keys given
    table.py allreduce FILE                                        the table of compare.sh
    table.py training FILE                                         the table of resnet50.sh

Exit: 0 done, 1 rows have wrong elements or are missing, 2 wrong usage.
"""

import csv
import os
import statistics
import sys

COLUMNS = {
    "allreduce": ["started", "round", "system", "workers", "bytes", "in_place", "calls", "time_us", "wrong", "reason",
                  "version", "load", "machine"],
    "training": ["started", "round", "system", "image_size", "batch", "threads", "steps", "images_per_s", "reason",
                 "version", "load", "machine"],
}
PEERS = ["openmpi", "mpich"]
DIGITS = 3  # significant ones in tables


# ---- add ----

def read_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def system_of(row, system):
    """Our rows name algorithm and transport, those of the peers their system."""
    return f"{row['allreduce']}, {row['transport']}" if row.get("allreduce") else system


def incomplete(row, value):
    """What is the matter with a row, or an empty text."""
    if row.get("refused"):
        return "refused: " + row["refused"]
    try:
        if float(row.get(value) or "nan") > 0:
            return ""
    except ValueError:
        pass
    return "no time"


def add(to, source, code, keys):
    columns = COLUMNS["training" if "image_size" in keys else "allreduce"]
    value = "images_per_s" if "image_size" in keys else "time_us"
    rows, bad = [], 0
    for row in read_rows(source):
        merged = {**keys, **{k: v for k, v in row.items() if k in columns and v}}
        merged["system"] = system_of(row, keys["system"])
        merged["reason"] = incomplete(row, value)
        if value == "time_us" and not merged["reason"] and row.get("wrong") != "0":
            merged["reason"] = "wrong elements" if row.get("wrong") else "not checked"
        bad += merged["reason"] != "" and not row.get("refused")
        rows.append(merged)
    if not rows or (code != 0 and bad == 0):
        rows.append({**keys, "reason": f"failed with exit code {code}"})
        bad += 1
    fresh = not os.path.exists(to)
    with open(to, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
    return 1 if bad else 0


# ---- tables ----

def number(value):
    if value >= 10**(DIGITS - 1):
        return f"{value:.0f}"
    return f"{value:#.{DIGITS}g}"


def spread(values):
    """Median and (min..max)."""
    if not values:
        return "-"
    text = number(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({number(min(values))}..{number(max(values))})"


def ratio(a, b):
    return f"{statistics.median(a) / statistics.median(b):.2f}" if a and b else "-"


def fastest(groups, better=min):
    """Of lists of values, the one with the best median; empty without any."""
    groups = [values for values in groups if values]
    return better(groups, key=statistics.median) if groups else []


def size_name(size):
    for shift, unit in ((20, "M"), (10, "K")):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def line(cells):
    return "| " + " | ".join(cells) + " |"


def head(cells, texts):
    return [line(cells), "|" + "|".join(" --- " if i < texts else " ---: " for i in range(len(cells))) + "|"]


def first_seen(rows, column):
    return list(dict.fromkeys(row[column] for row in rows if row[column]))


def preface(rows):
    rounds = len(first_seen(rows, "round"))
    return [f"Measured {rows[0]['started'][:10]} on {'; '.join(first_seen(rows, 'machine'))}: "
            f"{'; '.join(first_seen(rows, 'version'))}. Medians of {rounds} round{'s' * (rounds != 1)} (smallest.."
            f"largest), systems in turn. Load of the machine before the first run: {rows[0]['load']}.", ""]


def complaints(rows):
    """Lines on what is missing from the tables, and how many of them are failures rather than refusals."""
    lines, failures = [], 0
    for row in rows:
        if row["reason"]:
            what = ", ".join(row[key] + " " + word for key, word in (
                ("workers", "workers"), ("bytes", "bytes"), ("image_size", "px"), ("batch", "images")) if row.get(key))
            lines.append(f"- {row['system']}, {what}, round {row['round']}: {row['reason']}")
            failures += not row["reason"].startswith("refused")
    return (["", "Missing from the medians:", ""] + list(dict.fromkeys(lines)) if lines else []), failures


def allreduce_half(rows, in_place):
    """One table: rows are worker counts and sizes, columns systems."""
    good = [row for row in rows if not row["reason"] and row["in_place"] == in_place]
    systems = [s for s in PEERS if any(r["system"] == s for r in good)]
    systems += sorted({row["system"] for row in good} - set(PEERS), key=lambda s: (s.split(", ")[1:], s))
    names = {"openmpi": "Open MPI", "mpich": "MPICH"}
    lines = head(["workers", "bytes"] + [names.get(s, s) for s in systems] + ["ring, shm ÷ best peer",
                                                                             "best of ours ÷ best peer"], 0)
    for workers, size in sorted({(int(r["workers"]), int(r["bytes"])) for r in good}):
        times = {s: [float(r["time_us"]) for r in good if (r["system"], int(r["workers"]), int(r["bytes"])) ==
                     (s, workers, size)] for s in systems}
        peer = fastest([times[s] for s in systems if s in PEERS])
        ours = fastest([times[s] for s in systems if s not in PEERS])
        lines.append(line([str(workers), size_name(size)] + [spread(times[s]) for s in systems] +
                          [ratio(times.get("ring, shm"), peer), ratio(ours, peer)]))
    return lines


def allreduce(rows):
    lines = preface(rows)
    lines += ["Allreduce, f32, sum: µs of a call, mean over back-to-back calls and workers, every element checked. "
              "Below 1 ours is faster. The peers choose their algorithm themselves, in shared memory, as they "
              "come from Debian; ours is the algorithm and the transport of its column. MPICH waits actively, which "
              "costs it whole time slices where there are more workers than cores."]
    for in_place, title in (("false", "Out of place:"), ("true", "In place:")):
        lines += ["", title, ""] + allreduce_half(rows, in_place)
    return lines


def training(rows):
    good = [row for row in rows if not row["reason"]]
    systems = sorted({row["system"] for row in good}, key=lambda s: (s != "chorale", s))
    lines = preface(rows)
    lines += ["ResNet-50, training, f32, one worker: images/s. Above 1 ours is faster. Ours reads and resizes its "
              "images, PyTorch gets one batch that lies ready.", ""]
    lines += head(["pixels", "batch", "threads"] + systems + ["ours ÷ best PyTorch"], 0)
    keys = ("image_size", "batch", "threads")
    for case in sorted({tuple(int(row[k]) for k in keys) for row in good}):
        speeds = {s: [float(row["images_per_s"]) for row in good
                      if row["system"] == s and tuple(int(row[k]) for k in keys) == case] for s in systems}
        best = fastest([speeds[s] for s in systems if s != "chorale"], max)
        lines.append(line([str(k) for k in case] + [spread(speeds[s]) for s in systems] +
                          [ratio(speeds.get("chorale"), best)]))
    return lines


def main(words):
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    if words[:1] == ["add"] and {"--to", "--from", "--exit", "system"} <= set(options):
        keys = {key: value for key, value in options.items() if not key.startswith("--")}
        return add(options["--to"], options["--from"], int(options["--exit"]), keys)
    tables = {"allreduce": allreduce, "training": training}
    if len(words) == 2 and words[0] in tables:
        rows = read_rows(words[1])
        if not rows:
            sys.exit(f"table.py: {words[1]}: no rows: let the comparison finish first")
        lines, failures = complaints(rows)
        print("\n".join(tables[words[0]](rows) + lines))
        return 1 if failures else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
