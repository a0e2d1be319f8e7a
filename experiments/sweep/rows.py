"""runs.csv: one row a cell, found by its key, on disk before the next cell begins."""

import csv
import fcntl
import io
import os
import sys

COLUMNS = (
    "key,allreduce,workers,mode,device,model,image_size,batch,steps,images_per_s,step_ms_p50,step_ms_p99,compute_ms,"
    "comm_ms,exposed_ms,bytes_sent_per_step,efficiency,baseline,loss,top1,consensus,seed,transport,platform,commit,"
    "host,started,kind,wire,bucket_bytes,overlap,threads,nodes,warmup_steps,repeats,step_ms_ci95,segment,window,"
    "status,reason"
).split(",")


class Held(Exception):
    """Another sweep works on this folder, or the table is not one of ours."""


def line(fields):
    """One line of the table. A reason with line breaks would make lines and rows different things."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(" ".join(str(field).split("\n")) for field in fields)
    return buffer.getvalue()


def sync_folder(folder):
    """A rename is durable once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Rows:
    """The table of one results folder, locked while it is open."""

    def __init__(self, folder):
        self.folder = folder
        self.path = os.path.join(folder, "runs.csv")
        self.by_key = {}
        self._lock()
        self._load()

    def _lock(self):
        os.makedirs(self.folder, exist_ok=True)
        # a+: whoever finds it locked can still read who holds it
        self.lock = open(os.path.join(self.folder, ".lock"), "a+", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.seek(0)
            raise Held(
                f"{self.folder}: a sweep of this name runs (process {self.lock.read().strip() or 'unknown'}): "
                "wait for it, or give another --name"
            ) from None
        self.lock.truncate(0)
        self.lock.write(f"{os.getpid()}\n")
        self.lock.flush()

    def _load(self):
        """Read what is there. A line without an end was cut off by a crash in the middle of a write: it is dropped."""
        try:
            with open(self.path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        whole = data[: data.rfind(b"\n") + 1]
        table = list(csv.reader(io.StringIO(whole.decode("utf-8", errors="replace"), newline="")))
        if table and table[0] != COLUMNS:
            raise Held(f"{self.path}: its columns are not those of this version: move it away, or give another --name")
        good = [row for row in table[1:] if len(row) == len(COLUMNS)]
        self.by_key = {row[0]: dict(zip(COLUMNS, row)) for row in good}
        if whole != data or not table or len(good) != len(table) - 1 or len(self.by_key) != len(good):
            self.rewrite()
            if data:
                print(f"sweep: {self.path}: damaged lines were dropped", file=sys.stderr)

    def rewrite(self):
        """The whole table at once: old or new, never half of it."""
        temporary = f"{self.path}.tmp"
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(line(COLUMNS))
            for row in self.by_key.values():
                file.write(line(row[column] for column in COLUMNS))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        sync_folder(self.folder)

    def put(self, row):
        """Add a row with all columns, or put it in place of the one with its key."""
        known = row["key"] in self.by_key
        self.by_key[row["key"]] = row
        if known:
            self.rewrite()
            return
        with open(self.path, "ab") as file:
            file.write(line(row[column] for column in COLUMNS).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
