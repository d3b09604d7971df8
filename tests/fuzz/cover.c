/* Edge coverage for the campaign. `sanitized.py` builds this into a library of its own, which is preloaded.
 *
 * gcc's -fsanitize-coverage=trace-pc calls __sanitizer_cov_trace_pc at every basic block of every extension.
 * An edge is a pair of blocks that ran one after the other. As in AFL, how often an edge ran counts in classes
 * of 1, 2, 3, 4+, 8+, 16+, 32+ and 128+, so that a loop that runs longer is new as well.
 *
 * Only blocks of the watched module count, by their distance from its load address: the same seed finds the same
 * edges wherever the module is loaded. This file is built without sanitizers, because the hook runs at every block.
 */
#define _GNU_SOURCE
#include "cover.h"

#include <link.h>
#include <string.h>

#define EDGES 0x10000

static uint8_t counts[EDGES], seen[EDGES];
static uint32_t touched[EDGES];
static uint32_t used, edges;
static uintptr_t last, low, size;
static int on;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0) - low;
    if (!on || here >= size)
        return;
    here = (here >> 4) ^ (here << 8);
    uint32_t edge = (uint32_t)((here ^ last) & (EDGES - 1));
    last = here >> 1;
    if (counts[edge] == 0)
        touched[used++] = edge;
    if (counts[edge] < 255)
        counts[edge]++;
}

static int find(struct dl_phdr_info *info, size_t ignored, void *path) {
    (void)ignored;
    if (strcmp(info->dlpi_name, path) != 0)
        return 0;
    low = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz > size)
            size = info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    return 1;
}

int coverage_watch(const char *path) {
    size = 0;
    return dl_iterate_phdr(find, (void *)path);
}

void coverage_begin(void) {
    last = 0;
    used = 0;
    on = 1;
}

int coverage_end(void) {
    int found = 0;
    on = 0;
    for (uint32_t i = 0; i < used; i++) {
        uint32_t edge = touched[i];
        uint8_t n = counts[edge];
        uint8_t class_bit = n >= 128 ? 128 : n >= 32 ? 64 : n >= 16 ? 32 : n >= 8 ? 16 : n >= 4 ? 8 : n >= 3 ? 4 : n;
        if (seen[edge] == 0)
            edges++;
        if (class_bit & ~seen[edge]) {
            seen[edge] |= class_bit;
            found = 1;
        }
        counts[edge] = 0;
    }
    return found;
}

uint32_t coverage_edges(void) { return edges; }
