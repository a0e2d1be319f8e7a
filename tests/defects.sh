#!/bin/sh
# defects.sh - plants defects in algos/progression.c, one at a time, and shows which suites notice.
#
# The executor, the verifier and the simulator drive one interpreter of schedules; a defect in it must show in all three.
# In a copy of the tree each defect below is made by one sed command, the suites of the three are built and run, and a
# table is printed. Takes some minutes, and is not a part of the tests.
#
#   tests/defects.sh [NAME...]      all defects, or only these
#
# Exit: 0 when every suite notices whatever it can, 1 when one misses a defect, 2 when a defect no longer applies.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/chorale-defects.XXXXXX")
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM
suites="algos_test_verify comm_test_executor sim_test_engine"

# name @ sed command @ suites that can't notice
#
# What can't be noticed, and why:
# - The simulator moves no data: where it is read from (stale-input, no-tail) changes no time. Nor does what is
#   overwritten while it is being sent (no-write-after-read): in the schedules of the catalogue that send ends when the
#   message that overwrites arrives.
# - The executor and the simulator match segments by their number. Sends of a channel that start out of order and
#   receives posted beyond the window find their partners all the same: they only cost memory.
defects() {
    cat <<'LIST'
always-clear@/^static bool clear(/,/^}/s/return false;/return true;/@
off-by-one@s/other->done > (end - 1/other->done >= (end - 1/@
no-write-after-read@s/^           overlap(&a->hazard\[READS\], &b->hazard\[WRITES\]);/           a == NULL;/@sim_test_engine
covered-too-soon@s/^    if (contains(&other->hazard\[WRITES\], &live->hazard\[READS\])/    if (live != NULL || contains(\&other->hazard[WRITES], \&live->hazard[READS])/@sim_test_engine
stale-input@s/\*place = PLACE_INPUT;/*place = PLACE_VECTOR;/@sim_test_engine
no-tail@/^static enum status take_tail(/,/^}/s/if (p->written == NULL)/if (p != NULL)/@sim_test_engine
sends-out-of-order@s/^    \*begins = .*$/    *begins = sends || *assigned == channel->recv_begun;/;s/return channel->send_begun == live->sequence + live->begun;/return true;/@comm_test_executor sim_test_engine
no-window@s/channel->recv_begun - channel->recv_done >= p->params.window/p->params.window == 0/@comm_test_executor sim_test_engine
numbers-twice@s/\*assigned += live->segments;/*assigned += 1;/@
lost-round@s/^    p->round++;/    p->round += p->round + 2 == p->shape->rounds ? 2 : 1;/@
finished-early@s/return taken_in(p) && p->alive == 0;/return taken_in(p);/@
receives-never-done@s/^    channel->recv_done++;/    channel->recv_done += p == NULL;/@
nobody-woken@/^static void wake_waiters(/,/^}/s/while (activity != NONE)/while (activity != NONE \&\& p == NULL)/@
LIST
}

build() {
    # shellcheck disable=SC2086 # a list of targets
    cmake --build "$copy/build" --target $suites >"$copy/build.log" 2>&1 || {
        tail -n 20 "$copy/build.log" >&2
        return 1
    }
}

# Prints "noticed" when the suite fails, crashes or hangs.
judge() {
    program=$(find "$copy/build" -type f -name "$1" | head -n 1)
    if timeout -k 5 300 "$program" --timeout 60 >"$copy/run.log" 2>&1; then
        echo missed
    else
        echo noticed
    fi
}

cp -R "$root/." "$copy/tree" || exit 2
rm -rf "$copy/tree/build" "$copy/tree/.git"
if ! cmake -S "$copy/tree" -B "$copy/build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$copy/build.log" 2>&1 || ! build; then
    echo "defects.sh: the tree itself does not build" >&2
    exit 2
fi
for suite in $suites; do
    if [ "$(judge "$suite")" != missed ]; then
        echo "defects.sh: $suite fails without any defect" >&2
        exit 2
    fi
done

good="$copy/progression.c"
target="$copy/tree/algos/progression.c"
cp "$target" "$good"
failed=0
printf '%-20s' defect
for suite in $suites; do printf ' %-20s' "$suite"; done
echo
defects >"$copy/list"
while IFS='@' read -r name command blind <&3; do
    case " $* " in *" $name "* | "  ") ;; *) continue ;; esac
    sed "$command" "$good" >"$target"
    if cmp -s "$good" "$target" || ! build; then
        echo "defects.sh: $name no longer applies: change its sed command" >&2
        exit 2
    fi
    printf '%-20s' "$name"
    for suite in $suites; do
        verdict=$(judge "$suite")
        if [ "$verdict" = missed ]; then
            case " $blind " in
            *" $suite "*) verdict="can't notice" ;;
            *) failed=1 ;;
            esac
        fi
        printf ' %-20s' "$verdict"
    done
    echo
done 3<"$copy/list"
exit $failed
