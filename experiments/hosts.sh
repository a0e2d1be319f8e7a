#!/usr/bin/env bash
# hosts.sh - several hosts on this machine: each a network namespace with a name, addresses and a /dev/shm of its own, joined
# by a switch over links that may be slow. What runs on one cannot tell it from a machine, but for the cores, files and
# process numbers that all share.
#
#   experiments/hosts.sh up N [--rate=1gbit] [--mtu=1500] [--workers=...] [--set=NAME]    hosts h1 .. hN, 10.77.0.1 .. N
#   experiments/hosts.sh run [--workers=2,1,1,2] [--label] [--set=NAME] -- COMMAND ...     COMMAND as workers on them
#   experiments/hosts.sh exec HOST [--set=NAME] -- COMMAND ...                             COMMAND once, on the HOSTth
#   experiments/hosts.sh down [--set=NAME]                                                 ends all that runs there, leaves nothing
#
#   --rate=1gbit     what each host sends at most (as tc writes it; a token bucket of 128 KB); default: no limit
#   --mtu=1500       of the links
#   --workers=2,1,2  workers on each host, or one number for all (default 1); 0: none on this one
#   --label          put [rank] before each line that a worker writes
#   --set=NAME       several sets may be up at once (default: hosts)
#
# Workers get RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and CHORALE_JOB_TOKEN; ranks go from host
# to host. `run` passes SIGINT, SIGTERM and SIGHUP on, ends all others when one fails (they have five seconds to end by
# themselves), and returns the code of the first that failed, or 130, 143, 129 after a signal. Even when it is killed they end.
#
# Needs root, ip, tc and namespaces: exit 77 says what is missing. Else 1: failed, 2: wrong usage.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin

set_name=hosts
workers=
rate=
mtu=1500
label=false
folder=

die() {
    printf 'hosts.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

usage() {
    die "$1: see experiments/hosts.sh --help" 2
}

# ---- a set ----

space() {
    printf 'chorale-%s-h%d' "$set_name" "$1"
}

switch() {
    printf 'chorale-%s-switch' "$set_name"
}

# on HOST COMMAND...: there, in this folder; may be used after exec.
enter=()
on() {
    enter=(nsenter "--net=/run/netns/$(space "$1")" "--uts=$folder/h$1.uts" "--mount=$folder/h$1.mnt" "--wdns=$PWD")
}

need_system() {
    local command missing=()
    [[ $(id -u) -eq 0 ]] || die "not root: network namespaces and links are root's to make" 77
    for command in ip tc ss nsenter unshare setpriv mount; do
        command -v "$command" >/dev/null || missing+=("$command")
    done
    [[ ${#missing[@]} -eq 0 ]] || die "no ${missing[*]}: apt-get install iproute2 util-linux" 77
}

need_set() {
    [[ -r $folder/hosts ]] || die "no hosts are up${set_name:+ as set $set_name}: experiments/hosts.sh up N"
    read -r hosts layout <"$folder/hosts"
}

# Sets the array `count` by host.
read_layout() {
    local text=$1 n
    [[ $text =~ ^[0-9]{1,4}(,[0-9]{1,4})*$ ]] || usage "--workers=$text: takes numbers, as in --workers=2,1,2"
    IFS=, read -ra count <<<"$text"
    if [[ ${#count[@]} -eq 1 ]]; then
        for ((n = 1; n < hosts; n++)); do
            count[n]=${count[0]}
        done
    fi
    [[ ${#count[@]} -eq $hosts ]] || usage "--workers=$text: ${#count[@]} numbers for $hosts hosts"
    for ((n = 0; n < hosts; n++)); do
        count[n]=$((10#${count[n]})) # 08 is no octal number
    done
}

# ---- up ----

make_space() {
    echo "$1" >>"$folder/made" # first: we may be ended right after the other
    ip netns add "$1" 2>"$folder/error" || die "network namespace $1: $(<"$folder/error")" 77
}

# A host's own name, /dev/shm and /etc/hosts, held by files so that no process need stay.
make_host() {
    local n=$1 name
    name=$(space "$n")
    make_space "$name"
    ip -n "$name" link set lo up &&
        ip link add eth0 mtu "$mtu" netns "$name" type veth peer name "h$n" netns "$(switch)" &&
        ip -n "$(switch)" link set "h$n" mtu "$mtu" master switch up &&
        ip -n "$name" address add "10.77.0.$n/24" dev eth0 &&
        ip -n "$name" link set eth0 up || return 1
    if [[ -n $rate ]]; then
        ip netns exec "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst 128kb latency 50ms || return 1
    fi
    : >"$folder/h$n.uts"
    : >"$folder/h$n.mnt"
    # shellcheck disable=SC2016 # for the other shell
    unshare "--uts=$folder/h$n.uts" "--mount=$folder/h$n.mnt" bash -c \
        'hostname "$1" && mount -t tmpfs -o size=50%,mode=1777 chorale /dev/shm && mount --bind "$2" /etc/hosts' \
        bash "h$n" "$folder/names"
}

write_names() {
    local n
    printf '127.0.0.1 localhost\n::1 localhost\n'
    for ((n = 1; n <= hosts; n++)); do
        printf '10.77.0.%d h%d\n' "$n" "$n"
    done
}

up() {
    local n
    need_system
    [[ $hosts =~ ^[1-9][0-9]{0,2}$ && $hosts -le 250 ]] || usage "up $hosts: takes a number of hosts, 1 to 250"
    read_layout "${workers:-1}"
    mkdir -p "${folder%/*}" && mkdir "$folder" 2>/dev/null ||
        die "set $set_name is up already: experiments/hosts.sh down --set=$set_name"
    trap 'take_down >/dev/null 2>&1' EXIT
    trap 'exit 130' INT # once the command that runs has ended: what it makes is taken down, too
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    mount --bind "$folder" "$folder" && mount --make-private "$folder" || die "mount: no namespaces to be had" 77
    write_names >"$folder/names"
    make_space "$(switch)"
    ip -n "$(switch)" link add switch mtu "$mtu" type bridge && ip -n "$(switch)" link set switch up ||
        die "no bridge to be had (kernel module bridge)" 77
    for ((n = 1; n <= hosts; n++)); do
        make_host "$n" 2>"$folder/error" || die "host h$n: $(tail -n 1 "$folder/error")" 77
    done
    printf '%s %s\n' "$hosts" "${workers:-1}" >"$folder/hosts"
    trap - EXIT INT TERM HUP
}

# ---- down ----

occupants() {
    local name
    while read -r name; do
        ip netns pids "$name"
    done <"$folder/made"
}

# Whatever runs in the set's namespaces ends: politely, then at once.
empty_set() {
    local signal pid i
    for signal in TERM KILL; do
        for pid in $(occupants 2>/dev/null); do
            kill "-$signal" "$pid" 2>/dev/null
        done
        for ((i = 0; i < 20; i++)); do
            [[ -n $(occupants 2>/dev/null) ]] || return
            sleep 0.1
        done
    done
}

take_down() {
    local name file
    [[ -f $folder/made ]] && empty_set
    for file in "$folder"/h*.mnt "$folder"/h*.uts; do
        umount "$file" 2>/dev/null
    done
    while read -r name; do
        [[ ! -e /run/netns/$name ]] || ip netns delete "$name"
    done < <(cat "$folder/made" 2>/dev/null)
    umount -l "$folder" 2>/dev/null # what is interrupted has a file open there
    rm -rf "$folder"
    rmdir --ignore-fail-on-non-empty "${folder%/*}" 2>/dev/null
}

down() {
    need_system
    [[ -d $folder ]] || die "no hosts are up as set $set_name"
    take_down
}

# ---- run ----

pids=() ranks=() labels=()
code=0 stage=0 timer=

# A port that nobody on the first host listens on, below those that the kernel gives away.
free_port() {
    local port
    on 1
    while :; do
        port=$((10000 + (RANDOM * 32768 + RANDOM) % 20000))
        [[ -z $("${enter[@]}" ss -Hltn "sport = :$port") ]] && break
    done
    echo "$port"
}

start_worker() {
    local host=$1 rank=$2 local_rank=$3 out=1 err=2
    on "$host"
    if $label; then
        exec {out}> >(trap '' INT TERM HUP; exec sed -u "s/^/[$rank] /")
        labels+=($!)
        exec {err}> >(trap '' INT TERM HUP; exec sed -u "s/^/[$rank] /" >&2)
        labels+=($!)
    fi
    RANK=$rank WORLD_SIZE=$world LOCAL_RANK=$local_rank LOCAL_WORLD_SIZE=${count[host - 1]} MASTER_ADDR=10.77.0.$master \
        MASTER_PORT=$port CHORALE_JOB_TOKEN=$token IPATH_NO_BACKTRACE=1 \
        setpriv --pdeathsig=TERM "${enter[@]}" "${command[@]}" </dev/null >&"$out" 2>&"$err" &
    pids+=($!)
    ranks+=("$rank on h$host")
    if $label; then
        exec {out}>&- {err}>&-
    fi
}

signal_all() {
    local pid
    for pid in "${pids[@]}"; do
        kill "-$1" -- "-$pid" 2>/dev/null
    done
}

# It is over: who has not ended is told so, then killed.
hurry() {
    stage=$((stage + 1))
    case $stage in
    1) ;;
    2) signal_all TERM ;;
    *) signal_all KILL ;;
    esac
    sleep $((stage == 1 ? 5 : 1)) &
    timer=$!
}

interrupted() {
    if [[ $code -lt 128 ]]; then
        code=$2
        signal_all "$1"
        [[ $stage -eq 0 ]] || stage=1
    else
        stage=2
    fi
    hurry
}

# A worker has ended; what it leaves running in its group goes with it.
ended() {
    local i=$1 pid=${pids[$1]} result
    wait "$pid" 2>/dev/null
    result=$?
    kill -KILL -- "-$pid" 2>/dev/null
    if [[ $result -ne 0 && $code -eq 0 ]]; then
        printf 'hosts.sh: rank %s ended with %d\n' "${ranks[i]}" "$result" >&2
        code=$result
        hurry
    fi
    unset "pids[i]" "ranks[i]"
}

# Waits until something happens, then looks for whoever has ended: a signal may come between any two commands.
reap() {
    local i
    wait -n "${pids[@]}" ${timer:+"$timer"} 2>/dev/null
    for i in "${!pids[@]}"; do
        kill -0 "${pids[i]}" 2>/dev/null || ended "$i"
    done
    if [[ -n $timer ]] && ! kill -0 "$timer" 2>/dev/null; then
        hurry
    fi
}

run() {
    local host n rank=0 world=0 master=0 port token command=("$@")
    need_system
    need_set
    read_layout "${workers:-$layout}"
    for ((host = hosts; host >= 1; host--)); do
        world=$((world + count[host - 1]))
        [[ ${count[host - 1]} -eq 0 ]] || master=$host
    done
    [[ $world -gt 0 ]] || usage "--workers=$workers: no workers at all"
    port=$(free_port)
    token=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
    set -m # a process group for each worker
    trap 'interrupted INT 130' INT
    trap 'interrupted TERM 143' TERM
    trap 'interrupted HUP 129' HUP
    for ((host = 1; host <= hosts; host++)); do
        for ((n = 0; n < count[host - 1]; n++)); do
            start_worker "$host" "$rank" "$n"
            rank=$((rank + 1))
        done
    done
    while [[ ${#pids[@]} -gt 0 ]]; do
        reap
    done
    [[ -z $timer ]] || kill "$timer" 2>/dev/null
    [[ ${#labels[@]} -eq 0 ]] || wait "${labels[@]}"
    exit "$code"
}

execute() {
    local host=$1
    shift
    need_system
    need_set
    [[ $host =~ ^[1-9][0-9]*$ && $host -le $hosts ]] || usage "exec $host: takes a host's number, 1 to $hosts"
    on "$host"
    exec "${enter[@]}" "$@"
}

# ---- the words ----

action=${1:-}
[[ $# -gt 0 ]] && shift
hosts=
words=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --set=*) set_name=${1#*=} ;;
    --workers=*) workers=${1#*=} ;;
    --rate=*) rate=${1#*=} ;;
    --mtu=*) mtu=${1#*=} ;;
    --label) label=true ;;
    --)
        shift
        words=("$@")
        break
        ;;
    -*) usage "$1: unknown" ;;
    *)
        [[ -z $hosts ]] || usage "$1: a word too many"
        hosts=$1
        ;;
    esac
    shift
done
[[ $set_name =~ ^[A-Za-z0-9_-]{1,32}$ ]] || usage "--set=$set_name: takes letters, digits, - and _"
[[ $mtu =~ ^[1-9][0-9]{1,4}$ && $mtu -ge 68 && $mtu -le 65535 ]] || usage "--mtu=$mtu: takes a number of bytes, 68 to 65535"
[[ $rate =~ ^([1-9][0-9]*[kmgt]?bit)?$ ]] || usage "--rate=$rate: takes a rate as tc writes it, as in --rate=1gbit"
folder=/run/chorale-hosts/$set_name
case $action in
up) up ;;
down) down ;;
run | exec)
    [[ ${#words[@]} -gt 0 ]] || usage "$action: no command: write it after --"
    if [[ $action == run ]]; then
        [[ -z $hosts ]] || usage "$hosts: a word too many: run takes --workers="
        run "${words[@]}"
    fi
    execute "$hosts" "${words[@]}"
    ;;
--help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" ;;
*) usage "${action:-no action}: there are up, run, exec and down" ;;
esac
