#!/usr/bin/env bash
# soak.sh - collectives back to back, drawn at random and checked (tests/comm/worker_soak.c), over shared memory and tcp; and
# the same under a signal each millisecond that interrupts every system call.
#
#   tests/soak.sh BUILD [--count=300] [--workers=4] [--seed=N]
#
# BUILD is the build folder. The long run is --count=20000. Exit 0 when all is well, else 1.
set -euo pipefail

build=$(realpath "${1:?usage: soak.sh BUILD [--count=N] [--workers=N] [--seed=N]}")
shift
count=300 workers=4 seed=$RANDOM
for argument in "$@"; do
    case $argument in
    --count=*) count=${argument#*=} ;;
    --workers=*) workers=${argument#*=} ;;
    --seed=*) seed=${argument#*=} ;;
    *)
        printf 'soak.sh: %s: unknown\n' "$argument" >&2
        exit 2
        ;;
    esac
done
wrong=0 checks=0

soak() { # words for the worker
    if [[ $1 == shm && $(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1) -lt $((24 * workers)) ]]; then
        printf 'soak: /dev/shm has no room for %d workers: not over shm\n' "$workers"
        return
    fi
    checks=$((checks + 1))
    "$build/chorale" run -n "$workers" -- "$build/tests/comm_worker_soak" "$@" || wrong=$((wrong + 1))
}

printf 'soak: seed %d\n' "$seed"
soak shm "$count" "$seed"
soak tcp "$count" "$seed"
soak shm $((count / 5)) "$seed" storm
soak tcp $((count / 5)) "$seed" storm
printf '%d checks\n' $checks
[[ $wrong -eq 0 ]]
