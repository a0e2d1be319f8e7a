#!/usr/bin/env bash
# A small sweep of the CNN: killed without warning half-way, run again, run once more. Whatever happens, a key stands
# once in runs.csv, none is missing in the end, and what is there is not measured again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
name=test-$$
folder=results/$name
specs="ring rhd rd hierarchical binomial double-buffered gossip none"
checks=0
sweep=(experiments/sweep.sh --no-setup "--name=$name" --model=cnn --image-size=28 --batch=8 --steps=4 --warmup-steps=1
       "--allreduce=$specs" "--modes=measured,simulated" "--gpus=1,2")
trap 'rm -rf "$folder"' EXIT

fail() {
    printf 'sweep test: %s\n' "$1" >&2
    [[ ! -f $folder/log ]] || tail -n 20 "$folder/log" >&2
    exit 1
}

# holds NAME COMMAND...: the command must succeed.
holds() {
    local what=$1
    shift
    "$@" || fail "$what"
    checks=$((checks + 1))
}

# Python on the rows of runs.csv: true when the expression is.
table() {
    /usr/bin/python3 - "$folder/runs.csv" "$1" <<'PYTHON'
import csv, sys
with open(sys.argv[1], newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
keys = [row["key"] for row in rows]
cells = {(row["allreduce"], row["mode"], row["workers"]) for row in rows}
sys.exit(not eval(sys.argv[2]))
PYTHON
}

lines() {
    if [[ -f $folder/runs.csv ]]; then wc -l <"$folder/runs.csv"; else echo 0; fi
}

# The sweep's process, which becomes Python; killed with SIGKILL when the table has a few of its rows.
mkdir -p "$folder"
"${sweep[@]}" 2>"$folder/log" &
process=$!
while [[ $(lines) -lt 11 ]] && kill -0 "$process" 2>/dev/null; do sleep 0.05; done
kill -9 "$process" 2>/dev/null || fail "ended before it could be killed"
wait "$process" 2>/dev/null || true
gone() { # its job is asked to end, and does: within 2 s, and the time that a crowded machine takes
    /usr/bin/python3 - "$folder/" <<'PYTHON'
import glob, sys, time
def alive():
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read()
        except OSError:
            continue
        if b"chorale\0train\0" in words and sys.argv[1].encode() in words:
            return True
    return False
for _ in range(200):
    if not alive():
        sys.exit(0)
    time.sleep(0.1)
sys.exit(1)
PYTHON
}
holds "the job of a killed sweep goes on" gone
before=$(lines)
holds "the table has no half line after a kill" table 'all(None not in row.values() for row in rows)'
printf 'ring measured workers=2 torn' >>"$folder/runs.csv" # as a kill in the middle of a write leaves it

holds "a sweep goes on after a kill" "${sweep[@]}" 2>"$folder/log"
holds "a torn line is dropped" grep -q 'damaged lines were dropped' "$folder/log"
holds "rows before the kill are kept" grep -q "done before" "$folder/log"
holds "a key stands twice" table 'len(keys) == len(set(keys))'
holds "cells are missing" table 'len(cells) == len(rows) == 8 * 2 * 2'
holds "all cells have results" table 'all(row["status"] == "ok" for row in rows)'
holds "more rows than before" test "$(lines)" -gt "$before"
holds "efficiency of the baseline is 1" table 'all(float(row["efficiency"]) == 1 for row in rows if row["workers"] == "1")'
holds "exact schedules send bytes" \
    table 'all(int(row["bytes_sent_per_step"]) > 0 for row in rows if row["workers"] == "2" and row["allreduce"] != "none")'
holds "a picture" test -s "$folder/efficiency.png"
holds "a report" grep -q 'data:image/png;base64' "$folder/report.html"

sum=$(sha256sum "$folder/runs.csv")
holds "a second run" "${sweep[@]}" 2>"$folder/log"
holds "a second run measures nothing" test "$sum" = "$(sha256sum "$folder/runs.csv")"
holds "a second run runs nothing" bash -c "! grep -q 'images/s' '$folder/log'"

# Locked while another sweep holds it; one interrupted leaves a whole table.
holds "two sweeps of one name" bash -c "exec 8>>'$folder/.lock'; flock 8; ! ${sweep[*]@Q} 2>'$folder/log'"
holds "who holds the lock is said" grep -q 'a sweep of this name runs' "$folder/log"
code=0
timeout --foreground -s INT 4 "${sweep[@]}" --seed=2 2>"$folder/log" || code=$?
holds "an interrupted sweep is interrupted or done" test "$code" -eq 130 -o "$code" -eq 124 -o "$code" -eq 0
holds "the table is whole after an interrupt" table 'len(keys) == len(set(keys)) and all(row["reason"] is not None for row in rows)'

# Whose rows are good: a file of the program that is new counts, too, and so does every change of it.
commits() {
    /usr/bin/python3 - <<'PYTHON'
import importlib.util, os, subprocess, sys, tempfile, types
sys.path.insert(0, "experiments/sweep")
spec = importlib.util.spec_from_file_location("sweep", "experiments/sweep/__main__.py")
sweep = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sweep)
with tempfile.TemporaryDirectory() as sweep.ROOT:
    def write(name, text):
        with open(os.path.join(sweep.ROOT, name), "w", encoding="utf-8") as file:
            file.write(text)
        return sweep.commit_of()
    git = ["git", "-C", sweep.ROOT, "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=first"], check=True)
    clean = sweep.commit_of()
    commits = [clean, write("mine.c", "one"), write("mine.c", "two"), write("mine.cu", "three")]
    counted = len(set(commits)) == 4 and write("notes.md", "four") == commits[-1]

# A baseline of another commit than a row's says nothing of the row.
def row(key, commit, rate, efficiency):
    return {"key": key, "workers": "2", "images_per_s": rate, "status": "ok", "commit": commit, "baseline": "1 worker, key=base",
            "efficiency": efficiency}
rows = {"base": row("base", "new", "200", "1"), "old": row("old", "old", "180", "0.9"), "new": row("new", "new", "180", "")}
work = object.__new__(sweep.Sweep)
work.settings = types.SimpleNamespace(key=lambda cell: "base")
work.table = types.SimpleNamespace(by_key=rows, rewrite=lambda: None)
work.after_baseline([], None)
sys.exit(not counted or (rows["old"]["efficiency"], rows["new"]["efficiency"]) != ("0.9", "0.45"))
PYTHON
}
if command -v git >/dev/null; then holds "what is not the commit's own passes for it" commits; fi

# Wrong usage: one line, exit 2.
for words in --nmae=x --batch=0 --modes=dreamt --allreduce=rnig; do
    code=0
    experiments/sweep.sh --no-setup "--name=$name" "$words" 2>"$folder/log" || code=$?
    holds "$words is wrong usage" test "$code" -eq 2
    holds "$words is said in one line" test "$(wc -l <"$folder/log")" -eq 1
done
printf '%d checks\n' "$checks"
