/* Changes to the inputs of the campaign, for engine.pyx.
 *
 * An input is a list of chunks, and a target says what a chunk is to it: an envelope, a line with a payload, a
 * frame, a row, an operation. So the changes keep the structure, and the target writes lengths that are right unless
 * a chunk asks for wrong ones. Whole chunks are dropped, doubled, moved and taken from other inputs. Inside a chunk,
 * bytes, decimal numbers and known words change; if the chunk ends with an envelope or a protobuf message, its
 * fields do, and the header and checksum are made right again.
 */
#ifndef LIFTENVELOPE_FUZZ_MUTATE_H
#define LIFTENVELOPE_FUZZ_MUTATE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST 1024       /* bytes of a chunk */
#define LARGEST_INPUT 2048 /* bytes of an input: each chunk has two more, for its size */
#define MOST_CHUNKS 12
#define PLACES 64 /* fields of a message that are looked for */
#define MOST_WORDS 64

enum { BYTES = 0, PUBLISHES = 1, ACKNOWLEDGES = 2, MESSAGES = 3 }; /* what a chunk ends with */

/* xorshift64*: the same seed gives the same inputs. */
static uint64_t random_state = 1;

static uint64_t next_random(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1Dull;
}

static size_t below(size_t n) { return n ? (size_t)((next_random() >> 11) % n) : 0; }

typedef struct {
    uint8_t data[LARGEST];
    size_t size;
} Chunk;

static void put_in(Chunk *in, size_t at, const uint8_t *data, size_t n) {
    if (n > LARGEST - in->size)
        return;
    memmove(in->data + at + n, in->data + at, in->size - at);
    memmove(in->data + at, data, n);
    in->size += n;
}

static void take_out(Chunk *in, size_t at, size_t n) {
    if (n > in->size - at)
        n = in->size - at;
    memmove(in->data + at, in->data + at + n, in->size - at - n);
    in->size -= n;
}

// Not write_varint: the internal headers of Python 3.13, which Cython includes, define one.
static size_t encode_varint(uint8_t *out, uint64_t number, size_t overlong) {
    size_t n = 0;
    while (number > 0x7F || (overlong > n + 1 && n < 11)) {
        out[n++] = (uint8_t)number | 0x80;
        number >>= 7;
    }
    out[n++] = (uint8_t)number;
    return n;
}

static uint64_t odd_number(void) {
    static const uint64_t odd[] = {0, 1, 2, 7, 8, 127, 128, 255, 16383, 16384, 0x7FFFFFFF, 0x80000000u, 0xFFFFFFFFu,
        0x100000000ull, 1ull << 40, (1ull << 63) - 1, 1ull << 63, UINT64_MAX - 1, UINT64_MAX};
    return below(2) ? odd[below(sizeof odd / sizeof *odd)] : next_random() >> below(64);
}

static size_t some_text(uint8_t *out) {
    static const char *const texts[] = {"a", "foo.bar", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x99\x82", "\xED\x9F\xBF",
        "\xEE\x80\x80", "\xF4\x8F\xBF\xBF", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\x80", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x99", "12345678",
        "1234567\xC3\xA9", "12345678901234\xE2\x82\xAC"};
    size_t n = 0;
    for (size_t parts = 1 + below(3); parts; parts--) {
        const char *text = texts[below(below(3) ? 8 : sizeof texts / sizeof *texts)];
        memcpy(out + n, text, strlen(text));
        n += strlen(text);
    }
    return n;
}

/* A field of any wire type, for the most part one that a decoder knows. */
static size_t some_field(uint8_t *out, int depth) {
    uint64_t number = below(16) ? 1 + below(13) : odd_number() >> below(4);
    unsigned kind = (unsigned)(below(3) ? (below(2) ? 2 : 0) : below(8));
    size_t overlong = below(24) ? 0 : 1 + below(10), size, n = encode_varint(out, number << 3 | kind, overlong);
    uint8_t content[512];
    overlong = below(24) ? 0 : 1 + below(10);
    switch (kind) {
    case 0:
        return n + encode_varint(out + n, odd_number(), overlong);
    case 2:
        size = 0;
        if (depth && (number == 9 || below(8) == 0))
            for (size_t parts = below(4); parts && size < 200; parts--)
                size += some_field(content + size, 0);
        else if (below(2))
            size = some_text(content);
        else
            for (size = 0; size < 20 && below(8); size++)
                content[size] = (uint8_t)next_random();
        if (!depth && below(3)) { /* the key or the value of a header */
            n = encode_varint(out, (1 + below(2)) << 3 | 2, 0);
            size = some_text(content);
        }
        n += encode_varint(out + n, below(32) ? size : (uint64_t)(size + below(3) - 1), overlong);
        memcpy(out + n, content, size);
        return n + size;
    case 1:
        memset(out + n, (int)below(256), 8);
        return n + 8;
    case 5:
        memset(out + n, (int)below(256), 4);
        return n + 4;
    case 3:
        if (depth)
            n += some_field(out + n, 0);
        return n + encode_varint(out + n, (below(8) ? number : number + 1) << 3 | 4, 0);
    default:
        return n;
    }
}

/* Where the fields begin, as far as they can be told, and the end of the data. */
static size_t field_places(const Chunk *in, size_t *places, int format) {
    size_t count = 0, at = format == MESSAGES ? 0 : in->size > 5 && in->data[5] <= in->size ? in->data[5] : 8;
    while (at < in->size && count < PLACES - 1) {
        places[count++] = at;
        uint64_t number = 0, tag = 0;
        for (int round = 0; round < 2; round++) {
            number = 0;
            for (int shift = 0; at < in->size && shift < 63; shift += 7) {
                number |= (uint64_t)(in->data[at] & 0x7F) << shift;
                if (in->data[at++] < 0x80)
                    break;
            }
            if (round == 0) {
                tag = number;
                if ((tag & 7) == 1 || (tag & 7) == 5)
                    at += (tag & 7) == 1 ? 8 : 4;
                if ((tag & 7) != 0 && (tag & 7) != 2)
                    break;
            } else if ((tag & 7) == 2)
                at = number > in->size - at ? in->size : at + number;
        }
    }
    places[count++] = at < in->size ? at : in->size;
    return count;
}

static void change_fields(Chunk *in, const Chunk *other, int format) {
    size_t places[PLACES], theirs[PLACES], count = field_places(in, places, format), n = 0;
    uint8_t field[2048];
    size_t one = below(count), two = below(count);
    size_t first = places[one < two ? one : two], last = places[one < two ? two : one];
    switch (below(7)) {
    case 0:
    case 1:
        put_in(in, places[one], field, some_field(field, 1));
        break;
    case 2:
        take_out(in, first, last - first);
        break;
    case 3: /* again at the end, where the last one wins */
        if (last > first && last - first <= sizeof field) {
            memcpy(field, in->data + first, last - first);
            put_in(in, in->size, field, last - first);
        }
        break;
    case 4:
        count = field_places(other, theirs, format);
        one = below(count);
        if (one + 1 < count && theirs[one + 1] <= other->size)
            put_in(in, places[two], other->data + theirs[one], theirs[one + 1] - theirs[one]);
        break;
    case 5: /* groups, as deep as is allowed and a little deeper */
        for (size_t depth = below(4) ? 1 + below(4) : 96 + below(8), i = 0; i < 2 * depth; i++)
            field[n++] = i < depth ? 15 << 3 | 3 : 15 << 3 | 4;
        put_in(in, places[one], field, n);
        break;
    default: /* a length, or whatever stands behind a tag */
        if (places[one] + 1 < in->size)
            in->data[places[one] + 1] = (uint8_t)(in->data[places[one] + 1] + below(5) - 2);
    }
}

/* The words that this target knows. */
static const uint8_t *words[MOST_WORDS];
static size_t word_sizes[MOST_WORDS], word_count;

static void add_word(const uint8_t *data, size_t n) {
    if (word_count < MOST_WORDS) {
        words[word_count] = data;
        word_sizes[word_count++] = n;
    }
}

static size_t some_decimal(uint8_t *out) {
    static const char *const odd[] = {"0", "00", "1", "9", "10", "127", "255", "65536", "2147483647", "2147483648",
        "4294967296", "999999999999999999", "1000000000000000000", "9223372036854775807", "9223372036854775808",
        "18446744073709551615", "18446744073709551616", "99999999999999999999", "-1", ""};
    const char *text = odd[below(sizeof odd / sizeof *odd)];
    if (below(2)) {
        size_t n = 0;
        for (size_t digits = 1 + below(below(8) ? 2 : 20); digits; digits--)
            out[n++] = (uint8_t)('0' + below(10));
        return n;
    }
    memcpy(out, text, strlen(text));
    return strlen(text);
}

/* Put another number where a decimal one stands, if one is found from some place on. */
static void change_decimal(Chunk *in, size_t at) {
    uint8_t number[24];
    size_t n = 0;
    while (at < in->size && (in->data[at] < '0' || in->data[at] > '9'))
        at++;
    while (at + n < in->size && in->data[at + n] >= '0' && in->data[at + n] <= '9')
        n++;
    if (n == 0)
        return;
    take_out(in, at, n);
    n = some_decimal(number);
    put_in(in, at, number, n);
}

static void change_bytes(Chunk *in, const Chunk *other, size_t head) {
    static const uint8_t odd[] = {0, 1, 2, 3, 7, 8, 9, 0x0A, 0x0D, 0x20, 0x2E, 0x7C, 0x12, 0x4A, 0x7F, 0x80, 0xC2, 0xE0,
        0xED, 0xF0, 0xF4, 0xFE, 0xFF};
    uint8_t some[16];
    size_t from = below(32) ? (in->size > head ? head : in->size) : 0, at = from + below(in->size - from + 1), n;
    switch (below(10)) {
    case 0:
        if (at < in->size)
            in->data[at] ^= (uint8_t)(1 << below(8));
        break;
    case 1:
        if (at < in->size)
            in->data[at] = odd[below(sizeof odd)];
        break;
    case 2:
        if (at < in->size)
            in->data[at] = below(2) ? (uint8_t)next_random() : (uint8_t)(in->data[at] + below(5) - 2);
        break;
    case 3:
        for (n = 0; n < 4; n++)
            some[n] = (uint8_t)next_random();
        put_in(in, at, some, 1 + below(4));
        break;
    case 4:
        take_out(in, at, 1 + below(8));
        break;
    case 5:
        if (below(4) == 0)
            in->size = at;
        break;
    case 6:
        if (head) {
            n = encode_varint(some, odd_number(), below(4) ? 0 : below(11));
            put_in(in, at, some, n);
        } else
            change_decimal(in, at);
        break;
    case 7:
        if (word_count) {
            n = below(word_count);
            if (below(4) == 0)
                take_out(in, at, 1 + below(4));
            put_in(in, at, words[n], word_sizes[n]);
        }
        break;
    default:
        if (other->size > head) {
            n = head + below(other->size - head);
            put_in(in, at, other->data + n, below(other->size - n + 1));
        }
    }
}

static void put_crc(Chunk *in) {
    uint32_t crc = crc32c(in->data + 12, in->size - 12);
    for (int i = 0; i < 4; i++)
        in->data[8 + i] = (uint8_t)(crc >> (24 - 8 * i));
}

/* Change an envelope or a message a few times; for the most part its header stays sound, or nothing behind it
 * would be read. */
static void change_message(Chunk *in, const Chunk *other, int format) {
    static const uint8_t magic[] = {0xB9, 0x0E, 0x43, 0xB4, 0};
    for (size_t changes = 1 + below(below(2) ? 1 : 4); changes; changes--) {
        if (below(2))
            change_fields(in, other, format);
        else
            change_bytes(in, other, format == MESSAGES ? 0 : 8);
    }
    if (format != MESSAGES && in->size >= 8 && below(32)) {
        memcpy(in->data, magic, 5);
        in->data[7] = format == ACKNOWLEDGES;
        if (in->data[5] < 8 || in->data[5] > in->size)
            in->data[5] = 8;
        if (in->data[5] != 12)
            in->data[6] &= 0xFE;
        else if ((in->data[6] & 1) && below(16))
            put_crc(in);
    }
}

/* Inputs */

typedef struct {
    uint8_t data[LARGEST_INPUT];
    size_t size;
} Input;

/* What the chunks of a target's inputs are. */
typedef struct {
    int format;  /* what a chunk ends with: BYTES for nothing in particular */
    int bars;    /* behind how many '|' that begins */
    size_t most; /* chunks of an input */
} Shape;

static size_t size_at(const uint8_t *p) { return (size_t)p[0] | (size_t)p[1] << 8; }

/* Where the chunks begin, and the end of the last. Sizes that reach too far are cut: any bytes are an input. */
static size_t chunk_places(Input *in, size_t *places, size_t most) {
    size_t count = 0, at = 0, n;
    while (in->size - at >= 2 && count < most) {
        n = size_at(in->data + at);
        if (n > in->size - at - 2 || n > LARGEST) {
            n = in->size - at - 2 > LARGEST ? LARGEST : in->size - at - 2;
            in->data[at] = (uint8_t)n;
            in->data[at + 1] = (uint8_t)(n >> 8);
        }
        places[count++] = at;
        at += 2 + n;
    }
    places[count] = in->size = at;
    return count;
}

static void get_chunk(const Input *in, size_t at, Chunk *out) {
    out->size = size_at(in->data + at);
    memcpy(out->data, in->data + at + 2, out->size);
}

/* Put a chunk where some bytes of an input stand, if there is room. */
static void put_chunk(Input *in, size_t at, size_t old, const Chunk *chunk) {
    if (in->size - old + 2 + chunk->size > LARGEST_INPUT)
        return;
    memmove(in->data + at + 2 + chunk->size, in->data + at + old, in->size - at - old);
    in->data[at] = (uint8_t)chunk->size;
    in->data[at + 1] = (uint8_t)(chunk->size >> 8);
    memcpy(in->data + at + 2, chunk->data, chunk->size);
    in->size += 2 + chunk->size - old;
}

/* Where the message in a chunk begins; its size if there is none. */
static size_t message_place(const Chunk *in, int bars) {
    size_t at = 0;
    while (bars > 0 && at < in->size)
        bars -= in->data[at++] == '|';
    return bars > 0 ? in->size : at;
}

static void change_chunk(Chunk *in, const Chunk *other, const Shape *shape, int options) {
    Chunk part, theirs;
    size_t at = message_place(in, shape->bars), from = message_place(other, shape->bars);
    if (options || shape->format == BYTES || (at && below(3) == 0)) {
        for (size_t changes = 1 + below(below(2) ? 1 : 4); changes; changes--)
            change_bytes(in, other, 0);
        return;
    }
    part.size = in->size - at;
    theirs.size = other->size - from;
    memcpy(part.data, in->data + at, part.size);
    memcpy(theirs.data, other->data + from, theirs.size);
    change_message(&part, &theirs, shape->format);
    in->size = at;
    put_in(in, at, part.data, part.size);
}

/* Drop, double, move a chunk, or take one of another input. The first chunk, the target's options, stays first. */
static void change_order(Input *in, Input *other) {
    size_t places[MOST_CHUNKS + 1], theirs[MOST_CHUNKS + 1];
    size_t count = chunk_places(in, places, MOST_CHUNKS), many = chunk_places(other, theirs, MOST_CHUNKS);
    size_t one = count > 1 ? 1 + below(count - 1) : count, two = 1 + below(count);
    Chunk chunk = {.size = 0};
    switch (below(5)) {
    case 0:
        if (one < count && count > 2) {
            memmove(in->data + places[one], in->data + places[one + 1], in->size - places[one + 1]);
            in->size -= places[one + 1] - places[one];
        }
        break;
    case 1:
        if (one < count && count < MOST_CHUNKS) {
            get_chunk(in, places[one], &chunk);
            put_chunk(in, places[two], 0, &chunk);
        }
        break;
    case 2:
        if (one < count && count > 2) {
            get_chunk(in, places[one], &chunk);
            memmove(in->data + places[one], in->data + places[one + 1], in->size - places[one + 1]);
            in->size -= places[one + 1] - places[one];
            count = chunk_places(in, places, MOST_CHUNKS);
            put_chunk(in, places[1 + below(count)], 0, &chunk);
        }
        break;
    default:
        if (many > 1 && count < MOST_CHUNKS) {
            get_chunk(other, theirs[1 + below(many - 1)], &chunk);
            put_chunk(in, places[two], below(4) || two >= count ? 0 : places[two + 1] - places[two], &chunk);
        }
    }
}

/* Change an input a few times. */
static void mutate(Input *in, Input *other, const Shape *shape) {
    size_t places[MOST_CHUNKS + 1], theirs[MOST_CHUNKS + 1];
    for (size_t changes = 1 + below(shape->most == 1 ? 1 : 3); changes; changes--) {
        if (shape->most > 1 && below(3) == 0) {
            change_order(in, other);
            continue;
        }
        size_t count = chunk_places(in, places, MOST_CHUNKS), many = chunk_places(other, theirs, MOST_CHUNKS);
        if (count == 0 || many == 0)
            return;
        size_t which = below(count), at = places[which];
        Chunk chunk, theirs_too;
        get_chunk(in, at, &chunk);
        get_chunk(other, theirs[below(many)], &theirs_too);
        change_chunk(&chunk, &theirs_too, shape, shape->most > 1 && which == 0);
        put_chunk(in, at, places[which + 1] - at, &chunk);
    }
}
#endif
