#!/usr/bin/env bash
# accuracy_train.sh - what chorale's training reaches beside PyTorch's with the same recipe, over several seeds.
#
#   experiments/bench/accuracy_train.sh [--seeds=3] [--data=FOLDER] [--epochs=N] [--threads=1] [--out=FOLDER]
#
#   fashion-cnn      the CNN on Debian's Fashion-MNIST (experiments/recipes/fashion-cnn.txt)
#   cifar-resnet18   with --data=FOLDER of WebDataset shards, train*.tar and test*.tar, of 32 x 32 pixels: ResNet-18
#
# Runs alternate: chorale, PyTorch, the next seed. A row a run goes to OUT/accuracy.csv (default results/accuracy) as soon
# as it is done; rows that are there are kept. At the end a table of means and deviations, and whether they are within
# a point of each other (exit 1 if not). Exit 77 without PyTorch.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=/usr/bin/python3
program=${CHORALE_PROGRAM:-$root/build/release/chorale}
seeds=3 data='' epochs='' threads=1 out=$root/results/accuracy

for argument in "$@"; do
    case $argument in
    --seeds=[1-9]*) seeds=${argument#*=} ;;
    --data=?*) data=${argument#*=} ;;
    --epochs=?*) epochs=${argument#*=} ;;
    --threads=[1-9]*) threads=${argument#*=} ;;
    --out=?*) out=${argument#*=} ;;
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    *)
        printf 'accuracy_train.sh: %s: unknown: --seeds, --data, --epochs, --threads, --out (see --help)\n' "$argument" >&2
        exit 2
        ;;
    esac
done
[[ -x $program ]] || { printf 'accuracy_train.sh: %s: not there: run experiments/setup.sh\n' "$program" >&2; exit 1; }
"$python" -c 'import torch, torchvision' 2>/dev/null || {
    printf 'accuracy_train.sh: skipped: no PyTorch (Debian: python3-torch, python3-torchvision)\n'
    exit 77
}
mkdir -p "$out"
rows=$out/accuracy.csv
[[ -f $rows ]] || printf 'recipe,by,seed,epochs,top1,seconds\n' >"$rows"

# run RECIPE BY SEED [DATA]
run() {
    local recipe=$1 by=$2 seed=$3 folder=${4-} began=$SECONDS top1 work
    local file=$root/experiments/recipes/$recipe.txt
    ! grep -q "^$recipe,$by,$seed,$epochs," "$rows" || return 0
    if [[ $by == chorale ]]; then
        work=$(mktemp -d)
        "$program" train -n 1 --recipe="$file" --seed="$seed" --threads="$threads" --eval=end --out="$work/run" --json \
            ${epochs:+--epochs=$epochs} ${folder:+--data=$folder} >"$work/json"
        top1=$("$python" -c 'import json, sys; print(json.load(sys.stdin)["top1"])' <"$work/json")
        rm -rf "$work"
    else
        top1=$("$python" "$root/experiments/bench/torch_train.py" --recipe="$file" --seed="$seed" --threads="$threads" \
            ${epochs:+--epochs=$epochs} ${folder:+--data=$folder} |
            "$python" -c 'import json, sys; print(json.load(sys.stdin)["top1"])')
    fi
    printf '%s,%s,%s,%s,%s,%s\n' "$recipe" "$by" "$seed" "$epochs" "$top1" $((SECONDS - began)) | tee -a "$rows"
}

for ((seed = 1; seed <= seeds; seed++)); do
    for by in chorale pytorch; do
        run fashion-cnn "$by" "$seed"
        [[ -z $data ]] || run cifar-resnet18 "$by" "$seed" "$data"
    done
done
"$python" - "$rows" "$epochs" <<'PYTHON'
import csv
import statistics
import sys

runs = {}
with open(sys.argv[1], newline="") as file:
    for row in csv.DictReader(file):
        if row["epochs"] == sys.argv[2]:
            runs.setdefault(row["recipe"], {}).setdefault(row["by"], []).append(100 * float(row["top1"]))
apart = False
for recipe, sides in runs.items():
    if len(sides) < 2:
        continue
    means = {by: statistics.mean(values) for by, values in sides.items()}
    for by, values in sides.items():
        spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        print(f"{recipe:16} {by:8} top-1 {means[by]:.2f}{spread} % of {len(values)} seeds")
    difference = means["chorale"] - means["pytorch"]
    apart = apart or abs(difference) > 1
    print(f"{recipe:16} chorale - PyTorch {difference:+.2f} points{': more than one' if abs(difference) > 1 else ''}")
sys.exit(1 if apart else 0)
PYTHON
