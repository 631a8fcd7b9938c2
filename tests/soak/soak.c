/* SPDX-License-Identifier: MIT */
/*
 * Four processes share limits through one Redis, for as long as is asked for, while something goes wrong every few
 * seconds: weir-soak [--minutes N] [--seed N]. It watches while they run, and ends with 1 as soon as a promise is
 * broken. Owns the faults, the load and the judgement; run by ./run bench soak.
 *
 *   p  16,384 keys, hybrid, closed in an outage: each admitted token is charged once, to the token. They are so many
 *      that hardly one is asked for often enough for a slice: what a slice held that expired counts as spent, and is
 *      told apart
 *   q  16 hot keys, hybrid, asked for twice of what they allow: never over the bound, second by second
 *   s  256 keys, strict: what Redis admitted is charged; where its answer was lost, at most once more
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <check.h>

#include <weir/sync.h>
#include <weir/weir.h>

#include "integration/script_client.h"
#include "support/guard.h"
#include "support/liar.h"
#include "support/port.h"
#include "support/redis_server.h"

enum { WORKERS = 4, P_KEYS = 16384, Q_KEYS = 16, S_KEYS = 256, SHARDS = 64, ROUND_S = 15 };
enum { P_BURST = 20000, P_DRAIN = 100, Q_RATE = 500, Q_BURST = 500, S_BURST = 20000 };
enum phase { WAIT, LOAD, SETTLE, END };

#define DAY UINT64_C(86400000000000)
#define SECOND UINT64_C(1000000000)

/* Each worker writes its own; the parent reads. */
struct worker {
    _Atomic uint32_t p[P_KEYS], s_certain[S_KEYS], s_doubtful[S_KEYS];
    _Atomic uint64_t q[Q_KEYS];
    _Atomic uint64_t decisions, degraded, errors, settled, asked, answered;
};

struct board {
    _Atomic int phase;
    _Atomic uint64_t round;
    char uri[160];
    struct worker workers[WORKERS];
};

static struct board *board;
static struct redis_server *server;
static struct liar *liar;

static void add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static uint64_t get(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_acquire);
}

static void sleep_ms(unsigned ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- a worker ---------------------------------------------------------------------------------------------------- */

struct me {
    struct worker *counts;
    struct weir *w;
    struct weir_sync *sync;
    weir_policy_id p, q, s;
    uint64_t random;
    _Atomic int flushed; /* 1: all is told; -1: not yet */
};

struct strict_call {
    struct worker *counts;
    unsigned key;
};

static unsigned draw(struct me *me, unsigned below)
{
    me->random = me->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(me->random >> 33) % below;
}

static int name_of(char out[16], char policy, unsigned key)
{
    return snprintf(out, 16, "%c:%u", policy, key);
}

static void on_strict(void *arg, int status, const struct weir_result *result)
{
    struct strict_call *call = arg;
    if (result->flags & WEIR_DEGRADED || status < 0) {
        atomic_fetch_add_explicit(&call->counts->s_doubtful[call->key], 1, memory_order_relaxed);
    } else if (status == WEIR_ALLOW) {
        atomic_fetch_add_explicit(&call->counts->s_certain[call->key], 1, memory_order_relaxed);
    }
    add(&call->counts->answered, 1);
    free(call);
}

static void ask_strict(struct me *me)
{
    struct strict_call *call = malloc(sizeof *call);
    char key[16];
    if (!call) {
        return;
    }
    *call = (struct strict_call){me->counts, draw(me, S_KEYS)};
    struct weir_request request = {.policy = me->s, .key = key, .cost = 1};
    request.key_len = (size_t)name_of(key, 's', call->key);
    if (weir_take_async(me->w, &request, on_strict, call) == 0) {
        add(&me->counts->asked, 1);
    } else {
        free(call);
    }
}

static void load_a_little(struct me *me, unsigned turn)
{
    struct weir_result result;
    char key[16];
    for (int i = 0; i < 1; i++) {
        unsigned k = draw(me, P_KEYS);
        if (weir_take(me->w, me->p, key, (size_t)name_of(key, 'p', k), 1, &result) == WEIR_ALLOW) {
            atomic_fetch_add_explicit(&me->counts->p[k], 1, memory_order_relaxed);
        }
        add(&me->counts->degraded, (result.flags & WEIR_DEGRADED) != 0);
    }
    for (int i = 0; i < 4; i++) {
        unsigned k = draw(me, Q_KEYS);
        if (weir_take(me->w, me->q, key, (size_t)name_of(key, 'q', k), 1, NULL) == WEIR_ALLOW) {
            add(&me->counts->q[k], 1);
        }
    }
    if (turn % 4 == 0) {
        ask_strict(me);
    }
    add(&me->counts->decisions, 5 + (turn % 4 == 0));
}

static void on_flushed(void *arg, int status, uint64_t unsent)
{
    atomic_store_explicit(&((struct me *)arg)->flushed, status == 0 && unsent == 0 ? 1 : -1, memory_order_release);
}

/* Until Redis knows everything, and every strict call was answered. */
static void settle(struct me *me)
{
    for (int done = 0; !done && atomic_load_explicit(&board->phase, memory_order_acquire) != END;) {
        int flushed = 0;
        atomic_store_explicit(&me->flushed, 0, memory_order_relaxed);
        if (weir_sync_flush(me->sync, on_flushed, me) != 0) {
            sleep_ms(10);
            continue;
        }
        while ((flushed = atomic_load_explicit(&me->flushed, memory_order_acquire)) == 0) {
            sleep_ms(2);
        }
        done = flushed == 1 && get(&me->counts->asked) == get(&me->counts->answered);
    }
    struct weir_stats stats = {.size = sizeof stats};
    weir_stats_get(me->w, &stats);
    atomic_store_explicit(&me->counts->errors, stats.sync_errors, memory_order_relaxed);
}

static void open_limiter(struct me *me)
{
    struct weir_policy policy = WEIR_POLICY_INIT;
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    policy.name = "p";
    policy.limit = P_BURST / 18; /* as slow as Redis' memory allows: what refills in an hour is a token a key */
    policy.per_ns = DAY;
    policy.burst = P_BURST;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    int status = weir_open(&me->w, NULL);
    status |= weir_policy_add(me->w, &policy, &me->p);
    policy.name = "s";
    policy.mode = WEIR_STRICT;
    policy.limit = S_BURST / 18;
    policy.burst = S_BURST;
    status |= weir_policy_add(me->w, &policy, &me->s);
    policy.name = "q";
    policy.mode = WEIR_HYBRID;
    policy.on_outage = WEIR_OUTAGE_LOCAL;
    policy.limit = Q_RATE;
    policy.per_ns = SECOND;
    policy.burst = Q_BURST;
    status |= weir_policy_add(me->w, &policy, &me->q);
    options.uri = board->uri;
    options.fleet_hint = WORKERS;
    options.timeout_ms = 200; /* all of it runs on one machine, which may have more to do */
    status |= weir_sync_start(&me->sync, me->w, NULL, &options);
    if (status != 0) {
        guard_fail("a worker can't start: %s", weir_strerror(status));
    }
}

/* Takes so much of each key that none is full again before the end: what it refills can then be told to the moment. */
static void drain(struct me *me)
{
    char key[16];
    for (unsigned k = 0; k < P_KEYS; k++) {
        struct weir_request request = {.policy = me->p, .key = key, .cost = P_DRAIN};
        struct weir_result result;
        request.key_len = (size_t)name_of(key, 'p', k);
        while (weir_take_wait(me->w, &request, SECOND, &result) != WEIR_ALLOW) {
            sleep_ms(10);
        }
    }
}

static void on_closed(void *arg, int status, uint64_t unsent)
{
    (void)status;
    *(volatile uint64_t *)arg = unsent;
}

static int work(unsigned n)
{
    struct me me = {.counts = &board->workers[n], .random = n + 1};
    uint64_t settled = 0;
    volatile uint64_t unsent = 0;
    int phase;
    while (atomic_load_explicit(&board->phase, memory_order_acquire) == WAIT) { /* until there is a Redis */
        sleep_ms(5);
    }
    open_limiter(&me);
    if (n == 0) {
        drain(&me);
    }
    for (unsigned turn = 0; (phase = atomic_load_explicit(&board->phase, memory_order_acquire)) != END; turn++) {
        if (phase == LOAD) {
            load_a_little(&me, turn);
        } else if (settled != get(&board->round)) {
            settle(&me);
            settled = get(&board->round);
            atomic_store_explicit(&me.counts->settled, settled, memory_order_release);
        }
        sleep_ms(1);
    }
    weir_sync_close(me.sync, on_closed, (void *)&unsent);
    weir_close(me.w);
    return unsent != 0;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static pid_t pids[WORKERS];
static unsigned chance = 1;

static unsigned pick(unsigned below)
{
    chance = chance * 1103515245u + 12345u;
    return chance / 65536 % below;
}

static void lie(enum liar_act act, unsigned times, unsigned ms, unsigned for_ms)
{
    liar_rule(liar, &(struct liar_rule){.command = "EVALSHA", .act = act, .times = times, .ms = ms});
    sleep_ms(for_ms);
    liar_clear(liar);
}

static void say(const char *error)
{
    liar_rule(liar, &(struct liar_rule){.command = "EVALSHA", .act = LIAR_REPLY, .text = error, .times = 20});
    sleep_ms(400);
    liar_clear(liar);
}

static void set(const char *name, const char *on, const char *off, unsigned ms)
{
    redis_server_do(server, "CONFIG", "SET", name, on, NULL);
    sleep_ms(ms);
    redis_server_do(server, "CONFIG", "SET", name, off, NULL);
}

static void demote(void)
{
    char port[8];
    int fd;
    snprintf(port, sizeof port, "%d", port_hold(&fd));
    redis_server_do(server, "REPLICAOF", "127.0.0.1", port, NULL);
    sleep_ms(700);
    redis_server_do(server, "REPLICAOF", "NO", "ONE", NULL);
    close(fd);
}

static void refuse(void)
{
    liar_refuse(liar, 1);
    liar_cut(liar);
    sleep_ms(300 + pick(1500));
    liar_refuse(liar, 0);
}

static void be_deaf(void)
{
    liar_deaf(liar, 1);
    sleep_ms(300 + pick(700));
    liar_deaf(liar, 0);
    liar_cut(liar);
}

static void stop_server(void)
{
    redis_server_pause(server);
    sleep_ms(100 + pick(1500));
    redis_server_resume(server);
}

static void stop_worker(void)
{
    pid_t pid = pids[pick(WORKERS)];
    kill(pid, SIGSTOP);
    sleep_ms(100 + pick(1500));
    kill(pid, SIGCONT);
}

static const char *const fault_names[] = {
    "connections cut",
    "connections refused",
    "a deaf peer",
    "replies late",
    "replies lost",
    "requests lost",
    "replies halved",
    "garbage",
    "resets",
    "hangs",
    "redis SIGSTOP",
    "redis kill -9",
    "SCRIPT FLUSH",
    "DEBUG SLEEP",
    "CLIENT KILL",
    "master demoted",
    "memory full",
    "CLIENT PAUSE",
    "replicas missing",
    "LOADING",
    "a process SIGSTOP",
    "BUSY",
    "an error never heard",
};
enum { FAULTS = sizeof fault_names / sizeof fault_names[0] };
static unsigned injected[FAULTS];

static void hurt(void)
{
    unsigned which = pick(FAULTS);
    injected[which]++;
    switch (which) {
    case 0: liar_cut(liar); break;
    case 1: refuse(); break;
    case 2: be_deaf(); break;
    case 3: lie(LIAR_LATE, 20, 80, 500); break;
    case 4: lie(LIAR_LOSE_REPLY, 5, 0, 500); break;
    case 5: lie(LIAR_LOSE_REQUEST, 5, 0, 500); break;
    case 6: lie(LIAR_HALF_CLOSE, 5, 0, 500); break;
    case 7: lie(LIAR_GARBAGE, 5, 0, 500); break;
    case 8: lie(LIAR_RESET, 5, 0, 500); break;
    case 9: lie(LIAR_HANG, 4, 0, 500); break;
    case 10: stop_server(); break;
    case 11: redis_server_restart(server); break;
    case 12: redis_server_do(server, "SCRIPT", "FLUSH", NULL); break;
    case 13: redis_server_do(server, "DEBUG", "SLEEP", "0.4", NULL); break;
    case 14: redis_server_do(server, "CLIENT", "KILL", "TYPE", "normal", NULL); break;
    case 15: demote(); break;
    case 16: set("maxmemory", "1", "0", 600); break;
    case 17: redis_server_do(server, "CLIENT", "PAUSE", "500", "ALL", NULL); break;
    case 18: set("min-replicas-to-write", "1", "0", 600); break;
    case 19: say("-LOADING Redis is loading the dataset in memory\r\n"); break;
    case 20: stop_worker(); break;
    case 21: say("-BUSY Redis is busy running a script\r\n"); break;
    default: say("-SOMETHING that no server has said yet\r\n"); break;
    }
}

/* ---- the judgement ----------------------------------------------------------------------------------------------- */

static struct verdict {
    long lost, duplicate, strict_lost, strict_twice, strict_doubt, windows;
    double expired;   /* of p: tokens reserved by slices that expired, which count as spent */
    double aged;      /* of p: what was told so late that it had been refilled meanwhile */
    double most_over; /* of q: tokens over what any second may admit, of all: the largest; negative: room left */
    long admitted_p, admitted_q, certain_s, degraded, errors;
    uint64_t decisions;
    long rss_first[WORKERS], rss_last[WORKERS];
} verdict;

/* Redis' count of what was taken of a key, with the time's refill added back. */
static double charged(struct script_client *client, const char *policy, char letter, unsigned key, double burst,
                      double refilled)
{
    struct weir__wire_target target = {.prefix = "weir", .policy = policy, .shards = SHARDS};
    struct weir__wire_seen_slice slices[WORKERS];
    struct weir__wire_seen seen;
    struct weir__wire_head head;
    char name[16];
    target.shard = weir__wire_shard(name, (size_t)name_of(name, letter, key), SHARDS);
    script_client_peek(client, &target, name, 0, &head, &seen, slices, WORKERS);
    if (!seen.exists || seen.total >= burst) {
        return 0;
    }
    return burst - seen.total + refilled;
}

/* What Redis had charged of each key before the load began, and when. */
static double base[P_KEYS], base_at[P_KEYS];

static void measure_base(struct script_client *client)
{
    for (unsigned k = 0; k < P_KEYS; k++) {
        base[k] = charged(client, "p", 'p', k, P_BURST, 0);
        base_at[k] = seconds();
    }
}

static void judge_p(struct script_client *client)
{
    const int a_day = P_BURST / 18;                     /* the policy's limit */
    const double rate = a_day / 86400.0, slack = 0.004; /* what refills in 0.3 s */
    verdict.lost = verdict.duplicate = verdict.admitted_p = 0;
    verdict.expired = verdict.aged = 0;
    for (unsigned k = 0; k < P_KEYS; k++) {
        long admitted = 0;
        for (int n = 0; n < WORKERS; n++) {
            admitted += atomic_load_explicit(&board->workers[n].p[k], memory_order_acquire);
        }
        double refilled = rate * (seconds() - base_at[k]);
        double over = charged(client, "p", 'p', k, P_BURST, refilled) - base[k] - (double)admitted;
        if (over < -0.5) {
            verdict.lost += lround(-over); /* tokens come whole */
        } else if (over < -slack) {
            verdict.aged -= over; /* what refilled while Redis was away is not charged */
        } else if (over > slack && fabs(over - round(over)) <= slack) {
            verdict.duplicate += (long)round(over);
        } else if (over > slack) {
            verdict.expired += over; /* what a slice reserves does not come whole */
        }
        verdict.admitted_p += admitted;
    }
}

static void judge_s(struct script_client *client, double refilled)
{
    verdict.strict_lost = verdict.strict_twice = verdict.strict_doubt = verdict.certain_s = 0;
    for (unsigned k = 0; k < S_KEYS; k++) {
        long certain = 0, doubtful = 0;
        for (int n = 0; n < WORKERS; n++) {
            certain += atomic_load_explicit(&board->workers[n].s_certain[k], memory_order_acquire);
            doubtful += atomic_load_explicit(&board->workers[n].s_doubtful[k], memory_order_acquire);
        }
        double least = charged(client, "s", 's', k, S_BURST, 0), most = least + (least > 0 ? refilled : 0);
        long missing = (long)ceil((double)certain - most - 0.01);
        long more = (long)ceil(least - (double)(certain + doubtful) - 0.01);
        verdict.strict_lost += missing > 0 ? missing : 0;
        verdict.strict_twice += more > 0 ? more : 0;
        verdict.certain_s += certain;
        verdict.strict_doubt += doubtful;
    }
}

/* Every second of load: no window from any earlier look to now admitted more than it may. */
static void watch_q(double began)
{
    enum { LOOKS = 64 };
    static double at[LOOKS];
    static uint64_t seen[Q_KEYS][LOOKS];
    static unsigned looks;
    double now = seconds();
    const double over = Q_BURST / 10.0, more = WORKERS + Q_RATE * 0.6; /* a token a process, and a lifetime's refill */
    for (unsigned k = 0; k < Q_KEYS; k++) {
        uint64_t sum = 0;
        for (int n = 0; n < WORKERS; n++) {
            sum += get(&board->workers[n].q[k]);
        }
        for (unsigned i = 0; i < looks && i < LOOKS; i++) {
            double excess = (double)(sum - seen[k][i]) - (Q_BURST + Q_RATE * (now - at[i]) + over + more);
            verdict.most_over = fmax(verdict.most_over, excess);
            verdict.windows++;
        }
        verdict.most_over = fmax(verdict.most_over, (double)sum - (Q_BURST + Q_RATE * (now - began) + over + more));
        seen[k][looks % LOOKS] = sum;
    }
    at[looks++ % LOOKS] = now;
}

static long rss_kb(pid_t pid)
{
    char path[64], line[128];
    long kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "VmRSS: %ld", &kb);
    }
    if (file) {
        fclose(file);
    }
    return kb;
}

static void look_at_workers(int round)
{
    verdict.decisions = 0;
    verdict.degraded = verdict.errors = 0;
    for (int n = 0; n < WORKERS; n++) {
        verdict.decisions += get(&board->workers[n].decisions);
        verdict.degraded += (long)get(&board->workers[n].degraded);
        verdict.errors += (long)get(&board->workers[n].errors);
        verdict.rss_last[n] = rss_kb(pids[n]);
        if (round == 2) {
            verdict.rss_first[n] = verdict.rss_last[n];
        }
        if (waitpid(pids[n], NULL, WNOHANG) != 0) {
            guard_fail("a worker has ended");
        }
    }
}

/* All faults are over: everybody tells Redis all. */
static void settle_all(void)
{
    atomic_fetch_add_explicit(&board->round, 1, memory_order_release);
    atomic_store_explicit(&board->phase, SETTLE, memory_order_release);
    for (int n = 0; n < WORKERS; n++) {
        for (int ms = 0; get(&board->workers[n].settled) != get(&board->round); ms += 5) {
            if (ms > 120000) {
                guard_fail("worker %d never settles", n);
            }
            sleep_ms(5);
        }
    }
}

/* Then Redis is asked. */
static int judge(int round, double began)
{
    struct script_client client;
    settle_all();
    look_at_workers(round);
    script_client_open(&client, server);
    judge_p(&client);
    judge_s(&client, (seconds() + 5 - began) * S_BURST / 18 / 86400); /* by the time that the last one is looked at */
    script_client_close(&client);
    watch_q(began);
    return verdict.lost == 0 && verdict.duplicate == 0 && verdict.strict_lost == 0 &&
           verdict.strict_twice <= verdict.errors && verdict.most_over <= 0;
}

static unsigned faults_so_far(void)
{
    unsigned sum = 0;
    for (int i = 0; i < FAULTS; i++) {
        sum += injected[i];
    }
    return sum;
}

static void print_round(int round, double began)
{
    printf("%4.0f s  round %2d  decisions %9llu  faults %3u  p: admitted %7ld lost %ld duplicate %ld  "
           "s: decided %6ld lost %ld  q: over the bound by %.0f  resident %ld kB\n",
           seconds() - began, round, (unsigned long long)verdict.decisions, faults_so_far(), verdict.admitted_p,
           verdict.lost, verdict.duplicate, verdict.certain_s, verdict.strict_lost, fmax(0, verdict.most_over),
           verdict.rss_last[0] + verdict.rss_last[1] + verdict.rss_last[2] + verdict.rss_last[3]);
    fflush(stdout);
}

static int summarize(double took, int good)
{
    long first = 0, last = 0;
    for (int n = 0; n < WORKERS; n++) {
        first += verdict.rss_first[n];
        last += verdict.rss_last[n];
    }
    int flat = first == 0 || last <= first + first / 10; /* the first is looked at in the second round */
    printf("\nload held         %.0f decisions/s by %d processes for %.0f s: %llu, %ld of them by an outage policy\n",
           (double)verdict.decisions / took, WORKERS, took, (unsigned long long)verdict.decisions, verdict.degraded);
    printf("faults injected   %u", faults_so_far());
    for (int i = 0; i < FAULTS; i++) {
        printf("%s %s %u", i ? "," : ":", fault_names[i], injected[i]);
    }
    printf("\nbatches failed    %ld, each sent again until it was answered\n", verdict.errors);
    printf("tokens lost       %ld of %ld (hybrid), %ld of %ld (strict)\n", verdict.lost, verdict.admitted_p,
           verdict.strict_lost, verdict.certain_s);
    printf("tokens duplicate  %ld (hybrid); strict: %ld more than answered, for answers that were lost\n",
           verdict.duplicate, verdict.strict_twice);
    printf("written off       %.1f tokens that slices held when they expired; refilled before they were told: %.1f\n",
           verdict.expired, verdict.aged);
    printf("over the bound    %.0f tokens, in %ld windows of %d hot keys (the fullest had %.0f to spare)\n",
           fmax(0, verdict.most_over), verdict.windows, Q_KEYS, -verdict.most_over);
    printf("resident memory   %ld kB after half a minute, %ld kB at the end: %s\n", first, last,
           flat ? "flat" : "it grows");
    printf("%s\n", good && flat ? "every promise was kept" : "A PROMISE WAS BROKEN");
    return good && flat ? 0 : 1;
}

static void run_workers(void)
{
    for (unsigned n = 0; n < WORKERS; n++) {
        pids[n] = fork();
        if (pids[n] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* none outlives the one who watches */
            _exit(work(n));
        }
    }
}

static int end_workers(void)
{
    int bad = 0, status;
    atomic_store_explicit(&board->phase, END, memory_order_release);
    for (int n = 0; n < WORKERS; n++) {
        bad |= waitpid(pids[n], &status, 0) != pids[n] || status != 0;
    }
    return bad;
}

static double minutes = 10;
static int result;

static int soak(void)
{
    const char *const args[] = {"--enable-debug-command", "yes", NULL};
    int good = 1;
    verdict.most_over = -1e9;
    run_workers(); /* before there are threads */
    server = redis_server_open(&(struct redis_server_options){.persist = 1, .args = args});
    liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    snprintf(board->uri, sizeof board->uri, "%s", liar_uri(liar));
    struct script_client client;
    settle_all();
    script_client_open(&client, server);
    measure_base(&client);
    script_client_close(&client);
    double began = seconds(), now;
    for (int round = 1; good && (now = seconds()) < began + minutes * 60; round++) {
        atomic_store_explicit(&board->phase, LOAD, memory_order_release);
        while (seconds() < now + ROUND_S) {
            for (int i = 0; i < 2 + (int)pick(3); i++) {
                sleep_ms(1000);
                watch_q(began);
            }
            hurt();
        }
        sleep_ms(1500);
        good = judge(round, began);
        print_round(round, began);
    }
    double took = seconds() - began;
    if (end_workers() != 0) {
        puts("a worker ended badly, or with tokens that nobody was told of");
        good = 0;
    }
    liar_close(liar);
    redis_server_close(server);
    return summarize(took, good);
}

/* What looks into Redis is written for tests, and fails as one. */
START_TEST(everything)
{
    result = soak();
}
END_TEST

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--minutes") == 0) {
            minutes = strtod(argv[i + 1], NULL);
        } else if (strcmp(argv[i], "--seed") == 0) {
            chance = (unsigned)strtoul(argv[i + 1], NULL, 10);
        } else {
            minutes = 0;
        }
    }
    if (argc % 2 == 0 || !(minutes > 0 && minutes <= 600)) {
        fputs("usage: weir-soak [--minutes N] [--seed N]\n", stderr);
        return 2;
    }
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) {
        guard_fail("no memory");
    }
    Suite *suite = suite_create("soak");
    TCase *tcase = tcase_create("soak");
    tcase_set_timeout(tcase, 0);
    tcase_add_test(tcase, everything);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_MINIMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : result;
}
