#!/usr/bin/env bash
# kills.sh - workers killed (kill -9) and stopped (SIGSTOP) at random moments of every exact algorithm: nothing hangs, all of
# the job goes, the culprit is named in one line, nothing stays in /dev/shm. Prints a table.
#
#   tests/kills.sh CHORALE [--kills=1] [--stops=0] [--seed=N] [ALGORITHM...]
#
#   --kills=N    of each algorithm; all of the job shall be gone after 2 s
#   --stops=N    the same with SIGSTOP and --deadline=1: gone 2 s after the deadline, which begins when others wait for it
#   ALGORITHM    only these; by default every exact one
#
# The long run is --kills=30 --stops=5. Of 30 kills of an algorithm one may go unnamed (of fewer: none). A machine that stands
# still for a while makes some late: of all in a run half may be, and none may hang. Exit 0 when all is as it should be, else 1.
set -euo pipefail

# Microseconds: to be gone, --deadline, what the others may take to come to where they wait, and when it is called a hang.
LIMIT=2000000 DEADLINE=1000000 STARTING=5000000 PATIENCE=60000000
WORKERS=4
kills=1 stops=0 seed=$RANDOM
algorithms=()
chorale=$(realpath "${1:?usage: kills.sh CHORALE [--kills=N] [--stops=N] [--seed=N] [ALGORITHM...]}")
shift
for argument in "$@"; do
    case $argument in
    --kills=*) kills=${argument#*=} ;;
    --stops=*) stops=${argument#*=} ;;
    --seed=*) seed=${argument#*=} ;;
    -*)
        printf 'kills.sh: %s: unknown\n' "$argument" >&2
        exit 2
        ;;
    *) algorithms+=("$argument") ;;
    esac
done
RANDOM=$seed
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/never"
exec 9<>"$folder/never"
if [[ ${#algorithms[@]} -eq 0 ]]; then
    mapfile -t algorithms < <("$chorale" list --json | /usr/bin/python3 -c '
import json, sys
for a in json.load(sys.stdin)["algorithms"]:
    if a["kind"] == "schedule" and a["exact"] and "needs-file" not in a["traits"]:
        print(a["name"])')
fi

now() { # into the variable that is named: microseconds
    local -n result=$1
    result=${EPOCHREALTIME/[^0-9]/}
}

pause() { # seconds; without starting a process
    read -rt "$1" -u 9 || true
}

is_alive() {
    local line
    { read -r line </proc/"$1"/stat; } 2>/dev/null || return 1
    line=${line##*) }
    [[ ${line:0:1} != [ZX] ]]
}

# The workers' numbers by rank, into pids.
find_workers() {
    local launcher=$1 begin at child variable found list
    now begin
    while is_alive "$launcher"; do
        found=0
        list=
        { read -r list </proc/"$launcher"/task/"$launcher"/children; } 2>/dev/null || true
        for child in $list; do
            while IFS= read -rd '' variable; do
                if [[ $variable == RANK=* ]]; then
                    pids[${variable#RANK=}]=$child
                    found=$((found + 1))
                fi
            done 2>/dev/null </proc/"$child"/environ || true
        done
        [[ $found -lt $WORKERS ]] || return 0
        now at
        [[ $((at - begin)) -lt $PATIENCE ]] || return 1
        pause 0.002
    done
    return 1
}

# One worker of one job: signal, algorithm. Counts into hangs, late, unnamed, left; the longest into longest.
trial() {
    local signal=$1 algorithm=$2 transport=shm launcher victim begin at pid lives limit=$LIMIT words code=0
    local -a pids=()
    [[ $((RANDOM % 2)) -eq 0 && $(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1) -ge $((24 * WORKERS)) ]] || transport=tcp
    [[ $signal != STOP ]] || limit=$((LIMIT + DEADLINE + STARTING))
    words="--deadline=$([[ $signal == STOP ]] && echo 1 || echo 200)"
    "$chorale" bench --allreduce="$algorithm" -n $WORKERS --transport=$transport -b 8 -e 1M --iters=100000000 -w 0 "$words" \
        >"$folder/out" 2>"$folder/err" &
    launcher=$!
    if ! find_workers $launcher; then
        printf 'kills: %s over %s has not begun: %s\n' "$algorithm" $transport "$(cat "$folder/err")"
        hangs=$((hangs + 1))
        kill -9 $launcher 2>/dev/null || true
        return
    fi
    pause "0.$(printf %03d $((RANDOM % 600)))" # joining, opening, or in the middle of it
    victim=$((RANDOM % WORKERS))
    now begin
    kill -"$signal" "${pids[victim]}"
    for ((lives = 1; lives > 0; )); do
        lives=0
        for pid in "${pids[@]}" $launcher; do
            ! is_alive "$pid" || lives=1
        done
        now at
        [[ $((at - begin)) -lt $PATIENCE ]] || break
        [[ $lives -eq 0 ]] || pause 0.002
    done
    if [[ $((at - begin)) -ge $PATIENCE ]]; then
        hangs=$((hangs + 1))
        printf 'kills: %s over %s: rank %d, %s: hangs\n' "$algorithm" $transport "$victim" "$signal"
        kill -9 "${pids[@]}" $launcher 2>/dev/null || true
    elif [[ $((at - begin)) -gt $limit ]]; then
        late=$((late + 1))
        printf 'kills: %s over %s: rank %d, %s: gone after %d us: %s\n' "$algorithm" $transport "$victim" "$signal" $((at - begin)) \
            "$(cat "$folder/err")"
    fi
    wait $launcher 2>/dev/null || code=$?
    [[ $((at - begin)) -le $longest ]] || longest=$((at - begin))
    if ! is_named $signal "$victim" || [[ $code -ne 1 || $(wc -l <"$folder/err") -ne 1 ]]; then
        unnamed=$((unnamed + 1))
        printf 'kills: %s over %s: rank %d, %s: exit %d: %s\n' "$algorithm" $transport "$victim" "$signal" $code "$(cat "$folder/err")"
    fi
    for pid in "${pids[@]}"; do
        [[ -z $(compgen -G "/dev/shm/$pid:*") ]] || left=$((left + 1))
    done
}

is_named() {
    if [[ $1 == KILL ]]; then
        grep -q "^chorale: rank $2 on [^:]*: killed by signal 9 (SIGKILL)" "$folder/err"
    else
        grep -Eq "^chorale: .*rank $2( |:|,).*(stopped|not joined|not at|answer)" "$folder/err"
    fi
}

# row ALGORITHM SIGNAL COUNT
row() {
    local hangs=0 late=0 unnamed=0 left=0 longest=0 i verdict=ok
    [[ $3 -gt 0 ]] || return 0
    for ((i = 0; i < $3; i++)); do trial "$2" "$1"; done
    [[ $hangs -eq 0 && $left -eq 0 && $unnamed -le $(($3 / 30)) ]] || verdict=WRONG
    [[ $verdict == ok ]] || wrong=$((wrong + 1))
    checks=$((checks + $3)) all_late=$((all_late + late))
    printf '| %-27s | SIG%s | %3d | %2d | %2d | %2d | %2d | %7.3f | %s |\n' "$1" "$2" "$3" $hangs $late $unnamed $left \
        "$((longest / 1000))e-3" $verdict
}

wrong=0 checks=0 all_late=0
printf 'kills: seed %d\n' "$seed"
printf '| algorithm | signal | times | hangs | late | unnamed | left in /dev/shm | longest, s | |\n|---|---|---:|---:|---:|---:|---:|---:|---|\n'
for algorithm in "${algorithms[@]}"; do
    row "$algorithm" KILL "$kills"
    row "$algorithm" STOP "$stops"
done
printf '%d checks\n' $checks
[[ $wrong -eq 0 && $((2 * all_late)) -le $checks ]]
