"""Cells of the sweep: what to run for one, how to run it, and the row that comes of it."""

import ctypes
import datetime
import hashlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from dataclasses import dataclass

import interval
from options import DEFAULT_BATCH, ROOT
from rows import COLUMNS

PROGRAM = os.path.join(ROOT, "build", "release", "chorale")
BASELINE_SPEC = "none"
PR_SET_PDEATHSIG = 1
PATIENCE_S = 10  # of a job that was asked to end
WRONG_USAGE = 2  # chorale's exit code for what an algorithm can't do, too

LIBC = ctypes.CDLL(None, use_errno=True)


class Interrupted(Exception):
    """A signal asks the sweep to stop."""

    def __init__(self, number):
        super().__init__(f"signal {number}")
        self.number = number


def stem(path):
    """fdr-4gpu of experiments/platforms/fdr-4gpu.txt."""
    return os.path.splitext(os.path.basename(path))[0]


def fingerprint(path):
    """The file's name and a checksum: another content is another setting."""
    with open(path, "rb") as file:
        return f"{stem(path)}@{zlib.crc32(file.read()):08x}"


@dataclass(frozen=True)
class Cell:
    """One row to be: a spec on a number of workers in a mode."""

    mode: str
    spec: str  # canonical
    workers: int


class Settings:
    """What all cells of a sweep have in common."""

    def __init__(self, options, threads, commit, kinds):
        self.options, self.threads, self.commit, self.kinds = options, threads, commit, kinds
        self.identity = {}  # of canonical specs that name files: with a hash of their contents
        self.host = socket.gethostname()
        self.prints = {key: fingerprint(options[key]) for key in ("platform", "profile")}
        self.folder = os.path.join(ROOT, "results", options["name"])

    def batch(self, mode):
        """Images of one worker."""
        return self.options["batch"] or DEFAULT_BATCH[mode]

    def key(self, cell):
        """The canonical spec and every setting that changes the result."""
        options, parts = self.options, [self.identity.get(cell.spec, cell.spec), cell.mode, f"workers={cell.workers}"]
        network = [f"{name}={options[name] or 'auto'}" for name in ("bucket", "overlap")]
        network += [f"wire={options['wire']}"] if options["wire"] != "f32" else []
        network += [f"segment={options['segment']}", f"window={options['window']}"]
        run = [f"{name}={options[name]}" for name in ("steps", "warmup-steps", "repeats", "seed", "transport")]
        run += [f"inject={options['inject']}"] if self.impaired(cell) else []
        if cell.mode == "measured":
            parts += [f"device={options['device']}", f"model={options['model']}", f"image-size={options['image-size']}"]
            parts += [f"precision={options['precision']}"] if options["precision"] else []
            parts += [f"data={options['data']}"] if options["data"] else []
            parts += [f"bn={options['bn']}"] if options["bn"] != "local" else []
            parts += [f"threads={self.threads}", *run]
        elif cell.mode == "replayed":
            parts += [f"device=replay:{self.prints['profile']}", f"threads={self.threads}", *run]
        else:
            parts += [f"profile={self.prints['profile']}", f"platform={self.prints['platform']}"]
        return " ".join([*parts, f"batch={self.batch(cell.mode)}", *network])

    def impaired(self, cell):
        """Whether --inject is for this cell: one worker has no network, and is what the others are compared with."""
        return bool(self.options["inject"]) and cell.workers > 1

    def baseline(self, mode):
        """The cell that efficiencies of a mode refer to."""
        return Cell(mode, BASELINE_SPEC, 1)

    def baseline_text(self, mode):
        """What the column says: count and threads in words, and the row's key."""
        threads = "" if mode == "simulated" else f", {self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"1 worker{threads}, key={self.key(self.baseline(mode))}"

    def cell_folder(self, cell):
        """Where the runs of a cell leave their metrics."""
        return os.path.join(self.folder, "cells", hashlib.sha256(self.key(cell).encode()).hexdigest()[:16])


# ---- running ----


def follow_parent():
    """In the child before exec: if this sweep is killed, its job is asked to end; it must not go on for nobody."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end_job(process, number):
    """Pass a signal on to the launcher, which ends its workers; insist if it does not."""
    for attempt in (number, signal.SIGTERM, signal.SIGKILL):
        process.send_signal(attempt)
        try:
            process.communicate(timeout=PATIENCE_S)
            return
        except subprocess.TimeoutExpired:
            continue


def run_program(words, log):
    """(exit code, stdout, last line on stderr). All of stderr is in the file `log`."""
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [PROGRAM, *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a Ctrl-C reaches the launcher once, from us
            preexec_fn=follow_parent,
        )
        try:
            output, _ = process.communicate()
        except Interrupted as interrupt:
            end_job(process, interrupt.number)
            raise
    with open(log, encoding="utf-8", errors="replace") as file:
        said = file.read().strip().splitlines()
    return process.returncode, output, said[-1] if said else ""


def network_words(options, cell):
    """Options that train and sim share. What exchanges nothing has nothing to cut, to overlap or to encode."""
    keys = ("segment", "window") if cell.spec == BASELINE_SPEC else ("bucket", "overlap", "wire", "segment", "window")
    return [f"--{key}={options[key]}" for key in keys if options[key] is not None]


def train_words(settings, cell, out):
    """`chorale train ...` of a measured or replayed cell."""
    options = settings.options
    words = ["train", f"--allreduce={cell.spec}", "-n", str(cell.workers), f"--batch={settings.batch(cell.mode)}"]
    words += [f"--steps={options['steps'] + options['warmup-steps']}", f"--timing-skip={options['warmup-steps']}"]
    words += [f"--threads={settings.threads}", f"--seed={options['seed']}", f"--transport={options['transport']}"]
    words += ["--checkpoint=never"]
    words += [f"--inject={options['inject']}"] if settings.impaired(cell) else []
    if cell.mode == "measured":
        words += [f"--device={options['device']}", f"--model={options['model']}"]
        words += [f"--image-size={options['image-size']}"]
        words += [f"--precision={options['precision']}"] if options["precision"] else []
        words += [f"--data={options['data']}"] if options["data"] else []
        words += [f"--bn={options['bn']}"] if options["bn"] != "local" and cell.spec != BASELINE_SPEC else []
    else:
        words += [f"--device=replay:{options['profile']}"]
    return [*words, *network_words(options, cell), "--eval=never", f"--out={out}", "--json"]


def sim_words(settings, cell):
    """`chorale sim train ...` of a simulated cell."""
    options = settings.options
    words = ["sim", "train", f"--allreduce={cell.spec}", "-n", str(cell.workers)]
    words += [f"--platform={options['platform']}", f"--profile={options['profile']}"]
    words += [f"--batch={settings.batch(cell.mode)}", *network_words(options, cell), "--json"]
    return words


class Failure(Exception):
    """A cell without a result: status and reason of its row."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def result_of(words, log):
    """The JSON document that the program prints, or Failure."""
    code, output, said = run_program(words, log)
    if code < 0:
        raise Failure("failed", f"chorale {words[0]} was ended by {signal.Signals(-code).name} ({log})")
    if code != 0:
        raise Failure("refused" if code == WRONG_USAGE else "failed", said or f"exit code {code}, without a word")
    try:
        return json.loads(output)
    except ValueError as error:
        raise Failure("failed", f"chorale {words[0]} --json: not JSON: {error}") from None


def step_times(folder, skip):
    """Milliseconds of each step that counts."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        return [json.loads(line)["step_ms"] for line in file][skip:]


# ---- rows ----


def digits(value):
    """A number as the table has it; empty where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def common_fields(settings, cell):
    """Fields that are known before anything has run."""
    options, simulated = settings.options, cell.mode == "simulated"
    device = {"measured": options["device"], "replayed": f"replay:{stem(options['profile'])}"}
    return {
        "key": settings.key(cell),
        "allreduce": cell.spec,
        "workers": cell.workers,
        "mode": cell.mode,
        "device": device.get(cell.mode, stem(options["profile"])),
        "batch": settings.batch(cell.mode),
        "baseline": settings.baseline_text(cell.mode),
        "seed": "" if simulated else options["seed"],
        "transport": "" if simulated else options["transport"],
        "platform": stem(options["platform"]) if simulated else "",
        "commit": settings.commit,
        "host": settings.host,
        "started": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "kind": settings.kinds.get(cell.spec.partition(":")[0], ""),
        "wire": options["wire"],
        "bucket_bytes": options["bucket"] or "",
        "overlap": options["overlap"] or "",
        "threads": "" if simulated else settings.threads,
        "warmup_steps": "" if simulated else options["warmup-steps"],
        "repeats": 1 if simulated else options["repeats"],
        "segment": options["segment"],
        "window": options["window"],
    }


def profile_model(path):
    """(model, image size) of a profile's model line."""
    with open(path, encoding="utf-8") as file:
        for words in (text.split("#")[0].split() for text in file):
            if words and words[0] == "model":
                sizes = [word.partition("=")[2] for word in words if word.startswith("image_size=")]
                return words[1], sizes[0] if sizes else ""
    return "", ""


def train_fields(settings, cell):
    """Run a measured or replayed cell --repeats times; what the table says of it."""
    options, skip = settings.options, settings.options["warmup-steps"]
    folder, runs, times = settings.cell_folder(cell), [], []
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
    os.makedirs(folder)
    for repeat in range(options["repeats"]):
        out = os.path.join(folder, f"run-{repeat + 1}")
        runs.append(result_of(train_words(settings, cell, out), os.path.join(folder, f"run-{repeat + 1}.log")))
        times.append(step_times(out, skip))
    means = [sum(values) / len(values) for values in times]
    steps = [value for values in times for value in values]
    step_ms = sum(steps) / len(steps)

    def average(name):
        return sum(run[name] for run in runs) / len(runs)

    first = runs[0]
    return {
        "model": first["model"],
        "image_size": first["image_size"],
        "steps": options["steps"],
        "images_per_s": 1e3 * cell.workers * settings.batch(cell.mode) / step_ms,
        "step_ms_p50": interval.quantile(steps, 0.5),
        "step_ms_p99": interval.quantile(steps, 0.99),
        "step_ms_ci95": interval.half_width(means if len(means) > 1 else steps),
        **{name: average(name) for name in ("compute_ms", "comm_ms", "exposed_ms")},
        "bytes_sent_per_step": first["bytes_sent_per_step"],
        # an emulated device computes nothing that could be learnt
        **({"loss": first["loss_last"], "consensus": first["consensus"]} if cell.mode == "measured" else {}),
        "top1": first["top1"],
        **{name: first[name] for name in ("transport", "nodes", "segment", "window", "bucket_bytes", "overlap", "wire")},
        "host": first["host"],
        **({"reason": f"{shared} workers share a card"} if (shared := first["workers_per_card"] or 1) > 1 else {}),
    }


def sim_fields(settings, cell):
    """Simulate a cell; what the table says of it."""
    os.makedirs(os.path.join(settings.folder, "cells"), exist_ok=True)
    result = result_of(sim_words(settings, cell), os.path.join(settings.folder, "cells", "sim.log"))
    model, image_size = profile_model(settings.options["profile"])
    return {
        "model": model,
        "image_size": image_size,
        "images_per_s": result["images_per_s"],
        "step_ms_p50": result["step_ms"],
        "step_ms_p99": result["step_ms"],
        "step_ms_ci95": 0.0,  # the simulator is deterministic
        **{name: result[name] for name in ("compute_ms", "exposed_ms", "bytes_sent_per_step")},
        **{name: result[name] for name in ("bucket_bytes", "overlap", "wire")},
    }


def run(settings, cell):
    """The row of a cell."""
    row = common_fields(settings, cell)
    try:
        row.update((sim_fields if cell.mode == "simulated" else train_fields)(settings, cell))
        row["status"] = "ok"
    except Failure as failure:
        row.update(status=failure.status, reason=str(failure))
    except (OSError, KeyError, ValueError, ZeroDivisionError) as error:
        row.update(status="failed", reason=f"{type(error).__name__}: {error}")
    return complete(row)


def complete(row):
    """A row with every column, as text."""
    values = {column: row.get(column, "") for column in COLUMNS}
    return {name: value if isinstance(value, str) else digits(value) for name, value in values.items()}


def share(settings, cell, baseline):
    """The row of an algorithm on 1 worker, which exchanges nothing: the baseline's times. Not its loss: strategies
    apply gradients at other steps."""
    own = common_fields(settings, cell)
    row = {**baseline, **{name: own[name] for name in ("key", "allreduce", "kind")}, "loss": "", "consensus": "", "top1": ""}
    if baseline["status"] == "ok":
        row["reason"] = "1 worker exchanges nothing: the times of the shared baseline"
    return complete(row)


def list_catalogue():
    """{name: kind} of everything that can be named."""
    code, output, error = subprocess_text(["list", "--json"])
    if code != 0:
        raise Failure("failed", error)
    return {entry["name"]: entry["kind"] for entry in json.loads(output)["algorithms"]}


def spellings(text, how):
    """What chorale list --HOW makes of a list of specs. Ends the program where chorale can't read it."""
    code, output, error = subprocess_text(["list", f"--{how}={text}"])
    if code != 0:
        print(error or f"sweep: chorale list --{how}={text}: exit code {code}", file=sys.stderr)
        sys.exit(code)
    return output.split("\n")[:-1]


def canonical(text):
    """The canonical spellings of a list of specs, each once."""
    return list(dict.fromkeys(spellings(text, "canonical")))


def identities(specs):
    """{canonical spelling: the same with a hash of the contents of the files that it names}."""
    return dict(zip(specs, spellings(" ".join(specs), "identity"), strict=True))


def subprocess_text(words):
    """(exit code, stdout, stderr) of a command of chorale that does not take long."""
    done = subprocess.run([PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr.strip()
