/* Edge coverage of one compiled module, counted as AFL does: see cover.c. */
#ifndef LIFTENVELOPE_FUZZ_COVER_H
#define LIFTENVELOPE_FUZZ_COVER_H

#include <stdint.h>

int coverage_watch(const char *path); /* count the edges of this shared object; 0 if it is not loaded */
void coverage_begin(void);
int coverage_end(void);         /* 1 if the run reached a new edge, or a known one a new number of times */
uint32_t coverage_edges(void);  /* distinct edges reached so far */

#endif
