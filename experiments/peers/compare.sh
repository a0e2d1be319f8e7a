#!/usr/bin/env bash
# compare.sh - allreduce on this machine: Debian's Open MPI, MPICH and PyTorch's Gloo against chorale, in shared memory and
# over tcp, run in turn, round after round.
#
#   experiments/peers/compare.sh [--rounds=3] [--workers=2,4] [--sizes=8,64,...] [--calls=N] [--in-place=no] [--quick]
#                                [--program=PATH]
#
#   --rounds=N      how often everything is measured; each round starts with another system (default 3)
#   --workers=LIST  worker counts (default 2,4)
#   --sizes=LIST    bytes of the vector, K and M are powers of 1024 (default 8,64,512,4K,64K,512K,1M,16M,64M)
#   --calls=N       timed calls of each (default by size: 1000 to 4K, 100 to 1M, 20 to 16M, else 8; a fifth of them where
#                   workers are more than cores); a tenth of them, 2 at least, are made before
#   --in-place=no|only|both  which calls are measured (default no); Gloo's are in place always
#   --quick         one round, 2 workers, sizes 8,4K,64K,1M,16M, unless given: whether all of this works
#   --program=PATH  of chorale (default build/release/chorale, built when it is missing)
#
# A run is one system at one group of sizes (those that take as many calls and lie in one progression, as 8,64,512,4K),
# and, of ours, the few algorithms that can win there. Systems run in turn for each group, and each round starts with
# another one. MPICH over tcp is left out where workers are more than cores: it takes tenths of a second a call. Default
# rounds take about a quarter of an hour on two cores, --quick two minutes. Installs what is missing. Writes
# results/peers/DATE.csv, every single row, and results/peers/table.md: medians, ratios, and what is short of the goals
# that table.py has. Exit: 0 done, 1 something failed or an element was wrong; missing a goal is no failure.
set -euo pipefail

me=compare.sh
# shellcheck source=experiments/peers/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds_most=1 # of one timed pass of a peer
limit=120      # seconds of one run; after this it hangs
python=/usr/bin/python3
rounds=
workers=
sizes=
calls=
in_place=no
quick=
program=

read_options "rounds= workers= sizes= calls= in-place= quick program=" "$@"
if [[ $quick ]]; then
    : "${rounds:=1}" "${workers:=2}" "${sizes:=8,4K,64K,1M,16M}"
    seconds_most=0.2
fi
: "${rounds:=3}" "${workers:=2,4}" "${sizes:=8,64,512,4K,64K,512K,1M,16M,64M}"
[[ $rounds =~ ^[1-9][0-9]{0,3}$ ]] || die "--rounds=$rounds: takes a number from 1 to 9999" 2
[[ $calls =~ ^([1-9][0-9]{0,6})?$ ]] || die "--calls=$calls: takes a number from 1 to 9999999" 2
[[ $in_place =~ ^(no|only|both)$ ]] || die "--in-place=$in_place: takes no, only or both" 2
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
install_packages openmpi-bin libopenmpi-dev mpich libmpich-dev gcc libc6-dev python3 python3-torch
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
torch_version=$(package_version python3-torch)

# ---- sizes ----

calls_for() {
    local number=8
    if [[ -n $calls ]]; then
        echo "$calls"
        return
    elif [[ $1 -le 4096 ]]; then
        number=1000
    elif [[ $1 -le 1048576 ]]; then
        number=100
    elif [[ $1 -le 16777216 ]]; then
        number=20
    fi
    if [[ $2 -gt $cores ]]; then
        number=$((number / 5 > 5 ? number / 5 : 5))
    fi
    echo "$number"
}

# Groups of sizes in `groups`, each as "8,64,512,4096": as many calls, and each size as many times the one before, so that
# one bench does them all. Small and large vectors are apart in any case, as other algorithms win there.
make_groups() {
    local vector group=() factor=0 many last=0 same
    groups=()
    for vector in "${vectors[@]}"; do
        many=$(calls_for "$vector" 1)
        same=
        if [[ ${#group[@]} -gt 0 && $many -eq $(calls_for "$last" 1) && $((last <= 4096)) -eq $((vector <= 4096)) &&
            $vector -gt $last && $((vector % last)) -eq 0 ]]; then
            if [[ ${#group[@]} -eq 1 || $((vector / last)) -eq $factor ]]; then
                same=yes
            fi
        fi
        if [[ $same ]]; then
            factor=$((vector / last))
        else
            [[ ${#group[@]} -eq 0 ]] || groups+=("$(IFS=,; echo "${group[*]}")")
            group=()
        fi
        group+=("$vector")
        last=$vector
    done
    groups+=("$(IFS=,; echo "${group[*]}")")
}

# ---- runs ----

# Of ours, at vectors of BYTES on WORKERS, in `algorithms`: those that can win; auto is what nobody has to choose.
set_algorithms() {
    algorithms=(--allreduce=all-pairs --allreduce=ring --allreduce=auto)
    if [[ $1 -le 4096 ]]; then
        algorithms=(--allreduce=recursive-doubling --allreduce=one-shot --allreduce=all-pairs --allreduce=auto)
    elif [[ $(($2 & ($2 - 1))) -eq 0 ]]; then
        algorithms+=(--allreduce=recursive-halving-doubling)
    else
        algorithms+=(--allreduce=circulant)
    fi
}

# The command of a system on a network, in `command`: SYSTEM NETWORK WORKERS SIZES CALLS WARMUP.
set_command() {
    local begin=${4%%,*} end=${4##*,} rest=${4#*,} factor='' open_mpi=(mpiexec.openmpi --oversubscribe) mpich=(mpiexec.mpich)
    local arguments=("$1" "$4" "$5" "$6" "$seconds_most" "$in_place")
    if [[ $(id -u) -eq 0 ]]; then
        open_mpi+=(--allow-run-as-root)
    fi
    if [[ $2 == tcp ]]; then
        open_mpi+=(--mca pml ob1 --mca btl "tcp,self" --mca btl_tcp_if_include lo)
        mpich=(env "UCX_TLS=tcp,self" UCX_NET_DEVICES=lo mpiexec.mpich)
    fi
    if [[ $begin -ne $end ]]; then
        factor=:x$((${rest%%,*} / begin))
    fi
    case $1 in
    openmpi) command=("${open_mpi[@]}" -n "$3" "$build/mpi_allreduce.openmpi" "${arguments[@]}") ;;
    mpich) command=("${mpich[@]}" -n "$3" "$build/mpi_allreduce.mpich" "${arguments[@]}") ;;
    gloo) command=("$python" "$peers/torch_allreduce.py" --workers="$3" --sizes="$4" --calls="$5" --warmup="$6"
                   --seconds="$seconds_most") ;;
    chorale)
        set_algorithms "$begin" "$3"
        command=("$program" bench --transport="$2" --workers="$3" --iters="$5" --warmup="$6" --in-place="$in_place"
                 --check --format=csv --sizes="$begin..$end$factor" "${algorithms[@]}")
        ;;
    esac
}

version_of() {
    case $1 in
    openmpi) echo "Open MPI $openmpi_version" ;;
    mpich) echo "MPICH $mpich_version" ;;
    gloo) echo "Gloo of PyTorch $torch_version" ;;
    *) echo "chorale $commit, libfabric $fabric_version" ;;
    esac
}

failures=0

# One system at one group of sizes; its rows go to the results, a failure is a row, too: ROUND SYSTEM NETWORK WORKERS SIZES.
measure() {
    local busy code=0 number warmup
    busy=$(load)
    number=$(calls_for "${5%%,*}" "$4")
    warmup=$((number / 10 > 2 ? number / 10 : 2))
    set_command "$2" "$3" "$4" "$5" "$number" "$warmup"
    printf '+ %s\n' "${command[*]}" >>"$log"
    timeout --foreground --kill-after=10 "$limit" "${command[@]}" >"$build/rows.csv" 2>>"$log" </dev/null || code=$?
    "$python" "$peers/table.py" add --to="$rows" --from="$build/rows.csv" --exit="$code" --sizes="$5" \
        started="$started" round="$1" system="$2" network="$3" workers="$4" cores="$cores" calls="$number" \
        version="$(version_of "$2")" machine="$machine" load="$busy" || code=1
    if [[ $code -ne 0 ]]; then
        failures=$((failures + 1))
        say "$2, $3, $4 workers, $5 bytes: exit code $code: see the end of $log"
    fi
}

warn_when_busy
make_groups
systems=("openmpi shm" "mpich shm" "chorale shm" "openmpi tcp" "mpich tcp" "gloo tcp" "chorale tcp")
for ((round = 1; round <= rounds; round++)); do
    for count in ${workers//,/ }; do
        say "round $round of $rounds, $count workers"
        for group in "${groups[@]}"; do
            for ((k = 0; k < ${#systems[@]}; k++)); do
                read -r system network <<<"${systems[(k + round - 1) % ${#systems[@]}]}"
                # It waits actively there, for tenths of a second in each call, and may hang in MPI_Finalize.
                [[ "$system $network" != "mpich tcp" || $count -le $cores ]] || continue
                measure "$round" "$system" "$network" "$count" "$group"
            done
        done
    done
done

"$python" "$peers/table.py" allreduce "$rows" --causes="$peers/causes.csv" >"$results/table.md" ||
    failures=$((failures > 0 ? failures : 1))
cat "$results/table.md"
say "every row: $rows, the table: $results/table.md"
[[ $failures -eq 0 ]] || die "$failures runs failed or had wrong elements: see $log"
