#!/usr/bin/env bash
# hosts.sh - jobs over several hosts, which experiments/hosts.sh makes of this machine: node memory within a host, tcp between
# them. Every exact schedule with its bytes, impairments, training, an interruption, a worker killed
# on another host, a link that goes down.
#
#   tests/hosts.sh [PROGRAM]        default build/release/chorale
#
# Needs root and what experiments/hosts.sh needs: exit 77 says what is missing.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$(realpath "${1:-$root/build/release/chorale}")
hosts=$root/experiments/hosts.sh
set_name=test-$$
folder=$(mktemp -d /tmp/chorale-hosts.XXXXXX) || exit 1
passed=0 failed=0

finish() {
    "$hosts" down --set="$set_name" 2>/dev/null
    rm -rf "$folder"
}

check() {
    local name=$1 began=$SECONDS
    shift
    if "$@"; then
        passed=$((passed + 1))
        printf 'ok: %s (%d s)\n' "$name" $((SECONDS - began))
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$name"
        tail -n 20 "$folder/out" 2>/dev/null
    fi
}

cd "$folder" || exit 1
"$hosts" up 4 --set="$set_name" --workers=1,2,2,1 2>up
case $? in
0) trap finish EXIT ;;
77)
    rm -rf "$folder"
    printf 'hosts.sh: skipped: %s\n' "$(sed 's/^hosts.sh: //' up)"
    exit 77
    ;;
*)
    cat up
    exit 1
    ;;
esac

# A job of six with a limit of its own; `out` holds what it said.
job() {
    timeout -k 5 100 "$hosts" run --set="$set_name" -- "$program" "$@" >out 2>&1
}

# Refused as wrong usage, not skipped as if the machine could not; and 010 is ten.
wrong_words() {
    local words
    for words in --rate=fast --rate=0bit --mtu=67 --mtu=65536; do
        "$hosts" up 1 --set="$set_name-wrong" "$words" 2>out
        [[ $? -eq 2 ]] && grep -q -e "$words" out || return 1
    done
    "$hosts" run 3 --set="$set_name" -- true 2>out
    [[ $? -eq 2 ]] || return 1
    # shellcheck disable=SC2016 # for the other shell
    "$hosts" run --set="$set_name" --workers=010,08,0,0 -- sh -c 'echo "of $WORLD_SIZE"' >out 2>&1 &&
        [[ $(grep -c -x 'of 18' out) -eq 18 ]]
}

# Bench compares what was sent with the schedule, and fails where it differs.
all_schedules() {
    job bench --allreduce=all --sizes=20..20 --iters=1 -w 0 --check --bind=none && grep -q 'node memory .*1+2+2+1' out &&
        job bench --allreduce=all --sizes=300000..300000 --iters=1 -w 0 --check --bind=none --segment=16K
}

hashes() {
    /usr/bin/python3 - "$1/summary.json" <<'PYTHON'
import json, sys
run = json.load(open(sys.argv[1]))
print(run["transport"], run["nodes"], len(run["parameter_hash"]), len(set(run["parameter_hash"])), run["parameter_hash"][0])
PYTHON
}

train=(train --model=cnn --image-size=28 --batch=8 --threads=1 --eval=never --bind=none)

# Nodes are the hosts by default; the same weights as on one host that pretends them.
training() {
    job "${train[@]}" --allreduce=hierarchical --steps=3 --out=over && [[ $(hashes over) == "shm+tcp 1+2+2+1 6 1 "* ]] || return 1
    "$program" "${train[@]}" -n 6 --nodes=1+2+2+1 --allreduce=hierarchical --steps=3 --out=one >out 2>&1 &&
        [[ $(hashes over | cut -d' ' -f5) == "$(hashes one | cut -d' ' -f5)" ]]
}

# has_begun FOLDER PROCESS: false when the process has ended before.
has_begun() {
    while [[ -d /proc/$2 ]]; do
        grep -q step "$1/metrics.jsonl" 2>/dev/null && return 0
        sleep 0.1
    done
    return 1
}

# The process of a rank, among those of its host.
worker() {
    local pid
    for pid in $(ip netns pids "chorale-$set_name-h$1"); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF "RANK=$2" && [[ $(<"/proc/$pid/comm") == chorale ]] && echo "$pid"
    done
}

# Rank 3 is on h3. It is named, and all are gone long before the deadline of 30 s (2 s, and what a crowded machine takes).
death() {
    local pid began run ms
    "$hosts" run --set="$set_name" -- "$program" "${train[@]}" --allreduce=ring --steps=1000000 --out=death >out 2>&1 &
    run=$!
    has_begun death "$run" || return 1
    pid=$(worker 3 3)
    began=$(date +%s%N)
    kill -9 "$pid" || return 1
    wait "$run" && return 1
    ms=$((($(date +%s%N) - began) / 1000000))
    printf 'rank 3 on h3 killed: gone after %d ms\n' "$ms"
    [[ $ms -le 20000 ]] && grep -q '^chorale: rank 3 on h3: ' out
}

# The link of h4, where rank 5 is, goes down: nothing says so but the silence. A deadline that has passed before six workers
# have begun on a crowded machine is followed by a longer one.
lost_link() {
    local began run ms code deadline
    for deadline in 3 12 48; do
        "$hosts" run --set="$set_name" -- "$program" "${train[@]}" --allreduce=ring --steps=1000000 --deadline=$deadline \
            --out=link$deadline >out 2>&1 &
        run=$!
        has_begun link$deadline "$run" && break
        wait "$run"
    done
    [[ -d /proc/$run ]] || return 1
    began=$(date +%s%N)
    "$hosts" exec 4 --set="$set_name" -- ip link set eth0 down
    wait "$run"
    code=$?
    ms=$((($(date +%s%N) - began) / 1000000))
    "$hosts" exec 4 --set="$set_name" -- ip link set eth0 up
    printf 'h4 cut off: ended after %d ms with %d\n' "$ms" "$code"
    tail -n 1 out
    [[ $code -ne 0 && $ms -le $((15000 + 1000 * deadline)) ]] && grep -q '^chorale: rank .*rank 5\|^chorale: rank 5 on h4' out
}

# Whose numbers are stored: rank 0 has no neighbours here. Nothing of what is impaired passes by.
impaired() {
    job bench --allreduce=ring --sizes=64K --iters=1 -w 0 --check --bind=none --inject=delay=1ms --format=json &&
        grep -q '"transport": "tcp"' out && grep -q 'switches node memory off' out
}

# A worker that puts things in order after a signal has two seconds for it. The signal is not ignored, as under nohup.
interruption() {
    local run i
    # shellcheck disable=SC2016 # for the other shell
    env --default-signal=HUP "$hosts" run --set="$set_name" -- bash -c \
        'trap "sleep 1; touch ended-$RANK; exit 0" HUP; touch up-$RANK; while :; do sleep 0.1; done' >out 2>&1 &
    run=$!
    for ((i = 0; i < 300; i++)); do
        [[ $(compgen -G 'up-*' | wc -l) -lt 6 ]] || break
        sleep 0.1
    done
    kill -HUP "$run"
    wait "$run"
    [[ $? -eq 129 && $(compgen -G 'ended-*' | wc -l) -eq 6 ]]
}

check "wrong words" wrong_words
check "an interruption" interruption
check "every exact schedule" all_schedules
check "impairments" impaired
check "training" training
check "a worker killed on another host" death
check "a link that goes down" lost_link

"$hosts" down --set="$set_name"
check "nothing is left" bash -c "! ip netns list | grep -q 'chorale-$set_name-' && [[ ! -e /run/chorale-hosts/$set_name ]]"
printf '%d passed, %d failed\n' "$passed" "$failed"
[[ $failed -eq 0 ]]
