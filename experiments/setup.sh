#!/usr/bin/env bash
# setup.sh - from a fresh Debian 12 to a built program: installs what is missing, configures, builds. Run it as often as
# you like: what is there is left alone, and when nothing is missing no network is needed.
#
#   experiments/setup.sh [--preset=NAME] [--target=NAME]... [--ci] [--quiet]
#
#   --preset=NAME  CMake preset, built into build/NAME (default release)
#   --target=NAME  build only this target; may be given several times (default: everything)
#   --ci           also install clang-format and clang-tidy, and two MPIs to test with; warnings are errors
#   --quiet        say only what goes wrong
#
# Says one line a step on stderr. The output of the tools goes to build/setup-NAME.log, its end is shown when one fails.
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config libfabric-dev libdnnl-dev libcriterion-dev libjansson-dev nettle-dev libpmix-dev libhwloc-dev
          zlib1g-dev libjpeg-dev dataset-fashion-mnist python3 python3-numpy python3-matplotlib)
preset=release
targets=()
settings=()
quiet=false

die() {
    printf 'setup.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

say() {
    $quiet || printf 'setup: %s\n' "$1" >&2
}

for argument in "$@"; do
    case $argument in
    --preset=?*) preset=${argument#*=} ;;
    --target=?*) targets+=("${argument#*=}") ;;
    --ci)
        packages+=(clang-format clang-tidy libopenmpi-dev openmpi-bin libmpich-dev mpich)
        settings=(-DCHORALE_WERROR=ON)
        ;;
    --quiet) quiet=true ;;
    --help | -h)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    *) die "$argument: unknown: --preset=NAME, --target=NAME, --ci, --quiet (see --help)" 2 ;;
    esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
folder=build/$preset
log=build/setup-$preset.log
mkdir -p build 2>/dev/null || die "cannot create $root/build: work in a checkout that you can write to"
exec 9>>"build/.setup.lock" || die "cannot write to $root/build: work in a checkout that you can write to"
flock -n 9 || {
    say "another set-up works in $root/build: waiting for it"
    flock 9
}
: >"$log"

# A command, its output in the log; when it fails, the end of that output and one line that names the step.
logged() {
    local step=$1
    shift
    if ! "$@" >>"$log" 2>&1 9>&-; then
        grep -v '^\[[0-9]*/[0-9]*\] ' "$log" | tail -n 40 >&2 || true
        die "$step failed (all of its output: $log)"
    fi
}

# ---- packages ----

missing_packages() {
    local name
    for name in "${packages[@]}"; do
        [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$name" 2>/dev/null) == ?i* ]] || printf '%s\n' "$name"
    done
}

# Sets `privilege` to the words that make a command run as root; false when there is no way.
find_privilege() {
    privilege=()
    [[ $(id -u) -eq 0 ]] && return 0
    command -v sudo >/dev/null || return 1
    privilege=(sudo)
    sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]] # else nobody could type a password
}

install_packages() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300)
    say "installing $*"
    "${privilege[@]}" "${apt[@]}" update >>"$log" 2>&1 9>&- ||
        say "apt-get update failed; trying with the package lists that are there"
    logged "apt-get install $*" "${privilege[@]}" "${apt[@]}" install --no-install-recommends "$@"
}

command -v dpkg-query >/dev/null ||
    die "no dpkg here: made for Debian 12; install the like of ${packages[*]}, then: cmake --preset $preset && cmake --build --preset $preset"
mapfile -t missing < <(missing_packages)
if [[ ${#missing[@]} -gt 0 ]]; then
    find_privilege ||
        die "packages are missing; as root: apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    install_packages "${missing[@]}"
fi

# ---- configure, build ----

# A build folder that came along with a copied or moved tree still names the old place: CMake refuses it, so start anew.
fresh=()
if [[ -f $folder/CMakeCache.txt ]] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$folder/CMakeCache.txt"; then
    fresh=(--fresh)
fi
say "configuring $folder"
logged "cmake --preset $preset" cmake --preset "$preset" "${fresh[@]}" "${settings[@]}"
say "building $folder"
logged "building $folder" cmake --build "$folder" --parallel "$(nproc)" ${targets[@]+--target "${targets[@]}"}
say "ready after $SECONDS s"
