/* SPDX-License-Identifier: MIT */
/*
 * redis+sentinel://: the master is asked for at every connect, and the one that is told is the one that answers; with
 * real Sentinels through a failover, and with one that lies.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integration/script_client.h"
#include "support/liar.h"
#include "support/node.h"
#include "support/port.h"
#include "support/redis_server.h"
#include "support/rig.h"
#include "support/suite.h"

enum { SENTINELS = 3 };

static struct redis_server *master, *replica, *sentinels[SENTINELS];
static char uri[192];
static struct node a;
static struct rig rig;
static struct liar *liar;

static int starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static void open_all(void)
{
    char port[8], lines[256];
    const char *follow[] = {"--replicaof", "127.0.0.1", port, "--repl-diskless-sync-delay", "0", NULL};
    const char *quick[] = {"--repl-diskless-sync-delay", "0", NULL};
    master = redis_server_open(&(struct redis_server_options){.tcp = 1, .args = quick});
    snprintf(port, sizeof port, "%d", redis_server_port(master));
    replica = redis_server_open(&(struct redis_server_options){.tcp = 1, .args = follow});
    node_until(strstr(redis_server_do(replica, "INFO", "replication", NULL), "master_link_status:up"));
    snprintf(lines, sizeof lines, /* a master that stands still for a moment is none that died */
             "sentinel monitor m 127.0.0.1 %s 2\nsentinel down-after-milliseconds m 30000\n"
             "sentinel failover-timeout m 2000\n",
             port);
    strcpy(uri, "redis+sentinel://");
    for (int i = 0; i < SENTINELS; i++) {
        size_t len = strlen(uri);
        sentinels[i] = redis_server_open(&(struct redis_server_options){.tcp = 1, .sentinel = lines});
        snprintf(uri + len, sizeof uri - len, "%s127.0.0.1:%d", i ? "," : "", redis_server_port(sentinels[i]));
    }
    memcpy(uri + strlen(uri), "/m", 3);
    for (int i = 0; i < SENTINELS; i++) {
        node_until(starts_with(redis_server_do(sentinels[i], "SENTINEL", "CKQUORUM", "m", NULL), "OK 3"));
        node_until(strstr(redis_server_do(sentinels[i], "SENTINEL", "MASTER", "m", NULL), "num-slaves\n1"));
    }
}

static void close_all(void)
{
    for (int i = 0; i < SENTINELS; i++) {
        redis_server_close(sentinels[i]);
    }
    redis_server_close(replica);
    redis_server_close(master);
}

static double total_of(const struct redis_server *server, const char *key)
{
    struct weir__wire_seen seen = script_client_look(server, "p", key);
    return seen.exists ? seen.total : -1e300;
}

/* The first two Sentinels are gone or never were; the third one knows. */
START_TEST(the_master_is_found)
{
    struct weir_policy policy = node_policy(100, NODE_DAY, 100);
    char some[192];
    snprintf(some, sizeof some, "redis+sentinel://127.0.0.1:%d,no..host:1,127.0.0.1:%d/m", port_keep(),
             redis_server_port(sentinels[0]));
    node_open(&a, &policy);
    node_start(&a, some, node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 10), 10);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_double_eq_tol(total_of(master, "k"), 90, 0.1);
    node_close(&a);
    redis_server_do(master, "FLUSHALL", NULL);
}
END_TEST

/* As its Sentinels have it. It isn't asked itself: who becomes the master ends all its clients' connections. */
static int is_master(const struct redis_server *server)
{
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1\n%d", redis_server_port(server));
    for (int i = 0; i < SENTINELS; i++) {
        if (strcmp(redis_server_do(sentinels[i], "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m", NULL), address) != 0) {
            return 0;
        }
    }
    return 1;
}

/* From now on who is silent for half a second is dead. */
static void mourn_soon(void)
{
    for (int i = 0; i < SENTINELS; i++) {
        ck_assert_str_eq(redis_server_do(sentinels[i], "SENTINEL", "SET", "m", "down-after-milliseconds", "500", NULL),
                         "OK");
    }
}

START_TEST(a_failover_is_followed)
{
    struct weir_policy policy = node_policy(7000, NODE_DAY, 100000);
    struct weir_result result;
    uint64_t begun = uv_hrtime();
    double charged, refill;
    node_open(&a, &policy);
    node_start(&a, uri, node_patient());
    ck_assert_int_eq(node_wait_many(&a, "k", 100), 100);
    node_until(node_flush(&a) == 0 && a.status == 0);
    ck_assert_int_eq(atoi(redis_server_do(master, "WAIT", "1", "5000", NULL)), 1);
    redis_server_kill(master);
    mourn_soon();
    node_until(is_master(replica));
    node_until(node_wait(&a, "k", 1, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(node_wait(&a, "k", 1, &result), WEIR_ALLOW);
        ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
    }
    node_until(node_flush(&a) == 0 && a.status == 0);
    ck_assert_uint_ge(node_stats(&a).reconnects, 1);
    ck_assert_uint_eq(node_end(&a), 0);
    /* what was admitted is charged, whoever is the master */
    charged = 100000 - total_of(replica, "k");
    refill = 7000 * (double)(uv_hrtime() - begun) / (double)NODE_DAY;
    ck_assert_double_le(charged, (double)node_stats(&a).allowed + 3);
    ck_assert_double_ge(charged, (double)node_stats(&a).allowed - 2 - refill);
    node_close(&a);
}
END_TEST

/* ---- a Sentinel that lies ---------------------------------------------------------------------------------------- */

static void open_liar(void)
{
    char text[64];
    master = redis_server_open(&(struct redis_server_options){.tcp = 1});
    liar = liar_open(&(struct liar_options){.tcp = 1});
    snprintf(text, sizeof text, "redis+sentinel://jane:s3cret@127.0.0.1:%d/m", liar_port(liar));
    rig_open(&rig, text);
    redis_server_do(master, "ACL", "SETUSER", "jane", "on", ">s3cret", "~*", "+@all", NULL);
}

static void close_liar(void)
{
    rig_close(&rig);
    liar_close(liar);
    redis_server_close(master);
}

static void tell(const struct redis_server *server, unsigned skip, unsigned times)
{
    liar_name_master(liar, redis_server_port(server), skip, times);
}

static const struct {
    enum liar_act act;
    const char *text;
    enum weir__link_kind kind;
} lies[] = {
    {LIAR_REPLY, "*-1\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "$-1\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*0\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*2\r\n:1\r\n:2\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*2\r\n$0\r\n\r\n$1\r\n1\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*2\r\n$1\r\nh\r\n$1\r\n0\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*2\r\n$1\r\nh\r\n$5\r\n65536\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*2\r\n$1\r\nh\r\n$2\r\n-1\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "*2\r\n$1\r\nh\r\n$0\r\n\r\n", WEIR__LINK_RESOLVE},
    {LIAR_REPLY, "-IDONTKNOW I am no Sentinel\r\n", WEIR__LINK_ERROR},
    {LIAR_REPLY, "-ERR unknown command 'SENTINEL'\r\n", WEIR__LINK_ERROR},
    {LIAR_HALF_CLOSE, "*2\r\n$9\r\n127.0.0.1\r\n$1\r\n1\r\n", WEIR__LINK_LOST},
    {LIAR_GARBAGE, NULL, WEIR__LINK_PROTOCOL},
    {LIAR_CLOSE, NULL, WEIR__LINK_LOST},
    {LIAR_RESET, NULL, WEIR__LINK_LOST},
    {LIAR_HANG, NULL, WEIR__LINK_TIMEOUT},
};

START_TEST(what_a_sentinel_makes_up_is_asked_again)
{
    if (lies[_i].act == LIAR_HANG) {
        rig.config.connect_timeout_ns = 100 * RIG_MS;
    }
    liar_rule(liar, &(struct liar_rule){.command = "SENTINEL", .act = lies[_i].act, .text = lies[_i].text, .times = 1});
    tell(master, 0, 0);
    rig_up(&rig);
    uint64_t told = weir__link_errors(rig.link, lies[_i].kind); /* where time is short, a busy machine is late, too */
    ck_assert(lies[_i].act == LIAR_HANG ? told >= 1 : told == 1);
    ck_assert_int_eq(rig.ups, 1);
    ck_assert_msg(!strstr(rig.log, "s3cret"), "%s", rig.log);
}
END_TEST

/* Told of one that has been demoted, the link does not stay with it. */
START_TEST(who_is_no_master_is_left)
{
    char port[8];
    snprintf(port, sizeof port, "%d", port_keep());
    redis_server_do(master, "REPLICAOF", "127.0.0.1", port, NULL);
    tell(master, 0, 0);
    rig_start(&rig);
    rig_wait(&rig, weir__link_errors(rig.link, WEIR__LINK_READONLY) >= 2);
    ck_assert_int_eq(rig.ups, 0);
    redis_server_do(master, "REPLICAOF", "NO", "ONE", NULL);
    rig_wait(&rig, rig.up);
}
END_TEST

/* The first Sentinel names one that is gone, is no master, or accepts and says nothing: for ever. The second one knows
 * better, and gets asked. */
START_TEST(a_sentinel_that_is_wrong_is_not_the_last_word)
{
    struct liar *wrong = liar_open(&(struct liar_options){.tcp = 1}),
                *silent = liar_open(&(struct liar_options){.tcp = 1});
    struct redis_server *demoted = redis_server_open(&(struct redis_server_options){.tcp = 1});
    char port[8], text[96];
    snprintf(port, sizeof port, "%d", port_keep());
    redis_server_do(demoted, "ACL", "SETUSER", "jane", "on", ">s3cret", "~*", "+@all", NULL);
    redis_server_do(demoted, "REPLICAOF", "127.0.0.1", port, NULL);
    liar_deaf(silent, 1);
    int named[] = {port_keep(), redis_server_port(demoted), liar_port(silent)};
    liar_name_master(wrong, named[_i], 0, 0);
    tell(master, 0, 0);
    snprintf(text, sizeof text, "redis+sentinel://jane:s3cret@127.0.0.1:%d,127.0.0.1:%d/m", liar_port(wrong),
             liar_port(liar));
    ck_assert_int_eq(weir__uri_parse(text, &rig.uri), 0);
    rig.config.connect_timeout_ns = 200 * RIG_MS;
    rig_up(&rig);
    ck_assert_uint_ge(liar_count(wrong, "SENTINEL"), 1);
    ck_assert_int_eq(rig.ups, 1);
    redis_server_restart(master); /* it goes, and comes back: whoever was asked last, the way is found again */
    redis_server_do(master, "ACL", "SETUSER", "jane", "on", ">s3cret", "~*", "+@all", NULL);
    rig_wait(&rig, rig.ups == 2);
    redis_server_close(demoted);
    liar_close(silent);
    liar_close(wrong);
}
END_TEST

/* Now this one, now that one, none of them the master: asked again and again, with a pause, until it is true. */
START_TEST(a_sentinel_may_waver)
{
    for (unsigned i = 0; i < 6; i++) {
        liar_name_master(liar, i % 2 ? port_keep() : liar_port(liar), 0, 1);
    }
    tell(master, 0, 0);
    liar_rule(liar, &(struct liar_rule){.command = "ROLE", .act = LIAR_REPLY, .text = "*1\r\n$5\r\nslave\r\n"});
    rig_up(&rig);
    ck_assert_uint_eq(liar_count(liar, "SENTINEL"), 7);
    ck_assert_int_eq(rig.ups, 1);
}
END_TEST

/* The login is the master's; a Sentinel gets it where it asks for one. */
START_TEST(a_sentinel_may_want_a_password)
{
    char last[64];
    liar_rule(liar, &(struct liar_rule){.command = "SENTINEL",
                                        .act = LIAR_REPLY,
                                        .text = "-NOAUTH Authentication required.\r\n",
                                        .times = 1});
    tell(master, 0, 0);
    rig_up(&rig);
    ck_assert_uint_gt(liar_last(liar, "AUTH", last, sizeof last), 0);
    ck_assert_str_eq(last, "AUTH jane s3cret");
    ck_assert_uint_eq(liar_count(liar, "SENTINEL"), 2);
    ck_assert_uint_eq(liar_accepted(liar), 1);
}
END_TEST

START_TEST(a_sentinel_may_refuse_the_password)
{
    liar_rule(liar, &(struct liar_rule){.command = "SENTINEL", .act = LIAR_REPLY, .text = "-NOAUTH no\r\n"});
    rig_start(&rig);
    rig_wait(&rig, weir__link_errors(rig.link, WEIR__LINK_NOAUTH) >= 2);
    ck_assert_int_eq(rig.ups, 0);
    ck_assert_ptr_nonnull(strstr(rig.log, "wants a password"));
}
END_TEST

/* Every allocation of the link's own fails once, on the way by a Sentinel that wants a login to the master: it gets
 * there, by another try. */
START_TEST(allocations_fail)
{
    liar_rule(liar, &(struct liar_rule){.command = "SENTINEL",
                                        .act = LIAR_REPLY,
                                        .text = "-NOAUTH Authentication required.\r\n",
                                        .times = 1});
    tell(master, 0, 0);
    rig.fail_at = _i;
    if (_i == 1) {
        ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_NOMEM);
        ck_assert_ptr_null(rig.link);
    }
    rig_up(&rig);
    ck_assert_uint_eq(weir__link_errors(rig.link, WEIR__LINK_SYSTEM), _i > 1 && rig.allocations >= _i);
    ck_assert_int_eq(rig.ups, 1);
}
END_TEST

START_TEST(closed_at_any_turn)
{
    tell(master, 0, 0);
    rig_start(&rig);
    for (int i = 0; i < _i; i++) {
        uv_run(&rig.loop, UV_RUN_ONCE);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sentinel");
    TCase *real = tcase_create("real"), *lie = tcase_create("lies");
    tcase_add_unchecked_fixture(real, open_all, close_all);
    tcase_add_test(real, the_master_is_found);
    tcase_add_test(real, a_failover_is_followed);
    suite_add_tcase(s, real);
    tcase_add_checked_fixture(lie, open_liar, close_liar);
    tcase_add_loop_test(lie, what_a_sentinel_makes_up_is_asked_again, 0, sizeof lies / sizeof lies[0]);
    tcase_add_test(lie, who_is_no_master_is_left);
    tcase_add_loop_test(lie, a_sentinel_that_is_wrong_is_not_the_last_word, 0, 3);
    tcase_add_test(lie, a_sentinel_may_waver);
    tcase_add_test(lie, a_sentinel_may_want_a_password);
    tcase_add_test(lie, a_sentinel_may_refuse_the_password);
    tcase_add_loop_test(lie, allocations_fail, 1, 8);
    tcase_add_loop_test(lie, closed_at_any_turn, 0, 12);
    suite_add_tcase(s, lie);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
