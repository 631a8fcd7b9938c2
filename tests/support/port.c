/* SPDX-License-Identifier: MIT */
/*
 * The system chooses, by bind to port 0; it passes over ports that have a socket, one that does not listen included.
 */
#include "support/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "support/guard.h"

int port_hold(int *fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int on = 1;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(*fd, (struct sockaddr *)&address, len) != 0 || getsockname(*fd, (struct sockaddr *)&address, &len) != 0) {
        guard_fail("no free port: %s", strerror(errno));
    }
    return ntohs(address.sin_port);
}

int port_keep(void)
{
    int fd;
    return port_hold(&fd);
}
