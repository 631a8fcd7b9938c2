/* SPDX-License-Identifier: MIT */
/*
 * A real redis-server to which things happen while a limiter is under load; each is a trial (support/trial.h) of its
 * own.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/port.h"
#include "support/suite.h"
#include "support/trial.h"
#include "sync/wire.h"

static struct trial trial;

static void open_trial(void)
{
    trial_open(&trial, &(struct trial_options){.login = "jane:s3cret@", .persist = 1});
}

static void close_trial(void)
{
    trial_close(&trial);
}

static void expect_ok(const char *answer)
{
    ck_assert_str_eq(answer, "OK");
}

static void set(const char *name, const char *value)
{
    expect_ok(redis_server_do(trial.server, "CONFIG", "SET", name, value, NULL));
}

static void grant(const char *rule)
{
    expect_ok(redis_server_do(trial.server, "ACL", "SETUSER", "jane", rule, NULL));
}

/* ---- life and death ---------------------------------------------------------------------------------------------- */

START_TEST(killed_and_started_again)
{
    redis_server_kill(trial.server);
    trial_load(&trial, 400, NULL);
    trial_load_until_degraded(&trial);
    redis_server_restart(trial.server);
    grant("on");
    grant(">s3cret");
    grant("~*");
    grant("+@all");
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(killed_in_the_midst_of_a_burst)
{
    trial_load(&trial, 50, NULL);
    redis_server_restart(trial.server);
    grant("on");
    grant(">s3cret");
    grant("~*");
    grant("+@all");
    trial_load(&trial, 200, NULL);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(stopped_for_a_moment)
{
    redis_server_pause(trial.server);
    trial_load(&trial, 80, NULL);
    redis_server_resume(trial.server);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(stopped_for_long)
{
    redis_server_pause(trial.server);
    trial_load(&trial, 1500, NULL);
    trial_load_until_degraded(&trial);
    redis_server_resume(trial.server);
    trial_recover(&trial, 0);
}
END_TEST

static void stop_and_go(void)
{
    static int turn;
    if (turn++ % 2) {
        redis_server_resume(trial.server);
    } else {
        redis_server_pause(trial.server);
    }
}

START_TEST(stopped_again_and_again)
{
    trial_load(&trial, 390, stop_and_go);
    redis_server_resume(trial.server);
    trial_recover(&trial, 0);
}
END_TEST

/* ---- what it forgets --------------------------------------------------------------------------------------------- */

static void flush_scripts(void)
{
    expect_ok(redis_server_do(trial.server, "SCRIPT", "FLUSH", NULL));
}

START_TEST(scripts_are_flushed_again_and_again)
{
    trial_load(&trial, 300, flush_scripts);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(everything_is_flushed)
{
    expect_ok(redis_server_do(trial.server, "FLUSHALL", NULL));
    trial_load(&trial, 300, NULL);
    trial_recover(&trial, 1);
}
END_TEST

/* Eviction takes a key at a time; each of a shard's three may be the one. */
static void evict(const char *which)
{
    static const char *const policies[] = {"p", "q", "s"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "weir:{%s#%u}:%s", policies[i], weir__wire_shard("k", 1, 64), which);
        redis_server_do(trial.server, "DEL", name, NULL);
    }
    trial_load(&trial, 300, NULL);
    trial_recover(&trial, 1);
}

START_TEST(the_nodes_of_a_shard_are_evicted)
{
    evict("n");
}
END_TEST

START_TEST(the_keys_of_a_shard_are_evicted)
{
    evict("a");
}
END_TEST

START_TEST(the_other_keys_of_a_shard_are_evicted)
{
    evict("b");
}
END_TEST

/* Case E3: something else lives at a key of ours, of each kind that there is, at each of the three, of every policy; or
 * a hash whose header or tag is none. */
#define NAN_8 "\xff\xff\xff\xff\xff\xff\xff\xff"
#define BIG_8 "\x01\x01\x01\x01\x01\x01\xe0\x7f" /* 1e307 */
#define TWICE(x) x x
#define MANY(x) TWICE(TWICE(TWICE(x)))

struct squatter {
    const char *which, *word, *first, *second;
};

static const struct squatter squatters[] = {
    {"n", "SET", "", NULL},
    {"n", "SET", "hello", NULL},
    {"n", "RPUSH", "x", NULL},
    {"a", "SET", "", NULL},
    {"a", "SET", "hello", NULL},
    {"a", "RPUSH", "x", NULL},
    {"a", "ZADD", "1", "x"},
    {"b", "SADD", "x", NULL},
    {"n", "HSET", "!", "hello"},
    {"n", "HSET", "!", ""},
    {"n", "HSET", "!", "nan"},
    {"n", "HSET", "!", MANY(TWICE(TWICE(NAN_8))) NAN_8 NAN_8},
    {"n", "HSET", "!", MANY(TWICE(TWICE(BIG_8))) BIG_8 BIG_8},
    {"a", "HSET", "!", "hello"},
};

static const char *const policies[] = {"p", "q", "s"};
enum { POLICIES = 3 };

static void squat(const char *policy, const struct squatter *squatter)
{
    int within = strcmp(squatter->word, "HSET") == 0;
    char name[64];
    snprintf(name, sizeof name, "weir:{%s#%u}:%s", policy, weir__wire_shard("k", 1, 64), squatter->which);
    ck_assert_int_ne(*redis_server_do(trial.server, squatter->word, within ? name : "aside", squatter->first,
                                      squatter->second, NULL),
                     '-');
    if (!within) { /* at once: a script that came between would make its own */
        ck_assert_str_eq(redis_server_do(trial.server, "RENAME", "aside", name, NULL), "OK");
    }
}

static void evict_all(const char *policy)
{
    char names[3][64];
    for (int i = 0; i < 3; i++) {
        snprintf(names[i], sizeof names[i], "weir:{%s#%u}:%c", policy, weir__wire_shard("k", 1, 64), "nab"[i]);
    }
    redis_server_do(trial.server, "DEL", names[0], names[1], names[2], NULL);
}

START_TEST(something_else_lives_there)
{
    for (int i = 0; i < POLICIES; i++) {
        squat(policies[i], &squatters[_i]);
    }
    trial_load(&trial, 300, NULL);
    for (int i = 0; i < POLICIES; i++) {
        evict_all(policies[i]);
    }
    trial_recover(&trial, 1);
}
END_TEST

/* Who may write there may set any level. What is no level at all (NaN, an infinity, half of one) ends nothing: verdicts
 * go on, and what they say makes sense; forgotten, it is as ever. */
static const struct squatter values[] = {
    {"a", "HSET", "kk", ""},
    {"a", "HSET", "kk", "hello"},
    {"a", "HSET", "kk", TWICE(NAN_8)},
    {"a", "HSET", "kk", TWICE("\x01\x01\x01\x01\x01\x01\xf0\x7f")}, /* a NaN of the other kind */
    {"a", "HSET", "kk", TWICE(BIG_8)},
    {"a", "HSET", "kk", TWICE("\x01\x01\x01\x01\x01\x01\xe0\xff")}, /* -1e307 */
    {"a", "HSET", "kk", MANY(NAN_8) NAN_8 NAN_8 NAN_8 NAN_8 NAN_8 NAN_8},
    {"a", "HSET", "kk", MANY(BIG_8) MANY(BIG_8) BIG_8 BIG_8 BIG_8 BIG_8},
    {"a", "HSET", "kk", "\x01\x01\x01\x01\x01\x01\xf0\x3f\x01\x01\x01\x01\x01\x01\xf0\x3f\x01"},
    {"a", "HSET", "!", "1e300 weir: the generation of this number; what is older than two is gone"},
};

static void check_sense(int status, const struct weir_result *result)
{
    ck_assert_msg(status == WEIR_ALLOW || status == WEIR_DENY, "%s", weir_strerror(status));
    ck_assert_int_ge(result->remaining, 0);
    ck_assert_int_le(result->remaining, 100000);
    ck_assert(status == WEIR_ALLOW || result->retry_after_ns > 0);
}

START_TEST(something_else_is_the_value)
{
    struct weir_request request = {.policy = trial.strict, .key = "k", .key_len = 1, .cost = 1};
    struct weir_result result;
    for (int i = 0; i < POLICIES; i++) {
        squat(policies[i], &values[_i]);
    }
    for (int i = 0; i < 30; i++) {
        check_sense(weir_take_wait(trial.node.w, &request, 0, &result), &result);
        check_sense(node_take(&trial.node, "k", &result), &result);
        node_pause(5);
    }
    for (int i = 0; i < POLICIES; i++) {
        evict_all(policies[i]);
    }
    node_until(weir_forget(trial.node.w, trial.strict, "k", 1) == 0); /* once Redis is asked again */
    node_until(weir_forget(trial.node.w, trial.node.id, "k", 1) == 0);
    node_until(weir_take_wait(trial.node.w, &request, 0, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    request.policy = trial.node.id;
    node_until(weir_take_wait(trial.node.w, &request, 0, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
}
END_TEST

/* ---- what it is slow at ------------------------------------------------------------------------------------------ */

/* A command that holds the server, from a process of its own: the answer is long in coming. */
static pid_t meanwhile(const char *first, const char *second, const char *third)
{
    pid_t child = fork();
    if (child == 0) {
        redis_server_do(trial.server, first, second, third, third ? "0" : NULL, NULL);
        _exit(0);
    }
    ck_assert_int_gt(child, 0);
    return child;
}

START_TEST(it_sleeps)
{
    pid_t child = meanwhile("DEBUG", "SLEEP", "0.5");
    trial_load(&trial, 600, NULL);
    waitpid(child, NULL, 0);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(somebody_elses_script_never_ends)
{
    set("lua-time-limit", "20");
    pid_t child = meanwhile("EVAL", "while true do end", "0");
    for (int turns = 0; strncmp(redis_server_do(trial.server, "PING", NULL), "-BUSY", 5) != 0; turns++) {
        ck_assert_msg(turns < 1000, "the script never runs");
        trial_load(&trial, 10, NULL);
    }
    trial_load(&trial, 300, NULL);
    expect_ok(redis_server_do(trial.server, "SCRIPT", "KILL", NULL));
    waitpid(child, NULL, 0);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(clients_are_paused)
{
    expect_ok(redis_server_do(trial.server, "CLIENT", "PAUSE", "300", "ALL", NULL));
    trial_load(&trial, 350, NULL);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(writes_are_paused)
{
    expect_ok(redis_server_do(trial.server, "CLIENT", "PAUSE", "300", "WRITE", NULL));
    trial_load(&trial, 350, NULL);
    trial_recover(&trial, 0);
}
END_TEST

/* ---- what it refuses --------------------------------------------------------------------------------------------- */

START_TEST(memory_is_full)
{
    set("maxmemory", "1");
    trial_load(&trial, 300, NULL);
    trial_load_until_said(&trial, ": oom: ");
    set("maxmemory", "0");
    trial_recover(&trial, 0);
}
END_TEST

static void kill_clients(void)
{
    redis_server_do(trial.server, "CLIENT", "KILL", "TYPE", "normal", NULL);
}

START_TEST(clients_are_killed_again_and_again)
{
    trial_load(&trial, 300, kill_clients);
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(the_master_becomes_a_replica)
{
    char port[8];
    snprintf(port, sizeof port, "%d", port_keep());
    expect_ok(redis_server_do(trial.server, "REPLICAOF", "127.0.0.1", port, NULL));
    trial_load(&trial, 400, NULL);
    trial_load_until_said(&trial, ": readonly: ");
    expect_ok(redis_server_do(trial.server, "REPLICAOF", "NO", "ONE", NULL));
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(replicas_are_missing)
{
    set("min-replicas-to-write", "1");
    trial_load(&trial, 300, NULL);
    trial_load_until_said(&trial, ": noreplicas: ");
    set("min-replicas-to-write", "0");
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(the_user_is_switched_off)
{
    grant("off");
    kill_clients();
    trial_load(&trial, 300, NULL);
    trial_load_until_said(&trial, ": wrongpass: ");
    grant("on");
    trial_recover(&trial, 0);
}
END_TEST

START_TEST(the_user_loses_a_right)
{
    grant("-evalsha");
    trial_load(&trial, 300, NULL);
    trial_load_until_said(&trial, ": noperm: ");
    grant("+evalsha");
    trial_recover(&trial, 0);
}
END_TEST

/* Case E12: a server that lets no script ask for the time is told of in plain words. */
START_TEST(scripts_may_not_ask_for_the_time)
{
    grant("-time");
    trial_load(&trial, 300, NULL);
    trial_load_until_said(&trial, "what weir needs: Redis 5, the rights in docs/security.md");
    grant("+time");
    trial_recover(&trial, 0);
}
END_TEST

/* ... and so is one that lacks a command, at all or in scripts: as soon as it is connected to. */
static const char *const missing[] = {"SCRIPT", "EVALSHA", "TIME", "HMGET", "HSET", "PEXPIRE"};

START_TEST(case_E12_a_command_is_missing)
{
    const char *args[] = {"--rename-command", missing[_i], "", NULL};
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    struct weir_result result;
    policy.on_outage = WEIR_OUTAGE_CLOSED;
    trial.server = redis_server_open(&(struct redis_server_options){.args = args});
    node_open(&trial.node, &policy);
    node_launch(&trial.node, redis_server_uri(trial.server), node_patient());
    node_until(node_said(&trial.node, "what weir needs: Redis 5, the rights in docs/security.md"));
    ck_assert_int_eq(node_wait(&trial.node, "k", 1, &result), WEIR_DENY);
    ck_assert_int_eq(result.flags & WEIR_DEGRADED, WEIR_DEGRADED);
    node_close(&trial.node);
    redis_server_close(trial.server);
}
END_TEST

START_TEST(the_user_loses_its_keys)
{
    grant("resetkeys");
    trial_load(&trial, 300, NULL);
    trial_load_until_said(&trial, ": noperm: ");
    grant("~*");
    trial_recover(&trial, 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("server");
    TCase *life = tcase_create("life"), *memory = tcase_create("memory"), *slow = tcase_create("slow"),
          *refusals = tcase_create("refusals"), *lacking = tcase_create("lacking");
    tcase_add_checked_fixture(life, open_trial, close_trial);
    tcase_add_test(life, killed_and_started_again);
    tcase_add_test(life, killed_in_the_midst_of_a_burst);
    tcase_add_test(life, stopped_for_a_moment);
    tcase_add_test(life, stopped_for_long);
    tcase_add_test(life, stopped_again_and_again);
    suite_add_tcase(s, life);
    tcase_add_checked_fixture(memory, open_trial, close_trial);
    tcase_add_test(memory, scripts_are_flushed_again_and_again);
    tcase_add_test(memory, everything_is_flushed);
    tcase_add_test(memory, the_nodes_of_a_shard_are_evicted);
    tcase_add_test(memory, the_keys_of_a_shard_are_evicted);
    tcase_add_test(memory, the_other_keys_of_a_shard_are_evicted);
    tcase_add_loop_test(memory, something_else_lives_there, 0, sizeof squatters / sizeof squatters[0]);
    tcase_add_loop_test(memory, something_else_is_the_value, 0, sizeof values / sizeof values[0]);
    suite_add_tcase(s, memory);
    tcase_add_checked_fixture(slow, open_trial, close_trial);
    tcase_add_test(slow, it_sleeps);
    tcase_add_test(slow, somebody_elses_script_never_ends);
    tcase_add_test(slow, clients_are_paused);
    tcase_add_test(slow, writes_are_paused);
    suite_add_tcase(s, slow);
    tcase_add_checked_fixture(refusals, open_trial, close_trial);
    tcase_add_test(refusals, memory_is_full);
    tcase_add_test(refusals, clients_are_killed_again_and_again);
    tcase_add_test(refusals, the_master_becomes_a_replica);
    tcase_add_test(refusals, replicas_are_missing);
    tcase_add_test(refusals, the_user_is_switched_off);
    tcase_add_test(refusals, the_user_loses_a_right);
    tcase_add_test(refusals, scripts_may_not_ask_for_the_time);
    tcase_add_test(refusals, the_user_loses_its_keys);
    suite_add_tcase(s, refusals);
    tcase_add_loop_test(lacking, case_E12_a_command_is_missing, 0, sizeof missing / sizeof missing[0]);
    suite_add_tcase(s, lacking);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
