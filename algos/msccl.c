/* msccl.c - a strict reader of MSCCL's XML (msccl.h): a tokenizer for elements with attributes, then the model. */
#include "algos/msccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

#define MOST_ATTRIBUTES 16
#define MOST_BLOCKS 1024   /* of a gpu  */
#define MOST_STEPS 1048576 /* of a file */

/* Bytes of the text, not terminated. */
struct slice {
    const char *at;
    size_t length;
};

struct attribute {
    struct slice name, value;
};

/* One tag: <name a="b" ...>, <name .../> or </name>. */
struct tag {
    struct slice name;
    bool closes, empty;
    int line;
    size_t attributes;
    struct attribute attribute[MOST_ATTRIBUTES];
};

struct reader {
    const char *file, *at, *end;
    int line;
    struct tag tag; /* the latest */
};

/* "file:line: ..." */
__attribute__((format(printf, 3, 4))) static enum status complain(const struct reader *reader, int line,
                                                                  const char *format, ...)
{
    char what[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return fail(STATUS_FORMAT, "%s:%d: %s", reader->file, line, what);
}

/* For %.*s: long names are cut. */
static int shown(const struct slice *slice)
{
    return slice->length < 40 ? (int)slice->length : 40;
}

static bool equals(const struct slice *slice, const char *word)
{
    return slice->length == strlen(word) && memcmp(slice->at, word, slice->length) == 0;
}

/* ---- characters ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':';
}

static bool starts(const struct reader *reader, const char *word)
{
    const size_t length = strlen(word);
    return (size_t)(reader->end - reader->at) >= length && memcmp(reader->at, word, length) == 0;
}

static void advance(struct reader *reader, size_t count)
{
    for (; count > 0; count--)
        reader->line += *reader->at++ == '\n';
}

static void skip_blanks(struct reader *reader)
{
    while (reader->at < reader->end && is_blank(*reader->at))
        advance(reader, 1);
}

/* To behind `closing`; STATUS_FORMAT when it does not come. */
static enum status skip_past(struct reader *reader, const char *closing, const char *what)
{
    const int line = reader->line;
    while (reader->at < reader->end && !starts(reader, closing))
        advance(reader, 1);
    if (reader->at == reader->end)
        return complain(reader, line, "%s is not closed: the file ends before %s", what, closing);
    advance(reader, strlen(closing));
    return STATUS_OK;
}

/* Blanks, comments and XML declarations. */
static enum status skip_between(struct reader *reader)
{
    for (;;) {
        skip_blanks(reader);
        if (starts(reader, "<!--"))
            TRY(skip_past(reader, "-->", "a comment"));
        else if (starts(reader, "<?"))
            TRY(skip_past(reader, "?>", "a declaration"));
        else
            return STATUS_OK;
    }
}

/* ---- tags ---- */

static struct slice take_name(struct reader *reader)
{
    struct slice name = {.at = reader->at};
    while (reader->at < reader->end && is_name(*reader->at))
        advance(reader, 1);
    name.length = (size_t)(reader->at - name.at);
    return name;
}

static enum status take_value(struct reader *reader, const struct slice *name, struct slice *value)
{
    skip_blanks(reader);
    if (!starts(reader, "="))
        return complain(reader, reader->line, "attribute %.*s has no value", shown(name), name->at);
    advance(reader, 1);
    skip_blanks(reader);
    if (!starts(reader, "\"") && !starts(reader, "'"))
        return complain(reader, reader->line, "the value of %.*s is not in quotes", shown(name), name->at);
    const char quote = *reader->at;
    advance(reader, 1);
    value->at = reader->at;
    while (reader->at < reader->end && *reader->at != quote && *reader->at != '<' && *reader->at != '&')
        advance(reader, 1);
    if (reader->at == reader->end || *reader->at != quote)
        return complain(reader, reader->line, "the value of %.*s does not end, or has a < or & in it", shown(name),
                        name->at);
    value->length = (size_t)(reader->at - value->at);
    advance(reader, 1);
    return STATUS_OK;
}

static enum status take_attribute(struct reader *reader, struct tag *tag)
{
    const struct slice name = take_name(reader);
    if (name.length == 0)
        return complain(reader, reader->line, "unexpected character in <%.*s>", shown(&tag->name), tag->name.at);
    for (size_t i = 0; i < tag->attributes; i++)
        if (tag->attribute[i].name.length == name.length &&
            memcmp(tag->attribute[i].name.at, name.at, name.length) == 0)
            return complain(reader, reader->line, "%.*s is given twice", shown(&name), name.at);
    if (tag->attributes == MOST_ATTRIBUTES)
        return complain(reader, reader->line, "<%.*s> has more than %d attributes", shown(&tag->name), tag->name.at,
                        MOST_ATTRIBUTES);
    struct attribute *attribute = &tag->attribute[tag->attributes++];
    attribute->name = name;
    return take_value(reader, &name, &attribute->value);
}

/* The next tag into reader->tag; its line is where it begins. */
static enum status next_tag(struct reader *reader)
{
    TRY(skip_between(reader));
    struct tag *tag = &reader->tag;
    *tag = (struct tag){.line = reader->line};
    if (reader->at == reader->end)
        return complain(reader, reader->line, "the file ends where a tag is due: is it cut off?");
    if (!starts(reader, "<"))
        return complain(reader, reader->line, "text outside of tags: this is no MSCCL XML");
    advance(reader, 1);
    tag->closes = starts(reader, "/");
    advance(reader, tag->closes);
    tag->name = take_name(reader);
    if (tag->name.length == 0)
        return complain(reader, reader->line, "a tag without a name");
    for (;;) {
        skip_blanks(reader);
        if (starts(reader, ">"))
            break;
        if (starts(reader, "/>") && !tag->closes) {
            tag->empty = true;
            advance(reader, 1);
            break;
        }
        if (reader->at == reader->end)
            return complain(reader, tag->line, "<%.*s> does not end: is the file cut off?", shown(&tag->name),
                            tag->name.at);
        TRY(take_attribute(reader, tag));
    }
    advance(reader, 1);
    if (tag->closes && tag->attributes > 0)
        return complain(reader, tag->line, "a closing tag with attributes");
    return STATUS_OK;
}

/* The next tag opens `child` (*more), or closes `parent`. */
static enum status next_child(struct reader *reader, const char *parent, const char *child, bool *more)
{
    TRY(next_tag(reader));
    const struct tag *tag = &reader->tag;
    *more = !tag->closes;
    if (!equals(&tag->name, tag->closes ? parent : child))
        return complain(reader, tag->line, "<%s%.*s> where <%s> or </%s> is due", tag->closes ? "/" : "",
                        shown(&tag->name), tag->name.at, child, parent);
    return STATUS_OK;
}

/* ---- attributes ---- */

static const struct slice *find(const struct tag *tag, const char *name)
{
    for (size_t i = 0; i < tag->attributes; i++)
        if (equals(&tag->attribute[i].name, name))
            return &tag->attribute[i].value;
    return NULL;
}

/* Every attribute is one of `known`, a list of words between blanks. */
static enum status check_known(const struct reader *reader, const char *known)
{
    const struct tag *tag = &reader->tag;
    for (size_t i = 0; i < tag->attributes; i++) {
        const struct slice *name = &tag->attribute[i].name;
        const char *word = known;
        bool found = false;
        while (*word != '\0' && !found) {
            const size_t length = strcspn(word, " ");
            found = length == name->length && memcmp(word, name->at, length) == 0;
            word += length + (word[length] == ' ');
        }
        if (!found)
            return complain(reader, tag->line, "unknown attribute %.*s of <%.*s>: known are %s", shown(name), name->at,
                            shown(&tag->name), tag->name.at, known);
    }
    return STATUS_OK;
}

/* A whole number in [min, max]. */
static enum status number(const struct reader *reader, const char *name, long min, long max, long *value)
{
    const struct tag *tag = &reader->tag;
    const struct slice *text = find(tag, name);
    if (text == NULL)
        return complain(reader, tag->line, "<%.*s> has no %s", shown(&tag->name), tag->name.at, name);
    const bool negative = text->length > 0 && text->at[0] == '-';
    long sum = 0;
    size_t i = negative;
    for (; i < text->length && text->at[i] >= '0' && text->at[i] <= '9' && sum <= max; i++)
        sum = sum * 10 + (text->at[i] - '0');
    const long signed_sum = negative ? -sum : sum;
    if (i < text->length || i == (size_t)negative || signed_sum < min || signed_sum > max)
        return complain(reader, tag->line, "%s=\"%.*s\" of <%.*s>: it takes %ld to %ld", name, shown(text), text->at,
                        shown(&tag->name), tag->name.at, min, max);
    *value = signed_sum;
    return STATUS_OK;
}

static enum status number_or(const struct reader *reader, const char *name, long min, long max, long standard,
                             long *value)
{
    *value = standard;
    return find(&reader->tag, name) != NULL ? number(reader, name, min, max, value) : STATUS_OK;
}

/* ---- types ---- */

struct type_form {
    const char *name;
    bool receives, sends, reduces, src, dst;
};

static const struct type_form forms[MSCCL_TYPES] = {
    [MSCCL_S] = {"s", .sends = true, .src = true},
    [MSCCL_R] = {"r", .receives = true, .dst = true},
    [MSCCL_RCS] = {"rcs", .receives = true, .sends = true, .dst = true},
    [MSCCL_RRS] = {"rrs", .receives = true, .sends = true, .reduces = true, .src = true},
    [MSCCL_RRC] = {"rrc", .receives = true, .reduces = true, .src = true, .dst = true},
    [MSCCL_RRCS] = {"rrcs", .receives = true, .sends = true, .reduces = true, .src = true, .dst = true},
    [MSCCL_CPY] = {"cpy", .src = true, .dst = true},
    [MSCCL_RE] = {"re", .reduces = true, .src = true, .dst = true},
    [MSCCL_NOP] = {"nop"},
};

bool msccl_receives(enum msccl_type type)
{
    return forms[type].receives;
}

bool msccl_sends(enum msccl_type type)
{
    return forms[type].sends;
}

bool msccl_reduces(enum msccl_type type)
{
    return forms[type].reduces;
}

bool msccl_reads_src(enum msccl_type type)
{
    return forms[type].src;
}

bool msccl_writes_dst(enum msccl_type type)
{
    return forms[type].dst;
}

/* ---- steps ---- */

static enum status read_type(const struct reader *reader, uint8_t *type)
{
    const struct slice *text = find(&reader->tag, "type");
    if (text == NULL)
        return complain(reader, reader->tag.line, "<step> has no type");
    for (unsigned t = 0; t < MSCCL_TYPES; t++)
        if (equals(text, forms[t].name)) {
            *type = (uint8_t)t;
            return STATUS_OK;
        }
    return complain(reader, reader->tag.line, "type=\"%.*s\": it takes s r rcs rrs rrc rrcs cpy re nop", shown(text),
                    text->at);
}

static enum status read_place(const struct reader *reader, const struct msccl *msccl, const struct msccl_gpu *gpu,
                              const char *buffer_name, const char *offset_name, uint32_t count,
                              struct msccl_place *place)
{
    static const char letters[MSCCL_BUFFERS] = {'i', 'o', 's'};
    const struct slice *text = find(&reader->tag, buffer_name);
    long offset = 0;
    if (text == NULL || text->length != 1 || memchr(letters, text->at[0], sizeof letters) == NULL)
        return complain(reader, reader->tag.line, "%s of <step> is missing or none of i o s", buffer_name);
    place->buffer = (uint8_t)((const char *)memchr(letters, text->at[0], sizeof letters) - letters);
    TRY(number(reader, offset_name, 0, MSCCL_MOST_CHUNKS, &offset));
    place->offset = (uint32_t)offset;
    if (place->offset + count > gpu->chunks[place->buffer])
        return complain(reader, reader->tag.line, "%s=\"%ld\" cnt=\"%u\": the %c buffer has %u chunks", offset_name,
                        offset, (unsigned)count, letters[place->buffer], (unsigned)gpu->chunks[place->buffer]);
    if (msccl->in_place && place->buffer == MSCCL_OUTPUT)
        place->buffer = MSCCL_INPUT; /* the same memory */
    return STATUS_OK;
}

/* Both ranges may be one, but must not overlap in part: nothing says in which order their chunks are taken. */
static enum status check_overlap(const struct reader *reader, const struct msccl_step *step)
{
    const struct msccl_place *a = &step->src, *b = &step->dst;
    if (forms[step->type].src && forms[step->type].dst && a->buffer == b->buffer && a->offset != b->offset &&
        a->offset < b->offset + step->count && b->offset < a->offset + step->count)
        return complain(reader, reader->tag.line, "source and destination overlap in part");
    return STATUS_OK;
}

static enum status read_step(const struct reader *reader, const struct msccl *msccl, const struct msccl_gpu *gpu,
                             const struct msccl_block *block, struct msccl_step *step)
{
    const struct tag *tag = &reader->tag;
    long value = 0, depends_step = 0;
    TRY(check_known(reader, "s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep"));
    *step = (struct msccl_step){.line = tag->line};
    TRY(number(reader, "s", 0, MOST_STEPS, &value));
    if ((size_t)value != block->steps)
        return complain(reader, tag->line, "s=\"%ld\": steps are numbered 0, 1, 2, ...: %zu is due", value,
                        block->steps);
    TRY(read_type(reader, &step->type));
    const struct type_form *form = &forms[step->type];
    if (form->sends && block->send < 0)
        return complain(reader, tag->line, "type=\"%s\" in a tb with send=\"-1\"", form->name);
    if (form->receives && block->recv < 0)
        return complain(reader, tag->line, "type=\"%s\" in a tb with recv=\"-1\"", form->name);
    if (form->src || form->dst) {
        TRY(number(reader, "cnt", 1, MSCCL_MOST_CHUNKS, &value));
        step->count = (uint32_t)value;
    }
    if (form->src)
        TRY(read_place(reader, msccl, gpu, "srcbuf", "srcoff", step->count, &step->src));
    if (form->dst)
        TRY(read_place(reader, msccl, gpu, "dstbuf", "dstoff", step->count, &step->dst));
    TRY(check_overlap(reader, step));
    TRY(number_or(reader, "depid", -1, MOST_BLOCKS - 1, -1, &value));
    TRY(number_or(reader, "deps", -1, MOST_STEPS, -1, &depends_step));
    if (value >= 0 && depends_step < 0)
        return complain(reader, tag->line, "depid=\"%ld\" without deps", value);
    step->depends_block = (int32_t)value;
    step->depends_step = value >= 0 ? (uint32_t)depends_step : 0;
    TRY(number_or(reader, "hasdep", 0, 1, 0, &value));
    step->awaited = value == 1;
    return STATUS_OK;
}

static enum status add_step(const struct reader *reader, struct msccl *msccl, const struct msccl_gpu *gpu,
                            struct msccl_block *block)
{
    if (msccl->steps == MOST_STEPS)
        return complain(reader, reader->tag.line, "more than %d steps", MOST_STEPS);
    void *memory = msccl->step;
    TRY(memory_grow(&memory, &msccl->step_capacity, msccl->steps + 1, sizeof(struct msccl_step)));
    msccl->step = memory;
    TRY(read_step(reader, msccl, gpu, block, &msccl->step[msccl->steps]));
    msccl->steps++;
    block->steps++;
    return STATUS_OK;
}

/* The end of an element that has no children. */
static enum status end_leaf(struct reader *reader)
{
    if (reader->tag.empty)
        return STATUS_OK;
    const int line = reader->tag.line;
    const struct slice name = reader->tag.name;
    TRY(next_tag(reader));
    const struct tag *tag = &reader->tag;
    if (!tag->closes || tag->name.length != name.length || memcmp(tag->name.at, name.at, name.length) != 0)
        return complain(reader, line, "<%.*s> is not closed", shown(&name), name.at);
    return STATUS_OK;
}

/* ---- thread blocks ---- */

static enum status read_block(struct reader *reader, struct msccl *msccl, const struct msccl_gpu *gpu, int rank)
{
    const int line = reader->tag.line;
    const bool empty = reader->tag.empty;
    long id = 0, send = 0, recv = 0, channel = 0;
    TRY(check_known(reader, "id send recv chan"));
    TRY(number(reader, "id", 0, MOST_BLOCKS - 1, &id));
    if ((size_t)id != gpu->blocks)
        return complain(reader, line, "id=\"%ld\": tbs are numbered 0, 1, 2, ...: %zu is due", id, gpu->blocks);
    TRY(number(reader, "send", -1, msccl->workers - 1, &send));
    TRY(number(reader, "recv", -1, msccl->workers - 1, &recv));
    if (send == rank || recv == rank)
        return complain(reader, line, "the peer of a tb is its own gpu %d", rank);
    TRY(number(reader, "chan", 0, msccl->channels - 1, &channel));
    for (size_t b = gpu->block; b < gpu->block + gpu->blocks; b++) {
        const struct msccl_block *other = &msccl->block[b];
        if (other->channel == channel && ((send >= 0 && other->send == send) || (recv >= 0 && other->recv == recv)))
            return complain(reader, line, "tbs %zu and %ld use channel %ld with the same peer", b - gpu->block, id,
                            channel);
    }
    void *memory = msccl->block;
    TRY(memory_grow(&memory, &msccl->block_capacity, msccl->blocks + 1, sizeof(struct msccl_block)));
    msccl->block = memory;
    struct msccl_block *block = &msccl->block[msccl->blocks];
    *block = (struct msccl_block){
        .line = line, .send = (int32_t)send, .recv = (int32_t)recv, .channel = (uint16_t)channel, .step = msccl->steps};
    for (bool more = !empty; more;) {
        TRY(next_child(reader, "tb", "step", &more));
        if (!more)
            break;
        TRY(add_step(reader, msccl, gpu, block));
        TRY(end_leaf(reader));
    }
    msccl->blocks++;
    return STATUS_OK;
}

/* ---- gpus ---- */

/* What every step of the gpu waits for must exist, say so, and not be itself or later in its own tb. */
static enum status check_dependencies(const struct reader *reader, const struct msccl *msccl,
                                      const struct msccl_gpu *gpu)
{
    for (size_t b = 0; b < gpu->blocks; b++) {
        const struct msccl_block *block = &msccl->block[gpu->block + b];
        for (size_t s = 0; s < block->steps; s++) {
            const struct msccl_step *step = &msccl->step[block->step + s];
            if (step->depends_block < 0)
                continue;
            if ((size_t)step->depends_block >= gpu->blocks ||
                step->depends_step >= msccl->block[gpu->block + (size_t)step->depends_block].steps)
                return complain(reader, step->line, "it waits for tb %d step %u, which this gpu does not have",
                                (int)step->depends_block, (unsigned)step->depends_step);
            if ((size_t)step->depends_block == b && step->depends_step >= s)
                return complain(reader, step->line, "it waits for itself or a later step of its own tb");
            const struct msccl_block *other = &msccl->block[gpu->block + (size_t)step->depends_block];
            if ((size_t)step->depends_block != b && !msccl->step[other->step + step->depends_step].awaited)
                return complain(reader, step->line, "it waits for tb %d step %u, which does not say hasdep=\"1\"",
                                (int)step->depends_block, (unsigned)step->depends_step);
        }
    }
    return STATUS_OK;
}

static enum status read_gpu(struct reader *reader, struct msccl *msccl)
{
    const int line = reader->tag.line;
    const bool empty = reader->tag.empty;
    static const char *const names[MSCCL_BUFFERS] = {"i_chunks", "o_chunks", "s_chunks"};
    long id = 0, chunks = 0;
    TRY(check_known(reader, "id i_chunks o_chunks s_chunks"));
    TRY(number(reader, "id", 0, msccl->workers - 1, &id));
    struct msccl_gpu *gpu = &msccl->gpu[id];
    if (gpu->line != 0)
        return complain(reader, line, "gpu %ld is given twice (line %d)", id, gpu->line);
    *gpu = (struct msccl_gpu){.line = line, .block = msccl->blocks};
    for (int b = 0; b < MSCCL_BUFFERS; b++) {
        TRY(number_or(reader, names[b], 0, b == MSCCL_SCRATCH ? MSCCL_MOST_CHUNKS : (long)msccl->chunks, 0, &chunks));
        gpu->chunks[b] = (uint32_t)chunks;
    }
    if (msccl->in_place) {
        const uint32_t i = gpu->chunks[MSCCL_INPUT], o = gpu->chunks[MSCCL_OUTPUT];
        gpu->chunks[MSCCL_INPUT] = gpu->chunks[MSCCL_OUTPUT] = i > o ? i : o;
    }
    for (bool more = !empty; more;) {
        TRY(next_child(reader, "gpu", "tb", &more));
        if (!more)
            break;
        TRY(read_block(reader, msccl, gpu, (int)id));
        gpu->blocks++;
    }
    return check_dependencies(reader, msccl, gpu);
}

/* ---- the whole ---- */

static enum status check_collective(const struct reader *reader)
{
    const struct slice *coll = find(&reader->tag, "coll");
    if (coll == NULL)
        return complain(reader, reader->tag.line, "<algo> has no coll");
    if (!equals(coll, "allreduce"))
        return fail(STATUS_REFUSED, "%s:%d: coll=\"%.*s\": only allreduce can be run here", reader->file,
                    reader->tag.line, shown(coll), coll->at);
    return STATUS_OK;
}

static enum status read_head(struct reader *reader, struct msccl *msccl)
{
    long workers = 0, chunks = 0, channels = 0, in_place = 0;
    TRY(next_tag(reader));
    if (reader->tag.closes || !equals(&reader->tag.name, "algo"))
        return complain(reader, reader->tag.line, "<algo> is due: this is no MSCCL XML");
    TRY(check_known(reader, "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes "
                            "maxcount nthreadblocks"));
    TRY(check_collective(reader));
    TRY(number(reader, "ngpus", 1, MSCCL_MOST_WORKERS, &workers));
    TRY(number(reader, "nchunksperloop", 1, MSCCL_MOST_CHUNKS, &chunks));
    TRY(number(reader, "nchannels", 1, MSCCL_MOST_CHANNELS, &channels));
    TRY(number_or(reader, "inplace", 0, 1, 0, &in_place));
    const struct slice *name = find(&reader->tag, "name");
    for (size_t i = 0; name != NULL && i < name->length && i + 1 < sizeof msccl->name; i++)
        msccl->name[i] = name->at[i] > ' ' && name->at[i] <= '~' ? name->at[i] : '_';
    msccl->workers = (int)workers;
    msccl->chunks = (uint32_t)chunks;
    msccl->channels = (uint16_t)channels;
    msccl->in_place = in_place == 1;
    void *memory = NULL;
    TRY(memory_zeroed(&memory, (size_t)workers, sizeof(struct msccl_gpu)));
    msccl->gpu = memory;
    return STATUS_OK;
}

static enum status read_all(struct reader *reader, struct msccl *msccl)
{
    TRY(read_head(reader, msccl));
    const int line = reader->tag.line;
    for (bool more = !reader->tag.empty; more;) {
        TRY(next_child(reader, "algo", "gpu", &more));
        if (more)
            TRY(read_gpu(reader, msccl));
    }
    for (int g = 0; g < msccl->workers; g++)
        if (msccl->gpu[g].line == 0)
            return complain(reader, line, "ngpus=\"%d\", but there is no gpu %d", msccl->workers, g);
    TRY(skip_between(reader));
    if (reader->at < reader->end)
        return complain(reader, reader->line, "something follows </algo>");
    return STATUS_OK;
}

enum status msccl_parse(const char *text, size_t length, const char *file, struct msccl *msccl)
{
    struct reader reader = {.file = file, .at = text, .end = text + length, .line = 1};
    *msccl = (struct msccl){.file = file};
    if (length > MSCCL_MOST_BYTES)
        return fail(STATUS_FORMAT, "%s has %zu bytes: at most %zu are taken", file, length, MSCCL_MOST_BYTES);
    const enum status status = read_all(&reader, msccl);
    if (status < 0)
        msccl_release(msccl);
    return status;
}

void msccl_release(struct msccl *msccl)
{
    free(msccl->gpu);
    free(msccl->block);
    free(msccl->step);
    *msccl = (struct msccl){.file = msccl->file};
}
