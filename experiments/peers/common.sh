# common.sh - sourced by compare.sh, resnet50.sh and bench/train_cpu.sh, which set `me`: messages, packages, the machine, our program.
# shellcheck shell=bash disable=SC2154,SC2034

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
peers=$root/experiments/peers
build=$root/build/peers
results=$root/results/peers
log=$build/$me.log
started=$(date +%Y-%m-%dT%H%M%S)

die() {
    printf '%s: %s\n' "$me" "$1" >&2
    exit "${2:-1}"
}

say() {
    printf '%s: %s\n' "$me" "$1" >&2
}

# The comment at the head of the script.
usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
}

# read_options "NAME= ... NAME" WORD...: of the names known, --NAME=VALUE sets that variable (_ for -), and one without the
# equals sign is set to yes; --help says all.
read_options() {
    local names argument name
    read -ra names <<<"$1"
    shift
    for argument in "$@"; do
        case $argument in
        --help | -h)
            usage
            exit 0
            ;;
        *=*) name=${argument%%=*}= ;;
        *) name=$argument ;;
        esac
        name=${name#--}
        [[ $argument == --* && " ${names[*]} " == *" $name "* ]] ||
            die "$argument: unknown: $(printf -- '--%s ' "${names[@]}")(see --help)" 2
        case $name in
        *=) name=${name%=} && printf -v "${name//-/_}" %s "${argument#*=}" ;;
        *) printf -v "${name//-/_}" yes ;;
        esac
    done
}

# OPTION VALUE EXAMPLE: the value has to be a list of positive numbers, separated by commas.
need_numbers() {
    [[ $2 =~ ^[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*$ ]] ||
        die "$1=$2: takes positive numbers, as in $1=$3" 2
}

make_folders() {
    { mkdir -p "$build" "$results" && : >"$log"; } 2>/dev/null ||
        die "cannot write to $build and $results: work in a checkout that you can write to"
}

# Installs the packages that are missing; without a way to become root, names the one command that does it.
install_packages() {
    local name missing=() privilege=()
    command -v dpkg-query >/dev/null || die "no dpkg here: made for Debian 12; install the like of $* and run it there"
    for name in "$@"; do
        [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$name" 2>/dev/null) == ?i* ]] || missing+=("$name")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if [[ $(id -u) -ne 0 ]]; then
        { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]]; }; } ||
            die "packages are missing: as root apt-get update; apt-get -y --no-install-recommends install ${missing[*]}"
        privilege=(sudo)
    fi
    say "installing ${missing[*]}"
    local apt=("${privilege[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Acquire::Retries=5
               -o DPkg::Lock::Timeout=300)
    "${apt[@]}" update >>"$log" 2>&1 || say "apt-get update failed; trying with the package lists that are there"
    "${apt[@]}" install --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        die "apt-get install ${missing[*]} failed (all of its output: $log)"
    }
}

package_version() {
    dpkg-query -W -f='${Version}' "$1" 2>/dev/null | sed 's/^[0-9]*://;s/[-+].*//'
}

# Sets `program` to an absolute path and builds it when nobody named one.
need_program() {
    if [[ -z $program ]]; then
        program=$root/build/release/chorale
        "$root/experiments/setup.sh" --preset=release --target=chorale
    fi
    [[ -f $program && -x $program ]] ||
        die "$program: no such program: build it with experiments/setup.sh, or leave --program out" 2
    program=$(realpath "$program")
}

# Sets the words that go into every row: `machine`, `cores`, `commit`.
describe() {
    local model memory
    cores=$(nproc)
    model=$(LC_ALL=C lscpu | sed -n 's/^Model name: *//p;/^Model name/q')
    memory=$(awk '/^MemTotal/ {printf "%.0f", $2 / 1048576}' /proc/meminfo)
    machine="${model:-unknown processor}, $cores cores, $memory GiB, Linux $(uname -r | sed 's/-.*//')"
    commit=$(git -C "$root" describe --always --dirty 2>/dev/null) || commit=unknown
}

# Of the last minute. What others leave of the machine matters, so before the first run it should be near 0.
load() {
    cut -d ' ' -f 1 /proc/loadavg
}

warn_when_busy() {
    if awk -v load="$(load)" 'BEGIN {exit !(load > 0.5)}'; then
        say "load is $(load) before anything is measured: other programs run here and these times are not to be trusted"
    fi
}

# The summary of chorale train -> a row like that of torch_resnet50.py.
summary_to_row() {
    "$python" -c 'import json, sys
s = json.load(sys.stdin)
keys = ("image_size", "batch", "threads", "steps", "images_per_s", "bytes_moved_per_step")
print(",".join(keys))
print(",".join("" if s[k] is None else str(s[k]) for k in keys))'
}
