/* SPDX-License-Identifier: MIT */
/*
 * A redis-server of the test's own, in a folder of its own. A guard process holds it: when the test ends in whatever
 * way, the server is killed and the folder removed. Every call aborts the test with a message where it can't do its
 * job.
 */
#ifndef WEIR_TESTS_REDIS_SERVER_H
#define WEIR_TESTS_REDIS_SERVER_H

struct redis_server;

struct redis_server_options {
    int tcp;                 /* non-zero: also listens on a free port of 127.0.0.1 (and ::1 where there is one) */
    int cluster;             /* non-zero: is of a cluster, with a free port for its bus */
    const char *const *args; /* more arguments for redis-server ("--requirepass", "x", NULL); NULL: none */
    const char *sentinel;    /* lines of a Sentinel's configuration: it is one; NULL: it is none */
    int persist;             /* non-zero: append-only file, fsynced, so that a restart finds the data */
};

/* Starts one and waits until it answers. options may be NULL. */
struct redis_server *redis_server_open(const struct redis_server_options *options);

/* Kills it, removes the folder. NULL is allowed. */
void redis_server_close(struct redis_server *server);

const char *redis_server_socket(const struct redis_server *server);  /* path of the unix socket */
const char *redis_server_uri(const struct redis_server *server);     /* unix:///... */
const char *redis_server_tcp_uri(const struct redis_server *server); /* redis://127.0.0.1:port; NULL without tcp */
const char *redis_server_folder(const struct redis_server *server);
int redis_server_port(const struct redis_server *server); /* 0 without tcp */
int redis_server_pid(const struct redis_server *server);  /* 0 while it is not running */

void redis_server_stop(struct redis_server *server);    /* SIGTERM, waits for its end */
void redis_server_kill(struct redis_server *server);    /* SIGKILL, waits for its end */
void redis_server_pause(struct redis_server *server);   /* SIGSTOP */
void redis_server_resume(struct redis_server *server);  /* SIGCONT */
void redis_server_restart(struct redis_server *server); /* kills it where it runs, starts it at the same addresses */

/* One command on a connection of its own: its words, ended by NULL. Returns the reply as text in a static buffer: a
 * string as it is, an integer in digits, nil "(nil)", an error with a leading '-', an array as its elements joined by
 * newlines. Threads: one at a time. */
const char *redis_server_do(const struct redis_server *server, const char *word, ...) __attribute__((sentinel));

#endif
