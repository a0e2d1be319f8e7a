#!/usr/bin/env bash
# jobs.sh - short jobs in a row, some of them killed, interrupted twice, or two at once; workers that run out of memory. Nothing
# stays: no process, no file in /dev/shm, no temporary file; and the one line names who it was.
#
#   tests/jobs.sh CHORALE [--jobs=20]
#
# The long run is --jobs=500. Exit 0 when all is well, else 1.
set -euo pipefail

me=jobs
# shellcheck source=tests/expect.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/expect.sh"

chorale=$(realpath "${1:?usage: jobs.sh CHORALE [--jobs=N]}")
shift
jobs=20
for argument in "$@"; do
    case $argument in
    --jobs=*) jobs=${argument#*=} ;;
    *)
        printf 'jobs.sh: %s: unknown\n' "$argument" >&2
        exit 2
        ;;
    esac
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
mkdir tmp
export TMPDIR=$folder/tmp
export IPATH_NO_BACKTRACE=1 # libfabric's psm library turns a signal that comes while it is loaded, before main(), into exit code 1
short=(--sizes=8..64K:x64 --iters=3 -w 1 --check --format=csv)

# Numbers of processes are noted by the workers themselves: `sh` is one of them, and becomes the program.
worker="echo \$\$ >>$folder/pids; exec $chorale bench"

nothing_is_left() {
    local pid
    while read -r pid; do
        [[ ! -d /proc/$pid || $(awk '{print $3}' /proc/"$pid"/stat 2>/dev/null) == [ZX] ]] || return 1
        [[ -z $(compgen -G "/dev/shm/$pid:*") ]] || return 1
    done <pids
    [[ -z $(ls -A tmp) ]]
}

one_line() { # what it says
    [[ $(wc -l <err) -eq 1 ]] && grep -Eq "$1" err
}

# ---- in a row ----

ends_with() { # code, command...
    local wanted=$1 code=0
    shift
    "$@" >out 2>err || code=$?
    [[ $code -eq $wanted ]]
}

# SIGINT is ignored in what a script starts beside itself.
interrupted_twice() {
    local code=0
    "$chorale" run -n 3 -- sh -c "$worker --allreduce=ring -e 1M --iters=1000000" >out 2>err &
    local launcher=$!
    until [[ $(readlink /proc/$launcher/exe) == "$chorale" ]]; do sleep 0.01; done # till then it is a copy of this script
    sleep "0.$((RANDOM % 5))"
    kill -TERM $launcher 2>/dev/null || true
    sleep 0.05
    kill -TERM $launcher 2>/dev/null || true
    wait $launcher || code=$?
    [[ $code -eq 143 ]]
}

two_at_once() {
    local one=0 two=0
    "$chorale" run -n 2 -- sh -c "$worker ${short[*]}" >out 2>err &
    local first=$!
    "$chorale" run -n 3 -- sh -c "$worker --transport=tcp ${short[*]}" >out2 2>err2 || two=$?
    wait $first || one=$?
    [[ $one -eq 0 && $two -eq 0 && ! -s err && ! -s err2 ]]
}

for ((i = 0; i < jobs; i++)); do
    : >pids
    case $((i % 5)) in
    0) expect "a job over shm" ends_with 0 "$chorale" run -n 2 -- sh -c "$worker --transport=shm ${short[*]}" ;;
    1) expect "a job over tcp" ends_with 0 "$chorale" run -n 2 -- sh -c "$worker --transport=tcp ${short[*]}" ;;
    2)
        expect "a job whose worker is killed" ends_with 1 "$chorale" run -n 3 -- sh -c "$worker --inject=die=1@5 ${short[*]}"
        expect "it is named" one_line 'rank 1 on [^:]*: killed by signal 9'
        ;;
    3) expect "a job that is interrupted twice" interrupted_twice ;;
    4) expect "two jobs at once" two_at_once ;;
    esac
    expect "job $i has left something: $(cat pids | tr '\n' ' ')" nothing_is_left
done

# ---- out of memory ----

: >pids
expect "a worker without address space" ends_with 1 "$chorale" run -n 3 -- \
    sh -c "test \$RANK = 1 && ulimit -v 250000; $worker --allreduce=ring -b 64M -e 64M --iters=2 -w 0"
expect "it is named" one_line 'rank 1 on .*(memory|Cannot allocate)'
expect "it has left something" nothing_is_left

# A group with little memory: the kernel kills.
group=/sys/fs/cgroup/memory/chorale-test-$$
if mkdir "$group" 2>/dev/null && echo $((64 << 20)) >"$group/memory.limit_in_bytes" 2>/dev/null; then
    : >pids
    expect "a worker that the kernel kills" ends_with 1 "$chorale" run -n 3 -- \
        sh -c "test \$RANK = 1 && echo \$\$ >$group/cgroup.procs; $worker --allreduce=ring -b 64M -e 64M --iters=2 -w 0"
    expect "it is named" one_line 'rank 1 on [^:]*: killed by signal 9 \(SIGKILL\).*memory'
    expect "it has left something" nothing_is_left
else
    printf 'jobs: no group of little memory can be made here: that is not tested\n'
fi
rmdir "$group" 2>/dev/null || true
printf '%d checks\n' $checks
[[ $wrong -eq 0 ]]
