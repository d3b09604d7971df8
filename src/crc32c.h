/* CRC-32C (Castagnoli), with the processor's instruction if it has one.
 *
 * crc32c() uses the fastest implementation. crc32c_table() works everywhere (slicing by eight). Call
 * crc32c_native() only if crc32c_has_native() is true. Call crc32c_init() before all of them. The choice is
 * made at run time, so that one wheel serves every machine. */
#ifndef LIFTENVELOPE_CRC32C_H
#define LIFTENVELOPE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#if defined(__clang_major__) && __clang_major__ >= 14 /* there the instruction is a feature of its own */
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2")))
#endif
#define CRC32C_U64(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC32C_U8(crc, byte) _mm_crc32_u8((crc), (byte))
static int crc32c_probe(void) { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
/* Written as assembly, because compilers disagree about the target attribute that arm_acle.h needs: gcc takes
 * "+crc", older clang only "crc". */
#define CRC32C_TARGET
static inline uint32_t crc32c_u64(uint32_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
static inline uint32_t crc32c_u8(uint32_t crc, uint8_t byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    return crc;
}
#define CRC32C_U64(crc, word) crc32c_u64((crc), (word))
#define CRC32C_U8(crc, byte) crc32c_u8((crc), (byte))
#if defined(__APPLE__) || defined(__ARM_FEATURE_CRC32) /* every Mac with this processor has the instruction */
static int crc32c_probe(void) { return 1; }
#elif defined(__linux__)
#include <sys/auxv.h>
/* HWCAP_CRC32 of asm/hwcap.h, which musl's headers do not bring. */
static int crc32c_probe(void) { return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; }
#else
static int crc32c_probe(void) { return 0; }
#endif
#endif

static uint32_t crc32c_tables[8][256];

static int crc32c_use_native;
static int crc32c_has_native(void);

static inline void crc32c_init(void) {
    crc32c_use_native = crc32c_has_native();
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
        crc32c_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++) {
            uint32_t before = crc32c_tables[k - 1][byte];
            crc32c_tables[k][byte] = (before >> 8) ^ crc32c_tables[0][before & 0xFF];
        }
}

static uint32_t crc32c_table(const uint8_t *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                              (uint32_t)data[3] << 24);
        crc = crc32c_tables[7][low & 0xFF] ^ crc32c_tables[6][(low >> 8) & 0xFF] ^
              crc32c_tables[5][(low >> 16) & 0xFF] ^ crc32c_tables[4][low >> 24] ^
              crc32c_tables[3][data[4]] ^ crc32c_tables[2][data[5]] ^ crc32c_tables[1][data[6]] ^
              crc32c_tables[0][data[7]];
    }
    for (; size; data++, size--)
        crc = crc32c_tables[0][(crc ^ *data) & 0xFF] ^ (crc >> 8);
    return crc ^ 0xFFFFFFFFu;
}

#ifdef CRC32C_TARGET
static int crc32c_has_native(void) { return crc32c_probe(); }

CRC32C_TARGET static uint32_t crc32c_native(const uint8_t *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = CRC32C_U64(crc, word);
    }
    for (; size; data++, size--)
        crc = CRC32C_U8(crc, *data);
    return crc ^ 0xFFFFFFFFu;
}
#else
static int crc32c_has_native(void) { return 0; }
static uint32_t crc32c_native(const uint8_t *data, size_t size) { return crc32c_table(data, size); }
#endif

static uint32_t crc32c(const uint8_t *data, size_t size) {
    return crc32c_use_native ? crc32c_native(data, size) : crc32c_table(data, size);
}

#endif
