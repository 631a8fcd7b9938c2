/* SPDX-License-Identifier: MIT */
/*
 * Places where a tracer may look (USDT: bpftrace, perf, SystemTap), provider `weir`, listed in docs/probes.md. Owns how
 * they are made; must not know what is traced. Never where a decision is made in memory.
 *
 * Built in where Meson finds <sys/sdt.h> (option usdt): an instruction that does nothing each, until somebody traces.
 * Else nothing at all, the arguments included.
 */
#ifndef WEIR_SYNC_PROBES_H
#define WEIR_SYNC_PROBES_H

#ifdef WEIR_USDT
#include <sys/sdt.h>
#define WEIR__PROBE1(name, a) DTRACE_PROBE1(weir, name, a)
#define WEIR__PROBE2(name, a, b) DTRACE_PROBE2(weir, name, a, b)
#define WEIR__PROBE3(name, a, b, c) DTRACE_PROBE3(weir, name, a, b, c)
#define WEIR__PROBE4(name, a, b, c, d) DTRACE_PROBE4(weir, name, a, b, c, d)
#else
#define WEIR__PROBE1(name, a) ((void)0)
#define WEIR__PROBE2(name, a, b) ((void)0)
#define WEIR__PROBE3(name, a, b, c) ((void)0)
#define WEIR__PROBE4(name, a, b, c, d) ((void)0)
#endif

#endif
