/* SPDX-License-Identifier: MIT */
/*
 * A process that shares a limiter is stopped after so many instructions of one call, and killed there: whatever the
 * place, the others go on, mint nothing, and find the table whole. WEIR_KILLS: how many are killed, a tenth of it here:
 * so many places of ten calls (15 of eight, 30 of two).
 */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <weir/weir.h>

#include "lib/atomic.h"
#include "lib/hybrid.h"
#include "lib/intent.h"
#include "lib/table.h"
#include "support/suite.h"
#include "support/whole.h"

#define DAY (UINT64_C(86400) * 1000000000)

enum { BURST = 100, LEFT = 40, LONG = 3000 };

static struct weir *w;
static weir_policy_id slow, quick, kept;
static char long_key[LONG];

static int add(const char *name, enum weir_mode mode, uint64_t limit, uint64_t burst, weir_policy_id *id)
{
    struct weir_policy p = WEIR_POLICY_INIT;

    p.name = name;
    p.mode = mode;
    p.limit = limit;
    p.per_ns = DAY;
    p.burst = burst;
    return weir_policy_add(w, &p, id);
}

static int take(weir_policy_id id, const char *key, int64_t cost, struct weir_result *r)
{
    return weir_take(w, id, key, strlen(key), cost, r);
}

/* A table with room for few: "mine" has LEFT of BURST, the rest of the table is filled with keys that may go at any
 * time. */
static void set_up(void)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    char key[16];

    options.max_keys = 20;
    options.shared = 1;
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(add("slow", WEIR_LOCAL, 1, BURST, &slow), 0);
    ck_assert_int_eq(add("quick", WEIR_LOCAL, UINT64_C(86400) * 100000000, 1, &quick), 0);
    ck_assert_int_eq(add("kept", WEIR_HYBRID, 10, BURST, &kept), 0);
    ck_assert_int_eq(take(slow, "mine", BURST - LEFT, NULL), WEIR_ALLOW);
    ck_assert_int_eq(take(kept, "shared", BURST - LEFT, NULL), WEIR_ALLOW);
    for (int i = 0; i < 12; i++) {
        snprintf(key, sizeof key, "q%d", i);
        ck_assert_int_eq(take(quick, key, 1, NULL), WEIR_ALLOW);
    }
    memset(long_key, 'x', sizeof long_key);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void make(void)
{
    take(slow, "new", 1, NULL);
}

static void make_room(void)
{
    char key[16];

    for (int i = 0; i < 9; i++) {
        snprintf(key, sizeof key, "r%d", i);
        take(quick, key, 1, NULL);
    }
}

static void make_long(void)
{
    weir_take(w, kept, long_key, sizeof long_key, 1, NULL);
}

static void forget(void)
{
    weir_forget(w, slow, "mine", 4);
}

static void forget_long(void)
{
    weir_forget(w, kept, long_key, sizeof long_key);
}

static void lower(void)
{
    struct weir_policy p = WEIR_POLICY_INIT;

    p.mode = WEIR_LOCAL;
    p.limit = 1;
    p.per_ns = 60 * UINT64_C(1000000000);
    p.burst = BURST / 2;
    weir_policy_set(w, slow, &p);
}

static void localize(void)
{
    struct weir_policy p = WEIR_POLICY_INIT;

    p.mode = WEIR_LOCAL;
    p.limit = 1;
    p.per_ns = DAY;
    p.burst = BURST;
    weir_policy_set(w, kept, &p);
}

static void give(void)
{
    weir_give(w, kept, "shared", 6, 1);
}

static const struct call {
    const char *name;
    void (*before)(void), (*run)(void);
    int mine, shared; /* the most that may be left of them afterwards */
} calls[] = {
    {"make", NULL, make, LEFT, LEFT},
    {"make room", NULL, make_room, LEFT, LEFT},
    {"make long", NULL, make_long, LEFT, LEFT},
    {"forget", NULL, forget, BURST, LEFT},
    {"forget long", make_long, forget_long, LEFT, LEFT},
    {"lower", NULL, lower, LEFT, LEFT},
    {"localize", NULL, localize, LEFT, LEFT},
    {"give", NULL, give, LEFT, LEFT + 1},
};

/* ---- dead after so many instructions ----------------------------------------------------------------------------- */

static void (*after_step)(void);

/* Runs the call in a child, which is killed after `most` instructions. Returns how many it did: fewer where it had
 * done by then. */
static long run(const struct call *call, long most)
{
    long steps = 0;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
            _exit(errno == EPERM ? 77 : 1);
        weir__intent_self(w); /* once a process: thousands of instructions */
        raise(SIGSTOP);
        call->run();
        _exit(0);
    }
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFSTOPPED(status), "can't be traced: status %x", status);
    while (steps < most && WIFSTOPPED(status)) {
        ck_assert_int_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        steps++;
        if (after_step && WIFSTOPPED(status))
            after_step();
    }
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    }
    return steps;
}

static void check(const struct call *call, long steps)
{
    struct weir_policy same = WEIR_POLICY_INIT;
    struct weir_result r;
    struct timespec from, to;
    char key[16];

    clock_gettime(CLOCK_MONOTONIC, &from);
    ck_assert_int_ge(take(slow, "mine", 0, &r), 0);
    ck_assert_msg(r.remaining <= call->mine, "%s, %ld: %d left", call->name, steps, (int)r.remaining);
    ck_assert_int_ge(take(kept, "shared", 0, &r), 0);
    ck_assert_msg(r.remaining <= call->shared, "%s, %ld: %d left of the other", call->name, steps, (int)r.remaining);
    for (int i = 0; i < 30; i++) {
        snprintf(key, sizeof key, "%c%d", "qrs"[i % 3], i / 3);
        ck_assert_int_ge(take(quick, key, 1, &r), 0);
        ck_assert_uint_eq(r.flags & WEIR_FULL, 0);
    }
    ck_assert_int_ge(take(slow, "new", 1, &r), 0);
    ck_assert_int_le(r.remaining, BURST - 1);
    /* it may have been emptied; but there is room for its bytes */
    ck_assert_int_ge(weir_take(w, kept, long_key, sizeof long_key, 1, &r), 0);
    ck_assert_uint_eq(r.flags & WEIR_FULL, 0);
    whole_check(w);
    same.mode = WEIR_LOCAL;
    same.limit = 1;
    same.per_ns = DAY;
    same.burst = 10;
    ck_assert_int_eq(weir_policy_set(w, slow, &same), 0);
    ck_assert_int_eq(weir_policy_set(w, kept, &same), 0);
    ck_assert_int_ge(take(slow, "mine", 0, &r), 0);
    ck_assert_int_le(r.remaining, 10);
    ck_assert_int_eq(weir_forget(w, slow, "mine", 4), 0);
    ck_assert_int_eq(take(slow, "mine", 10, &r), WEIR_ALLOW);
    whole_check(w);
    clock_gettime(CLOCK_MONOTONIC, &to);
    /* bounded, on a machine that does other things as well */
    ck_assert_int_lt(to.tv_sec - from.tv_sec, 10);
}

static long until(const struct call *call, long most)
{
    long steps;

    set_up();
    if (call->before)
        call->before();
    steps = run(call, most);
    check(call, steps);
    weir_close(w);
    return steps;
}

START_TEST(killed_at_an_instruction)
{
    const char *wanted = getenv("WEIR_KILLS");
    int places = wanted ? atoi(wanted) / 100 + 1 : 15;
    const struct call *call = &calls[_i];
    long all = until(call, 1000000), at;

    ck_assert_int_gt(all, 100);
    ck_assert_int_lt(all, 1000000);
    for (int i = 1; i <= places; i++) {
        at = all * i / (places + 1) + i * 7 % 11; /* not the same place of a loop each time */
        until(call, at);
    }
}
END_TEST

/* ---- the collector ----------------------------------------------------------------------------------------------- */

/* What a collector has told of "shared", and whether an answer may have been put in force: in memory of all. */
static struct {
    _Atomic int64_t told;
    _Atomic int applying, applied;
} * log_of;

static int keep(void *ctx, const struct weir__report *report)
{
    *(struct weir__report *)ctx = *report;
    return 1;
}

static int keep_none(void *ctx, uint32_t slot)
{
    (void)ctx;
    (void)slot;
    return 0;
}

static void collect_and_release(void)
{
    struct weir__report report = {0};

    if (weir__seam_lead(w) && weir__seam_collect(w, weir_now(w), 100, keep, &report) == 1)
        weir__seam_release(w, report.slot, report.spent, report.refunded);
}

static void collect_and_grant(double level, uint64_t hold)
{
    struct weir__grant grant = {
        .level_delta = level, .rate = 0, .cap = level, .low = -1, .fallback_rate = -1, .global = LEFT};
    struct weir__report report = {0};

    if (!weir__seam_lead(w) || weir__seam_collect(w, weir_now(w), 100, keep, &report) != 1)
        return;
    grant.until = weir_now(w) + DAY;
    grant.hold = hold;
    grant.level_delta -= report.level;
    log_of->told = report.spent;
    log_of->applying = 1;
    weir__seam_apply(w, report.slot, weir_now(w), &grant);
    log_of->applied = 1;
    weir__seam_end(w, report.slot);
}

static void collect_and_apply(void)
{
    collect_and_grant(7, 0);
}

static void collect_and_hold(void)
{
    collect_and_grant(50, weir_now(w) + DAY / 2);
}

static void set_up_shared(void)
{
    set_up();
    weir__attach_again(w);
    weir__seam_overdraft(w, kept, BURST, 0, 0);
    weir__seam_fresh_until(w, kept, weir_now(w) + DAY);
    ck_assert_int_eq(take(kept, "shared", 20, NULL), WEIR_ALLOW);
    log_of->told = 0;
    log_of->applying = log_of->applied = 0;
}

/* A successor finds each token once: unreported, or told. */
static long collect_until(const struct call *call, long most)
{
    const int64_t spent = BURST - LEFT + 20;
    struct weir__report report = {0};
    struct weir_result r;
    uint64_t id[2], x;
    size_t reports;
    long steps;

    set_up_shared();
    steps = run(call, most);
    ck_assert_int_eq(weir__seam_lead(w), 1);
    weir__table_id(w, kept, "shared", 6, id);
    ck_assert_ptr_nonnull(weir__table_search(w, id, &x));
    if (weir__load_relaxed(&weir__table_search(w, id, &x)->reported) == WEIR__SEAM_ANSWERED)
        weir__seam_end(w, weir__slot_of(w, weir__table_search(w, id, &x)));
    weir__seam_reclaim(w, keep_none, NULL);
    for (int i = 0; i < 3; i++)
        weir__seam_audit(w, w->slots);
    reports = weir__seam_collect(w, weir_now(w), 100, keep, &report);
    ck_assert_uint_le(reports, 1);
    if (reports)
        weir__seam_release(w, report.slot, 0, 0);
    ck_assert_msg(report.spent == spent || (log_of->applying && report.spent == 0),
                  "%s, %ld: %lld of %lld, answered %d", call->name, steps, (long long)report.spent, (long long)spent,
                  log_of->applying);
    ck_assert(!log_of->applied || log_of->told == spent);
    ck_assert_int_ge(take(kept, "shared", 0, &r), 0);
    ck_assert_double_le(report.level, log_of->applying ? 7 : 0);
    weir__seam_retire(w);
    whole_check(w);
    weir_close(w);
    return steps;
}

static const struct call collector_calls[] = {
    {"release", NULL, collect_and_release, 0, 0},
    {"apply", NULL, collect_and_apply, 0, 0},
};

START_TEST(a_collector_is_killed_at_an_instruction)
{
    const char *wanted = getenv("WEIR_KILLS");
    int places = wanted ? atoi(wanted) / 100 + 1 : 30;
    const struct call *call = &collector_calls[_i];
    long all;

    log_of = mmap(NULL, sizeof *log_of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(log_of, MAP_FAILED);
    all = collect_until(call, 1000000);
    ck_assert_int_lt(all, 1000000);
    ck_assert_int_eq(log_of->applied, _i);
    for (int i = 1; i <= places; i++)
        collect_until(call, all * i / (places + 1) + i * 7 % 11);
    munmap(log_of, sizeof *log_of);
}
END_TEST

static const struct call generous = {"generous", NULL, collect_and_hold, 0, 0};

/* Before, the overdraft bears it; afterwards there is enough in hand. */
static void expect_one(void)
{
    struct weir_result r;

    ck_assert_int_eq(weir_peek(w, kept, "shared", 6, 1, &r), WEIR_ALLOW);
}

/* A grant that fills the bucket and says that asking again is no use for long: at no instruction of it is anybody
 * denied. */
START_TEST(a_grant_denies_nobody_on_its_way)
{
    struct weir_result r;
    long all;

    log_of = mmap(NULL, sizeof *log_of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(log_of, MAP_FAILED);
    set_up_shared();
    after_step = expect_one;
    all = run(&generous, 1000000);
    after_step = NULL;
    ck_assert_int_lt(all, 1000000);
    ck_assert_int_eq(log_of->applied, 1);
    ck_assert_int_eq(weir_peek(w, kept, "shared", 6, 50, &r), WEIR_ALLOW);
    ck_assert_int_eq(weir_peek(w, kept, "shared", 6, 51, &r), WEIR_DENY);
    ck_assert_uint_gt(r.retry_after_ns, DAY / 4); /* it is on hold now */
    munmap(log_of, sizeof *log_of);
    weir_close(w);
}
END_TEST

/* ---- not here ---------------------------------------------------------------------------------------------------- */

/* Under ThreadSanitizer, or where the machine has no such instruction, the portable swap is built. */
START_TEST(nothing_is_shared_without_a_16_byte_swap)
{
    struct weir_options options = WEIR_OPTIONS_INIT;

    options.shared = 1;
    ck_assert_int_eq(weir_open(&w, &options), WEIR_E_NOSUP);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("shared_steps");
    TCase *t = tcase_create("steps"), *collector;

    tcase_set_timeout(t, 600);
    suite_add_tcase(s, t);
    if (!WEIR__CAS16_NATIVE) {
        tcase_add_test(t, nothing_is_shared_without_a_16_byte_swap);
        return s;
    }
    collector = tcase_create("collector");
    tcase_add_loop_test(t, killed_at_an_instruction, 0, (int)(sizeof calls / sizeof *calls));
    tcase_set_timeout(collector, 600);
    tcase_add_loop_test(collector, a_collector_is_killed_at_an_instruction, 0, 2);
    tcase_add_test(collector, a_grant_denies_nobody_on_its_way);
    suite_add_tcase(s, collector);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
