#!/usr/bin/python3
"""Collects rows of the comparisons with other programs in one CSV file, and makes Markdown tables of medians from it.

    table.py add --to=FILE --from=ROWS --exit=CODE [--sizes=BYTES,...] KEY=VALUE...
                                            append what a program printed, with the keys given; sizes that it should have
                                            printed and did not are rows, too
    table.py allreduce FILE [--causes=FILE] the tables of compare.sh; what misses a goal stands with its cause: what the
                                            rows tell, and what was measured elsewhere and is kept in --causes (CSV: date,
                                            network, workers (a count, or any), from, to (bytes), cause)
    table.py training FILE [--ceilings=FILE] the table of resnet50.sh or bench/train_cpu.sh; with what share of a card's
                                            measured ceilings (CSV of torch_resnet50.py --ceilings) training takes:
                                            its arithmetic, and the bytes it has to move

Exit: 0 done, 1 rows have wrong elements or are missing, 2 wrong usage.
"""

import csv
import os
import statistics
import sys

COLUMNS = {
    "allreduce": ["started", "round", "system", "network", "workers", "cores", "bytes", "in_place", "calls", "time_us", "wrong", "reason",
                  "version", "load", "machine"],
    "training": ["started", "round", "system", "image_size", "batch", "threads", "workers", "steps", "precision", "images_per_s",
                 "bytes_moved_per_step", "reason", "version", "load", "machine"],
}
PEERS = {"openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo"}
DIGITS = 3  # significant ones in tables


# ---- add ----

def read_rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, restval=""))


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


def add(to, source, code, sizes, keys):
    columns = COLUMNS["training" if "image_size" in keys else "allreduce"]
    value = "images_per_s" if "image_size" in keys else "time_us"
    rows, bad = [], 0
    for row in read_rows(source):
        merged = {**keys, **{k: v for k, v in row.items() if k in columns and v}}
        merged["system"] = row.get("allreduce") or keys["system"]  # our rows name their algorithm
        merged["reason"] = incomplete(row, value)
        if value == "time_us" and not merged["reason"] and row.get("wrong") != "0":
            merged["reason"] = "wrong elements" if row.get("wrong") else "not checked"
        bad += merged["reason"] != "" and not row.get("refused")
        rows.append(merged)
    why = f"failed with exit code {code}" if code else "it printed no row"
    missing = [size for size in sizes if size not in {row.get("bytes") for row in rows}]
    rows += [{**keys, "bytes": size, "reason": why} for size in missing]
    bad += len(missing)
    if not rows or (code != 0 and bad == 0):
        rows.append({**keys, "reason": why})
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
            what = ", ".join(f"{row[key]} {word}".strip() for key, word in (
                ("network", ""), ("workers", "workers"), ("bytes", "bytes"), ("image_size", "px"), ("batch", "images")) if row.get(key))
            lines.append(f"- {row['system']}, {what}, round {row['round']}: {row['reason']}")
            failures += not row["reason"].startswith("refused")
    return (["", "Missing from the medians:", ""] + list(dict.fromkeys(lines)) if lines else []), failures


# ---- allreduce ----

# From so many bytes on, in shared memory: the most that our time may be of the fastest of some peers.
GOALS_SHM = [(0, 1, ["mpich"]), (4 << 10, 1, ["openmpi", "mpich", "gloo"]),
             (64 << 20, 1 / 3, ["openmpi", "mpich", "gloo"])]
GOALS_TCP = [(0, 1, ["openmpi", "gloo"])]
NETWORKS = {"shm": ("In shared memory", GOALS_SHM), "tcp": ("Over tcp on 127.0.0.1", GOALS_TCP)}


def goal_of(network, size):
    return [goal for goal in NETWORKS[network][1] if goal[0] <= size][-1]


class Cell:
    """One vector size on so many workers: seconds of each system on a network, rounds together."""

    def __init__(self, network, workers, size, rows):
        self.network, self.workers, self.size, self.times = network, workers, size, {}
        self.cores = max((int(row["cores"]) for row in rows if row.get("cores")), default=0)
        for row in rows:
            self.times.setdefault(row["system"], []).append(float(row["time_us"]))

    def fastest(self, systems):
        """The system of those with the least median, or None."""
        return min((s for s in systems if s in self.times), key=lambda s: statistics.median(self.times[s]), default=None)

    def median(self, system):
        return statistics.median(self.times[system]) if system else None

    def peer(self):
        return self.fastest(PEERS)

    def ours(self):
        return self.fastest([s for s in self.times if s not in PEERS])

    def ratio(self, ours, peer):
        return self.median(ours) / self.median(peer) if ours and peer else None

    def reached(self):
        """Our time, as part of the fastest peer of the goal."""
        return self.ratio(self.ours(), self.fastest(goal_of(self.network, self.size)[2]))

    def missed(self):
        reached = self.reached()
        return reached is not None and reached > goal_of(self.network, self.size)[1]

    def verdict(self):
        if self.reached() is None:
            return "not measured"
        return "**missed**" if self.missed() else "met"


def goal_text(network, size):
    _, most, peers = goal_of(network, size)
    names = "the best" if len(peers) == len(PEERS) else " and ".join(PEERS[p] for p in peers)
    return f"≤ {'1/3' if most < 1 else '1'} of {names}"


def ratio_text(value):
    return "-" if value is None else f"{value:.2f}"


def timed(cell, system):
    return f"{PEERS.get(system, system)} {spread(cell.times[system])}" if system else "-"


def cells_of(rows, network, in_place):
    """Gloo is in place and over tcp only, and stands in every comparison. Cells without a time are there, too."""
    cells = []
    wanted = {(int(row["workers"]), int(row["bytes"])) for row in rows
              if row.get("bytes") and row["network"] == network and row["in_place"] in ("", in_place)}
    for workers, size in sorted(wanted):
        cells.append(Cell(network, workers, size, [
            row for row in rows if not row["reason"] and (int(row["workers"]), int(row["bytes"])) == (workers, size) and
            (row["system"] == "gloo" or (row["network"], row["in_place"]) == (network, in_place))]))
    return cells


def verdicts(cells):
    lines = head(["workers", "bytes", "best peer, µs", "best of ours, µs", "ours ÷ peer", "auto ÷ peer", "goal",
                  "reached", "verdict"], 0)
    for cell in cells:
        peer, ours = cell.peer(), cell.ours()
        auto = next((s for s in cell.times if s.split(":")[0] == "auto"), None)
        lines.append(line([str(cell.workers), size_name(cell.size), timed(cell, peer), timed(cell, ours),
                           ratio_text(cell.ratio(ours, peer)), ratio_text(cell.ratio(auto, peer)),
                           goal_text(cell.network, cell.size), ratio_text(cell.reached()), cell.verdict()]))
    return lines


def every_time(cells):
    """The medians of all systems, peers first."""
    systems = [s for s in PEERS if any(s in cell.times for cell in cells)]
    systems += sorted({s for cell in cells for s in cell.times} - set(PEERS))
    lines = head(["workers", "bytes"] + [PEERS.get(s, s) for s in systems], 0)
    for cell in cells:
        lines.append(line([str(cell.workers), size_name(cell.size)] + [spread(cell.times.get(s)) for s in systems]))
    return lines


def known(cell, cells):
    """What the rows themselves tell of a miss."""
    ours = cell.ours()
    texts = [f"{cell.workers} workers share {cell.cores} core{'s' * (cell.cores != 1)}, so that calls wait "
             "for switches between them"] if cell.workers > cell.cores > 0 else []
    small = min((c for c in cells if c.workers == cell.workers and c.ours()), key=lambda c: c.size)
    share = small.median(small.ours()) / cell.median(ours)
    if small.size == cell.size:
        texts.append("the time of a call, not of its bytes: the smallest vector measured")
    elif share > 0.5:
        texts.append(f"the time of a call, not of its bytes: {share:.0%} of it is what {size_name(small.size)} take, too")
    else:
        texts.append(f"its bytes: {cell.size / cell.median(ours) / 1e3:.2g} GB/s of vector in {ours}")
    return texts


def measured_causes(cell, causes):
    return [f"{c['cause']} ({c['date']})" for c in causes if c["network"] == cell.network and
            c["workers"] in ("any", str(cell.workers)) and int(c["from"]) <= cell.size <= int(c["to"])]


def misses(cells, causes):
    """A line for each miss, with its cause; nothing where all goals are met."""
    lines = []
    for cell in cells:
        if cell.missed():
            measured = measured_causes(cell, causes) or ["none is on file"]
            lines.append(f"- {cell.workers} workers, {size_name(cell.size)}: {cell.reached():.2f}, "
                         f"{goal_text(cell.network, cell.size)}. Cause: {'; '.join(known(cell, cells))}. "
                         f"Measured: {'; '.join(measured)}.")
    return ["", "Short of the goal:", ""] + lines if lines else []


def allreduce(rows, causes):
    lines = preface(rows)
    lines += ["Allreduce, f32, sum: µs of a call, mean over back-to-back calls and workers, every element checked. "
              "Ours is the best of a few algorithms for each size, chosen by its median, and auto what the program "
              "chooses itself. Peers choose their algorithm themselves, as they come from Debian; MPICH goes over tcp "
              "by UCX_TLS=tcp,self, Open MPI by --mca btl tcp,self. Gloo has no shared memory and reduces in place "
              "only: what it takes over tcp, in place, stands in every comparison. MPICH waits actively, which costs it "
              "whole time slices where there are more workers than cores; over tcp it is left out there."]
    for in_place, how in (("false", "out of place"), ("true", "in place")):
        if not any(row["in_place"] == in_place and row["system"] != "gloo" for row in rows):
            continue
        for network, (title, _) in NETWORKS.items():
            cells = cells_of(rows, network, in_place)
            if cells:
                lines += ["", f"## {title}, {how}", ""] + verdicts(cells) + misses(cells, causes)
                lines += ["", "All medians:", ""] + every_time(cells)
    return lines


# ---- training ----

# Multiplications and additions of ResNet-50's training for one image of 224 x 224: 4.09e9 products forward (He et al.
# 2015, with the stride in the 3x3), twice that backward but for the first layer's images (0.12e9).
FLOP_224 = 2 * (3 * 4.09e9 - 0.12e9)


def shares(cases, speeds_of, moved_of, ceilings):
    """How near each system comes to the card's ceilings. Bytes are counted from our plan: others fuse in other ways."""
    peak, copied = float(ceilings["bf16_tflops"]), float(ceilings["copy_gb_per_s"])
    lines = ["", f"Ceilings of this card, measured: {peak:.4g} TFLOP/s in bf16 products of matrices, "
             f"{copied:.4g} GB/s copied in its memory (read and written). Arithmetic of the "
             "training as a share of the first; of the second, the bytes that our plan has to read and write at least, each "
             "tensor of an operation once: not what the caches saved, nor what was read twice.", ""]
    lines += head(["pixels", "batch", "system", "TFLOP/s", "share", "GB/s", "share"], 0)
    for case in cases:
        flop = FLOP_224 * (case[0] / 224) ** 2
        for system, speeds in speeds_of(case).items():
            if speeds:
                speed, moved = statistics.median(speeds), moved_of(case, system)
                rate = speed * flop / 1e12
                bytes_rate = speed * moved / case[1] / 1e9 if moved else None
                lines.append(line([str(case[0]), str(case[1]), system, f"{rate:.4g}", f"{100 * rate / peak:.3g} %"] +
                                  ([f"{bytes_rate:.4g}", f"{100 * bytes_rate / copied:.3g} %"] if moved else ["-", "-"])))
    return lines


def training(rows, ceilings):
    good = [row for row in rows if not row["reason"]]
    systems = sorted({row["system"] for row in good}, key=lambda s: (s != "chorale", s))
    keys = ("image_size", "batch", "workers", "threads")

    def case_of(row):
        return tuple(int(row.get(k) or 1) for k in keys)

    def speeds_of(case):
        return {s: [float(row["images_per_s"]) for row in good if row["system"] == s and case_of(row) == case] for s in systems}

    def moved_of(case, system):
        """Bytes of one worker's step; None where nobody has counted."""
        return next((float(row["bytes_moved_per_step"]) for row in good
                     if row["system"] == system and case_of(row) == case and row.get("bytes_moved_per_step")), None)

    lines = preface(rows)
    precisions = sorted({row.get("precision") or "f32" for row in rows})
    lines += [f"ResNet-50, training, {', '.join(precisions)}: images/s of all workers, batch and threads of one; the ratio is "
              "the median of the rounds'. Above 1 ours is faster. Ours reads and resizes its images, PyTorch gets one batch "
              "that lies ready.", ""]
    lines += head(["pixels", "batch", "workers", "threads"] + systems + ["ours ÷ best PyTorch"], 0)
    cases = sorted({case_of(row) for row in good})
    for case in cases:
        speeds = speeds_of(case)
        best = max((s for s in systems if s != "chorale" and speeds[s]), key=lambda s: statistics.median(speeds[s]), default=None)
        by_round = {(row["system"], row["round"]): float(row["images_per_s"]) for row in good if case_of(row) == case}
        ratios = [speed / by_round[best, number] for (system, number), speed in by_round.items()
                  if system == "chorale" and (best, number) in by_round]
        lines.append(line([str(k) for k in case] + [spread(speeds[s]) for s in systems] + [spread(ratios)]))
    return lines + (shares(cases, speeds_of, moved_of, ceilings) if ceilings else [])


def main(words):
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    if words[:1] == ["add"] and {"--to", "--from", "--exit", "system"} <= set(options):
        keys = {key: value for key, value in options.items() if not key.startswith("--")}
        sizes = options["--sizes"].split(",") if "--sizes" in options else []
        return add(options["--to"], options["--from"], int(options["--exit"]), sizes, keys)
    causes = read_rows(options["--causes"]) if "--causes" in options else []
    ceilings = read_rows(options["--ceilings"])[0] if "--ceilings" in options else None
    tables = {"allreduce": lambda rows: allreduce(rows, causes), "training": lambda rows: training(rows, ceilings)}
    if words[:1] in (["allreduce"], ["training"]) and len(words) == 2 + len(options):
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
