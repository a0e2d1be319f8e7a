"""Algorithms x worker counts: measured, replayed, simulated; then the picture and the report. See sweep.sh."""

import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zlib

import cells
import options as options_of
from cells import Cell, Interrupted, Settings
from options import DEFAULT_COUNTS, MOST_WORKERS_PER_CORE, ROOT
from rows import Held, Rows

# First guesses of a cell's seconds by mode, for the time left; soon replaced by what cells take here.
FIRST_GUESS_S = {"measured": 15.0, "replayed": 1.5, "simulated": 0.05}


def say(text):
    """Progress goes to stderr."""
    print(f"sweep: {text}", file=sys.stderr, flush=True)


# ---- what to run ----


def cores():
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def counts_of(options):
    """{mode: worker counts}; what this host can't bear is left to the simulation, aloud."""
    chosen = {}
    for mode in options["modes"]:
        counts = options["gpus"] or list(DEFAULT_COUNTS[mode])
        most = MOST_WORKERS_PER_CORE.get(mode, 10**9) * cores()
        left = [count for count in counts if count > most]
        if left and options["gpus"]:
            say(f"{mode}: {','.join(map(str, left))} workers are too many for {cores()} cores: left to the simulation")
        chosen[mode] = [count for count in counts if count <= most]
    return chosen


def plan(options, counts, specs):
    """Cells in the order in which they run: a mode's baseline first, then all algorithms count by count."""
    cells_of = []
    for mode in options["modes"]:
        wanted = [Cell(mode, cells.BASELINE_SPEC, 1)]
        wanted += [Cell(mode, spec, count) for count in counts[mode] for spec in specs]
        cells_of += dict.fromkeys(wanted)
    return cells_of


SOURCES = ("*.c", "*.h", "*.def", "*.cu", "*.cuh", "*.txt", "CMakePresets.json")  # what the program is made of


def commit_of():
    """The commit of this checkout, with a checksum of what is changed in it or new; unknown outside git."""

    def git(*words):
        command = ["git", "-c", "safe.directory=*", "-C", ROOT, *words]
        return subprocess.run(command, capture_output=True, check=True).stdout

    try:
        if os.path.realpath(git("rev-parse", "--show-toplevel").decode().strip()) != os.path.realpath(ROOT):
            return "unknown"  # a copy without history inside another repository
        commit = git("rev-parse", "--short=12", "HEAD").decode().strip()
        changes = git("diff", "HEAD", "--", *SOURCES)
        for path in git("ls-files", "--others", "--exclude-standard", "-z", "--", *SOURCES).split(b"\0")[:-1]:
            with open(os.path.join(ROOT.encode(), path), "rb") as file:
                changes += path + b"\0" + file.read()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+{zlib.crc32(changes):08x}" if changes else commit


# ---- running ----


class Clock:
    """Guesses the time left from what cells have taken."""

    def __init__(self):
        self.spent = dict.fromkeys(FIRST_GUESS_S, 0.0)
        self.weight = dict.fromkeys(FIRST_GUESS_S, 0.0)

    @staticmethod
    def weight_of(cell):
        """How long cells take relative to others of their mode."""
        return max(1.0, cell.workers / cores()) if cell.mode == "measured" else float(2 + cell.workers)

    def took(self, cell, seconds):
        """A cell is done."""
        self.spent[cell.mode] += seconds
        self.weight[cell.mode] += self.weight_of(cell)

    def left(self, pending):
        """Seconds that these cells will take."""
        total = 0.0
        for cell in pending:
            known = self.weight[cell.mode] > 0
            rate = self.spent[cell.mode] / self.weight[cell.mode] if known else FIRST_GUESS_S[cell.mode]
            total += rate * self.weight_of(cell)
        return total


def duration(seconds):
    """For people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Sweep:
    """One invocation on one table."""

    def __init__(self, settings, table):
        self.settings, self.table, self.clock = settings, table, Clock()
        self.refreshed = set()  # keys that ran now

    def valid(self, cell):
        """True when the table has this cell's result already."""
        row = self.table.by_key.get(self.settings.key(cell))
        if row is None or row["status"] not in ("ok", "refused"):
            return False
        return row["commit"] == self.settings.commit or self.settings.options["keep"]

    def shared(self, cell):
        """True for a row that repeats the baseline's."""
        return cell.workers == 1 and cell.spec != cells.BASELINE_SPEC

    def with_efficiency(self, row):
        """The row, its efficiency against the baseline as the table has it now."""
        base = self.table.by_key.get(row["baseline"].partition("key=")[2])
        if row["key"] == row["baseline"].partition("key=")[2]:
            base = row
        row = dict(row, efficiency="")
        if row["status"] == "ok" and base is not None and base["status"] == "ok":
            rate = float(row["images_per_s"]) / (int(row["workers"]) * float(base["images_per_s"]))
            row["efficiency"] = f"{rate:.6g}"
        return row

    def after_baseline(self, planned, baseline):
        """Rows that depend on the baseline: those for 1 worker repeat it, the others' efficiency refers to it; not that of
        rows that another commit has left, which stand against the baseline of theirs."""
        row = self.table.by_key[self.settings.key(baseline)]
        for cell in planned:
            if cell.mode == baseline.mode and self.shared(cell):
                repeated = self.with_efficiency(cells.share(self.settings, cell, row))
                if self.table.by_key.get(repeated["key"]) != repeated:
                    self.table.put(repeated)
        for key, old in list(self.table.by_key.items()):
            refers = old["baseline"].endswith(f"key={row['key']}") and old["commit"] == row["commit"]
            if refers and self.with_efficiency(old) != old:
                self.table.by_key[key] = self.with_efficiency(old)
                self.table.rewrite()

    def run(self, planned):
        """Run what is missing. Rows that only repeat a baseline are no work of their own."""
        work = [cell for cell in planned if not self.shared(cell)]
        pending = [cell for cell in work if not self.valid(cell)]
        done = len(work) - len(pending)
        say(f"{len(work)} cells, {done} done before, about {duration(self.clock.left(pending))} for the others")
        for cell in work:
            if cell in pending:
                self.run_one(cell, len(work), pending)
            if cell == self.settings.baseline(cell.mode):
                self.after_baseline(planned, cell)

    def run_one(self, cell, count, pending):
        """Run a cell, record its row, say so."""
        began = time.monotonic()
        row = self.with_efficiency(cells.run(self.settings, cell))
        self.table.put(row)
        self.refreshed.add(row["key"])
        pending.remove(cell)
        seconds = time.monotonic() - began
        self.clock.took(cell, seconds)
        outcome = f"{row['status']}: {row['reason']}"
        if row["status"] == "ok":
            outcome = f"{float(row['images_per_s']):.1f} images/s"
            outcome += f", efficiency {float(row['efficiency']):.3f}" if row["efficiency"] else ""
        left = f", {duration(self.clock.left(pending))} left" if pending else ""
        head = f"[{count - len(pending)}/{count}] {cell.mode} {cell.spec} on {cell.workers}"
        say(f"{head}: {outcome} ({seconds:.0f} s{left})")

    def failed(self, planned):
        """Rows of this selection that have no result and should have."""
        rows = (self.table.by_key.get(self.settings.key(cell)) for cell in planned)
        return [row for row in rows if row is not None and row["status"] == "failed"]


# ---- what is left behind ----


def processor():
    """Its name, for people."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [text.partition(":")[2].strip() for text in file if text.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def write_provenance(settings, argv):
    """What the report says about where the figures come from."""
    document = {
        "command": shlex.join(["experiments/sweep.sh", *argv]),
        "commit": settings.commit,
        "host": settings.host,
        "processor": processor(),
        "cores": cores(),
        "system": platform.platform(),
        "threads": settings.threads,
        "platform": settings.prints["platform"],
        "profile": settings.prints["profile"],
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path = os.path.join(settings.folder, "provenance.json")
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2)
        file.write("\n")
    os.replace(f"{path}.tmp", path)


def draw(settings):
    """Picture and report; False when there are none. matplotlib wants a folder of its own, and HOME may be read-only."""
    table = os.path.join(settings.folder, "runs.csv")
    with tempfile.TemporaryDirectory() as scratch:
        environment = dict(os.environ, MPLCONFIGDIR=scratch, MPLBACKEND="Agg", PYTHONDONTWRITEBYTECODE="1")
        for program, result in (("efficiency.py", "efficiency.png"), ("report.py", "report.html")):
            command = [sys.executable, os.path.join(ROOT, "plots", program), table, os.path.join(settings.folder, result)]
            if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False).returncode != 0:
                say(f"{result} could not be made; {table} is whole")
                return False
    return True


def interrupt(number, _frame):
    """The first signal ends the cell that runs; later ones change nothing."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def sweep(options, argv):
    """Exit code of the program."""
    specs, kinds = cells.canonical(options["allreduce"]), cells.list_catalogue()
    counts = counts_of(options)
    threads = options["threads"] or max(1, cores() // max(counts.get("measured") or [1]))
    settings = Settings(options, threads, commit_of(), kinds)
    settings.identity = cells.identities(specs)
    work, code = Sweep(settings, Rows(settings.folder)), 0
    planned = plan(options, counts, specs)
    write_provenance(settings, argv)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        work.run(planned)
    except Interrupted as stop:
        say("interrupted: the same command goes on from here")
        code = 128 + stop.number
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what is left takes seconds
    for row in work.failed(planned):
        say(f"failed: {row['mode']} {row['allreduce']} on {row['workers']}: {row['reason']}")
        code = code or 1
    if not draw(settings):
        code = code or 1
    say(f"results in {os.path.relpath(settings.folder)}: runs.csv, efficiency.png, report.html")
    return code


def main():
    """Options, program, sweep."""
    argv = sys.argv[1:]
    options = options_of.parse(argv)
    if options["check-options"]:
        return 0
    if not os.access(cells.PROGRAM, os.X_OK):
        say(f"{os.path.relpath(cells.PROGRAM)} is missing: run experiments/setup.sh")
        return 1
    try:
        return sweep(options, argv)
    except Held as error:
        say(str(error))
    except cells.Failure as error:
        say(f"chorale: {error}")
    except OSError as error:
        say(f"{error.filename or 'system'}: {error.strerror}: needs a checkout that can be written to, and free space")
    return 1


if __name__ == "__main__":
    sys.exit(main())
