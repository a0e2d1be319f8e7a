#!/usr/bin/env bash
# slurm.sh - a Slurm of one node, set up for this run alone, and chorale under its srun: through PMIx, through PMI-1 on its
# plug-in pmi2, and by SLURM_* alone; the same training as under chorale's own launcher, the death of a worker, and a batch
# script that starts nothing. Then, where experiments/hosts.sh can make hosts, a Slurm of four nodes with two tasks on each.
#
#   tests/slurm.sh [PROGRAM]        default build/release/chorale
#
# Needs root and Debian's slurm-wlm and munge, which experiments/setup.sh does not install: exit 77 says what is missing.
# Everything lies in a fresh folder; what was started is ended by its number.
set -uo pipefail

skip() {
    printf 'slurm.sh: skipped: %s\n' "$1"
    exit 77
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$(realpath "${1:-$root/build/release/chorale}")
[[ -x $program ]] || skip "no program $program: give its path"
[[ $(id -u) -eq 0 ]] || skip "not root: Slurm's and MUNGE's daemons want to be started by root"
for command in slurmctld slurmd srun munged mungekey; do
    command -v "$command" >/dev/null || [[ -x /usr/sbin/$command ]] || skip "no $command: apt-get install slurm-wlm munge"
done
PATH=$PATH:/usr/sbin
pgrep -x slurmctld >/dev/null && skip "a slurmctld runs here already"

folder=$(mktemp -d /tmp/chorale-slurm.XXXXXX) || exit 1
chmod 755 "$folder"
started=()
hosts=$root/experiments/hosts.sh
set_name=slurm-$$
end_daemons() {
    local pid
    for pid in "${started[@]}"; do
        kill "$pid" 2>/dev/null
    done
    for pid in "${started[@]}"; do
        wait "$pid" 2>/dev/null
    done
    started=()
}
finish() {
    end_daemons
    "$hosts" down --set="$set_name" 2>/dev/null
    rm -rf "$folder"
}
trap finish EXIT

passed=0 failed=0
check() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        printf 'ok: %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAILED: %s\n' "$name"
        tail -n 20 "$folder"/*.log "$folder"/out 2>/dev/null
    fi
}

# ---- the daemons ----

free_port() {
    /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start_munge() {
    local user=root
    id munge >/dev/null 2>&1 && user=munge
    install -d -o "$user" -m 0711 "$folder/munge"
    runuser -u "$user" -- mungekey --create --keyfile="$folder/munge/key" || return 1
    runuser -u "$user" -- munged --foreground --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" --force \
        >"$folder/munged.log" 2>&1 &
    started+=($!)
    await test -S "$folder/munge/socket"
}

await() {
    local i
    for ((i = 0; i < 300; i++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.1
    done
    return 1
}

# Unused ports and folders of its own; more tasks than cores are let in, since each waits most of the time.
#
#   configure NAME ADDRESS "LINES for the nodes" "their NAMES"     NAME and ADDRESS: of the host that slurmctld runs on
configure() {
    mkdir -p "$folder"/{state,spool,tmp}
    rm -rf "$folder"/state/*
    cat >"$folder/slurm.conf" <<CONF
ClusterName=chorale
SlurmctldHost=$1($2)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
ReturnToService=2
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
TmpFS=$folder/tmp/%n
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SwitchType=switch/none
SlurmdParameters=config_overrides
$3
PartitionName=all Nodes=$4 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
CONF
    export SLURM_CONF=$folder/slurm.conf
}

is_up() {
    sinfo -h -o %T | grep -q idle
}

start_slurm() {
    local name
    name=$(hostname -s)
    mkdir -p "$folder/spool/$name" "$folder/tmp/$name"
    configure "$name" 127.0.0.1 "NodeName=$name NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN" "$name"
    slurmctld -D >"$folder/slurmctld.out.log" 2>&1 &
    started+=($!)
    slurmd -D >"$folder/slurmd.out.log" 2>&1 &
    started+=($!)
    await is_up
}

start_munge || skip "munged does not start: $(tail -n 1 "$folder/munged.log")"
start_slurm || skip "slurmctld or slurmd does not start: $(tail -qn 1 "$folder"/slurm*.log | tail -n 1)"
printf 'Slurm %s is up\n' "$(srun --version)"

# ---- the tests ----

cd "$folder" || exit 1
export IPATH_NO_BACKTRACE=1
train=(train --allreduce=ring --model=cnn --image-size=28 --batch=8 --threads=1 --eval=never --deadline=20)

# Losses and hashes of the run in a folder.
result() {
    /usr/bin/python3 - "$1/summary.json" <<'PYTHON'
import json, sys
run = json.load(open(sys.argv[1]))
print([run[key] for key in ("workers", "loss_first", "loss_last", "parameter_hash")])
PYTHON
}

# step NAME WORDS...: srun with a limit of its own: it waits for ever for nodes that are gone.
step() {
    timeout -k 5 120 srun --overcommit "$@" >out 2>&1
}

same() {
    step --mpi="$1" -n 2 "$program" "${train[@]}" --steps=3 --out="run-$1" && [[ $(result "run-$1") == "$ours" ]]
}

counts() {
    local n
    for n in 1 3 5 7; do
        step --mpi="$1" -n "$n" "$program" bench --allreduce=ring --sizes=1000..1000 --iters=1 -w 0 --check --deadline=60 || return 1
    done
}

# The worker with this rank: below slurmd, not below srun.
find_worker() {
    local pid
    for pid in $(pgrep -x chorale); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF "SLURM_PROCID=$2" || continue
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qxF "CHORALE_TEST_RUN=$1" && echo "$pid"
    done
}

all_gone() {
    local rank
    for rank in 0 1 2; do
        [[ -z $(find_worker "$1" "$rank") ]] || return 1
    done
}

has_begun() {
    grep -q step "$1/metrics.jsonl"
}

# A killed worker: it is named, and all are gone before the deadline would have ended them.
death() {
    local mpi=$1 victim=$2 run=$$-$1-$2 srun pid began code
    CHORALE_TEST_RUN=$run timeout -k 5 120 srun --overcommit --mpi="$mpi" -n 3 "$program" "${train[@]}" --steps=1000000 \
        --out="death-$mpi-$victim" >out 2>&1 &
    srun=$!
    await has_begun "death-$mpi-$victim" || return 1
    pid=$(find_worker "$run" "$victim")
    began=$(date +%s%N)
    kill -9 "$pid" || return 1
    await all_gone "$run" || return 1
    local ms=$((($(date +%s%N) - began) / 1000000))
    wait "$srun"
    code=$?
    printf '%s: rank %d killed: gone after %d ms, srun ends with %d\n' "$mpi" "$victim" "$ms" "$code"
    [[ $ms -le 15000 && $code -ne 0 ]] && grep -q "chorale: rank $victim on " out
}

# A batch script's own shell is no task.
alone() {
    timeout -k 5 60 sbatch --wait -n 2 --overcommit -o "$folder/batch" --wrap "'$program' ${train[*]} --steps=1 --out=alone" >out 2>&1
    grep -q 'SLURM_NTASKS=2 is set' "$folder/batch" && [[ ! -e alone ]]
}

"$program" "${train[@]}" --steps=3 --out=ours -n 2 >out 2>&1
check "under chorale itself" test $? -eq 0
ours=$(result ours)
for mpi in pmix pmi2 none; do
    if [[ $mpi == pmix && ! -r $(dirname "$program")/chorale-bootstrap-pmix.so ]]; then
        printf 'skipped: pmix: no module (Debian: libpmix-dev)\n'
        continue
    fi
    check "$mpi: the same training" same "$mpi"
    check "$mpi: 1, 3, 5 and 7 workers" counts "$mpi"
    for victim in 0 2; do
        check "$mpi: rank $victim killed" death "$mpi" "$victim"
    done
done
check "a batch script that starts no tasks is told so" alone

# ---- four nodes ----

# One slurmd in each host's namespaces; slurmctld and srun on the first. A daemon's own folders keep them apart on the files
# that all share.
start_nodes() {
    local n
    "$hosts" up 4 --set="$set_name" >out 2>&1 || return 1
    for n in 1 2 3 4; do
        mkdir -p "$folder/spool/h$n" "$folder/tmp/h$n"
    done
    configure h1 10.77.0.1 "$(printf 'NodeName=h%d NodeHostname=h%d NodeAddr=10.77.0.%d CPUs=4 State=UNKNOWN\n' \
        1 1 1 2 2 2 3 3 3 4 4 4)" 'h[1-4]'
    "$hosts" exec 1 --set="$set_name" -- slurmctld -D >"$folder/slurmctld4.out.log" 2>&1 &
    started+=($!)
    for n in 1 2 3 4; do
        "$hosts" exec "$n" --set="$set_name" -- slurmd -D -N "h$n" >"$folder/slurmd-h$n.out.log" 2>&1 &
        started+=($!)
    done
    await nodes_up
}

nodes_up() {
    [[ $("$hosts" exec 1 --set="$set_name" -- sinfo -h -t idle -o %D) == 4 ]]
}

over_nodes() {
    CHORALE_JOB_TOKEN=$token timeout -k 5 120 "$hosts" exec 1 --set="$set_name" -- \
        srun -N4 --ntasks-per-node=2 --overcommit --mpi="$1" "$program" "${@:2}" >out 2>&1
}

same_over_nodes() {
    over_nodes "$1" "${train[@]}" --bind=none --steps=3 --out="nodes-$1" && [[ $(result "nodes-$1") == "$ours" ]] &&
        grep -q '"nodes": *"4x2"' "nodes-$1/summary.json" && grep -q '"transport": *"shm+tcp"' "nodes-$1/summary.json"
}

if [[ -r $(dirname "$program")/chorale-bootstrap-pmix.so ]]; then
    methods=(pmix pmi2 none)
else
    methods=(pmi2 none)
fi
kill "${started[@]:1}" 2>/dev/null # munged stays
wait "${started[@]:1}" 2>/dev/null
started=("${started[0]}")
if start_nodes; then
    printf 'four nodes are up\n'
    token=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
    "$program" "${train[@]}" --bind=none --steps=3 --out=ours8 -n 8 >out 2>&1
    check "8 workers under chorale itself" test $? -eq 0
    ours=$(result ours8)
    for mpi in "${methods[@]}"; do
        check "$mpi: the same training over four nodes" same_over_nodes "$mpi"
    done
else
    printf 'skipped: four nodes: %s\n' "$(tail -qn 1 out "$folder"/slurm*.log | tail -n 1)"
fi

printf '%d passed, %d failed\n' "$passed" "$failed"
[[ $failed -eq 0 ]]
