/* Changes to envelopes, for engine.pyx: random ones, and such as know what an envelope is made of. */
#ifndef LIFTENVELOPE_FUZZ_MUTATE_H
#define LIFTENVELOPE_FUZZ_MUTATE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST 2048 /* bytes of an input */
#define PLACES 64    /* fields whose places are looked for */

/* Coverage, as AFL counts it: pairs of blocks, and how often in classes of 1, 2, 3, 4+, 8+, 16+, 32+, 128+.
 * gcc calls the hook at every block; only those count that run while a decoder does. */
static uint8_t coverage_counts[1 << 16], coverage_seen[1 << 16];
static uint32_t coverage_touched[1 << 16];
static uint32_t coverage_used, coverage_edges;
static uintptr_t coverage_last;
static int coverage_on;

__attribute__((visibility("hidden"), no_sanitize_coverage, no_sanitize("address", "undefined")))
void __sanitizer_cov_trace_pc(void) {
    if (!coverage_on)
        return;
    /* From the beginning of this library, wherever it was loaded: the same seed has to find the same. */
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - (uintptr_t)coverage_seen;
    here = (here >> 4) ^ (here << 8);
    uint32_t edge = (uint32_t)((here ^ coverage_last) & 0xFFFF);
    coverage_last = here >> 1;
    if (coverage_counts[edge] == 0)
        coverage_touched[coverage_used++] = edge;
    if (coverage_counts[edge] < 255)
        coverage_counts[edge]++;
}

static void coverage_begin(void) {
    coverage_last = 0;
    coverage_used = 0;
    coverage_on = 1;
}

/* Whether the run did anything new; forgets its counts. */
static int coverage_end(void) {
    coverage_on = 0;
    int found = 0;
    for (uint32_t i = 0; i < coverage_used; i++) {
        uint32_t edge = coverage_touched[i];
        uint8_t n = coverage_counts[edge];
        uint8_t class_bit = n >= 128 ? 128 : n >= 32 ? 64 : n >= 16 ? 32 : n >= 8 ? 16 : n >= 4 ? 8 : n >= 3 ? 4 : n;
        if (coverage_seen[edge] == 0)
            coverage_edges++;
        if (class_bit & ~coverage_seen[edge]) {
            coverage_seen[edge] |= class_bit;
            found = 1;
        }
        coverage_counts[edge] = 0;
    }
    return found;
}

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
} Input;

static void put_in(Input *in, size_t at, const uint8_t *data, size_t n) {
    if (n > LARGEST - in->size)
        return;
    memmove(in->data + at + n, in->data + at, in->size - at);
    memmove(in->data + at, data, n);
    in->size += n;
}

static void take_out(Input *in, size_t at, size_t n) {
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
static size_t field_places(const Input *in, size_t *places) {
    size_t count = 0, at = in->size > 5 && in->data[5] <= in->size ? in->data[5] : 8;
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

static void change_fields(Input *in, const Input *other) {
    size_t places[PLACES], theirs[PLACES], count = field_places(in, places), n = 0;
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
        count = field_places(other, theirs);
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

static void change_bytes(Input *in, const Input *other) {
    static const uint8_t odd[] = {0, 1, 7, 8, 0x0A, 0x12, 0x4A, 0x7F, 0x80, 0xC2, 0xE0, 0xED, 0xF0, 0xF4, 0xFE, 0xFF};
    uint8_t some[16];
    size_t from = below(32) ? (in->size > 8 ? 8 : in->size) : 0, at = from + below(in->size - from + 1), n;
    switch (below(8)) {
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
            in->data[at] = (uint8_t)next_random();
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
        n = encode_varint(some, odd_number(), below(4) ? 0 : below(11));
        put_in(in, at, some, n);
        break;
    default:
        if (other->size > 8) {
            n = 8 + below(other->size - 8);
            put_in(in, at, other->data + n, below(other->size - n + 1));
        }
    }
}

static void put_crc(Input *in) {
    uint32_t crc = crc32c(in->data + 12, in->size - 12);
    for (int i = 0; i < 4; i++)
        in->data[8 + i] = (uint8_t)(crc >> (24 - 8 * i));
}

/* Change an input a few times; for the most part its header stays sound, or nothing behind it would be read. */
static void mutate(Input *in, const Input *other, uint8_t kind) {
    static const uint8_t magic[] = {0xB9, 0x0E, 0x43, 0xB4, 0};
    for (size_t changes = 1 + below(below(2) ? 1 : 4); changes; changes--) {
        if (below(2))
            change_fields(in, other);
        else
            change_bytes(in, other);
    }
    if (in->size >= 8 && below(32)) {
        memcpy(in->data, magic, 5);
        in->data[7] = kind;
        if (in->data[5] < 8 || in->data[5] > in->size)
            in->data[5] = 8;
        if (in->data[5] != 12)
            in->data[6] &= 0xFE;
        else if ((in->data[6] & 1) && below(16))
            put_crc(in);
    }
}
#endif
