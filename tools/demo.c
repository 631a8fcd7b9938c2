/* SPDX-License-Identifier: MIT */
/* Owns the run of the demo: who is started, killed and stopped when, and the verdict on it. */
#include "tools/demo.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/demo_options.h"
#include "tools/fleet.h"
#include "tools/json.h"
#include "tools/meter.h"
#include "tools/private_redis.h"
#include "tools/view.h"
#include "tools/worker.h"

#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define FREEZE_NS (100 * MS)
#define START_TIMEOUT_MS 10000
#define FINISH_TIMEOUT_MS 15000

struct demo {
    struct demo_options options;
    struct private_redis redis;
    struct fleet fleet;
    int drawing, quit, parted;
    uint64_t start_ns;
    double remaining; /* tokens that Redis holds at the end; NaN: not told */
    uint64_t thaw_at; /* ns after the start */
    unsigned outages; /* Redis killed, gone or frozen */
    unsigned restarts;
    uint64_t parted_ns;  /* how long some processes had Redis and others did not, times the share of these */
    uint64_t watched_ns; /* up to when that was counted */
    int hybrid_seen, strict_seen;
    enum weir_mode mode;
    char events[VIEW_EVENTS][72];
    unsigned event_count;
    struct meter admitted[FLEET_PROCESSES_MAX], denied[FLEET_PROCESSES_MAX], degraded[FLEET_PROCESSES_MAX];
    struct view_row rows[FLEET_PROCESSES_MAX];
    uint64_t sampled_ns, said_ns;
};

/* ---- signals: the handler writes their number into a pipe that the loop polls ------------------------------------ */

static int signal_pipe[2] = {-1, -1};

static void on_signal(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char)number;
    if (write(signal_pipe[1], &byte, 1) < 0) {
        /* full: enough signals wait there */
    }
    errno = saved;
}

static int watch_signals(void)
{
    static const int watched[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    if (pipe(signal_pipe) != 0) {
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(signal_pipe[i], F_SETFD, FD_CLOEXEC);
        fcntl(signal_pipe[i], F_SETFL, O_NONBLOCK);
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        sigaction(watched[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN); /* a reader of our output that leaves shows as an error of write */
    return 0;
}

/* ---- what happens to Redis --------------------------------------------------------------------------------------- */

static uint64_t since_start(const struct demo *d, uint64_t now)
{
    return now > d->start_ns ? now - d->start_ns : 0;
}

static void say_event(struct demo *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say_event(struct demo *d, const char *format, ...)
{
    char *text = d->events[d->event_count++ % VIEW_EVENTS];
    size_t size = sizeof d->events[0];
    int n = snprintf(text, size, "%6.1f s  ", (double)since_start(d, fleet_now()) / 1e9);
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, size - (size_t)n, format, args);
    va_end(args);
    if (!d->drawing && !d->options.json) {
        puts(text);
        fflush(stdout);
    }
}

static int uses_redis(const struct demo *d)
{
    return d->options.fleet.mode != WEIR_LOCAL;
}

static void kill_redis(struct demo *d)
{
    if (private_redis_alive(&d->redis)) {
        private_redis_kill(&d->redis);
        d->outages++;
        say_event(d, "redis-server killed (kill -9)");
    }
}

static void restart_redis(struct demo *d)
{
    if (private_redis_alive(&d->redis)) {
        return;
    }
    if (private_redis_start(&d->redis) == 0) {
        d->restarts++;
        say_event(d, "redis-server started again, empty");
    } else {
        say_event(d, "%s", d->redis.error);
    }
}

static void freeze_redis(struct demo *d, uint64_t at)
{
    if (private_redis_alive(&d->redis)) {
        private_redis_freeze(&d->redis);
        d->thaw_at = at + FREEZE_NS;
        d->outages++;
        say_event(d, "redis-server stopped (SIGSTOP) for %d ms", (int)(FREEZE_NS / MS));
    }
}

/* A worker says whether it has Redis every 50 ms or so: count what may lie before and after as well. */
static void watch_links(struct demo *d, uint64_t now)
{
    unsigned up = 0;
    for (unsigned i = 0; i < d->fleet.processes; i++) {
        up += atomic_load_explicit(&d->fleet.board->workers[i].store_up, memory_order_relaxed);
    }
    if (uses_redis(d) && up > 0 && up < d->fleet.processes) {
        uint64_t gone = now - d->watched_ns + (d->parted ? 0 : 100 * MS);
        d->parted_ns += gone * (d->fleet.processes - up) / d->fleet.processes;
        d->parted = 1;
    } else {
        d->parted = 0;
    }
    d->watched_ns = now;
}

/* What is due by the command line, once each. */
static void keep_schedule(struct demo *d, uint64_t gone)
{
    struct demo_options *o = &d->options;
    if (gone >= d->thaw_at) {
        d->thaw_at = UINT64_MAX;
        private_redis_thaw(&d->redis);
        say_event(d, "redis-server goes on (SIGCONT)");
    }
    if (gone >= o->kill_at) {
        o->kill_at = UINT64_MAX;
        kill_redis(d);
    }
    if (gone >= o->restart_at) {
        o->restart_at = UINT64_MAX;
        restart_redis(d);
    }
    if (gone >= o->stop_at) {
        o->stop_at = UINT64_MAX;
        freeze_redis(d, gone);
    }
    if (uses_redis(d) && d->redis.pid > 0 && !private_redis_alive(&d->redis)) {
        d->outages++;
        say_event(d, "redis-server is gone");
    }
}

static void switch_mode(struct demo *d)
{
    if (!uses_redis(d)) {
        say_event(d, "local mode shares nothing: there is no other mode to switch to");
        return;
    }
    d->mode = d->mode == WEIR_HYBRID ? WEIR_STRICT : WEIR_HYBRID;
    d->hybrid_seen |= d->mode == WEIR_HYBRID;
    d->strict_seen |= d->mode == WEIR_STRICT;
    atomic_store_explicit(&d->fleet.board->mode, (uint32_t)d->mode, memory_order_relaxed);
    say_event(d, "%s mode", demo_mode_name(d->mode));
}

static void press(struct demo *d, char key)
{
    switch (key) {
    case 'k': kill_redis(d); break;
    case 'r':
        if (uses_redis(d)) {
            restart_redis(d);
        }
        break;
    case 's': switch_mode(d); break;
    case 'q': d->quit = SIGINT; break;
    default: break;
    }
}

/* Keys and signals, waiting for at most timeout_ms. */
static void listen_for(struct demo *d, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = signal_pipe[0], .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    unsigned char bytes[16];
    if (poll(fds, d->drawing ? 2 : 1, timeout_ms) <= 0) {
        return;
    }
    ssize_t n = fds[0].revents ? read(signal_pipe[0], bytes, sizeof bytes) : 0;
    if (n > 0) {
        d->quit = bytes[0];
    }
    n = fds[1].revents ? read(STDIN_FILENO, bytes, sizeof bytes) : 0;
    for (ssize_t i = 0; i < n; i++) {
        press(d, (char)bytes[i]);
    }
}

/* ---- sums over the workers --------------------------------------------------------------------------------------- */

static uint64_t get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

struct sums {
    uint64_t admitted, denied, degraded, lent, failed, syncs, sync_errors, written_off, unsent;
    uint64_t longest_ns, round_trip_ns;
};

static struct sums sum_up(const struct demo *d)
{
    struct sums s = {0};
    for (unsigned i = 0; i < d->fleet.processes; i++) {
        struct fleet_worker *w = &d->fleet.board->workers[i];
        s.admitted += get(&w->admitted);
        s.denied += get(&w->denied);
        s.degraded += get(&w->degraded);
        s.lent += get(&w->lent);
        s.failed += get(&w->failed);
        s.syncs += get(&w->syncs);
        s.sync_errors += get(&w->sync_errors);
        s.written_off += get(&w->written_off);
        s.unsent += get(&w->unsent);
        s.longest_ns = get(&w->longest_ns) > s.longest_ns ? get(&w->longest_ns) : s.longest_ns;
        s.round_trip_ns = get(&w->round_trip_ns) > s.round_trip_ns ? get(&w->round_trip_ns) : s.round_trip_ns;
    }
    return s;
}

/* What the mode promises: overshoot <= tokens + rate x slack. */
struct promise {
    uint64_t tokens, slack_ns;
};

static struct promise promise_of(const struct demo *d, const struct sums *s)
{
    const struct fleet_options *fleet = &d->options.fleet;
    struct promise p = {0};
    if (d->hybrid_seen) {
        p.tokens += fleet->max_overshoot;
        /* a round trip is not measured here: a reply that takes longer than the timeout is not used */
        p.slack_ns += FLEET_TIMEOUT_MS * MS;
        if (fleet->max_overshoot * 3 / 4 < fleet->processes) {
            p.tokens += fleet->processes; /* unknown = admit: one token a process that the budget does not hold */
        }
        if (s->sync_errors > 0 || d->outages > 0) {
            p.slack_ns += FLEET_TIMEOUT_MS * MS; /* a reply that was lost */
        }
    }
    if (d->strict_seen) {
        /* a stamp is taken before the call, Redis decides before its end */
        p.slack_ns += s->round_trip_ns;
        /* the outage policy, "local", starts each process on its part of the burst: a burst an outage, repaid later */
        uint64_t bursts = fleet->burst * (d->outages > 1 ? d->outages : 1);
        p.tokens += s->lent < bursts ? s->lent : bursts;
        /* what strict mode admitted is known to Redis alone: one that comes back empty has forgotten it */
        p.tokens += fleet->burst * d->restarts;
    }
    /* those without Redis live on their part of the rate, those with it on all of it */
    p.slack_ns += d->parted_ns;
    return p;
}

static double bound_of(const struct demo *d, const struct promise *p)
{
    const struct fleet_options *fleet = &d->options.fleet;
    return (double)p->tokens + (double)fleet->limit * (double)p->slack_ns / (double)fleet->per_ns;
}

/* ---- showing it -------------------------------------------------------------------------------------------------- */

static const char *describe_limit(const struct fleet_options *f)
{
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"d", 86400 * SECOND},
                 {"h", 3600 * SECOND},
                 {"min", 60 * SECOND},
                 {"s", SECOND},
                 {"ms", MS},
                 {"us", 1000},
                 {"ns", 1}};
    static char text[64];
    size_t i = 0;
    while (f->per_ns % units[i].ns != 0) {
        i++;
    }
    if (f->per_ns == units[i].ns) {
        snprintf(text, sizeof text, "%" PRIu64 "/%s", f->limit, units[i].name);
    } else {
        snprintf(text, sizeof text, "%" PRIu64 "/%" PRIu64 "%s", f->limit, f->per_ns / units[i].ns, units[i].name);
    }
    return text;
}

static void sample(struct demo *d, uint64_t now)
{
    d->sampled_ns = now;
    for (unsigned i = 0; i < d->fleet.processes; i++) {
        struct fleet_worker *w = &d->fleet.board->workers[i];
        meter_add(&d->admitted[i], now, get(&w->admitted));
        meter_add(&d->denied[i], now, get(&w->denied));
        meter_add(&d->degraded[i], now, get(&w->degraded));
        uint64_t synced = get(&w->last_sync_ns);
        d->rows[i] = (struct view_row){
            .admitted = meter_rate(&d->admitted[i]),
            .denied = meter_rate(&d->denied[i]),
            .degraded = meter_rate(&d->degraded[i]),
            .sync_age = synced == 0    ? -1
                        : now > synced ? (double)(now - synced) / 1e9
                                       : 0,
            .store_up = (int)atomic_load_explicit(&w->store_up, memory_order_relaxed),
        };
    }
}

static void fill_frame(const struct demo *d, uint64_t now, struct view_frame *f)
{
    const struct fleet_options *o = &d->options.fleet;
    struct sums s = sum_up(d);
    struct promise p = promise_of(d, &s);
    double rate = (double)o->limit / (double)o->per_ns, gone = (double)since_start(d, now);
    double earned = (double)o->burst + rate * gone, offered = o->load * rate * gone;
    *f = (struct view_frame){
        .seconds = gone / 1e9,
        .mode = demo_mode_name(d->mode),
        .redis = !uses_redis(d)     ? NULL
                 : d->redis.frozen  ? "frozen"
                 : d->redis.pid > 0 ? "up"
                                    : "down",
        .redis_pid = (long)d->redis.pid,
        .limit = describe_limit(o),
        .limit_per_s = rate * 1e9,
        .burst = o->burst,
        .admitted = s.admitted,
        .denied = s.denied,
        .degraded = s.degraded,
        .perfect = earned < offered ? earned : offered,
        .overshoot = overshoot_tokens(&d->fleet.overshoot),
        .bound = bound_of(d, &p),
        .all = {.sync_age = -1, .store_up = 1},
        .rows = d->rows,
        .processes = d->fleet.processes,
    };
    for (unsigned i = 0; i < f->processes; i++) {
        const struct view_row *row = &d->rows[i];
        f->all.admitted += row->admitted;
        f->all.denied += row->denied;
        f->all.degraded += row->degraded;
        f->all.sync_age = row->sync_age > f->all.sync_age ? row->sync_age : f->all.sync_age; /* the oldest */
        f->all.store_up &= row->store_up;
    }
    unsigned first = d->event_count > VIEW_EVENTS ? d->event_count - VIEW_EVENTS : 0;
    for (unsigned i = first; i < d->event_count; i++) {
        f->events[i - first] = d->events[i % VIEW_EVENTS];
    }
}

static void show(struct demo *d, uint64_t now)
{
    struct view_frame frame;
    if (now >= d->sampled_ns + 100 * MS) {
        sample(d, now);
        if (d->drawing) {
            fill_frame(d, now, &frame);
            view_draw(&frame);
        }
    }
    if (!d->drawing && !d->options.json && now >= d->said_ns + SECOND) {
        char line[256];
        d->said_ns = now;
        fill_frame(d, now, &frame);
        view_line(&frame, line, sizeof line);
        puts(line);
        fflush(stdout);
    }
}

static void write_json(const struct demo *d, const struct sums *s, const struct promise *p, double seconds)
{
    const struct fleet_options *o = &d->options.fleet;
    double each[FLEET_PROCESSES_MAX];
    for (unsigned i = 0; i < o->processes; i++) {
        each[i] = (double)get(&d->fleet.board->workers[i].admitted);
    }
    struct json j;
    json_open(&j, stdout);
    json_count(&j, "processes", o->processes);
    json_number(&j, "limit_per_s", (double)o->limit / (double)o->per_ns * 1e9);
    json_count(&j, "burst", o->burst);
    json_number(&j, "seconds", seconds);
    json_count(&j, "admitted", s->admitted);
    json_count(&j, "denied", s->denied);
    json_number(&j, "overshoot", overshoot_tokens(&d->fleet.overshoot));
    json_count(&j, "max_overshoot", o->max_overshoot);
    json_count(&j, "sync_calls", s->syncs);
    json_count(&j, "degraded", s->degraded);
    json_number(&j, "bound", bound_of(d, p));
    json_text(&j, "mode", demo_mode_name(d->mode));
    json_count(&j, "offered", s->admitted + s->denied + s->failed);
    json_numbers(&j, "admitted_each", each, o->processes);
    json_count(&j, "sync_errors", s->sync_errors);
    json_count(&j, "unsent", s->unsent);
    json_count(&j, "written_off", s->written_off);
    json_number(&j, "redis_remaining", d->remaining);
    json_number(&j, "longest_call_ms", (double)s->longest_ns / 1e6);
    json_number(&j, "round_trip_ms", (double)s->round_trip_ns / 1e6);
    json_close(&j);
}

static void write_summary(const struct demo *d, const struct sums *s, const struct promise *p, double seconds)
{
    const struct fleet_options *o = &d->options.fleet;
    printf("\n%u processes, %s, burst %" PRIu64 ", %s, %.1f s\n", o->processes, describe_limit(o), o->burst,
           demo_mode_name(d->mode), seconds);
    printf("  admitted   %" PRIu64 " (limit x seconds + burst: %.0f)\n", s->admitted,
           (double)o->limit / (double)o->per_ns * 1e9 * seconds + (double)o->burst);
    printf("  denied     %" PRIu64 "\n", s->denied);
    printf("  overshoot  %.1f tokens in the worst window, %.1f allowed\n", overshoot_tokens(&d->fleet.overshoot),
           bound_of(d, p));
    if (uses_redis(d)) {
        printf("  syncs      %" PRIu64 ", %" PRIu64 " failed; %" PRIu64 " decisions by the outage policy\n", s->syncs,
               s->sync_errors, s->degraded);
    }
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

static int open_all(struct demo *d)
{
    struct fleet_options *fleet = &d->options.fleet;
    if (uses_redis(d)) {
        if (private_redis_open(&d->redis) != 0) {
            fprintf(stderr, "weir demo: %s\n", d->redis.error);
            return -1;
        }
        if (private_redis_start(&d->redis) != 0 || private_redis_wait(&d->redis, START_TIMEOUT_MS) != 0) {
            fprintf(stderr, "weir demo: %s\n", d->redis.error);
            goto no_redis;
        }
        snprintf(fleet->uri, sizeof fleet->uri, "unix://%s", d->redis.socket);
    }
    if (fleet_open(&d->fleet, fleet) != 0) {
        fprintf(stderr, "weir demo: %s\n", d->fleet.error);
        goto no_redis;
    }
    if (fleet_start(&d->fleet, START_TIMEOUT_MS) != 0) {
        fprintf(stderr, "weir demo: %s\n", d->fleet.error);
        goto no_fleet;
    }
    return 0;

no_fleet:
    fleet_close(&d->fleet);
no_redis:
    private_redis_close(&d->redis);
    return -1;
}

static int run(struct demo *d)
{
    d->start_ns = get(&d->fleet.board->start_ns);
    d->said_ns = d->start_ns;
    d->watched_ns = d->start_ns;
    for (;;) {
        listen_for(d, d->thaw_at != UINT64_MAX ? 5 : 25);
        uint64_t now = fleet_now();
        if (fleet_poll(&d->fleet) != 0) {
            return -1;
        }
        if (d->quit || now >= get(&d->fleet.board->stop_ns)) {
            fleet_stop(&d->fleet);
            return 0;
        }
        watch_links(d, now);
        keep_schedule(d, since_start(d, now));
        show(d, now);
    }
}

static int judge(const struct demo *d)
{
    const struct fleet_options *o = &d->options.fleet;
    struct sums s = sum_up(d);
    struct promise p = promise_of(d, &s);
    double seconds = (double)since_start(d, get(&d->fleet.board->stop_ns)) / 1e9;
    int code = 0;
    if (overshoot_exceeds(&d->fleet.overshoot, p.tokens, p.slack_ns)) {
        fprintf(stderr, "weir demo: broken promise: %.2f tokens over %s + burst %" PRIu64 ", where %.2f are allowed\n",
                overshoot_tokens(&d->fleet.overshoot), describe_limit(o), o->burst, bound_of(d, &p));
        code = 1;
    }
    if (s.failed > 0) {
        fprintf(stderr, "weir demo: %" PRIu64 " decisions ended with an error\n", s.failed);
        code = 1;
    }
    if (d->options.json) {
        write_json(d, &s, &p, seconds);
    } else {
        write_summary(d, &s, &p, seconds);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "weir demo: can't write the result: %s\n", strerror(errno));
        code = 1;
    }
    return code;
}

/* A run that failed has no result; one that can't be closed has one all the same. */
static int finish(struct demo *d, int failed)
{
    int code = 1;
    private_redis_thaw(&d->redis);
    int unfinished = failed || fleet_finish(&d->fleet, FINISH_TIMEOUT_MS) != 0;
    view_close();
    uint64_t remaining;
    if (!unfinished && private_redis_alive(&d->redis) && worker_look(d->fleet.board, &remaining) == 0) {
        d->remaining = (double)remaining;
    }
    if (unfinished) {
        fprintf(stderr, "weir demo: %s\n", d->fleet.error);
    }
    if (!failed) {
        code = judge(d);
    }
    return unfinished ? 1 : code;
}

int demo_main(int argc, char **argv)
{
    static struct demo d;
    d.thaw_at = UINT64_MAX;
    d.remaining = NAN;
    int parsed = demo_options_parse(&d.options, argc, argv);
    if (parsed != 0) {
        return parsed > 0 ? 0 : 2;
    }
    d.mode = d.options.fleet.mode;
    d.hybrid_seen = d.mode == WEIR_HYBRID;
    d.strict_seen = d.mode == WEIR_STRICT;
    int status = worker_try_policy(&d.options.fleet);
    if (status != 0) {
        fprintf(stderr, "weir demo: a %s policy of %s, burst %" PRIu64 ": %s\n", demo_mode_name(d.mode),
                describe_limit(&d.options.fleet), d.options.fleet.burst, weir_strerror(status));
        return 2;
    }
    int terminal = !d.options.json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!terminal && d.options.fleet.run_ns == 0) {
        d.options.fleet.run_ns = 10 * SECOND;
    }
    if (watch_signals() != 0) {
        fprintf(stderr, "weir demo: can't open a pipe: %s\n", strerror(errno));
        return 1;
    }
    if (open_all(&d) != 0) {
        return 1;
    }
    d.drawing = terminal && view_open(STDIN_FILENO, STDOUT_FILENO) == 0;
    int code = finish(&d, run(&d));
    fleet_close(&d.fleet);
    private_redis_close(&d.redis);
    if (d.quit && d.quit != SIGINT) {
        signal(d.quit, SIG_DFL);
        raise(d.quit);
    }
    return code;
}
