/* SPDX-License-Identifier: MIT */
/*
 * A system that refuses membarrier(2), by a filter of system calls. Knows nothing of leases.
 */
#ifndef WEIR_TESTS_NO_BARRIER_H
#define WEIR_TESTS_NO_BARRIER_H

/* From now on, with that errno, for the calling thread and those that it starts. For good. */
void refuse_barriers(int error);

#endif
