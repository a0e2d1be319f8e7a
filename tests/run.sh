#!/usr/bin/env bash
# run.sh - all tests on a fresh Debian 12: sets up (experiments/setup.sh), then in this order
#
#   suites         every suite of tests/, built as released
#   verify         every exact schedule proved for 1 to 130 workers
#   sweep          a small sweep: killed half-way, run again, run once more
#   peers          the tables of comparisons with others, on rows made up
#   kills          a worker of every exact algorithm killed at a random moment
#   soak           collectives drawn at random, back to back, also under a storm of signals
#   disk           disks that are full, read-only, limited: one line, and nothing half-written
#   jobs           short jobs in a row, killed, interrupted, two at once, out of memory: nothing stays
#   hosts          jobs over several hosts made of this machine, where root may make network namespaces
#   slurm          a Slurm of one node, where it is installed, and jobs under its srun
#   add-algorithm  a copy of the tree gets one algorithm more: one file, one line
#   asan           suites of base, algos, comm, the CUDA kernels and all that reads files or the network, also mutated, under
#                  AddressSanitizer, LeakSanitizer and UBSan
#   tsan           the multi-threaded programs (tests/*/plain_*.c) under ThreadSanitizer
#
#   tests/run.sh [--quick] [--jobs=N] [NAME...]
#
#   --quick   suites, a shorter verify, sweep, peers
#   --jobs=N  suites that run at a time (default: cores)
#   NAME      only these: steps as above, or suites by the beginning of their names (algos, comm.test_fabric)
#
# The last line counts: N passed, N failed, N skipped. Exit 0 when nothing failed, else 1; 2 for wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=/usr/bin/python3
jobs=$(nproc)
quick=false
steps=()
suites=()
passed=0 failed=0 skipped=0
failures=()

usage() {
    printf 'run.sh: %s\n' "$1" >&2
    exit 2
}

for argument in "$@"; do
    case $argument in
    --quick) quick=true ;;
    --jobs=[1-9]*) jobs=${argument#*=} ;;
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    -*) usage "$argument: unknown: --quick, --jobs=N, names of steps or suites (see --help)" ;;
    suites | verify | sweep | peers | kills | soak | disk | jobs | hosts | slurm | add-algorithm | asan | tsan) steps+=("$argument") ;;
    base* | algos* | comm* | nn* | sim* | experiments*)
        suites+=("$argument")
        [[ " ${steps[*]-} " == *" suites "* ]] || steps+=(suites)
        ;;
    *) usage "$argument: no step or suite of this name: suites verify sweep peers kills soak disk jobs slurm add-algorithm asan tsan, or base, comm.test_fabric ..." ;;
    esac
done
if [[ ${#steps[@]} -eq 0 ]]; then
    steps=(suites verify sweep peers)
    $quick || steps+=(kills soak disk jobs hosts slurm add-algorithm asan tsan)
fi

say() {
    printf 'tests: %s\n' "$1"
}

# count STEP PASSED FAILED SKIPPED
count() {
    passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
    [[ $3 -eq 0 ]] || failures+=("$1")
    say "$1: $2 passed, $3 failed, $4 skipped ($((SECONDS - began)) s)"
}

# ---- suites ----

# run_ctest STEP PRESET [options of ctest]: runs, shows what fails, counts.
run_ctest() {
    local step=$1 folder=$root/build/$2 text
    shift 2
    local log=$folder/Testing/Temporary/LastTest.log junit=$folder/Testing/junit.xml
    rm -f "$log" "$junit"
    ctest --test-dir "$folder" --output-on-failure --no-tests=error --output-junit "$junit" -j "$jobs" "$@" || true
    if [[ ! -f $log || ! -f $junit ]]; then
        count "$step" 0 1 0
        return
    fi
    text=$("$python" tests/count.py "$log" "$junit" "$step")
    head -n -1 <<<"$text"
    # shellcheck disable=SC2046 # three numbers
    count "$step" $(tail -n 1 <<<"$text")
}

step_suites() {
    local pattern=.
    [[ ${#suites[@]} -eq 0 ]] || pattern=$(printf '|^%s' "${suites[@]//./\\.}") pattern=${pattern#|}
    run_ctest suites release -R "$pattern"
}

# Programs of tests/LAYER/PREFIX*.c as CMake targets, for the layers given.
programs() {
    local prefix=$1 layer source
    shift
    for layer in "$@"; do
        for source in tests/"$layer"/"$prefix"*.c; do
            [[ -f $source ]] && printf '%s_%s\n' "$layer" "$(basename "$source" .c)"
        done
    done
    true
}

# sanitized STEP PRESET PATTERN TARGET...
sanitized() {
    local step=$1 preset=$2 pattern=$3
    shift 3
    if ! experiments/setup.sh --preset="$preset" "${@/#/--target=}"; then
        count "$step" 0 1 0
        return
    fi
    run_ctest "$step" "$preset" -R "$pattern"
}

step_asan() {
    local targets readers=(formats odd images checkpoint loader data)
    mapfile -t targets < <(programs test_ base algos comm && printf '%s\n' nn_kernels_tests "${readers[@]/#/nn_test_}" &&
        basename -s .c tests/fuzz_*.c)
    LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0 \
        sanitized asan asan "^(base|algos|comm)\.test_|^nn\.cuda\.test_(kernels|shim)|^nn\.test_($(IFS='|' && echo "${readers[*]}"))\$|\.fuzz_" \
        "${targets[@]}"
}

step_tsan() {
    local targets
    mapfile -t targets < <(programs plain_ base algos comm nn sim experiments)
    sanitized tsan tsan '\.plain_' "${targets[@]}"
}

# ---- the program ----

step_verify() {
    local upto=130 text
    $quick && upto=16
    if ! build/release/chorale verify --allreduce=all -n "1..$upto" --json >build/verify.json; then
        say "verify: chorale verify --allreduce=all -n 1..$upto fails: see build/verify.json"
    fi
    text=$("$python" - build/verify.json <<'PYTHON'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)["results"]
except (ValueError, KeyError) as error:
    rows = [{"allreduce": "verify", "workers": 0, "ok": False, "reason": f"no results: {error}"}]
proved = [row for row in rows if row["ok"]]
wrong = [row for row in rows if not row["ok"] and not row.get("refused")]
for row in wrong[:20]:
    print(f"verify: {row['allreduce']} on {row['workers']} workers: {row.get('reason')}")
print(len(proved), len(wrong) or int(not proved), 0)
PYTHON
    )
    head -n -1 <<<"$text"
    # shellcheck disable=SC2046 # three numbers
    count verify $(tail -n 1 <<<"$text")
}

# A test written as a script says "N checks" in its last line.
script_test() {
    local step=$1 output=build/$1.log
    shift
    local code=0
    "$@" >"$output" 2>&1 || code=$?
    case $code in
    0)
        say "$step: $(tail -n 1 "$output")"
        count "$step" 1 0 0
        ;;
    77)
        say "$(tail -n 1 "$output")"
        count "$step" 0 0 1
        ;;
    *)
        tail -n 40 "$output"
        count "$step" 0 1 0
        ;;
    esac
}

step_sweep() {
    script_test sweep tests/experiments/sweep.sh
}

step_peers() {
    script_test peers tests/experiments/peers.py
}

step_kills() {
    script_test kills tests/kills.sh build/release/chorale
}

step_soak() {
    script_test soak tests/soak.sh build/release
}

step_disk() {
    script_test disk tests/disk.sh build/release/chorale
}

step_jobs() {
    script_test jobs tests/jobs.sh build/release/chorale
}

step_hosts() {
    script_test hosts tests/hosts.sh build/release/chorale
}

step_slurm() {
    script_test slurm tests/slurm.sh build/release/chorale
}

step_add-algorithm() {
    script_test add-algorithm tests/experiments/add_algorithm.sh
}

experiments/setup.sh
for step in "${steps[@]}"; do
    began=$SECONDS
    "step_$step"
done
[[ ${#failures[@]} -eq 0 ]] || say "failed: ${failures[*]}"
say "$SECONDS s in all"
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[[ $failed -eq 0 ]]
