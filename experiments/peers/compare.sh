#!/usr/bin/env bash
# compare.sh - allreduce on this machine: Debian's Open MPI and MPICH against chorale, run in turn, round after round.
#
#   experiments/peers/compare.sh [--rounds=5] [--workers=2,4] [--sizes=8,4K,...] [--calls=N] [--program=PATH]
#
#   --rounds=N      how often everything is measured; each round starts with another system (default 5)
#   --workers=LIST  worker counts (default 2,4)
#   --sizes=LIST    bytes of the vector, K and M are powers of 1024 (default 8,4K,64K,1M,16M,64M)
#   --calls=N       timed calls of each (default by size: 1000 to 4K, 500 to 64K, 100 to 1M, 20 to 16M, else 10);
#                   a tenth of them, 2 at least, are made before
#   --program=PATH  of chorale (default build/release/chorale, built when it is missing)
#
# Installs what is missing. Writes results/peers/DATE.csv, every single row, and results/peers/table.md, medians and
# spread. Exit: 0 done, 1 something failed or an element was wrong.
set -euo pipefail

me=compare.sh
# shellcheck source=experiments/peers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds_most=2 # of one timed pass of an MPI program
limit=600      # seconds of one run; after this it hangs
rounds=5
workers=2,4
sizes=8,4K,64K,1M,16M,64M
calls=
program=

for argument in "$@"; do
    case $argument in
    --rounds=*) rounds=${argument#*=} ;;
    --workers=*) workers=${argument#*=} ;;
    --sizes=*) sizes=${argument#*=} ;;
    --calls=*) calls=${argument#*=} ;;
    --program=?*) program=${argument#*=} ;;
    --help | -h)
        usage
        exit 0
        ;;
    *) die "$argument: unknown: --rounds=N, --workers=LIST, --sizes=LIST, --calls=N, --program=PATH (see --help)" 2 ;;
    esac
done
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || die "--rounds=$rounds: takes a number from 1 to 9999" 2
[[ $calls =~ ^([1-9][0-9]{0,6})?$ ]] || die "--calls=$calls: takes a number from 1 to 9999999" 2
need_numbers --workers "$workers" 2,4

# "4K" -> 4096
bytes_of() {
    [[ $1 =~ ^([1-9][0-9]{0,11})([KMG]?)$ ]] || die "--sizes: $1: takes sizes like 8,4K,1M" 2
    local number=${BASH_REMATCH[1]}
    case ${BASH_REMATCH[2]} in
    K) number=$((number << 10)) ;;
    M) number=$((number << 20)) ;;
    G) number=$((number << 30)) ;;
    esac
    [[ $((number % 4)) -eq 0 ]] || die "--sizes: $1: vectors are of whole f32, take a multiple of 4" 2
    echo "$number"
}

vectors=()
for size in ${sizes//,/ }; do
    vector=$(bytes_of "$size") || exit
    vectors+=("$vector")
done
[[ ${#vectors[@]} -gt 0 ]] || die "--sizes: takes sizes like 8,4K,1M" 2

# ---- set-up ----

make_folders
install_packages openmpi-bin libopenmpi-dev mpich libmpich-dev gcc libc6-dev python3
need_program
for mpi in openmpi mpich; do
    "mpicc.$mpi" -std=c11 -O2 -Wall -Wextra -o "$build/mpi_allreduce.$mpi" "$peers/mpi_allreduce.c" >>"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        die "mpicc.$mpi failed (all of its output: $log)"
    }
done
describe
rows=$results/$started.csv
openmpi_version=$(package_version openmpi-bin)
mpich_version=$(package_version mpich)
fabric_version=$(package_version libfabric1)

# ---- runs ----

calls_for() {
    if [[ -n $calls ]]; then
        echo "$calls"
    elif [[ $1 -le 4096 ]]; then
        echo 1000
    elif [[ $1 -le 65536 ]]; then
        echo 500
    elif [[ $1 -le 1048576 ]]; then
        echo 100
    elif [[ $1 -le 16777216 ]]; then
        echo 20
    else
        echo 10
    fi
}

# The command of a system, in `command`: SYSTEM WORKERS BYTES CALLS WARMUP.
set_command() {
    command=("$program" bench --workers="$2" --sizes="$3..$3" --iters="$4" --warmup="$5" --check --format=csv)
    case $1 in
    openmpi)
        command=(mpiexec.openmpi --oversubscribe)
        if [[ $(id -u) -eq 0 ]]; then
            command+=(--allow-run-as-root)
        fi
        command+=(-n "$2" "$build/mpi_allreduce.openmpi" "$1" "$3" "$4" "$5" "$seconds_most")
        ;;
    mpich) command=(mpiexec.mpich -n "$2" "$build/mpi_allreduce.mpich" "$1" "$3" "$4" "$5" "$seconds_most") ;;
    chorale-shm) command+=(--transport=shm --allreduce=ring --allreduce=rhd --allreduce=rd) ;;
    chorale-tcp) command+=(--transport=tcp --allreduce=ring) ;;
    esac
}

version_of() {
    case $1 in
    openmpi) echo "Open MPI $openmpi_version" ;;
    mpich) echo "MPICH $mpich_version" ;;
    *) echo "chorale $commit, libfabric $fabric_version" ;;
    esac
}

failures=0

# One system at one size; its rows go to the results, a failure is a row, too: ROUND SYSTEM WORKERS BYTES.
measure() {
    local busy code=0 number warmup
    busy=$(load)
    number=$(calls_for "$4")
    warmup=$((number / 10 > 2 ? number / 10 : 2))
    set_command "$2" "$3" "$4" "$number" "$warmup"
    printf '+ %s\n' "${command[*]}" >>"$log"
    timeout --foreground --kill-after=10 "$limit" "${command[@]}" >"$build/rows.csv" 2>>"$log" </dev/null || code=$?
    python3 "$peers/table.py" add --to="$rows" --from="$build/rows.csv" --exit="$code" started="$started" round="$1" \
        system="$2" workers="$3" bytes="$4" calls="$number" version="$(version_of "$2")" machine="$machine" \
        load="$busy" || code=1
    if [[ $code -ne 0 ]]; then
        failures=$((failures + 1))
        say "$2, $3 workers, $4 bytes: exit code $code: see the end of $log"
    fi
}

warn_when_busy
systems=(openmpi mpich chorale-shm chorale-tcp)
for ((round = 1; round <= rounds; round++)); do
    for count in ${workers//,/ }; do
        say "round $round of $rounds, $count workers"
        for vector in "${vectors[@]}"; do
            for ((k = 0; k < ${#systems[@]}; k++)); do
                measure "$round" "${systems[(k + round - 1) % ${#systems[@]}]}" "$count" "$vector"
            done
        done
    done
done

python3 "$peers/table.py" allreduce "$rows" >"$results/table.md" || failures=$((failures > 0 ? failures : 1))
cat "$results/table.md"
say "every row: $rows, the table: $results/table.md"
[[ $failures -eq 0 ]] || die "$failures runs failed or had wrong elements: see $log"
