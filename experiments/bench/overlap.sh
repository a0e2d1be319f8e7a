#!/usr/bin/env bash
# experiments/bench/overlap.sh [ROUNDS [STEPS [WORKERS]]] - what hiding exchanges behind backward brings on this host:
# ResNet-50 at 64 pixels, batch 16, workers of 1 thread, rounds in turn (5 of 8 steps on 2 workers).
#
# Efficiency is images/s on the workers / (workers x images/s of 1 worker, in the same round); the ceiling is `none`, which
# exchanges nothing: what sharing caches and memory leaves. Prints medians over the rounds, with the least and the largest.
# ALLREDUCE (ring), BUCKET (the program's own) and CHORALE (build/release/chorale) in the environment change what is run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
rounds=${1:-5} steps=${2:-8} workers=${3:-2}
program=${CHORALE:-build/release/chorale} allreduce=${ALLREDUCE:-ring}
bucket=${BUCKET:+--bucket=$BUCKET}
[[ -x $program ]] || { echo "overlap.sh: $program: build it first (tests/run.sh)" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

run() { # NAME WORKERS OPTIONS...
    local name=$1 count=$2
    shift 2
    "$program" train -n "$count" --model=resnet50 --image-size=64 --batch=16 --threads=1 --data=synthetic --steps="$steps" \
        --eval=never --out="$folder/$name-$round" --json "$@" >"$folder/$name-$round.json"
}

for ((round = 1; round <= rounds; round++)); do
    run single 1 --allreduce=none
    run ceiling "$workers" --allreduce=none
    run whole "$workers" --allreduce="$allreduce" --overlap=none --bucket=all
    run buckets "$workers" --allreduce="$allreduce" --overlap=none ${bucket:---bucket=4M}
    run overlap "$workers" --allreduce="$allreduce" --overlap=bucket $bucket
done

/usr/bin/python3 - "$folder" "$rounds" "$workers" "$allreduce" <<'PY'
import json, statistics, sys

folder, rounds, workers, allreduce = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
CASES = {
    "single": "1 worker",
    "ceiling": "none: no exchange",
    "whole": f"{allreduce}, all at once after backward",
    "buckets": f"{allreduce}, buckets after backward",
    "overlap": f"{allreduce}, buckets during backward",
}


def load(name):
    return [json.load(open(f"{folder}/{name}-{k + 1}.json")) for k in range(rounds)]


single = [1e3 * run["global_batch"] / run["step_ms_p50"] for run in load("single")]
print(f"{'':<36} {'images/s':>9} {'efficiency':>10} {'least':>7} {'most':>7} {'step':>8} {'compute':>8} {'comm':>8} {'exposed':>8}  ms")
for name, words in CASES.items():
    runs = load(name)
    speed = [1e3 * run["global_batch"] / run["step_ms_p50"] for run in runs]
    share = [a / b / runs[0]["workers"] for a, b in zip(speed, single)]
    times = [statistics.median(run[key] for run in runs) for key in ("step_ms_p50", "compute_ms", "comm_ms", "exposed_ms")]
    print(
        f"{words:<36} {statistics.median(speed):9.2f} {statistics.median(share):10.3f} {min(share):7.3f} {max(share):7.3f} "
        + " ".join(f"{value:8.1f}" for value in times)
    )
PY
