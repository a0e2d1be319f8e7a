#!/usr/bin/env bash
# resnet50.sh - training speed of ResNet-50 on an NVIDIA card in bf16: a PyTorch built for CUDA against chorale, one
# worker, run in turn. On the processor: experiments/bench/train_cpu.sh.
#
#   experiments/peers/resnet50.sh [--rounds=5] [--cases=224:64:1,224:256:1] [--steps=120] [--python=PATH] [--program=PATH]
#
#   --rounds=N      how often everything is measured; each round starts with another system (default 5)
#   --cases=LIST    pixels:batch:threads of each case (default 224:64:1,224:256:1)
#   --steps=N       of a run; the first 20 are not timed (default 120)
#   --python=PATH   with PyTorch (default python3)
#   --program=PATH  of chorale (default build/release/chorale, built when it is missing)
#
# PyTorch runs twice, as NHWC with and without torch.compile; the ratio is to the faster. The table also says what share
# of the card's measured ceilings the training reaches, of arithmetic and of bytes moved. Installs what is missing, but no
# PyTorch for CUDA. Writes results/peers/resnet50-DATE.csv, every single row, and results/peers/resnet50.md, medians and
# spread.
set -euo pipefail

me=resnet50.sh
# shellcheck source=experiments/peers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

limit=3600 # seconds of one run; after this it hangs
skip=20
python=python3
rounds=5
cases=224:64:1,224:256:1
steps=120
program=
systems=(chorale "PyTorch, bf16" "PyTorch, bf16, compiled")

read_options "rounds= cases= steps= python= program=" "$@"
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || die "--rounds=$rounds: takes a number from 1 to 9999" 2
[[ $steps =~ ^[1-9][0-9]{0,5}$ && $steps -gt $skip ]] || die "--steps=$steps: takes a number above $skip" 2
one='[1-9][0-9]{0,4}:[1-9][0-9]{0,4}:[1-9][0-9]{0,3}'
[[ $cases =~ ^$one(,$one)*$ ]] || die "--cases=$cases: takes pixels:batch:threads, as in 224:64:1" 2

make_folders
install_packages python3 dataset-fashion-mnist
need_program
describe
"$python" "$peers/torch_resnet50.py" --ceilings >"$build/ceilings.csv" 2>>"$log" ||
    die "no ceilings of the card: $(tail -n 1 "$log")"
machine="$(sed -n '2s/,.*//p' "$build/ceilings.csv"), $machine"
rows=$results/resnet50-$started.csv
torch_version=$("$python" -c 'import torch; print(torch.__version__)' 2>>"$log") || die "$python: no PyTorch: $(tail -n 1 "$log")"

run_chorale() {
    timeout --foreground --kill-after=10 "$limit" "$program" train --allreduce=ring --workers=1 --model=resnet50 --device=cuda --precision=bf16 \
        --image-size="$1" --batch="$2" --threads="$3" --steps="$steps" --timing-skip="$skip" --eval=never --json \
        --checkpoint=never --out="$build/train" </dev/null >"$build/summary.json" && summary_to_row <"$build/summary.json"
}

# PIXELS BATCH THREADS [--channels-last]
run_torch() {
    OMP_NUM_THREADS=$3 timeout --foreground --kill-after=10 "$limit" "$python" "$peers/torch_resnet50.py" \
        --image-size="$1" --batch="$2" --threads="$3" --steps="$steps" --skip="$skip" "${@:4}" </dev/null
}

failures=0

# ROUND SYSTEM PIXELS BATCH THREADS; a failure is a row, too.
measure() {
    local busy code=0 version="PyTorch $torch_version"
    busy=$(load)
    printf '+ %s\n' "$*" >>"$log"
    case $2 in
    chorale)
        rm -rf "$build/train"
        version="chorale $commit"
        run_chorale "$3" "$4" "$5" >"$build/rows.csv" 2>>"$log" || code=$?
        ;;
    "PyTorch, bf16") run_torch "$3" "$4" "$5" --channels-last --device=cuda >"$build/rows.csv" 2>>"$log" || code=$? ;;
    "PyTorch, bf16, compiled")
        run_torch "$3" "$4" "$5" --channels-last --device=cuda --compile >"$build/rows.csv" 2>>"$log" || code=$?
        ;;
    esac
    /usr/bin/python3 "$peers/table.py" add --to="$rows" --from="$build/rows.csv" --exit="$code" started="$started" round="$1" \
        system="$2" image_size="$3" batch="$4" threads="$5" steps="$steps" precision=bf16 version="$version" machine="$machine" \
        load="$busy" || code=1
    if [[ $code -ne 0 ]]; then
        failures=$((failures + 1))
        say "$2, $3 pixels, batch $4, $5 threads: exit code $code: see the end of $log"
    fi
}

warn_when_busy
for ((round = 1; round <= rounds; round++)); do
    for one in ${cases//,/ }; do
        IFS=: read -r pixels batch threads <<<"$one"
        say "round $round of $rounds, $pixels pixels, batch $batch, $threads threads"
        for ((k = 0; k < ${#systems[@]}; k++)); do
            measure "$round" "${systems[(k + round - 1) % ${#systems[@]}]}" "$pixels" "$batch" "$threads"
        done
    done
done

/usr/bin/python3 "$peers/table.py" training "$rows" "--ceilings=$build/ceilings.csv" >"$results/resnet50.md" || failures=$((failures > 0 ? failures : 1))
cat "$results/resnet50.md"
say "every row: $rows, the table: $results/resnet50.md"
[[ $failures -eq 0 ]] || die "$failures runs failed: see $log"
