#!/usr/bin/env bash
# sweep.sh - from a fresh Debian 12 to a picture: sets up (experiments/setup.sh), then runs algorithms x worker counts,
# measured, replayed and simulated, and leaves results/NAME/{runs.csv,efficiency.png,report.html}.
#
#   experiments/sweep.sh --help       all options
#   experiments/sweep.sh --no-setup   what is installed and built already is good enough
#
# Run it again, and it goes on where it was: cells that are in runs.csv are not measured again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=/usr/bin/python3
export PYTHONDONTWRITEBYTECODE=1

setup=true
arguments=()
for argument in "$@"; do
    case $argument in
    --no-setup) setup=false ;;
    --help | -h) setup=false arguments+=("$argument") ;;
    *) arguments+=("$argument") ;;
    esac
done

# Wrong options are said before minutes of set-up, where Python is there already.
if $setup; then
    [[ ! -x $python ]] || "$python" "$root/experiments/sweep" --check-options ${arguments[@]+"${arguments[@]}"}
    "$root/experiments/setup.sh"
fi
[[ -x $python ]] || { echo "sweep.sh: $python is missing: run experiments/setup.sh" >&2; exit 1; }
exec "$python" "$root/experiments/sweep" ${arguments[@]+"${arguments[@]}"}
