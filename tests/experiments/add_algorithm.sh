#!/usr/bin/env bash
# One file and one line of the catalogue add an algorithm: then list, verify, bench, sim and train know it. Tried on a
# copy of the tree, with a ring that runs the other way around.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
checks=0

# shows NAME PATTERN COMMAND...: the command succeeds and prints the pattern.
shows() {
    local what=$1 pattern=$2 output
    shift 2
    output=$("$@" 2>&1) || { printf 'add_algorithm: %s fails: %s\n%s\n' "$what" "$*" "$output" >&2; exit 1; }
    grep -qE "$pattern" <<<"$output" || { printf 'add_algorithm: %s: no %s in:\n%s\n' "$what" "$pattern" "$output" >&2; exit 1; }
    checks=$((checks + 1))
}

tar -C "$root" --exclude=./build --exclude=./results --exclude=./.git -cf - . | tar -C "$copy" -xf -
cd "$copy"

cat >algos/algorithms/reversed_ring.c <<'C'
/* reversed_ring.c - the ring the other way around, for this test. Worker r owns chunk r-1 after p-1 rounds. */
#include "algos/schedule.h"

static enum status reversed_shape(const struct shape_request *request, struct shape *shape)
{
    (void)request;
    shape->chunks = (uint32_t)shape->workers;
    shape->split = shape->chunks - 1;
    shape->rounds = 2 * shape->split;
    return STATUS_OK;
}

static enum status reversed_emit(const struct shape *shape, int rank, uint32_t round, struct sink *sink)
{
    const uint32_t p = (uint32_t)shape->workers, r = (uint32_t)rank, half = shape->split, t = round % half;
    const int next = (int)((r + p - 1) % p), previous = (int)((r + 1) % p);
    if (round < half) {
        TRY(emit_send(sink, next, (r + t) % p, 1));
        return emit_recv_reduce(sink, previous, (r + t + 1) % p, 1, round == half - 1);
    }
    TRY(emit_send(sink, next, (r + p - 1 + t) % p, 1));
    return emit_recv(sink, previous, (r + t) % p, 1);
}

static int reversed_owner(const struct shape *shape, uint32_t chunk)
{
    return (int)((chunk + 1) % (uint32_t)shape->workers);
}

const struct algorithm algorithm_reversed_ring = {
    .name = "reversed-ring",
    .aliases = "",
    .summary = "the ring the other way around",
    .source = "this test",
    .traits = TRAIT_ANY_SIZE | TRAIT_HALVES | TRAIT_EQUAL_BITS,
    .shape = reversed_shape,
    .emit = reversed_emit,
    .owner = reversed_owner,
};
C
sed -i 's/^ALGORITHM(ring)$/&\nALGORITHM(reversed_ring)/' algos/catalogue.def
experiments/setup.sh --quiet --target=chorale
chorale=build/release/chorale
shared=(--profile=experiments/profiles/p100-fp32.txt --platform=experiments/platforms/fdr-4gpu.txt)

shows list '^ +reversed-ring' "$chorale" list
shows verify 'reversed-ring +33 of 33 worker counts proved' "$chorale" verify --allreduce=reversed-ring -n 1..33
shows "verify, as part of all" 'reversed-ring +9 of 9' "$chorale" verify --allreduce=all -n 1..9
shows "verify, as part of a hierarchy" '1 of 1' "$chorale" verify --allreduce=hierarchical:intra=reversed-ring -n 8 --nodes=2x4
shows bench '"allreduce": *"reversed-ring"' "$chorale" bench --allreduce=reversed-ring -n 2 --sizes=4096..4096 --iters=3 --check --json
shows sim 'reversed-ring' "$chorale" sim train --allreduce=reversed-ring -n 8 "${shared[@]}"
shows train '"allreduce": *"reversed-ring"' "$chorale" train --allreduce=reversed-ring -n 2 --model=cnn --image-size=28 \
    --batch=8 --steps=3 --eval=never --out=build/train --json
shows explain 'reversed-ring' "$chorale" explain --allreduce=reversed-ring -n 4
printf '%d checks\n' "$checks"
