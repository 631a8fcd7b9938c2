/* SPDX-License-Identifier: MIT */
/* Owns the command line of `weir demo` and its help text; must not run anything. */
#include "tools/demo_options.h"

#include <string.h>

#include "tools/args.h"

#define SECOND UINT64_C(1000000000)
#define LIMIT_MOST 1e6 /* a second: every admission is recorded, and two cores have to keep up */

static const char help[] =
    "usage: weir demo [OPTIONS]\n"
    "\n"
    "Starts a private redis-server and some processes that share one limit through it, drives them above the limit\n"
    "and shows what they admit. Nothing else on the machine is used, and nothing stays behind.\n"
    "\n"
    "  --limit 1000/s        tokens / period; also 100/10s, 5/min, 1000/s,burst=200. Units: ns us ms s m min h d\n"
    "  --burst N             tokens that can be saved up (default: the limit's number)\n"
    "  --mode MODE           hybrid (default): decided in memory, reconciled with Redis by a timer\n"
    "                        strict: each decision by a script in Redis\n"
    "                        local: no Redis; each process enforces its own part of the limit, 1/N of it\n"
    "  --max-overshoot N     hybrid: tokens that the fleet may lend (default: 10 % of the burst; 0: none)\n"
    "  --processes N         default 3, at most 64\n"
    "  --seconds N           then stop (default: until q or ^C at a terminal, else 10)\n"
    "  --rate-factor F       offered by all together: F times the limit (default 2.5)\n"
    "  --kill-at T           kill -9 of redis-server, T seconds after the start\n"
    "  --restart-at T        start it again, empty\n"
    "  --stop-at T           stop it (SIGSTOP) for 100 ms\n"
    "  --json                draw nothing; the last line is one JSON object\n"
    "  --help\n"
    "\n"
    "At a terminal: k kills redis-server, r starts it again, s switches between hybrid and strict, q quits.\n"
    "\n"
    "Overshoot is the most that any window of time admitted above burst + rate x window, exact, from the time stamp "
    "of\n"
    "every admission of all processes. Exit status: 0 when it stayed within what the mode promises, 1 when it did not\n"
    "or something failed, 2 for a wrong command line.\n"
    "\n"
    "Members of the JSON object: processes, limit_per_s, burst, seconds, admitted, denied, overshoot, max_overshoot,\n"
    "sync_calls, degraded (decisions by the outage policy), and bound (the overshoot that this run was allowed), "
    "mode,\n"
    "offered, admitted_each, sync_errors, unsent, written_off, redis_remaining, longest_call_ms, round_trip_ms.\n";

const char *demo_mode_name(enum weir_mode mode)
{
    return mode == WEIR_STRICT ? "strict" : mode == WEIR_LOCAL ? "local" : "hybrid";
}

enum demo_option {
    OPT_LIMIT = 256,
    OPT_BURST,
    OPT_MODE,
    OPT_MAX_OVERSHOOT,
    OPT_PROCESSES,
    OPT_SECONDS,
    OPT_RATE_FACTOR,
    OPT_KILL_AT,
    OPT_RESTART_AT,
    OPT_STOP_AT,
    OPT_JSON
};

static const struct option options[] = {
    {"limit", required_argument, NULL, OPT_LIMIT},
    {"burst", required_argument, NULL, OPT_BURST},
    {"mode", required_argument, NULL, OPT_MODE},
    {"max-overshoot", required_argument, NULL, OPT_MAX_OVERSHOOT},
    {"processes", required_argument, NULL, OPT_PROCESSES},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"rate-factor", required_argument, NULL, OPT_RATE_FACTOR},
    {"kill-at", required_argument, NULL, OPT_KILL_AT},
    {"restart-at", required_argument, NULL, OPT_RESTART_AT},
    {"stop-at", required_argument, NULL, OPT_STOP_AT},
    {"json", no_argument, NULL, OPT_JSON},
    ARGS_OPTIONS_END,
};

static int set_mode(struct demo_options *out, const char *text)
{
    static const enum weir_mode modes[] = {WEIR_HYBRID, WEIR_STRICT, WEIR_LOCAL};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(text, demo_mode_name(modes[i])) == 0) {
            out->fleet.mode = modes[i];
            return 0;
        }
    }
    return -1;
}

static int set_processes(struct demo_options *out, const char *text)
{
    uint64_t n;
    if (args_count(text, 1, FLEET_PROCESSES_MAX, &n) != 0) {
        return -1;
    }
    out->fleet.processes = (unsigned)n;
    return 0;
}

struct line {
    struct demo_options *out;
    struct args_limit limit;
};

/* What does not depend on another option. */
static int set(void *arg, int option, const char *text)
{
    struct line *line = arg;
    struct demo_options *out = line->out;
    struct fleet_options *fleet = &out->fleet;
    switch (option) {
    case OPT_LIMIT: return args_limit(text, &line->limit);
    case OPT_BURST: return args_count(text, 1, WEIR_BURST_MAX, &fleet->burst);
    case OPT_MODE: return set_mode(out, text);
    case OPT_MAX_OVERSHOOT: return args_count(text, 0, WEIR_BURST_MAX, &fleet->max_overshoot);
    case OPT_PROCESSES: return set_processes(out, text);
    case OPT_SECONDS: return args_time(text, &fleet->run_ns) != 0 || fleet->run_ns == 0 ? -1 : 0;
    case OPT_RATE_FACTOR: return args_factor(text, 1e6, &fleet->load);
    case OPT_KILL_AT: return args_time(text, &out->kill_at);
    case OPT_RESTART_AT: return args_time(text, &out->restart_at);
    case OPT_STOP_AT: return args_time(text, &out->stop_at);
    default: out->json = 1; return 0;
    }
}

static const struct args_command command = {.name = "demo", .help = help, .options = options, .set = set};

static int resolve(struct demo_options *out, const struct args_limit *limit)
{
    struct fleet_options *fleet = &out->fleet;
    fleet->limit = limit->limit;
    fleet->per_ns = limit->per_ns;
    if (fleet->burst == 0) {
        fleet->burst = limit->burst ? limit->burst : limit->limit;
    }
    if (fleet->max_overshoot == WEIR_NONE) {
        fleet->max_overshoot = fleet->burst / 10;
    }
    double offered = fleet->load * (double)fleet->limit / (double)fleet->per_ns * 1e9;
    if ((double)fleet->limit / (double)fleet->per_ns * 1e9 > LIMIT_MOST || offered > 4 * LIMIT_MOST) {
        return args_wrong(&command, "the demo drives limits up to %.0f/s, and up to %.0f requests a second", LIMIT_MOST,
                          4 * LIMIT_MOST);
    }
    if (fleet->mode == WEIR_LOCAL && fleet->burst < fleet->processes) {
        return args_wrong(
            &command, "local mode gives each process its part of the burst: --burst %llu is too small for %u processes",
            (unsigned long long)fleet->burst, fleet->processes);
    }
    if (fleet->mode == WEIR_LOCAL &&
        (out->kill_at != UINT64_MAX || out->restart_at != UINT64_MAX || out->stop_at != UINT64_MAX)) {
        return args_wrong(&command, "local mode has no Redis to kill");
    }
    return 0;
}

int demo_options_parse(struct demo_options *out, int argc, char **argv)
{
    struct line line = {.out = out, .limit = {.limit = 1000, .per_ns = SECOND}};
    *out = (struct demo_options){
        .fleet = {.processes = 3, .max_overshoot = WEIR_NONE, .load = 2.5},
        .kill_at = UINT64_MAX,
        .restart_at = UINT64_MAX,
        .stop_at = UINT64_MAX,
    };
    int first = args_options(&command, argc, argv, &line);
    if (first <= 0) {
        return first == 0 ? 1 : -1;
    }
    return resolve(out, &line.limit);
}
