# expect.sh - sourced by disk.sh and jobs.sh, which set `me`: counts what must hold, and says what does not.
# shellcheck shell=bash disable=SC2154,SC2034

exec 3>&1 # what is said goes there, whatever the standard output of a check
wrong=0 checks=0

# expect WHAT COMMAND...: the command must succeed; `out` and `err` are what it said.
expect() {
    local what=$1
    shift
    checks=$((checks + 1))
    if ! "$@"; then
        {
            printf '%s: %s\n' "$me" "$what"
            cat err out || true
            ls -lR || true
        } >&3 2>/dev/null
        wrong=$((wrong + 1))
    fi
}
