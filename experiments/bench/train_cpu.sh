#!/usr/bin/env bash
# train_cpu.sh - training speed of ResNet-50 on this processor: Debian's PyTorch against chorale, run in turn.
#
#   experiments/bench/train_cpu.sh [--rounds=3] [--cases=LIST] [--steps=12] [--program=PATH]
#
#   --rounds=N      how often everything is measured; each round starts with another system (default 3)
#   --cases=LIST    pixels:batch:workers:threads of each case (default 224:8:1:2,64:16:1:1,64:16:2:1)
#   --steps=N       of a run; the first 2 are not timed (default 12)
#   --program=PATH  of chorale (default build/release/chorale, built when it is missing)
#
# Both have the same oneDNN, batch and threads. PyTorch (tuned: torch_resnet50.py) runs with images as NCHW and as NHWC,
# and the ratio is to the faster; with several workers by DistributedDataParallel over gloo. A worker has its own cores
# where there are enough. Then the arithmetic of each kind of convolution as a share of the processor's peak, measured in
# the same run (bench_train_cpu). Installs what is missing. Writes results/peers/train-cpu-DATE.csv, every single row, and
# results/peers/train-cpu.md, medians and spread.
set -euo pipefail

me=train_cpu.sh
# shellcheck source=experiments/peers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../peers/common.sh"

limit=3600 # seconds of one run; after this it hangs
skip=2
python=/usr/bin/python3
rounds=3
cases=224:8:1:2,64:16:1:1,64:16:2:1
steps=12
program=
systems=(chorale "PyTorch, NCHW" "PyTorch, NHWC")

read_options "rounds= cases= steps= program=" "$@"
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || die "--rounds=$rounds: takes a number from 1 to 9999" 2
[[ $steps =~ ^[1-9][0-9]{0,5}$ && $steps -gt $skip ]] || die "--steps=$steps: takes a number above $skip" 2
one='[1-9][0-9]{0,4}:[1-9][0-9]{0,4}:[1-9][0-9]{0,2}:[1-9][0-9]{0,2}'
[[ $cases =~ ^$one(,$one)*$ ]] || die "--cases=$cases: takes pixels:batch:workers:threads, as in 64:16:1:1,224:8:1:2" 2

make_folders
install_packages python3 python3-torch dataset-fashion-mnist
bench=
if [[ -n $program ]]; then
    need_program
    bench=$(dirname "$program")/experiments/bench_train_cpu
else
    "$root/experiments/setup.sh" --preset=release --target=bench_train_cpu --target=chorale
    program=$root/build/release/chorale
    bench=$root/build/release/experiments/bench_train_cpu
fi
describe
rows=$results/train-cpu-$started.csv
torch_version=$("$python" -c 'import torch; print(torch.__version__)' 2>>"$log") || die "$python: no PyTorch: $(tail -n 1 "$log")"

# The first so many cores that this process may use, as taskset takes them; all of them where there are fewer.
first_cores() {
    "$python" -c 'import os, sys
print(",".join(map(str, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])))' "$1"
}

# PIXELS BATCH WORKERS THREADS
run_chorale() {
    rm -rf "$build/train"
    "$program" train --allreduce=ring --workers="$3" --model=resnet50 --image-size="$1" --batch="$2" --threads="$4" \
        --steps="$steps" --timing-skip="$skip" --eval=never --json --out="$build/train" </dev/null >"$build/summary.json" &&
        summary_to_row <"$build/summary.json"
}

# PIXELS BATCH WORKERS THREADS [--channels-last]
run_torch() {
    OMP_NUM_THREADS=$4 "$python" "$peers/torch_resnet50.py" --image-size="$1" --batch="$2" --workers="$3" --threads="$4" \
        --steps="$steps" --skip="$skip" "${@:5}" </dev/null
}

export -f run_chorale run_torch summary_to_row
export program build python peers steps skip

failures=0

# ROUND SYSTEM PIXELS BATCH WORKERS THREADS; a failure is a row, too.
measure() {
    local busy code=0 run version="PyTorch $torch_version"
    busy=$(load)
    printf '+ %s\n' "$*" >>"$log"
    case $2 in
    chorale)
        version="chorale $commit, oneDNN $(package_version libdnnl2)"
        run='run_chorale "$@"'
        ;;
    "PyTorch, NCHW") run='run_torch "$@"' ;;
    "PyTorch, NHWC") run='run_torch "$@" --channels-last' ;;
    esac
    timeout --foreground --kill-after=10 "$limit" taskset -c "$(first_cores $(($5 * $6)))" bash -c "$run" bash "${@:3}" \
        >"$build/rows.csv" 2>>"$log" || code=$?
    "$python" "$peers/table.py" add --to="$rows" --from="$build/rows.csv" --exit="$code" started="$started" round="$1" \
        system="$2" image_size="$3" batch="$4" workers="$5" threads="$6" steps="$steps" precision=f32 version="$version" \
        machine="$machine" load="$busy" || code=1
    if [[ $code -ne 0 ]]; then
        failures=$((failures + 1))
        say "$2, $3 pixels, batch $4, $5 workers, $6 threads: exit code $code: see the end of $log"
    fi
}

warn_when_busy
for ((round = 1; round <= rounds; round++)); do
    for one in ${cases//,/ }; do
        IFS=: read -r pixels batch workers threads <<<"$one"
        say "round $round of $rounds, $pixels pixels, batch $batch, $workers workers, $threads threads"
        for ((k = 0; k < ${#systems[@]}; k++)); do
            measure "$round" "${systems[(k + round - 1) % ${#systems[@]}]}" "$pixels" "$batch" "$workers" "$threads"
        done
    done
done

{
    "$python" "$peers/table.py" training "$rows" || failures=$((failures > 0 ? failures : 1))
    for one in ${cases//,/ }; do
        IFS=: read -r pixels batch workers threads <<<"$one"
        [[ $workers -gt 1 ]] && continue
        printf '\n'
        taskset -c "$(first_cores "$threads")" "$bench" "$pixels" "$batch" "$threads" 5 2>>"$log" || failures=$((failures + 1))
    done
} >"$results/train-cpu.md"
cat "$results/train-cpu.md"
say "every row: $rows, the table: $results/train-cpu.md"
[[ $failures -eq 0 ]] || die "$failures runs failed: see $log"
