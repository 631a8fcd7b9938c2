/* SPDX-License-Identifier: MIT */
/* Owns the command line of `weir simulate` and its help text; must not run anything. */
#include "tools/simulate_options.h"

#include <string.h>

#include "sync/wire.h"
#include "tools/args.h"

#define SECOND UINT64_C(1000000000)
#define REQUESTS_MOST 2e8

static const char help[] =
    "usage: weir simulate [OPTIONS]\n"
    "\n"
    "Nodes that share one limit on one key through Redis, in virtual time. Hybrid nodes run the library itself and "
    "the\n"
    "arithmetic of its reconciliation; Redis is a port of the scripts that is tested against them.\n"
    "\n"
    "  --nodes N              default 10, at most 256\n"
    "  --workload NAME        even (default), skewed, moving, flash, onoff, step, join, loss, outage\n"
    "  --load F               demand of all nodes together: F times the limit (default 2)\n"
    "  --rate 1000/s          the limit; also 5/min, 100/10s, 1000/s,burst=200\n"
    "  --burst N              default: the limit's number\n"
    "  --max-overshoot N      default 10 % of the burst; 0: none\n"
    "  --cost N               requests cost 1 to N tokens, evenly (default 1)\n"
    "  --strategy NAME        hybrid (default), strict, local, static-split, push-pull; all: each in turn\n"
    "  --interval 200ms       between reconciliations\n"
    "  --rtt 1ms              round trip to Redis, a fifth more or less\n"
    "  --timeout 50ms         of a batch\n"
    "  --loss F               part of the requests, and again of the answers, that is lost (default 0)\n"
    "  --async F              hybrid: part of the takes that asks Redis where memory has too little (default 0)\n"
    "  --crash F --stall F    hybrid: times a second that each node dies and another takes its place; that its sync\n"
    "                         thread stands still (default 0)\n"
    "  --stall-for 1s         for at most so long\n"
    "  --on-outage NAME       local (default), open, closed\n"
    "  --unknown NAME         admit (default), deny\n"
    "  --seconds N            default 20\n"
    "  --seed N               default 1: the same seed, the same demand for every strategy\n"
    "  --json                 one object a strategy and line\n"
    "  --plot FILE            a picture (.svg or .png, drawn by gnuplot): admitted against allowed\n"
    "  --help\n"
    "\n"
    "Overshoot is the most that any window of time admitted above burst + rate x window, exact. Utilisation is what\n"
    "was admitted over what one perfect bucket would have admitted of the same demand. False denials are the part of\n"
    "the demand that was denied though a bucket that had admitted the same held it and a twentieth of the burst more.\n"
    "Exit status: 0, or 1 where hybrid nodes went past their bound: max_overshoot + rate x round trip; + rate x\n"
    "timeout with losses; + a token a node where max_overshoot is smaller than the fleet or nodes join. An outage\n"
    "that `local` or `open` answered has none.\n";

enum simulate_option {
    OPT_NODES = 256,
    OPT_WORKLOAD,
    OPT_LOAD,
    OPT_RATE,
    OPT_BURST,
    OPT_OVERSHOOT,
    OPT_COST,
    OPT_STRATEGY,
    OPT_INTERVAL,
    OPT_RTT,
    OPT_TIMEOUT,
    OPT_LOSS,
    OPT_ASYNC,
    OPT_CRASH,
    OPT_STALL,
    OPT_STALL_FOR,
    OPT_OUTAGE,
    OPT_UNKNOWN,
    OPT_SECONDS,
    OPT_SEED,
    OPT_JSON,
    OPT_PLOT
};

static const struct option options[] = {
    {"nodes", required_argument, NULL, OPT_NODES},
    {"workload", required_argument, NULL, OPT_WORKLOAD},
    {"load", required_argument, NULL, OPT_LOAD},
    {"rate", required_argument, NULL, OPT_RATE},
    {"burst", required_argument, NULL, OPT_BURST},
    {"max-overshoot", required_argument, NULL, OPT_OVERSHOOT},
    {"cost", required_argument, NULL, OPT_COST},
    {"strategy", required_argument, NULL, OPT_STRATEGY},
    {"interval", required_argument, NULL, OPT_INTERVAL},
    {"rtt", required_argument, NULL, OPT_RTT},
    {"timeout", required_argument, NULL, OPT_TIMEOUT},
    {"loss", required_argument, NULL, OPT_LOSS},
    {"async", required_argument, NULL, OPT_ASYNC},
    {"crash", required_argument, NULL, OPT_CRASH},
    {"stall", required_argument, NULL, OPT_STALL},
    {"stall-for", required_argument, NULL, OPT_STALL_FOR},
    {"on-outage", required_argument, NULL, OPT_OUTAGE},
    {"unknown", required_argument, NULL, OPT_UNKNOWN},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"seed", required_argument, NULL, OPT_SEED},
    {"json", no_argument, NULL, OPT_JSON},
    {"plot", required_argument, NULL, OPT_PLOT},
    ARGS_OPTIONS_END,
};

static int set_strategy(struct simulate_command *out, const char *text)
{
    out->all = strcmp(text, "all") == 0;
    for (int i = 0; i < SIMULATE_STRATEGIES && !out->all; i++) {
        if (strcmp(text, simulate_strategy_name((enum simulate_strategy)i)) == 0) {
            out->run.strategy = (enum simulate_strategy)i;
            return 0;
        }
    }
    return out->all ? 0 : -1;
}

static int set_workload(struct simulate_options *run, const char *text)
{
    for (int i = 0; i < SIMULATE_WORKLOADS; i++) {
        if (strcmp(text, simulate_workload_name((enum simulate_workload)i)) == 0) {
            run->workload = (enum simulate_workload)i;
            return 0;
        }
    }
    return -1;
}

static int set_nodes(struct simulate_options *run, const char *text)
{
    uint64_t n;
    if (args_count(text, 1, SIMULATE_NODES_MAX, &n) != 0) {
        return -1;
    }
    run->nodes = (unsigned)n;
    return 0;
}

static int set_cost(struct simulate_options *run, const char *text)
{
    uint64_t n;
    if (args_count(text, 1, WEIR_BURST_MAX, &n) != 0) {
        return -1;
    }
    run->cost = (int64_t)n;
    return 0;
}

static int set_outage(struct simulate_options *run, const char *text)
{
    static const char *const words[] = {"local", "open", "closed", NULL};
    static const enum weir_on_outage values[] = {WEIR_OUTAGE_LOCAL, WEIR_OUTAGE_OPEN, WEIR_OUTAGE_CLOSED};
    int i = args_word(text, words);
    if (i >= 0) {
        run->on_outage = values[i];
    }
    return i < 0 ? -1 : 0;
}

static int set_unknown(struct simulate_options *run, const char *text)
{
    static const char *const words[] = {"admit", "deny", NULL};
    int i = args_word(text, words);
    run->unknown = i == 1 ? WEIR_UNKNOWN_DENY : WEIR_UNKNOWN_ADMIT;
    return i < 0 ? -1 : 0;
}

/* A part of something: 0 to 1. */
static int set_part(const char *text, double *out)
{
    if (strcmp(text, "0") == 0) {
        *out = 0;
        return 0;
    }
    return args_factor(text, 1, out);
}

static int set_time(const char *text, uint64_t *out)
{
    return args_time(text, out) != 0 || *out == 0 ? -1 : 0;
}

struct line {
    struct simulate_command *out;
    struct args_limit limit;
};

static int set(void *arg, int option, const char *text)
{
    struct line *line = arg;
    struct simulate_command *out = line->out;
    struct simulate_options *run = &out->run;
    switch (option) {
    case OPT_NODES: return set_nodes(run, text);
    case OPT_WORKLOAD: return set_workload(run, text);
    case OPT_LOAD: return args_factor(text, 1e6, &run->load);
    case OPT_RATE: return args_limit(text, &line->limit);
    case OPT_BURST: return args_count(text, 1, WEIR_BURST_MAX, &run->burst);
    case OPT_OVERSHOOT: return args_count(text, 0, WEIR_BURST_MAX, &run->max_overshoot);
    case OPT_COST: return set_cost(run, text);
    case OPT_STRATEGY: return set_strategy(out, text);
    case OPT_INTERVAL: return set_time(text, &run->interval_ns);
    case OPT_RTT: return set_time(text, &run->rtt_ns);
    case OPT_TIMEOUT: return set_time(text, &run->timeout_ns);
    case OPT_LOSS: return set_part(text, &run->loss);
    case OPT_ASYNC: return set_part(text, &run->async);
    case OPT_CRASH: return set_part(text, &run->crash);
    case OPT_STALL: return set_part(text, &run->stall);
    case OPT_STALL_FOR: return set_time(text, &run->stall_ns);
    case OPT_OUTAGE: return set_outage(run, text);
    case OPT_UNKNOWN: return set_unknown(run, text);
    case OPT_SECONDS: return set_time(text, &run->run_ns);
    case OPT_SEED: return args_count(text, 0, UINT64_MAX, &run->seed);
    case OPT_PLOT: out->plot = text; return 0;
    default: out->json = 1; return 0;
    }
}

static const struct args_command command = {.name = "simulate", .help = help, .options = options, .set = set};

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static int resolve(struct simulate_command *out, const struct args_limit *limit)
{
    struct simulate_options *run = &out->run;
    run->limit = limit->limit;
    run->per_ns = limit->per_ns;
    if (run->burst == 0) {
        run->burst = limit->burst ? limit->burst : limit->limit;
    }
    if (run->max_overshoot == WEIR_NONE) {
        run->max_overshoot = run->burst / 10;
    }
    double rate = (double)run->limit * 1e9 / (double)run->per_ns;
    double requests = run->load * rate * (double)run->run_ns / 1e9 / (0.5 * (double)(run->cost + 1));
    if (requests > REQUESTS_MOST) {
        return args_wrong(&command, "that would be %.0f requests; %.0f are the most", requests, REQUESTS_MOST);
    }
    if (weir__wire_generation(run->limit, run->per_ns, run->burst, run->max_overshoot) == 0) {
        return args_wrong(&command, "a burst that takes longer than 40 days to fill twice can't be shared");
    }
    if (out->plot && !ends_with(out->plot, ".svg") && !ends_with(out->plot, ".png")) {
        return args_wrong(&command, "--plot %s: a name that ends with .svg or .png", out->plot);
    }
    if (out->plot && out->all) {
        return args_wrong(&command, "--plot draws one strategy");
    }
    return 0;
}

int simulate_options_parse(struct simulate_command *out, int argc, char **argv)
{
    struct line line = {.out = out, .limit = {.limit = 1000, .per_ns = SECOND}};
    *out = (struct simulate_command){.run = {.strategy = SIMULATE_HYBRID,
                                             .nodes = 10,
                                             .max_overshoot = WEIR_NONE,
                                             .load = 2,
                                             .cost = 1,
                                             .interval_ns = SECOND / 5,
                                             .rtt_ns = SECOND / 1000,
                                             .timeout_ns = SECOND / 20,
                                             .stall_ns = SECOND,
                                             .run_ns = 20 * SECOND,
                                             .seed = 1}};
    int first = args_options(&command, argc, argv, &line);
    if (first <= 0) {
        return first == 0 ? 1 : -1;
    }
    return resolve(out, &line.limit);
}
