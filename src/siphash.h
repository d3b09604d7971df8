/* SipHash-1-3 (Aumasson, Bernstein), keyed with random bytes per process.
 *
 * Peers choose the names in this package's hash tables. With a known hash, a peer could choose n names that
 * share a cell, and a table of them would cost n * n comparisons. The key is unknown to peers.
 * Call sip_seed() before sip_hash(): each extension does so with os.urandom() when it is imported. */
#ifndef LIFTENVELOPE_SIPHASH_H
#define LIFTENVELOPE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t first, second;
} sip_key;

static sip_key sip_process_key;

#define SIP_ROTATE(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))
#define SIP_ROUND(v)                                                                       \
    do {                                                                                   \
        v[0] += v[1], v[1] = SIP_ROTATE(v[1], 13) ^ v[0], v[0] = SIP_ROTATE(v[0], 32);     \
        v[2] += v[3], v[3] = SIP_ROTATE(v[3], 16) ^ v[2];                                  \
        v[0] += v[3], v[3] = SIP_ROTATE(v[3], 21) ^ v[0];                                  \
        v[2] += v[1], v[1] = SIP_ROTATE(v[1], 17) ^ v[2], v[2] = SIP_ROTATE(v[2], 32);     \
    } while (0)

/* Words are read in native byte order: hashes never leave the process. */
static inline uint64_t sip_hash_with(sip_key key, const uint8_t *p, size_t n) {
    uint64_t v[4] = {key.first ^ 0x736f6d6570736575u, key.second ^ 0x646f72616e646f6du,
                     key.first ^ 0x6c7967656e657261u, key.second ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)n << 56;
    size_t left = n;
    for (; left >= 8; left -= 8, p += 8) {
        memcpy(&word, p, 8);
        v[3] ^= word;
        SIP_ROUND(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)p[i] << (8 * i);
    v[3] ^= last;
    SIP_ROUND(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    SIP_ROUND(v);
    SIP_ROUND(v);
    SIP_ROUND(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Make a key from 16 bytes. */
static inline sip_key sip_key_of(const uint8_t *bytes) {
    sip_key key;
    memcpy(&key.first, bytes, 8);
    memcpy(&key.second, bytes + 8, 8);
    return key;
}

static inline void sip_seed(const uint8_t *bytes) {
    sip_process_key = sip_key_of(bytes);
}

static inline uint64_t sip_hash(const uint8_t *p, size_t n) {
    return sip_hash_with(sip_process_key, p, n);
}

#endif
