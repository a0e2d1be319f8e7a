#!/usr/bin/env bash
# accuracy.sh - how far the simulator is from this machine: measures many vector sizes in one run, fits a platform to every
# second size, and compares the others with what the simulator predicts for them.
#
#   experiments/accuracy.sh [--workers=2] [--allreduce=SPECS] [--transport=shm] [--program=PATH] [--iters=50]
#
# Leaves results/accuracy/{measured.json,fit.json,platform.txt,table.md}; nothing of the held-out sizes is used to fit.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=/usr/bin/python3
workers=2 specs="ring rd rhd binomial naive" transport=shm program= iterations=50
for argument in "$@"; do
    case $argument in
    --workers=?*) workers=${argument#*=} ;;
    --allreduce=?*) specs=${argument#*=} ;;
    --transport=?*) transport=${argument#*=} ;;
    --program=?*) program=${argument#*=} ;;
    --iters=?*) iterations=${argument#*=} ;;
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    *)
        echo "accuracy.sh: $argument: unknown: --workers, --allreduce, --transport, --program, --iters" >&2
        exit 2
        ;;
    esac
done
if [[ -z $program ]]; then
    "$root/experiments/setup.sh"
    program=$root/build/release/chorale
fi
folder=$root/results/accuracy
mkdir -p "$folder"

"$program" bench -n "$workers" --allreduce="$specs" --transport="$transport" --sizes=1K..64M:x2 --in-place=only \
    --iters="$iterations" --check --json >"$folder/measured.json.part"
mv "$folder/measured.json.part" "$folder/measured.json"

"$python" - "$folder" "$program" "$workers" "$transport" <<'PYTHON'
import json, os, statistics, subprocess, sys

folder, program, workers, transport = sys.argv[1:]
platform = os.path.join(folder, "platform.txt")


def write(name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def simulated_us(row):
    command = [program, "sim", "allreduce", "--allreduce=" + row["allreduce"], "-n", workers, "--platform=" + platform,
               f"--bytes={row['bytes']}", "--overlap-reduction=no", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["time_us"]


rows = [row for row in json.load(open(os.path.join(folder, "measured.json"), encoding="utf-8"))["rows"] if row["time_us"]]
sizes = sorted({row["bytes"] for row in rows})
held_out = set(sizes[1::2])  # every second size, of the same run
write("fit.json", json.dumps({"rows": [row for row in rows if row["bytes"] not in held_out]}))
subprocess.run([program, "calibrate", f"--bench={folder}/fit.json", f"--out={platform}", f"--name={transport}"], check=True)

names = list(dict.fromkeys(row["allreduce"] for row in rows))
error = {(row["allreduce"], row["bytes"]): simulated_us(row) / row["time_us"] - 1 for row in rows if row["bytes"] in held_out}
table = [f"Simulated / measured - 1, {workers} workers, {transport}, at sizes that the platform was not fitted to:", "",
         "| bytes | " + " | ".join(names) + " |", "|---:|" + "---:|" * len(names)]
for size in sorted(held_out):
    table.append(f"| {size} | " + " | ".join(f"{error[name, size]:+.0%}" for name in names) + " |")
spread = sorted(abs(value) for value in error.values())
fitted = [line.strip() for line in open(platform, encoding="utf-8") if line.startswith(("link inter", "reduce"))]
table += ["", f"Median distance {statistics.median(spread):.0%}, 95th percentile {spread[int(len(spread) * 0.95) - 1]:.0%}, "
          f"{len(spread)} points. Fitted: {'; '.join(fitted)}."]
write("table.md", "\n".join(table) + "\n")
PYTHON
cat "$folder/table.md"
