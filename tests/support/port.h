/* SPDX-License-Identifier: MIT */
/*
 * Ports of 127.0.0.1 that are held: a socket is bound to one and does not listen. A connect is refused there, and the
 * system gives the number to nobody else. Who sets SO_REUSEADDR, as redis-server does, may yet be bound to it and
 * listen, end, and listen again. A number that was only free a moment ago is another test's before long.
 */
#ifndef WEIR_TESTS_PORT_H
#define WEIR_TESTS_PORT_H

/* A port that is held while *fd is open, which the caller closes. Aborts the test where there is none. */
int port_hold(int *fd);

/* A port that is held until the process ends. */
int port_keep(void);

#endif
