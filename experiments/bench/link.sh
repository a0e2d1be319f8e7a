#!/usr/bin/env bash
# link.sh - how much of a slow link the ring gets: two hosts (experiments/hosts.sh) and a link of 1 Gbit/s between them, in turns
# a stream of plain sockets in both directions at once and allreduce by ring, 16 MiB a worker.
#
#   experiments/bench/link.sh [--rate=1gbit] [--mtu=1500] [--rounds=5] [--program=build/release/chorale] [OPTION OF bench ...]
#
# Prints MB/s in each direction: the stream (2 s, 1 MiB at a time), the ring's busbw, and both medians against the link's rate.
# A frame of 1514 bytes carries 1448 of payload, so 95.6 % of the rate is all that anybody can get.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
hosts=$root/experiments/hosts.sh
program=$root/build/release/chorale
rate=1gbit
mtu=1500
rounds=5
options=()
for argument in "$@"; do
    case $argument in
    --rate=*) rate=${argument#*=} ;;
    --mtu=*) mtu=${argument#*=} ;;
    --rounds=[1-9]*) rounds=${argument#*=} ;;
    --program=*) program=$(realpath "${argument#*=}") ;;
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    *) options+=("$argument") ;;
    esac
done

set_name=link-$$
"$hosts" up 2 --set="$set_name" --rate="$rate" --mtu="$mtu"
trap '"$hosts" down --set="$set_name"' EXIT

# Each worker sends to and receives from the other for 2 s; rank 0 prints what it has received in a second, in MB.
stream() {
    "$hosts" run --set="$set_name" -- /usr/bin/python3 -c '
import os, socket, threading, time
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server((os.environ["MASTER_ADDR"], port)) as server:
        link, _ = server.accept()
else:
    while True:
        try:
            link = socket.create_connection((os.environ["MASTER_ADDR"], port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
def send():
    piece, until = bytes(1 << 20), time.monotonic() + 2.2
    while time.monotonic() < until:
        link.sendall(piece)
    link.shutdown(socket.SHUT_WR)
sender = threading.Thread(target=send)
sender.start()
place, got, began, ended = bytearray(1 << 20), 0, None, None
while n := link.recv_into(place):
    now = time.monotonic()
    if began is None:
        start = began = now
    elif now - start >= 0.2:          # the bucket is empty by now
        if began == start:
            began, got = now, 0
            continue
        got, ended = got + n, now
sender.join()
if rank == 0:
    print(got / (ended - began) / 1e6)'
}

ring() {
    "$hosts" run --set="$set_name" -- "$program" bench --allreduce=ring --sizes=16M..16M --iters=8 -w 2 --in-place=only --json \
        "${options[@]}" | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["rows"][0]["busbw"] * 1e3)'
}

streams=() rings=()
for ((i = 1; i <= rounds; i++)); do
    streams+=("$(stream)")
    rings+=("$(ring)")
    printf 'round %d: stream %.1f MB/s, ring %.1f MB/s\n' "$i" "${streams[-1]}" "${rings[-1]}"
done
/usr/bin/python3 - "$rate" "${streams[*]}" "${rings[*]}" <<'PYTHON'
import re, statistics, sys
number, unit = re.fullmatch(r"([0-9.]+)([kmg]?)bit", sys.argv[1]).groups()
line = float(number) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[unit] / 8e6
for name, text in ("stream", sys.argv[2]), ("ring", sys.argv[3]):
    median = statistics.median(map(float, text.split()))
    print(f"{name}: median {median:.1f} MB/s, {100 * median / line:.1f} % of {line:g} MB/s")
PYTHON
