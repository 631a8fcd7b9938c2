/* SPDX-License-Identifier: MIT */
/* Owns one decision for a shell: a limiter with one strict policy; must not know how Redis decides. */
#include "tools/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <weir/sync.h>
#include <weir/weir.h>

#include "tools/args.h"
#include "tools/exits.h"
#include "tools/json.h"
#include "tools/store.h"

#define MS UINT64_C(1000000)
#define POLL_NS MS

static const char help[] =
    "usage: weir check POLICY KEY [COST] [OPTIONS]\n"
    "\n"
    "One decision, made by Redis: takes COST tokens (default 1) for KEY, or none.\n"
    "\n"
    "  POLICY                api=100/10s,burst=20: its name and numbers, as the processes that share it have them;\n"
    "                        or the name alone: the numbers in force in Redis\n"
    "  KEY                   as the processes give it\n"
    "  COST                  0 asks without taking\n"
    "  --version N           of the numbers, the highest wins (default 0)\n"
    "  --max-overshoot N     of the policy (default: 10 % of the burst)\n" STORE_HELP
    "  --json                one JSON object\n"
    "  --help\n"
    "\n"
    "Numbers that differ from those in force take their place for all processes, as in any process that shares the\n"
    "policy. Exit status: 0 allowed, 1 denied, 2 wrong command line, 3 Redis did not answer (or, given the name "
    "alone,\n"
    "does not know the policy): nothing was decided.\n"
    "\n"
    "Members of the JSON object: policy, key, cost, allowed, limit, remaining, retry_after_s (0: allowed; null: "
    "never),\n"
    "reset_after_s.\n";

enum { OPT_JSON = 256, OPT_VERSION, OPT_OVERSHOOT };

static const struct option options[] = {
    STORE_OPTION_LINES,
    {"version", required_argument, NULL, OPT_VERSION},
    {"max-overshoot", required_argument, NULL, OPT_OVERSHOOT},
    {"json", no_argument, NULL, OPT_JSON},
    ARGS_OPTIONS_END,
};

struct check {
    struct store_options store;
    int json;
    uint64_t version, overshoot; /* overshoot WEIR_BURST_MAX + 1: the default */
    struct args_policy policy;
    const char *key;
    uint64_t cost;
    struct weir_policy numbers;
    struct store_key found;
};

static int set(void *out, int option, const char *text)
{
    struct check *c = out;
    switch (option) {
    case OPT_JSON: c->json = 1; return 0;
    case OPT_VERSION: return args_count(text, 0, WEIR_BURST_MAX, &c->version);
    case OPT_OVERSHOOT: return args_count(text, 0, WEIR_BURST_MAX, &c->overshoot);
    default: return store_set(&c->store, option, text);
    }
}

static const struct args_command command = {
    .name = "check", .help = help, .options = options, .set = set, .least = 2, .most = 3};

static int say(const char *why, const char *more)
{
    fprintf(stderr, "weir check: %s%s\n", why, more);
    return EXIT_UNREACHED;
}

/* The numbers that were given, or those in force. */
static int find_numbers(struct check *c)
{
    struct weir_policy *p = &c->numbers;
    *p = (struct weir_policy)WEIR_POLICY_INIT;
    p->name = c->policy.name;
    p->group = c->store.group;
    p->mode = WEIR_STRICT;
    p->on_outage = WEIR_OUTAGE_CLOSED;
    if (c->policy.limit.limit > 0) {
        p->limit = c->policy.limit.limit;
        p->per_ns = c->policy.limit.per_ns;
        p->burst = c->policy.limit.burst;
        p->version = c->version;
        p->max_overshoot = c->overshoot > WEIR_BURST_MAX ? 0 : c->overshoot ? c->overshoot : WEIR_NONE;
        return EXIT_DONE;
    }
    if (store_look(&c->store, c->policy.name, c->key, strlen(c->key), &c->found) != 0) {
        return say(c->found.error, "");
    }
    if (c->found.head.status != WEIR__WIRE_APPLIED) {
        return say("Redis does not know this policy: give its numbers, NAME=100/10s,burst=20", "");
    }
    const struct weir__wire_numbers *n = &c->found.head.numbers;
    p->limit = n->limit;
    p->per_ns = n->per_ns;
    p->burst = n->burst;
    p->version = n->version;
    p->max_overshoot = n->overshoot ? n->overshoot : WEIR_NONE;
    c->store.shards = c->found.shards;
    return EXIT_DONE;
}

/* Does Redis answer for that key? A cluster has masters that are found sooner, and later. */
static int is_up(const struct check *c, struct weir *w, weir_policy_id id)
{
    struct weir_result result;
    return weir_peek(w, id, c->key, strlen(c->key), 0, &result) >= 0 && !(result.flags & WEIR_DEGRADED);
}

/* Waits until it does: before that the outage policy would answer at once. */
static int wait_for_store(const struct check *c, struct weir *w, weir_policy_id id)
{
    static const struct timespec step = {.tv_nsec = POLL_NS};
    uint64_t began = weir_now(w);
    while (!is_up(c, w, id)) {
        if (weir_now(w) - began > c->store.timeout_ms * MS) {
            return -1;
        }
        nanosleep(&step, NULL);
    }
    return 0;
}

static int ask(struct check *c, struct weir *w, struct weir_result *result)
{
    weir_policy_id id;
    struct weir_sync *sync;
    struct weir_sync_options o = WEIR_SYNC_OPTIONS_INIT;
    o.uri = c->store.uri;
    o.prefix = c->store.prefix;
    o.shards = c->store.shards;
    o.connect_timeout_ms = o.timeout_ms = c->store.timeout_ms;
    int status = weir_policy_add(w, &c->numbers, &id);
    if (status < 0) {
        args_wrong(&command, "policy '%s': %s", c->policy.name, weir_strerror(status));
        return WEIR_E_INVAL;
    }
    status = weir_sync_start(&sync, w, NULL, &o);
    if (status < 0) {
        args_wrong(&command, "%s", weir_strerror(status));
        return WEIR_E_INVAL;
    }
    if (wait_for_store(c, w, id) == 0) {
        struct weir_request request = {
            .policy = id, .key = c->key, .key_len = strlen(c->key), .cost = (int64_t)c->cost};
        status = weir_take_wait(w, &request, 0, result);
    } else {
        status = WEIR_E_TIMEOUT;
    }
    weir_sync_close(sync, NULL, NULL);
    return status;
}

static void write_object(const struct check *c, int status, const struct weir_result *r)
{
    struct json j;
    json_open(&j, stdout);
    json_text(&j, "policy", c->policy.name);
    json_text(&j, "key", c->key);
    json_count(&j, "cost", c->cost);
    json_flag(&j, "allowed", status == WEIR_ALLOW);
    json_count(&j, "limit", r->limit);
    json_count(&j, "remaining", (uint64_t)r->remaining);
    json_number(&j, "retry_after_s", r->retry_after_ns == WEIR_NEVER ? NAN : (double)r->retry_after_ns / 1e9);
    json_number(&j, "reset_after_s", r->reset_after_ns == WEIR_NEVER ? NAN : (double)r->reset_after_ns / 1e9);
    json_close(&j);
}

static void print_text(int status, const struct weir_result *r)
{
    printf("%s: %lld of %llu left", status == WEIR_ALLOW ? "allowed" : "denied", (long long)r->remaining,
           (unsigned long long)r->limit);
    if (status == WEIR_DENY && r->retry_after_ns == WEIR_NEVER) {
        printf("; never: the cost is above the burst");
    } else if (status == WEIR_DENY) {
        printf("; again in %.3f s", (double)r->retry_after_ns / 1e9);
    }
    putchar('\n');
}

static int read_line(struct check *c, int argc, char **argv)
{
    int first = args_options(&command, argc, argv, c);
    if (first <= 0) {
        return first;
    }
    c->key = argv[first + 1];
    c->cost = 1;
    if (args_policy(argv[first], &c->policy) != 0) {
        return args_wrong(&command, "policy '%s': a name, or NAME=TOKENS/PERIOD[,burst=N]", argv[first]);
    }
    if (c->key[0] == '\0' || strlen(c->key) > WEIR_KEY_MAX) {
        return args_wrong(&command, "%s", weir_strerror(WEIR_E_KEY));
    }
    if (argc - first == 3 && args_count(argv[first + 2], 0, WEIR_BURST_MAX, &c->cost) != 0) {
        return args_wrong(&command, "cost '%s': not understood, or out of range", argv[first + 2]);
    }
    return 1;
}

int check_main(int argc, char **argv)
{
    static struct check c = {.store = STORE_DEFAULTS, .overshoot = UINT64_MAX};
    struct weir_options limiter = WEIR_OPTIONS_INIT;
    struct weir_result result;
    struct weir *w;
    int line = read_line(&c, argc, argv);
    if (line <= 0) {
        return line == 0 ? EXIT_DONE : EXIT_USAGE;
    }
    int code = find_numbers(&c);
    if (code != EXIT_DONE) {
        return code;
    }
    limiter.max_keys = 1;
    int status = weir_open(&w, &limiter);
    if (status < 0) {
        return say(weir_strerror(status), "");
    }
    status = ask(&c, w, &result);
    weir_close(w);
    if (status == WEIR_E_INVAL) {
        return EXIT_USAGE; /* said already */
    }
    if (status < 0 || (result.flags & WEIR_DEGRADED)) {
        return say("Redis did not answer: nothing was decided", "");
    }
    if (c.json) {
        write_object(&c, status, &result);
    } else {
        print_text(status, &result);
    }
    return status == WEIR_ALLOW ? EXIT_DONE : EXIT_NO;
}
