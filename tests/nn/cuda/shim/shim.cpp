/* shim.cpp - see shim.h. */
#include "cuda_shim.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace
{

enum { WARP = 32, STACK_BYTES = 64 << 10, CANARY_BYTES = 64 };
enum { THREADS_MOST = 1024, BLOCK_Z_MOST = 64, GRID_YZ_MOST = 65535, SHARED_MOST = 48 << 10 };
const unsigned char CANARY = 0xa5;

[[noreturn]] void misuse(const char *what, const char *file, int line)
{
    fprintf(stderr, "cuda shim: %s: %s:%d\n", what, file, line);
    abort();
}

/* ---- fibers ---- */

#if defined(__x86_64__)
/* Saves what a call keeps, and the stack; goes on where `to` was left. */
extern "C" void shim_switch(void **from, void *to);
asm(R"(
    .text
    .type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size shim_switch, .-shim_switch
    .section .note.GNU-stack, "", @progbits
    .text
)");
typedef void *fiber_state;

void fiber_prepare(fiber_state *state, unsigned char *stack, void (*entry)())
{
    void **top = reinterpret_cast<void **>(stack + STACK_BYTES);
    *--top = NULL; /* a caller that is never returned to; keeps the stack aligned as after a call */
    *--top = reinterpret_cast<void *>(entry);
    for (int k = 0; k < 6; k++)
        *--top = NULL;
    *state = top;
}

void fiber_switch(fiber_state *from, fiber_state *to)
{
    shim_switch(from, *to);
}
#else
typedef ucontext_t fiber_state;

void fiber_prepare(fiber_state *state, unsigned char *stack, void (*entry)())
{
    getcontext(state);
    state->uc_stack.ss_sp = stack;
    state->uc_stack.ss_size = STACK_BYTES;
    state->uc_link = NULL;
    makecontext(state, entry, 0);
}

void fiber_switch(fiber_state *from, fiber_state *to)
{
    swapcontext(from, to);
}
#endif

/* A stack with a page below it that ends the process. Kept for the next block. */
struct stack {
    unsigned char *memory;

    stack()
    {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        void *got = mmap(NULL, page + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (got == MAP_FAILED || mprotect(got, page, PROT_NONE) != 0)
            misuse("no memory for stacks", __FILE__, __LINE__);
        memory = static_cast<unsigned char *>(got) + page;
    }
    stack(const stack &) = delete;
    ~stack()
    {
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        munmap(memory - page, page + STACK_BYTES);
    }
};

/* ---- a block ---- */

enum waiting { RUNS, AT_BARRIER, IN_WARP, DONE };

struct fiber {
    fiber_state state;
    std::unique_ptr<struct stack> stack;
    struct shim_place place;
    enum waiting waiting;
    const char *file; /* of what it waits for */
    int line;
    unsigned exchanges; /* so far; two sets of values, so that a slow lane still reads the last one */
};

struct warp {
    uint64_t value[2][WARP];
};

struct block {
    std::vector<struct fiber> fiber;
    std::vector<struct warp> warp;
    std::vector<unsigned> order;
    unsigned char *shared;
    struct shim_kernel *kernel;
    struct fiber *current;
    fiber_state scheduler;
    uint64_t random;
    unsigned threads;
};

thread_local struct block the_block;
thread_local unsigned the_order;
std::atomic<shim_launcher> the_launcher;

uint64_t next_random(uint64_t *state) /* xorshift */
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* 0 .. count - 1 in the order asked for. */
void make_order(std::vector<unsigned> *order, unsigned count, unsigned seed, uint64_t *random)
{
    order->resize(count);
    for (unsigned i = 0; i < count; i++)
        (*order)[i] = i;
    if (seed == 1)
        std::reverse(order->begin(), order->end());
    else if (seed == 2)
        std::stable_partition(order->begin(), order->end(), [](unsigned i) { return i % 2 == 1; });
    else if (seed != 0)
        for (unsigned i = count; i > 1; i--)
            std::swap((*order)[i - 1], (*order)[next_random(random) % i]);
}

void fiber_main()
{
    struct block *block = &the_block;
    block->kernel->thread(block->kernel);
    struct fiber *self = block->current;
    self->waiting = DONE;
    fiber_switch(&self->state, &block->scheduler);
}

void wait_for(enum waiting what, const char *file, int line)
{
    struct fiber *self = the_block.current;
    self->waiting = what;
    self->file = file;
    self->line = line;
    fiber_switch(&self->state, &the_block.scheduler);
}

/* Lets go on whoever's partners are all there. Fibers begin .. end - 1 wait for `what` together. */
bool release(struct block *block, unsigned begin, unsigned end, enum waiting what)
{
    for (unsigned i = begin; i < end; i++) {
        if (block->fiber[i].waiting != what)
            return false;
    }
    const struct fiber *first = &block->fiber[begin];
    for (unsigned i = begin; i < end; i++) {
        struct fiber *fiber = &block->fiber[i];
        if (fiber->line != first->line || strcmp(fiber->file, first->file) != 0)
            misuse("threads meet at different places", fiber->file, fiber->line);
        fiber->waiting = RUNS;
    }
    return true;
}

bool release_all(struct block *block)
{
    bool any = release(block, 0, block->threads, AT_BARRIER);
    for (unsigned begin = 0; begin < block->threads; begin += WARP)
        any = release(block, begin, std::min(begin + WARP, block->threads), IN_WARP) || any;
    return any;
}

void run_threads(struct block *block)
{
    for (;;) {
        make_order(&block->order, block->threads, block->kernel->order, &block->random);
        for (unsigned i : block->order) {
            if (block->fiber[i].waiting != RUNS)
                continue;
            block->current = &block->fiber[i];
            fiber_switch(&block->scheduler, &block->current->state);
        }
        if (release_all(block))
            continue;
        for (unsigned i = 0; i < block->threads; i++) {
            const struct fiber *fiber = &block->fiber[i];
            if (fiber->waiting != DONE)
                misuse("a barrier or warp operation that not all threads reach", fiber->file, fiber->line);
        }
        return;
    }
}

void run_block(struct block *block, struct dim3 index)
{
    const struct dim3 size = block->kernel->block;
    const size_t shared = block->kernel->shared;
    memset(block->shared, 0xff, shared); /* NaN, as f32 and f64 */
    memset(block->shared + shared, CANARY, CANARY_BYTES);
    for (unsigned i = 0; i < block->threads; i++) {
        struct fiber *fiber = &block->fiber[i];
        if (!fiber->stack)
            fiber->stack = std::make_unique<struct stack>();
        fiber->place = {dim3(i % size.x, i / size.x % size.y, i / size.x / size.y), index, size, block->kernel->grid,
                        block->shared};
        fiber->waiting = RUNS;
        fiber->exchanges = 0;
        fiber_prepare(&fiber->state, fiber->stack->memory, fiber_main);
    }
    run_threads(block);
    for (size_t i = 0; i < CANARY_BYTES; i++) {
        if (block->shared[shared + i] != CANARY)
            misuse("a write beyond dynamic shared memory", __FILE__, __LINE__);
    }
}

void run_grid(void *work)
{
    struct shim_kernel *kernel = static_cast<struct shim_kernel *>(work);
    struct block *block = &the_block;
    const struct dim3 grid = kernel->grid;
    block->kernel = kernel;
    block->threads = kernel->block.x * kernel->block.y * kernel->block.z;
    block->random = 0x9e3779b97f4a7c15 ^ block->kernel->order;
    if (block->fiber.size() < block->threads) { /* never fewer: stacks are kept */
        block->fiber.resize(block->threads);
        block->warp.resize((block->threads + WARP - 1) / WARP);
    }
    const size_t bytes = (kernel->shared + CANARY_BYTES + 15) / 16 * 16;
    block->shared = static_cast<unsigned char *>(aligned_alloc(16, bytes));
    std::vector<unsigned> order;
    make_order(&order, grid.x * grid.y * grid.z, block->kernel->order, &block->random);
    for (unsigned i : order)
        run_block(block, dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y));
    free(block->shared);
}

bool possible(const struct shim_kernel *kernel)
{
    const struct dim3 grid = kernel->grid, block = kernel->block;
    const uint64_t threads = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;
    return threads > 0 && block.x <= THREADS_MOST && block.y <= THREADS_MOST && block.z <= BLOCK_Z_MOST &&
           threads <= THREADS_MOST && blocks > 0 && grid.x <= INT32_MAX && grid.y <= GRID_YZ_MOST &&
           grid.z <= GRID_YZ_MOST && blocks <= UINT32_MAX && kernel->shared <= SHARED_MOST;
}

} // namespace

const struct shim_place *shim_here()
{
    return &the_block.current->place;
}

void shim_barrier(const char *file, int line)
{
    wait_for(AT_BARRIER, file, line);
}

const uint64_t *shim_exchange(unsigned mask, uint64_t value, const char *file, int line)
{
    struct block *block = &the_block;
    struct fiber *self = block->current;
    if (mask != 0xffffffff || block->threads % WARP != 0)
        misuse("a warp operation without the whole warp", file, line);
    uint64_t *values = block->warp[(size_t)(self - block->fiber.data()) / WARP].value[self->exchanges++ % 2];
    values[shim_lane()] = value;
    wait_for(IN_WARP, file, line);
    return values;
}

int shim_start(void *stream, struct shim_kernel *kernel)
{
    if (!possible(kernel)) {
        kernel->release(kernel);
        return SHIM_BAD_CONFIGURATION;
    }
    kernel->order = the_order;
    const shim_launcher launcher = the_launcher.load();
    if (launcher) {
        launcher(stream, kernel);
        return 0;
    }
    shim_run(kernel);
    shim_release(kernel);
    return 0;
}

void shim_run(void *kernel)
{
    run_grid(kernel);
}

void shim_release(void *kernel)
{
    struct shim_kernel *gone = static_cast<struct shim_kernel *>(kernel);
    gone->release(gone);
}

void shim_set_order(unsigned order)
{
    the_order = order;
}

void shim_set_launcher(shim_launcher launcher)
{
    the_launcher.store(launcher);
}
