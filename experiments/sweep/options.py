"""Options of the sweep: one table for parsing, defaults and --help."""

import difflib
import os
import re
import sys

MODES = ("measured", "replayed", "simulated")
DEFAULT_COUNTS = {"measured": (1, 2), "replayed": (1, 2, 4, 8), "simulated": (4, 8, 16, 32, 64, 128)}
DEFAULT_BATCH = {"measured": 16, "replayed": 32, "simulated": 32}
# Beyond these a measurement on this host says more about its scheduler than about an algorithm.
MOST_WORKERS_PER_CORE = {"measured": 4, "replayed": 16}
SPECS = "ring rhd rd hierarchical binomial naive double-buffered gossip none"

HELP_HEAD = """usage: experiments/sweep.sh [options]
Runs algorithms x worker counts and leaves results/NAME/{runs.csv,efficiency.png,report.html}. Run it again, and it goes
on where it was; a cell is measured again when the commit is another one (--keep: not even then) or when it had failed.

measured   trains --model on this host                             (default counts 1,2)
replayed   real workers and real exchanges on this host, computing is slept after a profile   (1,2,4,8)
simulated  the same schedules on a simulated platform after the same profile                  (4,8,16,32,64,128)

"""

HELP_TAIL = """
Efficiency is weak scaling: images/s on n workers / (n * images/s of the baseline). The baseline of a mode is one run of
1 worker with `none` and as many threads; it is shared by all algorithms, which exchange nothing on 1 worker: their rows
for 1 worker repeat its times and say so in `reason`. step_ms_ci95 is half of the 95 % confidence interval of the mean
step: from the steps of one run (Student's t, wider where successive steps correlate), with --repeats from the means of
the runs. Cells wider than 10 % are marked in picture and report.

Exit: 0 done; 1 a cell failed, or no picture; 2 wrong usage; 130 interrupted (the table stays whole, picture and report
are drawn from it).
"""


def counts(text):
    """ "1,2,8" or "1..4" -> sorted numbers without repetition."""
    found = set()
    for part in text.replace(" ", ",").split(","):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part)
        if not match:
            raise ValueError("worker counts like 1,2,4 or 1..8")
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if not 1 <= first <= last <= 16384:
            raise ValueError("worker counts from 1 to 16384, ascending")
        found.update(range(first, last + 1))
    return sorted(found)


def modes(text):
    """Some of MODES, in their order."""
    found = text.replace(",", " ").split()
    for mode in found:
        if mode not in MODES:
            raise ValueError(f"{mode} is none of {', '.join(MODES)}")
    if not found:
        raise ValueError(f"some of {', '.join(MODES)}")
    return [mode for mode in MODES if mode in found]


def number(least, most):
    """A checker of whole numbers in [least, most]."""

    def check(text):
        if not re.fullmatch(r"\d+", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return check


def choice(*words):
    """A checker of one of these words."""

    def check(text):
        if text not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return text

    return check


def name(text):
    """A name that can be a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", text):
        raise ValueError("letters, digits, '.', '_' and '-'")
    return text


def device(text):
    """What `chorale train --device=` takes for measured cells."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise ValueError("cpu, cuda or cuda:NUMBER; what is replayed is chosen by --modes and --profile")
    return text


def bucket(text):
    """What `chorale train --bucket=` takes."""
    if not re.fullmatch(r"tensor|all|\d+[KMG]?", text):
        raise ValueError("bytes (25M), tensor, or all")
    return "0" if text == "all" else text


def file(text):
    """A file that is there; relative to where the user is, or to the checkout."""
    for path in (text, os.path.join(ROOT, text)):
        if os.path.isfile(path):
            return os.path.abspath(path)
    raise ValueError("no such file")


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# key: (default, check, help); no check: a flag
TABLE = {
    "name": ("default", name, "results go to results/NAME of the checkout"),
    "allreduce": (SPECS, str, "algorithms and strategies (chorale list), also all; may be repeated"),
    "gpus": (None, counts, "worker counts in every mode, 1,2,4 or 1..8; more than this host bears are left to simulation"),
    "workers": (None, counts, "the same as --gpus"),
    "modes": (",".join(MODES), modes, "which of measured,replayed,simulated"),
    "model": ("resnet50", choice("resnet50", "resnet18", "cnn"), "what is trained when measured"),
    "image-size": ("64", number(8, 1024), "pixels, when measured"),
    "device": ("cpu", device, "where is trained when measured: cpu, cuda, or cuda:NUMBER; workers may share a card"),
    "precision": (None, choice("f32", "tf32", "bf16", "f16"), "of activations, when measured (default the device's)"),
    "batch": (None, number(1, 65536), "images of one worker, in every mode (default 16 measured, else 32)"),
    "steps": ("10", number(2, 1000000), "steps that count, measured and replayed"),
    "warmup-steps": ("2", number(0, 1000000), "steps before those, which do not count"),
    "repeats": ("1", number(1, 1000), "runs of each measured and replayed cell"),
    "threads": (None, number(1, 4096), "compute threads of one worker (default cores / largest measured count)"),
    "seed": ("1", number(0, 2**53), "of everything random"),
    "transport": ("auto", choice("auto", "shm", "tcp", "net", "verbs", "efa"), "what carries the bytes"),
    "inject": (None, str, "impairments of more than one worker, measured and replayed (chorale train --help)"),
    "bucket": (None, bucket, "exchange in pieces: bytes, tensor, or all (default 4M where exchanges overlap, else all)"),
    "overlap": (None, choice("none", "bucket"), "exchanges begin after backward, or during it (default where they can)"),
    "wire": ("f32", str, "what travels (chorale list)"),
    "bn": ("local", choice("local", "sync", "averaged"), "statistics of batch norms, when measured"),
    "segment": ("262144", number(64, 2**30), "bytes of a piece of a message on the wire, in every mode"),
    "window": ("4", number(1, 64), "receives posted ahead, in every mode"),
    "platform": ("experiments/platforms/fdr-4gpu.txt", file, "simulated network"),
    "profile": ("experiments/profiles/p100-fp32.txt", file, "emulated device, replayed and simulated"),
    "data": (None, str, "folder of images, as chorale train takes it"),
    "keep": (None, None, "rows of another commit are good, too"),
    "no-setup": (None, None, "neither install nor build anything"),
    "check-options": (None, None, "only say whether the options are right"),
    "help": (None, None, "this text"),
}


def usage_error(text):
    """Ends the program: one line, exit 2."""
    print(f"sweep: {text}", file=sys.stderr)
    sys.exit(2)


def unknown(word):
    """Ends the program, naming the option that was meant."""
    near = difflib.get_close_matches(word.lstrip("-"), TABLE, n=1, cutoff=0.5)
    usage_error(f"{word}: unknown option" + (f": did you mean --{near[0]}?" if near else ": see --help"))


def help_text():
    """What --help prints."""
    lines = []
    for key, (default, check, text) in TABLE.items():
        head = f"--{key}" if check is None else f"--{key}=..."
        lines.append(f"  {head:<20} {text}" + (f" (default {default})" if default else ""))
    return HELP_HEAD + "\n".join(lines) + "\n" + HELP_TAIL


def checked(key, text):
    """The value of an option, or the end of the program."""
    try:
        return TABLE[key][1](text)
    except ValueError as error:
        usage_error(f"--{key}={text}: {error}")


def words(argv):
    """(key, value) pairs of --key=value, --key value and --flag."""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        key, equals, value = word[2:].partition("=")
        if word == "-h":
            key = "help"
        elif not word.startswith("--") or key not in TABLE:
            unknown(word.partition("=")[0])
        if TABLE[key][1] is None:
            if equals:
                usage_error(f"--{key} takes no value")
            yield key, True
        elif equals:
            yield key, value
        elif rest and not rest[0].startswith("--"):
            yield key, rest.pop(0)
        else:
            usage_error(f"--{key}: its value is missing: --{key}=...")


def parse(argv):
    """A dict with a value for every key of TABLE."""
    given = {}
    for key, value in words(argv):
        if key == "allreduce" and key in given:
            value = f"{given[key]} {value}"
        given[key] = value
    if given.get("help"):
        print(help_text(), end="")
        sys.exit(0)
    if "gpus" in given and "workers" in given:
        usage_error("--gpus and --workers are one option: give it once")
    if "workers" in given:
        given["gpus"] = given.pop("workers")
    options = {}
    for key, (default, check, _) in TABLE.items():
        text = given.get(key, default)
        options[key] = bool(text) if check is None else (checked(key, text) if text is not None else None)
    return options
