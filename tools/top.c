/* SPDX-License-Identifier: MIT */
/* Owns what is shown of a process and how often; must not know how its stats socket is spoken to. */
#include "tools/top.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/args.h"
#include "tools/exits.h"
#include "tools/json.h"
#include "tools/stats_socket.h"

#define SECOND UINT64_C(1000000000)
#define POLICIES_MOST 1024u
#define NAME_ROOM 256u

static const char help[] =
    "usage: weir top SOCKET [OPTIONS]\n"
    "\n"
    "What a process decides, live: its policies, its connection to Redis, and the keys that are asked for most.\n"
    "SOCKET is the process' weir_sync_options.stats_socket; there is none unless it was asked for.\n"
    "\n"
    "  --keys N              hottest keys to show (default 10, at most 100)\n"
    "  --interval T          between frames (default 1s)\n"
    "  --frames N            then stop (default: never)\n"
    "  --json                one JSON object a frame\n"
    "  --help\n"
    "\n"
    "Exit status: 0 after the last frame, 2 wrong command line, 3 no process listens there, or it ended.\n"
    "\n"
    "Members of a JSON object: pid, version, uptime_s, keys, max_keys, memory_bytes, evictions, table_full, store_up,\n"
    "last_sync_age_s (null: never), round_trip_s, syncs, sync_errors, reconnects, strict, degraded, pending_tokens,\n"
    "written_off_tokens, policies: [name, mode, limit, per_ns, burst, allowed, denied, allowed_per_s, denied_per_s],\n"
    "hottest: [policy, key (what is not printable ASCII as %XX), length, per_s (tokens asked for), remaining].\n";

enum { OPT_KEYS = 256, OPT_INTERVAL, OPT_FRAMES, OPT_JSON };

static const struct option options[] = {
    {"keys", required_argument, NULL, OPT_KEYS},
    {"interval", required_argument, NULL, OPT_INTERVAL},
    {"frames", required_argument, NULL, OPT_FRAMES},
    {"json", no_argument, NULL, OPT_JSON},
    ARGS_OPTIONS_END,
};

struct policy {
    char name[NAME_ROOM], mode[16];
    uint64_t limit, per_ns, burst, allowed, denied;
    double allowed_per_s, denied_per_s; /* since the frame before; of the first, 0 */
};

struct top {
    const char *path;
    uint64_t keys, interval_ns, frames;
    int json, live;
    struct stats_socket socket;
    uint64_t at; /* of the frame */
    unsigned policy_count;
    struct policy policies[POLICIES_MOST];
};

static int set(void *out, int option, const char *text)
{
    struct top *top = out;
    switch (option) {
    case OPT_KEYS: return args_count(text, 0, 100, &top->keys);
    case OPT_INTERVAL: return args_time(text, &top->interval_ns) != 0 || top->interval_ns < SECOND / 10 ? -1 : 0;
    case OPT_FRAMES: return args_count(text, 1, UINT64_MAX, &top->frames);
    default: top->json = 1; return 0;
    }
}

static const struct args_command command = {
    .name = "top", .help = help, .options = options, .set = set, .least = 1, .most = 1};

static uint64_t clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

/* ---- a frame ----------------------------------------------------------------------------------------------------- */

static void take_policy(struct policy *p, const char *line, double seconds)
{
    uint64_t allowed = (uint64_t)stats_line_number(line, "allowed");
    uint64_t denied = (uint64_t)stats_line_number(line, "denied");
    p->allowed_per_s = seconds > 0 && allowed >= p->allowed ? (double)(allowed - p->allowed) / seconds : 0;
    p->denied_per_s = seconds > 0 && denied >= p->denied ? (double)(denied - p->denied) / seconds : 0;
    p->allowed = allowed;
    p->denied = denied;
    p->limit = (uint64_t)stats_line_number(line, "limit");
    p->per_ns = (uint64_t)stats_line_number(line, "per_ns");
    p->burst = (uint64_t)stats_line_number(line, "burst");
    stats_line_text(line, "name", p->name, sizeof p->name);
    stats_line_text(line, "mode", p->mode, sizeof p->mode);
}

static int take_frame(struct top *top)
{
    char line[32];
    snprintf(line, sizeof line, "top %u\n", (unsigned)top->keys);
    if (stats_socket_ask(&top->socket, line) != 0) {
        return -1;
    }
    uint64_t now = clock_ns();
    double seconds = top->at ? (double)(now - top->at) / (double)SECOND : 0;
    unsigned n = 0;
    for (const char *at = NULL; (at = stats_socket_next(&top->socket, at)) != NULL;) {
        if (stats_line_is(at, "policy") && n < POLICIES_MOST) {
            take_policy(&top->policies[n], at, n < top->policy_count ? seconds : 0);
            n++;
        }
    }
    top->policy_count = n;
    top->at = now;
    return 0;
}

/* The line of the answer that is the only one of its kind. */
static const char *line_of(const struct top *top, const char *kind)
{
    const char *at = NULL;
    while ((at = stats_socket_next(&top->socket, at)) != NULL && !stats_line_is(at, kind)) {
    }
    return at ? at : "";
}

static const char *policy_of(const struct top *top, const char *line)
{
    unsigned id = (unsigned)stats_line_number(line, "policy");
    return id < top->policy_count ? top->policies[id].name : "?";
}

/* ---- as JSON ----------------------------------------------------------------------------------------------------- */

static void copy_counts(struct json *j, const char *line, const char *const *names)
{
    for (; *names; names++) {
        json_count(j, *names, (uint64_t)stats_line_number(line, *names));
    }
}

static void write_policies(struct json *j, const struct top *top)
{
    json_list_begin(j, "policies");
    for (unsigned i = 0; i < top->policy_count; i++) {
        const struct policy *p = &top->policies[i];
        json_item(j);
        json_text(j, "name", p->name);
        json_text(j, "mode", p->mode);
        json_count(j, "limit", p->limit);
        json_count(j, "per_ns", p->per_ns);
        json_count(j, "burst", p->burst);
        json_count(j, "allowed", p->allowed);
        json_count(j, "denied", p->denied);
        json_number(j, "allowed_per_s", p->allowed_per_s);
        json_number(j, "denied_per_s", p->denied_per_s);
    }
    json_list_end(j);
}

static void write_hottest(struct json *j, const struct top *top)
{
    char text[512];
    json_list_begin(j, "hottest");
    for (const char *at = NULL; (at = stats_socket_next(&top->socket, at)) != NULL;) {
        if (stats_line_is(at, "key")) {
            json_item(j);
            json_text(j, "policy", policy_of(top, at));
            json_text(j, "key", stats_line_text(at, "key", text, sizeof text));
            json_count(j, "length", (uint64_t)stats_line_number(at, "length"));
            json_number(j, "per_s", stats_line_number(at, "per_s"));
            json_number(j, "remaining",
                        *stats_line_text(at, "remaining", text, sizeof text) ? stats_line_number(at, "remaining")
                                                                             : NAN);
        }
    }
    json_list_end(j);
}

static void write_object(const struct top *top)
{
    static const char *const table[] = {"keys", "max_keys", "memory_bytes", "evictions", "table_full", NULL};
    static const char *const store[] = {"syncs",    "sync_errors",    "reconnects",         "strict",
                                        "degraded", "pending_tokens", "written_off_tokens", NULL};
    const char *process = line_of(top, "process"), *redis = line_of(top, "store");
    char version[32];
    struct json j;
    json_open(&j, stdout);
    json_count(&j, "pid", (uint64_t)stats_line_number(process, "pid"));
    json_text(&j, "version", stats_line_text(process, "version", version, sizeof version));
    json_number(&j, "uptime_s", stats_line_number(process, "uptime_s"));
    copy_counts(&j, line_of(top, "table"), table);
    json_flag(&j, "store_up", stats_line_number(redis, "up") != 0);
    double age = stats_line_number(redis, "last_sync_age_s");
    json_number(&j, "last_sync_age_s", age < 0 ? NAN : age);
    json_number(&j, "round_trip_s", stats_line_number(redis, "round_trip_s"));
    copy_counts(&j, redis, store);
    write_policies(&j, top);
    write_hottest(&j, top);
    json_close(&j);
}

/* ---- for a person ------------------------------------------------------------------------------------------------ */

static void print_store(const struct top *top)
{
    const char *redis = line_of(top, "store");
    double age = stats_line_number(redis, "last_sync_age_s");
    printf("redis    %s", stats_line_number(redis, "up") != 0 ? "up" : "DOWN");
    if (age >= 0) {
        printf(", answered %.2f s ago in %.2f ms", age, stats_line_number(redis, "round_trip_s") * 1e3);
    }
    printf("; syncs %.0f, errors %.0f, reconnects %.0f\n", stats_line_number(redis, "syncs"),
           stats_line_number(redis, "sync_errors"), stats_line_number(redis, "reconnects"));
    printf("tokens   %.0f to be reported, %.0f written off; %.0f decisions by an outage policy\n",
           stats_line_number(redis, "pending_tokens"), stats_line_number(redis, "written_off_tokens"),
           stats_line_number(redis, "degraded"));
}

static void print_policies(const struct top *top)
{
    printf("\n%-20s %-7s %18s %10s %12s %12s %12s\n", "policy", "mode", "limit", "burst", "allowed/s", "denied/s",
           "allowed");
    for (unsigned i = 0; i < top->policy_count; i++) {
        const struct policy *p = &top->policies[i];
        char limit[64];
        snprintf(limit, sizeof limit, "%llu/%.9gs", (unsigned long long)p->limit, (double)p->per_ns / 1e9);
        printf("%-20s %-7s %18s %10llu %12.0f %12.0f %12llu\n", p->name, p->mode, limit, (unsigned long long)p->burst,
               p->allowed_per_s, p->denied_per_s, (unsigned long long)p->allowed);
    }
}

static void print_hottest(const struct top *top)
{
    char key[512], remaining[32];
    printf("\n%-20s %12s %10s  %s\n", "policy", "tokens/s", "remaining", "hottest keys");
    for (const char *at = NULL; (at = stats_socket_next(&top->socket, at)) != NULL;) {
        if (stats_line_is(at, "key")) {
            printf("%-20s %12.0f %10s  %s\n", policy_of(top, at), stats_line_number(at, "per_s"),
                   stats_line_text(at, "remaining", remaining, sizeof remaining),
                   stats_line_text(at, "key", key, sizeof key));
        }
    }
}

static void print_frame(const struct top *top)
{
    const char *process = line_of(top, "process"), *table = line_of(top, "table");
    char version[32];
    if (top->live) {
        fputs("\033[H\033[J", stdout);
    }
    printf("weir %s  process %.0f, up %.0f s\n", stats_line_text(process, "version", version, sizeof version),
           stats_line_number(process, "pid"), stats_line_number(process, "uptime_s"));
    printf("table    %.0f of %.0f keys, %.1f MB, %.0f evicted, %.0f found it full\n", stats_line_number(table, "keys"),
           stats_line_number(table, "max_keys"), stats_line_number(table, "memory_bytes") / 1e6,
           stats_line_number(table, "evictions"), stats_line_number(table, "table_full"));
    print_store(top);
    print_policies(top);
    print_hottest(top);
    if (!top->live) {
        putchar('\n');
    }
}

/* Rates need a frame before the first one that is shown. */
static int watch(struct top *top)
{
    struct timespec pause = {.tv_sec = (time_t)(top->interval_ns / SECOND),
                             .tv_nsec = (long)(top->interval_ns % SECOND)};
    if (take_frame(top) != 0) {
        return -1;
    }
    for (uint64_t n = 0; top->frames == 0 || n < top->frames; n++) {
        nanosleep(&pause, NULL);
        if (take_frame(top) != 0) {
            return -1;
        }
        if (top->json) {
            write_object(top);
        } else {
            print_frame(top);
        }
        fflush(stdout);
    }
    return 0;
}

int top_main(int argc, char **argv)
{
    static struct top top = {.keys = 10, .interval_ns = SECOND};
    int first = args_options(&command, argc, argv, &top);
    if (first <= 0) {
        return first == 0 ? EXIT_DONE : EXIT_USAGE;
    }
    top.path = argv[first];
    top.live = !top.json && isatty(STDOUT_FILENO);
    if (stats_socket_open(&top.socket, top.path) != 0) {
        fprintf(stderr, "weir top: %s\n", top.socket.error);
        return EXIT_UNREACHED;
    }
    int failed = watch(&top);
    if (failed) {
        fprintf(stderr, "weir top: %s\n", top.socket.error);
    }
    stats_socket_close(&top.socket);
    return failed ? EXIT_UNREACHED : EXIT_DONE;
}
