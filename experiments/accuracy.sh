#!/usr/bin/env bash
# accuracy.sh - how far the simulator is from this machine: measures some vector sizes, fits a platform to them, then measures
# other sizes and compares them with what the simulator predicts for these.
#
#   experiments/accuracy.sh [--workers=2] [--allreduce=SPECS] [--transport=shm] [--program=PATH] [--iters=50]
#
# Leaves results/accuracy/{fit.json,platform.txt,held-out.json,table.md}; nothing of the held-out sizes is used to fit.
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

measure() { # SIZES FILE [options]
    local sizes=$1 file=$2
    shift 2
    "$program" bench -n "$workers" --allreduce="$specs" --transport="$transport" --sizes="$sizes" --in-place=only \
        --iters="$iterations" --check --json "$@" >"$file.part"
    mv "$file.part" "$file"
}

measure 1K..64M:x4 "$folder/fit.json"
"$program" calibrate --bench="$folder/fit.json" --out="$folder/platform.txt" --name="$(hostname)-$transport"
measure 2K..32M:x4 "$folder/held-out.json" --platform="$folder/platform.txt"

"$python" - "$folder/held-out.json" "$folder/platform.txt" "$workers" "$transport" >"$folder/table.md" <<'PYTHON'
import json, statistics, sys

path, platform, workers, transport = sys.argv[1:]
rows = json.load(open(path, encoding="utf-8"))["rows"]
rows = [row for row in rows if row["time_us"] and row["predicted_us"]]
if not rows:
    sys.exit("accuracy.sh: no row was measured and predicted")
names = list(dict.fromkeys(row["allreduce"] for row in rows))
sizes = sorted({row["bytes"] for row in rows})
error = {(row["allreduce"], row["bytes"]): row["predicted_us"] / row["time_us"] - 1 for row in rows}
print(f"Simulated against measured time, {workers} workers, {transport}: (simulated / measured - 1) at sizes that the")
print("platform was not fitted to.\n")
print("| bytes | " + " | ".join(names) + " |\n|---:|" + "---:|" * len(names))
for size in sizes:
    print(f"| {size} | " + " | ".join(f"{error[name, size]:+.0%}" if (name, size) in error else "-" for name in names) + " |")
spread = sorted(abs(value) for value in error.values())
print(f"\nMedian distance {statistics.median(spread):.0%}, 95th percentile {spread[int(len(spread) * 0.95) - 1]:.0%}, "
      f"{len(spread)} points.")
print("Fitted: " + "; ".join(line.strip() for line in open(platform, encoding="utf-8") if line.startswith(("link inter", "reduce"))) + ".")
PYTHON
cat "$folder/table.md"
