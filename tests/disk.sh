#!/usr/bin/env bash
# disk.sh - disks that are full, read-only or limited: checkpoints, packs, indices, metrics, summaries, traces and standard
# output. A run that can't keep what it should ends with one line that names the file and the reason; what was there before
# is whole, and nothing is half-written. The disk is a tmpfs in a mount namespace of its own.
#
#   tests/disk.sh CHORALE
#
# Exit 0 when all is well, 77 where no namespace may be made, else 1.
set -euo pipefail

me=disk
# shellcheck source=tests/expect.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/expect.sh"

chorale=$(realpath "${1:?usage: disk.sh CHORALE}")
if [[ ${2:-} != inside ]]; then
    if ! unshare -rm sh -c 'mount -t tmpfs none /mnt' 2>/dev/null; then
        printf 'disk: skipped: no mount namespace may be made here\n'
        exit 77
    fi
    exec unshare -rm "$0" "$chorale" inside
fi
folder=$(mktemp -d)
trap 'cd / && umount "$folder/disk" 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder"
export IPATH_NO_BACKTRACE=1
mkdir disk tmp
export TMPDIR=$folder/tmp

disk() { # size of a new one
    umount disk 2>/dev/null || true
    mount -t tmpfs -o "size=$1" none disk
}

# What is free is taken, but for so many KiB.
fill() {
    local free
    free=$(df --output=avail -k disk | tail -n 1)
    head -c $(((free - $1) * 1024)) /dev/zero >disk/ballast
}

# Exit code 1 and one line on stderr that names the file and the reason.
refused() { # file, reason, command...
    local file=$1 reason=$2 code=0
    shift 2
    "$@" >out 2>err || code=$?
    [[ $code -eq 1 && $(wc -l <err) -eq 1 ]] && grep -q "$file" err && grep -q "$reason" err
}

nothing_half() {
    [[ -z $(find disk -name '*.tmp*') && -z $(ls -A tmp) ]]
}

whole() { # a pack, a checkpoint
    "$chorale" data inspect "$1" >out 2>err
}

full='No space left on device'
train=("$chorale" train -n 1 --model=cnn --image-size=16 --batch=4 --data=synthetic --threads=1 --lr-schedule=constant)

# A CIFAR-100 of black images, and a tar file of images that can't be decoded.
mkdir set
head -c 122960 /dev/zero >set/train.bin
head -c 30740 /dev/zero >set/test.bin
mkdir shards
(
    cd shards
    for i in {1000..2999}; do
        printf x >"$i.jpg"
        printf 0 >"$i.cls"
    done
    printf '%s\n' * | tar -cf train.tar -T -
    rm -f ./*.jpg ./*.cls
)

# ---- full ----

disk 8m
expect 'a run has room for its checkpoints' "${train[@]}" --steps=2 --checkpoint=1 --out=disk/run >/dev/null
fill 200
expect 'a checkpoint for which there is no room ends the run' \
    refused 'disk/run/checkpoint-00000000[0-9]' "$full" "${train[@]}" --steps=4 --checkpoint=1 --out=disk/run --resume
expect 'the checkpoint before is whole' whole disk/run/checkpoint-000000002
expect 'nothing of the new one is left' nothing_half
rm disk/ballast
expect 'with room again, it goes on' "${train[@]}" --steps=4 --checkpoint=1 --out=disk/run --resume >/dev/null

disk 8m
expect 'a pack is made' "$chorale" data pack set --out=disk/set.pack >/dev/null
cp disk/set.pack before.pack
fill 64
expect 'a pack for which there is no room is refused' refused disk/set.pack "$full" "$chorale" data pack set --out=disk/set.pack
expect 'the pack before is whole' whole disk/set.pack
expect 'it is the same' cmp -s disk/set.pack before.pack
expect 'nothing of the new one is left' nothing_half

disk 8m
cp shards/train.tar disk
fill 4
expect 'an index for which there is no room is refused' refused disk/train.tar.index "$full" "$chorale" data index disk/train.tar
expect 'nothing of it is left' test ! -e disk/train.tar.index -a -z "$(find disk -name '*.tmp*')"
"$chorale" data inspect tar:disk >out 2>err || true
expect 'a set whose index can not be kept is read all the same' grep -q "indices can't be kept" out

disk 2m
fill 8
expect 'metrics for which there is no room end the run' \
    refused metrics.jsonl "$full" "${train[@]}" --steps=200 --checkpoint=never --out=disk/run
expect 'its lines are whole' test "$(tail -c 1 disk/run/metrics.jsonl)" = ''
expect 'there are some' test -s disk/run/metrics.jsonl
expect 'nothing else is left' nothing_half
disk 2m
fill 0
expect 'a trace for which there is no room ends the run' \
    refused disk/trace "$full" "${train[@]}" --steps=20 --checkpoint=never --out=elsewhere --trace=disk/trace
expect 'but keeps its summary' test -s elsewhere/summary.json
expect 'nothing of it is left' nothing_half

for command in 'list' 'bench -n 1 -e 1K --json' 'verify --allreduce=ring -n 2 --json' 'data inspect set --json'; do
    code=0
    # shellcheck disable=SC2086 # words
    "$chorale" $command >/dev/full 2>err || code=$?
    expect "chorale $command with a full standard output: exit code $code" test "$code" -eq 1 -a "$(wc -l <err)" -eq 1
done

# ---- read-only ----

disk 8m
cp shards/train.tar disk
mount -o remount,ro disk
read_only='Read-only file system'
expect 'a pack on a read-only disk' refused disk/set.pack "$read_only" "$chorale" data pack set --out=disk/set.pack
expect 'an index on a read-only disk' refused disk/train.tar.index "$read_only" "$chorale" data index disk/train.tar
expect 'a run on a read-only disk' refused disk/run "$read_only" "${train[@]}" --steps=2 --out=disk/run
expect 'a trace on a read-only disk' refused disk/trace "$read_only" "${train[@]}" --steps=2 --out=elsewhere2 --trace=disk/trace

# ---- a limit on the size of files ----

disk 8m
limited() {
    (ulimit -f 20 && exec "$@")
}
large='File too large'
expect 'a pack above the limit' refused disk/set.pack "$large" limited "$chorale" data pack set --out=disk/set.pack
expect 'an index above the limit' refused shards/train.tar.index "$large" limited "$chorale" data index shards/train.tar
expect 'a checkpoint above the limit' refused 'disk/run/checkpoint-' "$large" limited "${train[@]}" --steps=2 --out=disk/run
expect 'nothing is left' nothing_half
expect 'nor of the index' test -z "$(find shards -name 'train.tar.*')"

[[ $wrong -eq 0 ]] || exit 1
printf 'disk: %d checks\n' "$checks"
