/* SPDX-License-Identifier: MIT */
/*
 * What travels together: how many requests share a script, in which order they are dealt, what each is told, and that a
 * denial leaves no trace in Redis.
 */
#include <check.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

enum {
    MOST = 6000,
    WINDOW_MS = 1000,
    LATE_MS = 15000, /* far longer than a machine stands still; hurry ends it */
};

static struct redis_server *server;
static struct liar *liar;
static struct node a;

static void setup(void)
{
    server = redis_server_open(NULL);
    liar = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
}

static void teardown(void)
{
    liar_close(liar);
    redis_server_close(server);
}

static void start_with(uint64_t burst, uint32_t window_us, uint32_t batch_max)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(burst, NODE_DAY, burst);

    policy.mode = WEIR_STRICT;
    options.timeout_ms = LATE_MS + 5000; /* a machine with much to do is no outage */
    options.strict_window_us = window_us;
    options.batch_max = batch_max;
    node_open(&a, &policy);
    node_start(&a, liar_uri(liar), &options);
}

static void start(uint64_t burst, uint32_t window_us)
{
    start_with(burst, window_us, 0);
}

static void finish(void)
{
    ck_assert_uint_eq(node_stats(&a).degraded, 0);
    node_close(&a);
}

/* Refunds that nobody waited for, beyond those known. One that Redis has not taken within a second is dropped: only a
 * machine that stands still does that here. */
static uint64_t dropped(uint64_t known, uint64_t began)
{
    uint64_t tokens = node_stats(&a).unreturned_tokens - known;

    ck_assert(tokens == 0 || uv_hrtime() - began >= NODE_SECOND);
    return tokens;
}

static unsigned scripts(void)
{
    return liar_count(liar, "EVALSHA");
}

static void answers_come_late(unsigned ms)
{
    liar_clear(liar);
    liar_rule(liar, &(struct liar_rule){.command = "EVALSHA", .act = LIAR_LATE, .ms = ms});
}

/* From now on nothing is late, nor is what was going to be. */
static void hurry(void)
{
    liar_clear(liar);
    liar_release(liar);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

struct answer {
    int status, calls;
    struct weir_result result;
};

static struct answer answers[MOST];
static _Atomic int answered;

static void on_answer(void *arg, int status, const struct weir_result *result)
{
    struct answer *answer = arg;

    answer->status = status;
    answer->result = *result;
    answer->calls++;
    atomic_fetch_add_explicit(&answered, 1, memory_order_release);
}

static int told(void)
{
    return atomic_load_explicit(&answered, memory_order_acquire);
}

static void ask(int i, const char *key, int64_t cost)
{
    struct weir_request request = {.policy = a.id, .key = key, .key_len = strlen(key), .cost = cost};

    ck_assert_int_eq(weir_take_async(a.w, &request, on_answer, &answers[i]), 0);
}

/* The loop stands still in a callback from here to let_go: what is asked meanwhile meets in one turn. */
static sem_t held, go;

static void on_hold(void *arg, int status, const struct weir_result *result)
{
    (void)arg;
    (void)status;
    (void)result;
    sem_post(&held);
    sem_wait(&go);
}

static void hold(void)
{
    struct weir_request request = {.policy = a.id, .key = "hold", .key_len = 4, .cost = 0};

    sem_init(&held, 0, 0);
    sem_init(&go, 0, 0);
    ck_assert_int_eq(weir_take_async(a.w, &request, on_hold, NULL), 0);
    sem_wait(&held);
}

static void let_go(void)
{
    sem_post(&go);
}

/* ---- how many share a script ------------------------------------------------------------------------------------- */

START_TEST(a_lone_request_is_sent_at_once)
{
    unsigned before;

    start(100, 0);
    before = scripts();
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_uint_eq(scripts() - before, 20);
    finish();
}
END_TEST

/* Twenty takes of a key, one by one. Returns 0 where that took as long as the window, which then says nothing. */
static int gathered(int from, const char *key)
{
    unsigned before = scripts();
    uint64_t began = uv_hrtime();
    int early;

    for (int i = from; i < from + 20; i++) {
        ask(i, key, 1);
        node_pause(2);
    }
    early = told() - from;
    if (uv_hrtime() - began > (WINDOW_MS - 10) * NODE_MS) {
        node_until(told() == from + 20);
        return 0;
    }
    ck_assert_int_eq(early, 0);
    node_until(told() == from + 20);
    ck_assert_uint_eq(scripts() - before, 1);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(answers[from + i].result.remaining, 99 - i);
    return 1;
}

START_TEST(a_window_gathers_what_comes_one_by_one)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e"};
    int tries = 0;

    start(100, WINDOW_MS * 1000);
    while (!gathered(20 * tries, keys[tries]))
        ck_assert_int_lt(++tries, 5);
    finish();
}
END_TEST

static const struct {
    int requests, scripts, keys;
} backlogs[] = {{200, 1, 200}, {500, 2, 500}, {1000, 2, 1000}, {6000, 4, 2048}};

static int keys_in_redis(void)
{
    return atoi(redis_server_do(server, "EVAL",
                                "local n = 0 for _, k in ipairs(redis.call('KEYS', '*:a')) do "
                                "n = n + redis.call('HLEN', k) - 1 end return n",
                                "0", NULL));
}

/* A server whose answers are late shows what is on its way: two batches of 256, under backlog four of 512. */
START_TEST(a_backlog_travels_in_larger_scripts)
{
    int requests = backlogs[_i].requests;
    unsigned before;

    start(100, 0);
    hold();
    answers_come_late(LATE_MS);
    before = scripts();
    for (int i = 0; i < requests; i++) {
        char key[16];

        snprintf(key, sizeof key, "%d", i);
        ask(i, key, 1);
    }
    let_go();
    node_until(keys_in_redis() >= backlogs[_i].keys || told() > 0);
    ck_assert_int_eq(keys_in_redis(), backlogs[_i].keys);
    ck_assert_uint_eq(scripts() - before, (unsigned)backlogs[_i].scripts);
    hurry();
    node_until(told() == requests);
    for (int i = 0; i < requests; i++) {
        ck_assert_int_eq(answers[i].calls, 1);
        ck_assert_int_eq(answers[i].status, WEIR_ALLOW);
    }
    ck_assert_int_eq(keys_in_redis(), requests);
    finish();
}
END_TEST

static void ask_one_after_another(int from, int to, unsigned before)
{
    static const char *const keys[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};

    for (int i = from; i < to; i++) {
        ask(i, keys[i], 1);
        node_until(scripts() - before == (unsigned)i + 1);
    }
}

static uint64_t round_trip(void)
{
    uint64_t began = uv_hrtime();

    node_take(&a, "k", NULL);
    return uv_hrtime() - began;
}

/* Redis answers ever later: two times two scripts wait there, what is asked meanwhile is one more. */
START_TEST(what_would_queue_at_redis_is_merged)
{
    unsigned before;

    start(100, 0);
    node_until(round_trip() < 40 * NODE_MS); /* a machine that stands still in all of them makes 100 ms no delay */
    answers_come_late(100);
    node_take(&a, "k", NULL);
    answers_come_late(LATE_MS);
    before = scripts();
    ask_one_after_another(0, 4, before);
    for (int i = 4; i < 10; i++) {
        ask(i, "k", 1);
        node_pause(2);
    }
    ck_assert_int_eq(told(), 0);
    ck_assert_uint_eq(scripts() - before, 4);
    hurry();
    node_until(told() == 10);
    ck_assert_uint_eq(scripts() - before, 5);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(answers[i].calls, 1);
        ck_assert_int_eq(answers[i].status, WEIR_ALLOW);
    }
    finish();
}
END_TEST

/* Redis answers late, but never later than it can: there is no queue that keeping anything back would shorten. */
START_TEST(on_a_long_line_nothing_is_kept_back)
{
    unsigned before;

    start(100, 0);
    answers_come_late(500);
    node_take(&a, "k", NULL);
    answers_come_late(LATE_MS);
    before = scripts();
    ask_one_after_another(0, 10, before);
    ck_assert_int_eq(told(), 0);
    hurry();
    node_until(told() == 10);
    finish();
}
END_TEST

/* Two of three that meet are on their way, a key each: neither names the shard of the next one. */
START_TEST(a_full_script_names_no_shard_of_which_it_takes_nothing)
{
    char last[512] = "";
    unsigned before, named = 0;

    start_with(100, 0, 1);
    hold();
    answers_come_late(LATE_MS);
    before = scripts();
    for (int i = 0; i < 3; i++)
        ask(i, (const char *[]){"a", "b", "c"}[i], 1);
    let_go();
    node_until(scripts() - before == 2);
    liar_last(liar, "EVALSHA", last, sizeof last);
    ck_assert_int_eq(sscanf(last, "%*s %*s %u", &named), 1);
    ck_assert_uint_eq(named, 3);
    hurry();
    node_until(told() == 3);
    finish();
}
END_TEST

/* ---- what each is told ------------------------------------------------------------------------------------------- */

/* Ten tokens a day: of takes of 3 that meet, and then others, each has the numbers of its own place in the queue. */
START_TEST(each_merged_request_has_its_own_numbers)
{
    static const int64_t costs[] = {3, 3, 3, 3, 2, 1, 1, 11};
    static const int64_t left[] = {7, 4, 1, 1, 1, 0, 0, 0}, missing[] = {0, 0, 0, 2, 1, 0, 1, 0};
    const uint64_t token = NODE_DAY / 10, slack = 30 * NODE_SECOND; /* what a slow test refills */
    unsigned before;

    start(10, 0);
    hold();
    before = scripts();
    for (int i = 0; i < 8; i++)
        ask(i, "k", costs[i]);
    let_go();
    node_until(told() == 8);
    ck_assert_uint_eq(scripts() - before, 1);
    for (int i = 0; i < 8; i++) {
        const struct weir_result *r = &answers[i].result;

        ck_assert_int_eq(answers[i].status, missing[i] || costs[i] > 10 ? WEIR_DENY : WEIR_ALLOW);
        ck_assert_uint_eq(r->limit, 10);
        ck_assert_int_eq(r->remaining, left[i]);
        ck_assert_uint_le(r->reset_after_ns, (uint64_t)(10 - left[i]) * token + 2000);
        ck_assert_uint_ge(r->reset_after_ns, (uint64_t)(10 - left[i]) * token - slack);
        if (costs[i] > 10) {
            ck_assert_uint_eq(r->retry_after_ns, WEIR_NEVER);
            continue;
        }
        ck_assert_uint_le(r->retry_after_ns, (uint64_t)missing[i] * token + (missing[i] ? 2000 : 0));
        ck_assert_uint_ge(r->retry_after_ns + slack, (uint64_t)missing[i] * token);
    }
    /* of one script, so of one moment: exactly a token apart */
    ck_assert_uint_eq(answers[3].result.retry_after_ns - answers[4].result.retry_after_ns, token);
    ck_assert_uint_eq(answers[1].result.reset_after_ns - answers[0].result.reset_after_ns, 3 * token);
    finish();
}
END_TEST

/* ---- the same as one by one -------------------------------------------------------------------------------------- */

enum { BUCKETS = 4, BURST = 30 };

static char buckets[BUCKETS][8];

struct question {
    int bucket;
    int64_t cost; /* < 0: a refund */
};

static void ask_at_random(struct question *questions, int n, unsigned *seed)
{
    for (int i = 0; i < n; i++) {
        int at = rand_r(seed) % BUCKETS, kind = rand_r(seed) % 10;

        questions[i].bucket = at;
        questions[i].cost = kind ? rand_r(seed) % 4 : -(1 + rand_r(seed) % 9);
        if (kind)
            ask(i, buckets[at], questions[i].cost);
        else
            ck_assert_int_eq(weir_give(a.w, a.id, buckets[at], strlen(buckets[at]), -questions[i].cost), 0);
        if (rand_r(seed) % 64 == 0)
            node_pause(1);
        if (rand_r(seed) % 512 == 0)
            ck_assert_int_ge(node_take(&a, "another", NULL), 0); /* waits: this one meets nobody */
    }
}

static void check_answers(const struct question *questions, int n)
{
    int64_t levels[BUCKETS];

    for (int i = 0; i < BUCKETS; i++)
        levels[i] = BURST;
    for (int i = 0; i < n; i++) {
        int64_t *level = &levels[questions[i].bucket], cost = questions[i].cost;

        if (cost < 0) {
            *level = *level - cost < BURST ? *level - cost : BURST;
            continue;
        }
        ck_assert_int_eq(answers[i].calls, 1);
        ck_assert_int_eq(answers[i].status, cost <= *level ? WEIR_ALLOW : WEIR_DENY);
        *level -= cost <= *level ? cost : 0;
        ck_assert_int_eq(answers[i].result.remaining, *level);
    }
}

/* Of full buckets, and answered. Returns how many refunds were dropped: then nobody knows what should be left. */
static uint64_t ask_all(struct question *questions, int n, unsigned *seed)
{
    static int run;
    uint64_t began = uv_hrtime(), before = node_stats(&a).unreturned_tokens;
    unsigned sent = scripts();
    int asked = 0;

    run++;
    for (int i = 0; i < BUCKETS; i++)
        snprintf(buckets[i], sizeof buckets[i], "%c%d", 'a' + i, run);
    memset(answers, 0, sizeof answers);
    answered = 0;
    ask_at_random(questions, n, seed);
    for (int i = 0; i < n; i++)
        asked += questions[i].cost >= 0;
    node_until(told() == asked);
    ck_assert_uint_lt(scripts() - sent, (unsigned)n / 4); /* they did travel in company */
    return dropped(before, began);
}

/* Takes, looks and refunds of four keys, in whatever company they travel: each is answered as if it had come alone. */
START_TEST(any_interleaving_is_one_bucket_a_key)
{
    static struct question questions[MOST];
    unsigned seed = (unsigned)_i + 1;
    int n = MOST, runs = 0;

    start(BURST, 0);
    while (ask_all(questions, n, &seed)) {
        ck_assert_int_lt(++runs, 20);
        n = n > 600 ? n / 2 : n; /* what is sooner over is not held up */
    }
    check_answers(questions, n);
    finish();
}
END_TEST

/* ---- what is written --------------------------------------------------------------------------------------------- */

static unsigned long info(const char *section, const char *name)
{
    const char *at = strstr(redis_server_do(server, "INFO", section, NULL), name);

    return at ? strtoul(at + strlen(name), NULL, 10) : 0;
}

START_TEST(denials_write_nothing)
{
    unsigned long changes, writes, expiries;
    struct weir_result result;

    start(3, 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    changes = info("persistence", "rdb_changes_since_last_save:");
    writes = info("commandstats", "cmdstat_hset:calls=");
    expiries = info("commandstats", "cmdstat_pexpire:calls=");
    ck_assert_uint_gt(changes, 0);
    ck_assert_uint_gt(writes, 0);
    for (int i = 0; i < 300; i++) {
        char fresh[16];

        snprintf(fresh, sizeof fresh, "new %d", i);
        ck_assert_int_eq(node_take(&a, "k", &result), WEIR_DENY);
        ck_assert_int_eq(weir_take(a.w, a.id, fresh, strlen(fresh), 4, NULL), WEIR_DENY);
        ck_assert_int_eq(weir_peek(a.w, a.id, fresh, strlen(fresh), 1, NULL), WEIR_ALLOW);
        ck_assert_int_eq(weir_peek(a.w, a.id, "k", 1, 1, NULL), WEIR_DENY);
        if (i % 100 == 0)
            node_pause(120); /* the header's time is written ten times a second: with an admission */
    }
    ck_assert_uint_eq(info("persistence", "rdb_changes_since_last_save:"), changes);
    ck_assert_uint_eq(info("commandstats", "cmdstat_hset:calls="), writes);
    ck_assert_uint_eq(info("commandstats", "cmdstat_pexpire:calls="), expiries);
    finish();
}
END_TEST

/* ---- all or none, and waiting ------------------------------------------------------------------------------------ */

/* Waits for the refund that fills the bucket again; one that was dropped is given once more. */
static void wait_until_full(uint64_t began, struct weir_result *result)
{
    uint64_t known = 0;

    while (weir_peek(a.w, a.id, "k", 1, 10, result) != WEIR_ALLOW) {
        ck_assert_uint_lt(uv_hrtime() - began, NODE_WAIT_MS * NODE_MS);
        if (dropped(known, began))
            ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 10), 0);
        known = node_stats(&a).unreturned_tokens;
        node_pause(5);
    }
}

/* Of one bucket: by one script where the group is one (_i 0), else one by one. */
START_TEST(members_of_one_bucket_wait_for_the_sum)
{
    struct weir_policy other = node_policy(10, NODE_DAY, 10);
    struct weir_result result;
    weir_policy_id id;
    uint64_t began;

    start(10, 0);
    began = uv_hrtime();
    other.mode = WEIR_STRICT;
    other.name = "other";
    ck_assert_int_eq(weir_policy_add(a.w, &other, &id), 0);
    {
        struct weir_request list[3] = {{.policy = a.id, .key = "k", .key_len = 1, .cost = 6},
                                       {.policy = a.id, .key = "k", .key_len = 1, .cost = 6},
                                       {.policy = id, .key = "k", .key_len = 1, .cost = 1}};
        size_t n = _i == 0 ? 2 : 3;

        ck_assert_int_eq(weir_take_all(a.w, list, n, &result), WEIR_DENY);
        ck_assert_uint_eq(result.retry_after_ns, WEIR_NEVER);
        ck_assert_uint_eq(result.policy, a.id);
        wait_until_full(began, NULL);
        ck_assert_int_eq(weir_take(a.w, a.id, "k", 1, 2, NULL), WEIR_ALLOW);
        list[0].cost = list[1].cost = 5;
        ck_assert_int_eq(weir_take_all(a.w, list, n, &result), WEIR_DENY);
        ck_assert_uint_le(result.retry_after_ns, NODE_DAY / 10 * 2 + NODE_MS);
        ck_assert_uint_gt(result.retry_after_ns, NODE_DAY / 10 * 2 - 60 * NODE_SECOND);
    }
    finish();
}
END_TEST

/* Not a microsecond less than a token takes, however slow: its bucket was full. */
START_TEST(what_is_told_of_the_end_is_rounded_up)
{
    struct weir_result result;
    uint64_t began;

    start(10, 0);
    began = uv_hrtime();
    ck_assert_int_eq(node_take(&a, "k", &result), WEIR_ALLOW);
    ck_assert_uint_ge(result.reset_after_ns, NODE_DAY / 10);
    ck_assert_uint_le(result.reset_after_ns, NODE_DAY / 10 + 2000);
    ck_assert_int_eq(weir_give(a.w, a.id, "k", 1, 1), 0);
    wait_until_full(began, &result);
    ck_assert_uint_eq(result.reset_after_ns, 0);
    finish();
}
END_TEST

/* No end is too far to be added to the time. */
START_TEST(who_waits_for_ever_is_answered)
{
    static const uint64_t times[] = {INT64_MAX, UINT64_MAX - 1, UINT64_MAX};
    struct weir_result result;

    start(10, 0);
    for (int i = 0; i < 3; i++) {
        struct weir_request request = {.policy = a.id, .key = "k", .key_len = 1, .cost = 1};

        ck_assert_int_eq(weir_take_wait(a.w, &request, times[i], &result), WEIR_ALLOW);
        ck_assert_uint_eq(result.flags, 0);
        ck_assert_int_eq(result.remaining, 9 - i);
    }
    finish();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("strict_merge");
    TCase *tcase = tcase_create("merge");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_lone_request_is_sent_at_once);
    tcase_add_test(tcase, a_window_gathers_what_comes_one_by_one);
    tcase_add_loop_test(tcase, a_backlog_travels_in_larger_scripts, 0, sizeof backlogs / sizeof backlogs[0]);
    tcase_add_test(tcase, what_would_queue_at_redis_is_merged);
    tcase_add_test(tcase, on_a_long_line_nothing_is_kept_back);
    tcase_add_test(tcase, a_full_script_names_no_shard_of_which_it_takes_nothing);
    tcase_add_test(tcase, each_merged_request_has_its_own_numbers);
    tcase_add_loop_test(tcase, any_interleaving_is_one_bucket_a_key, 0, 3);
    tcase_add_test(tcase, denials_write_nothing);
    tcase_add_loop_test(tcase, members_of_one_bucket_wait_for_the_sum, 0, 2);
    tcase_add_test(tcase, what_is_told_of_the_end_is_rounded_up);
    tcase_add_test(tcase, who_waits_for_ever_is_answered);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
