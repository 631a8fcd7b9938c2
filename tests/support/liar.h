/* SPDX-License-Identifier: MIT */
/*
 * A RESP server that lies, on a thread of the test. Alone it answers as an empty Redis would (OK, PONG, a made-up SHA,
 * nil), and with TCP as a Sentinel whose master it is; with `upstream` it is a proxy to a real one. Rules make it
 * misbehave for the commands they match. Calls may come from any thread; they abort the test where they can't do their
 * job.
 */
#ifndef WEIR_TESTS_LIAR_H
#define WEIR_TESTS_LIAR_H

#include <stddef.h>
#include <stdint.h>

struct liar;

struct liar_options {
    int tcp;              /* 127.0.0.1, a free port, instead of a unix socket */
    const char *upstream; /* path of a real server's unix socket: proxy */
};

enum liar_act {
    LIAR_REPLY,        /* answers `text` (raw RESP bytes, terminated) instead */
    LIAR_SILENT,       /* swallows the command: no answer ever, later ones on the connection get theirs */
    LIAR_HANG,         /* from this command on nothing more is answered on this connection; it stays open */
    LIAR_LATE,         /* answers `ms` later, and so does everything behind it on the connection */
    LIAR_HALF,         /* half of the answer, then hangs */
    LIAR_HALF_CLOSE,   /* half of the answer, then closes */
    LIAR_GARBAGE,      /* bytes that are no RESP */
    LIAR_CLOSE,        /* closes instead of an answer */
    LIAR_RESET,        /* the same with a TCP reset */
    LIAR_LOSE_REQUEST, /* proxy: upstream never sees the command; then closes */
    LIAR_LOSE_REPLY    /* proxy: upstream executes it, the answer is lost; then closes */
};

struct liar_rule {
    const char *command; /* first word, any case; NULL: every command */
    unsigned skip;       /* the first matches that are left alone */
    unsigned times;      /* then applies that many times; 0: for ever */
    enum liar_act act;
    const char *text; /* what is answered (raw RESP), or half of it; NULL: what would have been; copied */
    unsigned ms;      /* LIAR_LATE */
};

struct liar *liar_open(const struct liar_options *options); /* NULL: a unix socket, no upstream */
void liar_close(struct liar *liar);                         /* NULL is allowed */

const char *liar_uri(const struct liar *liar);
const char *liar_socket(const struct liar *liar); /* path; NULL with tcp */
int liar_port(const struct liar *liar);

/* Adds a rule; the first that matches a command acts. */
void liar_rule(struct liar *liar, const struct liar_rule *rule);
/* A rule for a Sentinel: it names this port of 127.0.0.1 as the master's. */
void liar_name_master(struct liar *liar, int port, unsigned skip, unsigned times);
void liar_clear(struct liar *liar);   /* forgets every rule; what hangs goes on hanging */
void liar_release(struct liar *liar); /* what is late is due now */

void liar_refuse(struct liar *liar, int on); /* on: stops listening, so that a connect is refused */
void liar_deaf(struct liar *liar, int on);   /* on: new connections are accepted, nothing is read any more */
void liar_cut(struct liar *liar);            /* closes every connection now */

unsigned liar_accepted(struct liar *liar);  /* connections so far */
unsigned liar_connected(struct liar *liar); /* connections now */
/* Commands of that name read so far; NULL: all. Where nothing upstream or late is in front of it, what is counted has
 * been answered. */
unsigned liar_count(struct liar *liar, const char *command);
/* The words of the last command of that name, joined by spaces, into buf: its whole length, or 0 for none. */
size_t liar_last(struct liar *liar, const char *command, char *buf, size_t len);

#endif
