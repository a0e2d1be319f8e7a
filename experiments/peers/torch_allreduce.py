#!/usr/bin/python3
"""torch.distributed.all_reduce over Gloo measured and checked as chorale bench does it, for compare.sh: f32 sum, warm-up,
then back-to-back calls, mean over calls and workers; same data as mpi_allreduce.c, exact check of every element.

    torch_allreduce.py --workers=N --sizes=BYTES[,BYTES...] [--calls=20] [--warmup=5] [--seconds=1]

Starts the workers itself; they meet in a temporary file and talk over 127.0.0.1. PyTorch's all_reduce is in place only.
The timed calls are fewer when they would take longer than --seconds. Prints CSV rows
system,workers,bytes,in_place,time_us,wrong,calls. Exit: 0 done, 1 failed or wrong elements.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import tempfile
import time

try:
    import torch
    from torch import distributed
except ImportError:
    sys.exit("torch_allreduce.py: no PyTorch here: apt-get install python3-torch, then run it with /usr/bin/python3")

TABLE = 1021  # data repeat after this prime number of elements
TRIAL = 3  # calls that show how long one takes
CALLS_LEAST = 5
SIZE = 4  # of f32


# ---- data ----

def value(rank, k):
    """Small integers that depend on worker and index: partial sums are exact in every order."""
    return (k * 7 + rank * 13 + k // 11) % 41 - 20


def repeated(table, count):
    return torch.tensor(table, dtype=torch.float32).repeat(count // TABLE + 1)[:count].clone()


def input_of(rank, count):
    return repeated([value(rank, k) for k in range(TABLE)], count)


def sum_of(workers, count):
    return repeated([sum(value(r, k) for r in range(workers)) for k in range(TABLE)], count)


# ---- calls ----

def sum_over_workers(mine):
    total = torch.tensor([mine], dtype=torch.float64)
    distributed.all_reduce(total)
    return total.item()


def back_to_back(vector, calls, workers):
    """Seconds of one call: mean over back-to-back calls and workers."""
    distributed.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        distributed.all_reduce(vector)
    return sum_over_workers((time.perf_counter() - begin) / calls) / workers


def affordable(wanted, call_s, seconds):
    """The calls that fit `seconds`, between CALLS_LEAST and `wanted`; call_s is alike on all workers."""
    return max(min(CALLS_LEAST, wanted), min(wanted, int(seconds / call_s)))


def measure(options, rank, size):
    """Prints a row on rank 0; False when elements are wrong."""
    workers, count = options.workers, size // SIZE
    vector = input_of(rank, count)
    distributed.all_reduce(vector)  # the first one connects
    call_s = back_to_back(vector, TRIAL, workers)
    warmup = affordable(options.warmup, call_s, options.seconds / 4)
    if warmup > 0:
        call_s = back_to_back(vector, warmup, workers)
    calls = affordable(options.calls, call_s, options.seconds)
    time_s = back_to_back(vector, calls, workers)
    vector.copy_(input_of(rank, count))
    distributed.all_reduce(vector)
    wrong = int(sum_over_workers(int((vector != sum_of(workers, count)).sum())))
    if rank == 0:
        print(f"gloo,{workers},{size},true,{time_s * 1e6:.7g},{wrong},{calls}", flush=True)
    return wrong == 0


# ---- program ----

def work(options, rank, meeting):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=options.workers)
    right = all([measure(options, rank, size) for size in options.sizes])
    distributed.destroy_process_group()
    sys.exit(0 if right else 1)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], required=True)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    if options.workers < 1 or options.calls < 1 or options.warmup < 0 or not options.seconds > 0:
        parser.error("numbers have to be positive")
    if any(size < SIZE or size % SIZE != 0 for size in options.sizes):
        parser.error("--sizes: vectors are of whole f32, take multiples of 4")
    return options


def main():
    options = read_options()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the workers, too: they are daemons
    fork = multiprocessing.get_context("fork")
    print("system,workers,bytes,in_place,time_us,wrong,calls", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        workers = [fork.Process(target=work, args=(options, rank, meeting), daemon=True)
                   for rank in range(options.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return 0 if all(worker.exitcode == 0 for worker in workers) else 1


if __name__ == "__main__":
    sys.exit(main())
