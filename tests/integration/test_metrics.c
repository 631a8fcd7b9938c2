/* SPDX-License-Identifier: MIT */
/*
 * weir_metrics_write of a process that shares its limits: every family, with what has happened. WEIR_METRICS_FILE,
 * where it is set, gets the text, for other readers (tests/promtool.sh).
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/exposition.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"

static struct redis_server *server;
static struct node a, b;
static char text[65536];

static void setup(void)
{
    server = redis_server_open(NULL);
}

static void teardown(void)
{
    node_close(&a);
    node_close(&b);
    redis_server_close(server);
}

static void read_metrics(struct node *node)
{
    int n = weir_metrics_write(node->w, text, sizeof text);

    ck_assert_int_gt(n, 0);
    ck_assert_int_lt(n, (int)sizeof text);
    ck_assert_uint_gt(exposition_check(text), 15);
}

static weir_policy_id add(struct node *node, const char *name, enum weir_mode mode)
{
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);
    weir_policy_id id;

    policy.name = name;
    policy.mode = mode;
    ck_assert_int_eq(weir_policy_add(node->w, &policy, &id), 0);
    return id;
}

static void save(void)
{
    const char *path = getenv("WEIR_METRICS_FILE");
    FILE *file = path ? fopen(path, "w") : NULL;

    ck_assert(!path || file);
    if (file) {
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
    }
}

static double decided(const char *policy, const char *result, const char *source)
{
    char series[256];

    snprintf(series, sizeof series, "weir_decisions_total{policy=\"%s\",result=\"%s\",source=\"%s\"}", policy, result,
             source);
    return exposition_value(text, series);
}

static double total(const char *policy)
{
    double sum = 0;

    for (int i = 0; i < 6; i++)
        sum += decided(policy, i % 2 ? "allowed" : "denied", i < 2 ? "local" : i < 4 ? "strict" : "fallback");
    return sum;
}

static const struct {
    const char *name, *type;
} families[] = {
    {"weir_build_info", "gauge"},
    {"weir_decisions_total", "counter"},
    {"weir_overshoot_tokens_total", "counter"},
    {"weir_policy_limit", "gauge"},
    {"weir_policy_burst", "gauge"},
    {"weir_syncs_total", "counter"},
    {"weir_sync_duration_seconds", "histogram"},
    {"weir_last_sync_timestamp_seconds", "gauge"},
    {"weir_pending_tokens", "gauge"},
    {"weir_written_off_tokens_total", "counter"},
    {"weir_unreturned_tokens_total", "counter"},
    {"weir_strict_duration_seconds", "histogram"},
    {"weir_store_up", "gauge"},
    {"weir_store_errors_total", "counter"},
    {"weir_store_reconnects_total", "counter"},
    {"weir_buckets", "gauge"},
    {"weir_buckets_max", "gauge"},
    {"weir_memory_bytes", "gauge"},
    {"weir_evictions_total", "counter"},
    {"weir_table_full_total", "counter"},
    {"weir_degraded_total", "counter"},
};

START_TEST(every_family)
{
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);
    weir_policy_id strict, local;
    double before;

    node_open(&a, &policy);
    strict = add(&a, "stri\"ct", WEIR_STRICT);
    local = add(&a, "local", WEIR_LOCAL);
    node_start(&a, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 12), 10);
    for (int i = 0; i < 12; i++) {
        weir_take(a.w, local, "k", 1, 1, NULL);
        weir_take(a.w, strict, "k", 1, 1, NULL);
    }
    node_flush(&a);
    read_metrics(&a);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        ck_assert_msg(exposition_has(text, families[i].name, families[i].type), "%s", families[i].name);
    ck_assert_ptr_nonnull(strstr(text, "weir_build_info{version=\""));
    ck_assert_ptr_nonnull(strstr(text, ",hiredis=\""));
    ck_assert_double_eq(decided("local", "allowed", "local"), 10);
    ck_assert_double_eq(decided("local", "denied", "local"), 2);
    ck_assert_double_eq(decided("stri\\\"ct", "allowed", "strict"), 10);
    ck_assert_double_eq(decided("stri\\\"ct", "denied", "strict"), 2);
    ck_assert_double_eq(decided("stri\\\"ct", "allowed", "local"), 0);
    ck_assert_double_eq(total("p"), 12);
    ck_assert_double_eq(decided("p", "allowed", "fallback"), 0);
    ck_assert_double_eq(exposition_value(text, "weir_store_up"), 1);
    ck_assert_double_eq(exposition_value(text, "weir_pending_tokens"), 0);
    ck_assert_double_gt(exposition_value(text, "weir_sync_duration_seconds_count"), 0);
    ck_assert_double_ge(exposition_value(text, "weir_strict_duration_seconds_count"), 12);
    before = exposition_value(text, "weir_last_sync_timestamp_seconds");
    ck_assert_double_le(before, (double)time(NULL) + 1);
    ck_assert_double_ge(before, (double)time(NULL) - NODE_WAIT_MS / 1000.0);
    save();
}
END_TEST

/* Redis goes away: its absence is counted by what it was, and what is decided without it as such. */
START_TEST(an_outage)
{
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);
    struct weir_result result;
    weir_policy_id strict;
    double degraded = 0;

    node_open(&a, &policy);
    strict = add(&a, "strict", WEIR_STRICT);
    node_start(&a, redis_server_uri(server), node_patient()); /* it is connected when Redis ends */
    redis_server_kill(server);
    node_until(!node_stats(&a).store_up);
    for (int i = 0; i < 15; i++) {
        ck_assert_int_ge(weir_take(a.w, strict, "k", 1, 1, &result), 0);
        degraded += (result.flags & WEIR_DEGRADED) != 0;
    }
    ck_assert_double_eq(degraded, 15);
    node_until(weir_metrics_write(a.w, text, sizeof text) > 0 &&
               exposition_value(text, "weir_store_errors_total{kind=\"connect\"}") > 0);
    read_metrics(&a);
    ck_assert_double_eq(exposition_value(text, "weir_store_up"), 0);
    ck_assert_double_gt(exposition_value(text, "weir_store_errors_total{kind=\"lost\"}"), 0);
    ck_assert_double_eq(decided("strict", "allowed", "fallback") + decided("strict", "denied", "fallback"), 15);
    ck_assert_double_eq(decided("strict", "denied", "local"), 0);
    ck_assert_double_eq(exposition_value(text, "weir_degraded_total"), 15);
}
END_TEST

/* Two processes that know nothing of each other yet admit one each of a bucket of one. */
START_TEST(overshoot_is_told_by_whoever_reports_it)
{
    struct weir_policy policy = node_policy(1, NODE_DAY, 1);
    double sum = 0;

    node_open(&a, &policy);
    node_open(&b, &policy);
    node_start(&a, redis_server_uri(server), node_patient());
    node_start(&b, redis_server_uri(server), node_patient());
    ck_assert_int_eq(node_take(&a, "k", NULL), WEIR_ALLOW);
    ck_assert_int_eq(node_take(&b, "k", NULL), WEIR_ALLOW);
    node_flush(&a);
    node_flush(&b);
    read_metrics(&a);
    sum += exposition_value(text, "weir_overshoot_tokens_total{policy=\"p\"}");
    read_metrics(&b);
    sum += exposition_value(text, "weir_overshoot_tokens_total{policy=\"p\"}");
    ck_assert_double_eq(sum, 1);
}
END_TEST

/* A scrape at any moment, and none of its counters has gone down. */
START_TEST(counters_never_go_down)
{
    static const char *const sources[] = {"local", "strict", "fallback"};
    struct weir_policy policy = node_policy(1000000, NODE_SECOND, 1000);
    double last[3] = {0};

    node_open(&a, &policy);
    node_start(&a, redis_server_uri(server), NULL);
    node_until(node_take(&a, "k", NULL) >= 0 && weir_metrics_write(a.w, text, sizeof text) > 0 &&
               decided("p", "allowed", "local") > 100);
    for (int i = 0; i < 300; i++) {
        for (int j = 0; j < 50; j++)
            node_take(&a, "k", NULL);
        if (i == 150)
            redis_server_kill(server);
        ck_assert_int_gt(weir_metrics_write(a.w, text, sizeof text), 0);
        for (int s = 0; s < 3; s++) {
            double now = decided("p", "allowed", sources[s]);

            ck_assert_double_ge(now, last[s]);
            last[s] = now;
        }
    }
    node_until(node_take(&a, "k", NULL) >= 0 && weir_metrics_write(a.w, text, sizeof text) > 0 &&
               decided("p", "allowed", "fallback") > 0);
    read_metrics(&a);
    for (int s = 0; s < 3; s++)
        ck_assert_double_ge(decided("p", "allowed", sources[s]), last[s]);
}
END_TEST

/* ---- the log ----------------------------------------------------------------------------------------------------- */

static _Atomic int lines[WEIR_LOG_DEBUG + 1], odd_lines;

static void count_line(void *arg, enum weir_log_level level, const char *line)
{
    (void)arg;
    if ((unsigned)level > WEIR_LOG_DEBUG || !*line || strpbrk(line, "\r\n"))
        atomic_fetch_add_explicit(&odd_lines, 1, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&lines[level], 1, memory_order_relaxed);
}

static int lines_of(enum weir_log_level level)
{
    return atomic_load_explicit(&lines[level], memory_order_relaxed);
}

/* What is as it should be is told as information, what is not as a warning, and each once. */
START_TEST(log_lines_have_levels)
{
    struct weir_options options = WEIR_OPTIONS_INIT;
    struct weir_sync_options sync_options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_policy policy = node_policy(10, NODE_DAY, 10);
    struct weir_sync *sync;
    weir_policy_id id;
    struct weir *w;
    int warnings, told;

    options.log = count_line;
    sync_options.uri = redis_server_uri(server);
    sync_options.drain_ms = 100;
    sync_options.timeout_ms = 5000; /* that nobody has a CPU is nothing to tell of */
    ck_assert_int_eq(weir_open(&w, &options), 0);
    ck_assert_int_eq(weir_policy_add(w, &policy, &id), 0);
    ck_assert_int_eq(weir_sync_start(&sync, w, NULL, &sync_options), 0);
    node_until(lines_of(WEIR_LOG_INFO) > 0);
    ck_assert_int_eq(lines_of(WEIR_LOG_ERROR), 0);
    warnings = lines_of(WEIR_LOG_WARN);
    redis_server_kill(server);
    node_until(lines_of(WEIR_LOG_WARN) > warnings);
    node_pause(500); /* attempts in vain, of which nothing new is to be told */
    ck_assert_int_le(lines_of(WEIR_LOG_WARN), warnings + 3);
    told = lines_of(WEIR_LOG_INFO);
    redis_server_restart(server);
    node_until(lines_of(WEIR_LOG_INFO) > told);
    ck_assert_int_eq(weir_sync_close(sync, NULL, NULL), 0);
    weir_close(w);
    ck_assert_int_eq(atomic_load_explicit(&odd_lines, memory_order_relaxed), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metrics");
    TCase *t = tcase_create("shared");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_test(t, every_family);
    tcase_add_test(t, an_outage);
    tcase_add_test(t, overshoot_is_told_by_whoever_reports_it);
    tcase_add_test(t, counters_never_go_down);
    tcase_add_test(t, log_lines_have_levels);
    suite_add_tcase(s, t);
    return suite_run(s);
}
