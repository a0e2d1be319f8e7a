/* status.h - the one status type, the text that explains a failure, and the unwinding idiom.
 *
 * Every function that can fail returns `enum status`. A negative status is an error and leaves a one-line
 * explanation in thread-local storage ("what: why: what to do"); STATUS_AGAIN (positive) means "not yet" and
 * leaves none. Libraries never print and never exit: programs read status_message() and map the status to an
 * exit code with status_exit_code().
 */
#ifndef CHORALE_BASE_STATUS_H
#define CHORALE_BASE_STATUS_H

enum status {
    STATUS_OK = 0,
    STATUS_AGAIN = 1,    /* not complete yet; call again after progress                              */
    STATUS_USAGE = -1,   /* the user's words are wrong: unknown name, torn spec, value out of range  */
    STATUS_REFUSED = -2, /* well-formed, but this algorithm or build can't do it; the text says why  */
    STATUS_NO_MEMORY = -3,
    STATUS_IO = -4,          /* a file or socket failed: errno's text is in the message                  */
    STATUS_FORMAT = -5,      /* a file's or message's content is wrong                                   */
    STATUS_TIMEOUT = -6,     /* a deadline passed; the text says what was awaited                        */
    STATUS_PEER_LOST = -7,   /* a worker died, left early or was ended                                   */
    STATUS_MISMATCH = -8,    /* workers called different collectives                                     */
    STATUS_UNAVAILABLE = -9, /* a provider, device or library is missing here                            */
    STATUS_INTERNAL = -10,   /* a bug of ours, or a library call that should not fail                    */
    STATUS_INTERRUPTED = -11 /* a signal asked this process to stop                                      */
};

#define MUST_CHECK __attribute__((warn_unused_result))

/* Remember a printf-style explanation for this thread and return `status`. Messages are cut at 1023 bytes,
 * newlines become spaces. Use: return fail(STATUS_IO, "open %s: %s", path, strerror(errno)); */
enum status fail(enum status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Put a printf-style prefix and ": " before this thread's message; returns `status` unchanged. */
enum status fail_context(enum status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The explanation of this thread's latest failure; "" when none. Valid until the thread's next fail(). */
const char *status_message(void);
void status_clear(void);

/* Where this thread's explanation is stored. A module with its own copy of this file stores it where the program does. */
typedef char *status_buffer_fn(void);
status_buffer_fn *status_buffer(void);
void status_share(status_buffer_fn *buffer); /* of the program; before anything else is called, once */

/* "timeout", "peer-lost", ...: a stable word for each status, never NULL. */
const char *status_name(enum status status);

/* 0 done, 2 wrong usage (USAGE and REFUSED), 1 everything else. */
int status_exit_code(enum status status);

/* Forward a failure to the caller (no resources held). */
#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        enum status try_status = (expression);                                                                         \
        if (try_status < 0)                                                                                            \
            return try_status;                                                                                         \
    } while (0)

/* Forward a failure through the function's single exit `label`; needs a local `enum status status`.
 * All frees stand after the label, so every path releases what it holds. */
#define TRY_TO(label, expression)                                                                                      \
    do {                                                                                                               \
        status = (expression);                                                                                         \
        if (status < 0)                                                                                                \
            goto label;                                                                                                \
    } while (0)

#endif
