#!/usr/bin/env bash
# card.sh - everything that only a machine with an NVIDIA card can show, in this order, each part for itself:
#
#   versions    card, driver, toolkit, cuDNN; the card's description as cuDNN gives it (tests/nn/cuda/h200.json is a guess)
#   engines     every engine of every convolution, graph and legacy, against plain loops
#   backend     every layer and training against the cpu, graphs, deterministic runs: the suite of the fake device
#   start       4 workers on one card without an engine file: one times, the others wait for what it writes; then again with it
#   sanitizer   compute-sanitizer (memcheck, racecheck, synccheck, initcheck) on a small training run
#   losses      20 steps of ResNet-50 on the card, in f32 and bf16, beside the cpu's
#   workers     2 and 4 workers on one card with every exact algorithm: equal parameter hashes
#   bench       every exact algorithm from device memory, shm and tcp, checked; nccl beside them where cards suffice
#   speed       ResNet-50 beside PyTorch (experiments/peers/resnet50.sh), where a PyTorch with CUDA is here
#
#   tests/card.sh [--out=DIR] [--program=PATH] [PART...]
#
#   --out=DIR       for logs, JSON and figures (default results/card-DATE)
#   --program=PATH  of chorale, in its build folder (default build/release/chorale, built when it is missing)
#   PART            only these
#
# Nothing of the card's settings is changed. Each part has a time limit, so that one that hangs costs no more. The last line
# counts; exit 0 when nothing failed, 77 where there is no card.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
all=(versions engines backend start sanitizer losses workers bench speed)
parts=()
out=results/card-$(date +%Y-%m-%dT%H%M%S)
program=
passed=0 failed=0 skipped=0

usage() {
    printf 'card.sh: %s\n' "$1" >&2
    exit 2
}

for argument in "$@"; do
    case $argument in
    --out=?*) out=${argument#*=} ;;
    --program=?*) program=${argument#*=} ;;
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    -*) usage "$argument: unknown: --out=DIR, --program=PATH, names of parts (see --help)" ;;
    *)
        [[ " ${all[*]} " == *" $argument "* ]] || usage "$argument: no such part: ${all[*]}"
        parts+=("$argument")
        ;;
    esac
done
[[ ${#parts[@]} -gt 0 ]] || parts=("${all[@]}")

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    echo "card.sh: skipped: no NVIDIA card here (nvidia-smi lists none)"
    exit 77
fi
if [[ -z $program ]]; then
    program=build/release/chorale
    experiments/setup.sh --preset=release
fi
[[ -x $program ]] || usage "$program: no such program"
build=$(cd "$(dirname "$program")" && pwd)
[[ -f $build/chorale-device-cuda.so ]] ||
    usage "$build has no chorale-device-cuda.so: configure where nvcc, cuBLAS and cuDNN 9 are (cmake says what is missing)"
program=$build/chorale
mkdir -p "$out"
out=$(cd "$out" && pwd)
export IPATH_NO_BACKTRACE=1
unset CHORALE_MODULES CHORALE_FAKE

say() {
    printf 'card: %s\n' "$1"
}

# NAME SECONDS COMMAND...: its output goes to a log.
part() {
    local name=$1 limit=$2 code=0
    shift 2
    timeout --kill-after=20 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
    case $code in
    0) passed=$((passed + 1)) && say "$name: passed" ;;
    77) skipped=$((skipped + 1)) && say "$name: skipped: $(tail -n 1 "$out/$name.log")" ;;
    *)
        failed=$((failed + 1))
        say "$name: FAILED, exit code $code: $(tail -n 1 "$out/$name.log") (all of it: $out/$name.log)"
        ;;
    esac
}

suite() { # NAME SECONDS: a test program of nn/cuda
    part "$1" "$2" env CHORALE_CARD=1 "$build/tests/nn/cuda/nn_$1"
}

train() { # FOLDER WORDS...
    "$program" train --model=cnn --image-size=32 --batch=16 --steps=5 --eval=never --device=cuda --out="$out/$1" "${@:2}"
}

versions() {
    nvidia-smi
    nvcc --version || true
    CHORALE_DESCRIBE_CARD=$out/card.json "$build/tests/nn/cuda/nn_test_dnn_card" --filter='*/describes_itself'
    cat "$out/card.json"
    train versions -n 1 --steps=1
}

# The losses of two runs, step by step, and how far they are apart.
compare_losses() {
    /usr/bin/python3 - "$@" <<'PYTHON'
import json, sys
cpu, card, limit = sys.argv[1], sys.argv[2], float(sys.argv[3])
rows = [[json.loads(line)["loss"] for line in open(f"{folder}/metrics.jsonl")] for folder in (cpu, card)]
off = [abs(b - a) / abs(a) for a, b in zip(*rows)]
for step, (a, b, d) in enumerate(zip(*rows, off)):
    print(f"step {step}: cpu {a:.6f}, card {b:.6f}, {d:.2g} off")
print(f"largest {max(off):.3g}, tolerated {limit:g}, {len(off)} steps")
sys.exit(0 if len(rows[0]) == len(rows[1]) > 0 and max(off) <= limit else 1)
PYTHON
}

losses() { # PRECISION LIMIT
    local words=(train -n 1 --allreduce=ring --model=resnet50 --image-size=64 --batch=16 --steps=20 --lr=0.05 --eval=never)
    [[ -f $out/losses-cpu/metrics.jsonl ]] || "$program" "${words[@]}" --out="$out/losses-cpu" --threads="$(nproc)"
    "$program" "${words[@]}" --device=cuda --precision="$1" --out="$out/losses-$1"
    compare_losses "$out/losses-cpu" "$out/losses-$1" "$2"
}

# Every exact schedule that promises equal bits: hashes are compared within the run, which fails when they differ.
workers() { # COUNT
    local name bad=0
    for name in $("$program" list --json | /usr/bin/python3 -c 'import json, sys
for a in json.load(sys.stdin)["algorithms"]:
    if a["kind"] in ("schedule", "strategy") and a["name"] not in ("msccl",):
        print(a["name"])'); do
        local code=0 log=$out/workers-$1-$name.txt
        train "workers-$1-$name" -n "$1" --allreduce="$name" --deterministic >"$log" 2>&1 || code=$?
        [[ $code -eq 0 ]] || echo "$name, exit code $code: $(tail -n 1 "$log")"
        [[ $code -eq 0 || $code -eq 2 ]] || bad=1 # 2: refused, with its reason
    done
    return "$bad"
}

bench() { # TRANSPORT WORKERS
    "$program" bench --allreduce=all -n "$2" --device=cuda --transport="$1" --sizes=8..64M:x64 --check
}

nccl() {
    local cards
    cards=$(nvidia-smi -L | grep -c '^GPU')
    [[ $cards -gt 1 ]] || { echo "one card: NCCL wants one for each worker"; return 77; }
    "$program" bench --allreduce=nccl,ring,rhd,auto -n "$cards" --device=cuda --sizes=8..256M:x8 --check
}

# The second start finds all it wants in the file.
start() {
    local turn words=(-n 4 --allreduce=ring --model=resnet50 --image-size=64 --batch=16 --steps=3 --precision=bf16)
    rm -f "$out/start.txt"
    for turn in 1 2; do
        train "start-$turn" "${words[@]}" --engines="$out/start.txt"
        cp "$out/start.txt" "$out/start-$turn.txt"
    done
    cmp "$out/start-1.txt" "$out/start-2.txt"
    wc -l <"$out/start.txt"
}

sanitizer() { # TOOL
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
    compute-sanitizer --tool="$1" --error-exitcode=1 "$program" train -n 1 --allreduce=ring --model=cnn --image-size=16 \
        --batch=4 --steps=4 --eval=end --device=cuda --engines="$out/engines.txt" --out="$out/sanitizer-$1"
}

speed() {
    python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
        { echo "no PyTorch with CUDA for python3: ours alone"; return 77; }
    experiments/peers/resnet50.sh --rounds=3 --program="$program"
}

export -f train versions compare_losses losses workers bench nccl sanitizer speed start
export program build out

for name in "${parts[@]}"; do
    case $name in
    versions) part versions 300 bash -ec versions ;;
    engines) suite test_dnn_card 1800 ;;
    backend) suite test_cuda 1800 ;;
    start) part start 600 bash -ec start ;;
    sanitizer) for tool in memcheck racecheck synccheck initcheck; do part "sanitizer-$tool" 900 bash -ec "sanitizer $tool"; done ;;
    losses)
        part losses-f32 1800 bash -ec 'losses f32 1e-3'
        part losses-bf16 600 bash -ec 'losses bf16 2e-2'
        ;;
    workers) for n in 2 4; do part "workers-$n" 1800 bash -ec "workers $n"; done ;;
    bench)
        for transport in shm tcp; do part "bench-$transport" 1800 bash -ec "bench $transport 4"; done
        part nccl 600 bash -ec nccl
        ;;
    speed) part speed 3600 bash -ec speed ;;
    esac
done
say "logs and figures: $out"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[[ $failed -eq 0 ]]
