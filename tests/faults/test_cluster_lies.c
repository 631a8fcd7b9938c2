/* SPDX-License-Identifier: MIT */
/*
 * A cluster that lies: two servers that say of each other, and of themselves, what no real one would for long. Both
 * are one Redis behind two proxies, so whatever is executed anywhere is charged in one place: each token once.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uv.h>

#include "integration/script_client.h"
#include "support/liar.h"
#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"
#include "sync/cluster.h"
#include "sync/wire.h"

enum { BURST = 1000 };

static struct redis_server *server;
static struct liar *first, *second;
static struct node a;
static char uri[64];

static unsigned slot_of_k(void)
{
    struct weir__wire_target target = {.prefix = "weir", .policy = "p", .shards = 64};
    char name[WEIR__WIRE_NAME];
    target.shard = weir__wire_shard("k", 1, 64);
    return weir__wire_slot(name, (size_t)weir__wire_name(&target, 'a', name));
}

/* Answers `text` to so many of these commands (0: to all). */
static void say(struct liar *liar, const char *command, const char *text, unsigned times)
{
    liar_rule(liar, &(struct liar_rule){.command = command, .act = LIAR_REPLY, .text = text, .times = times});
}

static int range(char *text, size_t size, unsigned from, unsigned to, const char *host, int port)
{
    return snprintf(text, size, "*3\r\n:%u\r\n:%u\r\n*2\r\n$%zu\r\n%s\r\n:%d\r\n", from, to, strlen(host), host, port);
}

/* Both say that all slots are the first one's. */
static void tell_map(void)
{
    char text[160];
    int n = snprintf(text, sizeof text, "*1\r\n");
    range(text + n, sizeof text - (size_t)n, 0, 16383, "127.0.0.1", liar_port(first));
    say(first, "CLUSTER", text, 0);
    say(second, "CLUSTER", text, 0);
}

/* Sends the key elsewhere: every EVALSHA, or so many. */
static void send_on(struct liar *from, const char *word, const struct liar *to, unsigned times)
{
    char text[96];
    snprintf(text, sizeof text, "-%s %u 127.0.0.1:%d\r\n", word, slot_of_k(), liar_port(to));
    say(from, "EVALSHA", text, times);
}

static void open_liars(void)
{
    server = redis_server_open(NULL);
    first = liar_open(&(struct liar_options){.tcp = 1, .upstream = redis_server_socket(server)});
    second = liar_open(&(struct liar_options){.tcp = 1, .upstream = redis_server_socket(server)});
    snprintf(uri, sizeof uri, "redis+cluster://127.0.0.1:%d", liar_port(first));
}

static void close_liars(void)
{
    liar_close(second);
    liar_close(first);
    redis_server_close(server);
}

/* What the truth is: the first one serves all, and ASKING is known to both. */
static void be_true(void)
{
    liar_clear(first);
    liar_clear(second);
    say(second, "ASKING", "+OK\r\n", 0);
    tell_map();
}

static void open_node(enum weir_mode mode, const struct weir_sync_options *options)
{
    struct weir_policy policy = node_policy(BURST / 15, NODE_DAY, BURST);
    policy.mode = mode;
    be_true();
    node_open(&a, &policy);
    node_start(&a, uri, options);
}

static double charged(void)
{
    struct weir__wire_seen seen = script_client_look(server, "p", "k");
    return seen.exists ? BURST - seen.total : 0;
}

/* So many takes, each decided by Redis. */
static void take_exactly(int n)
{
    struct weir_result result;
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(node_wait(&a, "k", 1, &result), WEIR_ALLOW);
        ck_assert_int_eq(result.flags & WEIR_DEGRADED, 0);
    }
}

static void settle(void)
{
    node_until(node_stats(&a).store_up == 1);
    node_until(node_flush(&a) == 0 && a.status == 0);
}

/* A hybrid node that has spent ten tokens and told of them. By slices: what they admit is told once, however long the
 * machine stands still; a take that waits for Redis is charged twice where its answer comes too late. And what a slice
 * held when it ended is charged: here it lives for 3 s. */
static void open_spent(void)
{
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    options.interval_ms = 2000;
    open_node(WEIR_HYBRID, &options);
    for (int i = 0; i < 10; i++) {
        node_until(node_take(&a, "k", NULL) == WEIR_ALLOW);
    }
    settle();
}

/* Takes for a while by what is in hand. Returns how many were admitted. */
static int take_for(unsigned ms)
{
    int allowed = 0;
    for (unsigned i = 0; i < ms; i++) {
        allowed += node_take(&a, "k", NULL) == WEIR_ALLOW;
        node_pause(1);
    }
    return allowed;
}

/* All told: what was admitted is charged, once. */
static void end_in_truth(int allowed)
{
    be_true();
    settle();
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_double_eq_tol(charged(), allowed, 0.5);
    node_close(&a);
}

/* ---- ASK --------------------------------------------------------------------------------------------------------- */

/* Each decision is asked for at the second one, behind ASKING, and made there once; the map stays as it is. */
START_TEST(strict_decisions_follow_ask)
{
    open_node(WEIR_STRICT, node_patient());
    take_exactly(5);
    ck_assert_uint_eq(liar_count(second, "EVALSHA"), 0);
    send_on(first, "ASK", second, 0);
    unsigned asked = liar_count(first, "EVALSHA");
    take_exactly(20);
    ck_assert_uint_eq(liar_count(first, "EVALSHA") - asked, 20);
    ck_assert_uint_eq(liar_count(second, "EVALSHA"), 20);
    ck_assert_uint_eq(liar_count(second, "ASKING"), 20);
    ck_assert_uint_eq(liar_count(first, "ASKING"), 0);
    end_in_truth(25);
}
END_TEST

/* Each script that the second one was sent is behind an ASKING of its own. Told when the node has ended: until then
 * scripts come between two looks. */
static void each_was_asked_for(void)
{
    node_until(liar_count(second, "ASKING") == liar_count(second, "EVALSHA")); /* as soon as all has been read */
}

START_TEST(reports_follow_ask)
{
    open_spent();
    send_on(first, "ASK", second, 0);
    int allowed = 10 + take_for(100);
    settle(); /* by way of the second one alone */
    ck_assert_double_eq_tol(charged(), allowed, 0.5);
    ck_assert_uint_gt(liar_count(second, "EVALSHA"), 0);
    end_in_truth(allowed);
    each_was_asked_for();
}
END_TEST

/* The slot's new master has never heard of the scripts: loaded there, and asked again, though ASKING is used up. */
START_TEST(ask_meets_a_server_without_scripts)
{
    open_node(WEIR_STRICT, node_patient());
    send_on(first, "ASK", second, 1);
    take_exactly(1);
    send_on(first, "ASK", second, 2);
    say(second, "EVALSHA", "-NOSCRIPT No matching script.\r\n", 1);
    send_on(second, "MOVED", first, 1);
    take_exactly(10);
    ck_assert_uint_ge(liar_count(second, "ASKING"), 2);
    end_in_truth(11);
}
END_TEST

/* The keys are on both sides: TRYAGAIN, until they are not. A decision is never made to wait for that; a report is
 * repeated, and counted once. */
START_TEST(ask_meets_try_again)
{
    open_spent();
    send_on(first, "ASK", second, 0);
    say(second, "EVALSHA", "-TRYAGAIN Multiple keys request during rehashing of slot\r\n", 5);
    int allowed = 10 + take_for(150);
    node_until(liar_count(second, "EVALSHA") > 5);
    settle();
    ck_assert_double_eq_tol(charged(), allowed, 0.5);
    end_in_truth(allowed);
    each_was_asked_for();
}
END_TEST

START_TEST(a_decision_that_meets_try_again_is_the_outage_policys)
{
    struct weir_result result;
    open_node(WEIR_STRICT, node_patient());
    send_on(first, "ASK", second, 0);
    say(second, "EVALSHA", "-TRYAGAIN Multiple keys request during rehashing of slot\r\n", 0);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(node_wait(&a, "k", 1, &result), WEIR_ALLOW);
        ck_assert_int_ne(result.flags & WEIR_DEGRADED, 0);
    }
    be_true();
    node_until(node_wait(&a, "k", 0, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    take_exactly(10);
    settle(); /* what the outage policy admitted is told when it is; from here on only what Redis admits is charged */
    double before = charged();
    take_exactly(10);
    settle();
    ck_assert_double_eq_tol(charged() - before, 10, 0.5);
    ck_assert_double_le(charged(), 25.5);
    node_close(&a);
}
END_TEST

/* Who is named dies, in each way: before the connect, at ASKING, at the script, or behind it. */
static const struct {
    const char *command;
    enum liar_act act;
} deaths[] = {
    {NULL, LIAR_CLOSE},        {"ASKING", LIAR_CLOSE},  {"ASKING", LIAR_HANG},          {"ASKING", LIAR_SILENT},
    {"ASKING", LIAR_RESET},    {"EVALSHA", LIAR_CLOSE}, {"EVALSHA", LIAR_LOSE_REQUEST}, {"EVALSHA", LIAR_LOSE_REPLY},
    {"EVALSHA", LIAR_GARBAGE}, {"EVALSHA", LIAR_HALF},  {"SCRIPT", LIAR_HANG},
};

START_TEST(ask_leads_to_one_that_dies)
{
    open_spent();
    int allowed = 10;
    liar_clear(second);
    if (deaths[_i].command) {
        liar_rule(second, &(struct liar_rule){.command = deaths[_i].command, .act = deaths[_i].act});
    } else {
        liar_refuse(second, 1);
    }
    send_on(first, "ASK", second, 0);
    allowed += take_for(200);
    ck_assert_uint_gt(liar_count(first, "EVALSHA"), 0);
    liar_refuse(second, 0);
    end_in_truth(allowed);
}
END_TEST

/* ---- MOVED ------------------------------------------------------------------------------------------------------- */

/* Each says that it is the other's: a decision goes round no more than five times, then it is the outage policy's. */
START_TEST(moved_in_a_circle)
{
    struct weir_result result;
    open_node(WEIR_STRICT, node_patient());
    take_exactly(5);
    send_on(first, "MOVED", second, 0);
    send_on(second, "MOVED", first, 0);
    unsigned before = liar_count(first, "EVALSHA") + liar_count(second, "EVALSHA");
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(node_wait(&a, "k", 1, &result), WEIR_ALLOW);
        ck_assert_int_ne(result.flags & WEIR_DEGRADED, 0);
    }
    ck_assert_uint_le(liar_count(first, "EVALSHA") + liar_count(second, "EVALSHA") - before, 80); /* and probes */
    be_true();
    node_until(node_wait(&a, "k", 0, &result) == WEIR_ALLOW && !(result.flags & WEIR_DEGRADED));
    ck_assert_double_ge(charged(), 4.5);
    node_close(&a);
}
END_TEST

START_TEST(moved_to_itself)
{
    open_spent();
    send_on(first, "MOVED", first, 0);
    end_in_truth(10 + take_for(150));
}
END_TEST

/* ASK leads back to who said it, and on: the same end. */
START_TEST(ask_in_a_circle)
{
    open_spent();
    send_on(first, "ASK", second, 0);
    send_on(second, "ASK", first, 0);
    end_in_truth(10 + take_for(150));
}
END_TEST

/* Where there is nothing, or nothing that could be. */
static const char *const nowhere[] = {
    "-MOVED 1 127.0.0.1:1\r\n",
    "-MOVED 1 no..host:1\r\n",
    "-MOVED 1 :0\r\n",
    "-MOVED 99999 127.0.0.1:1\r\n",
    "-MOVED\r\n",
    "-ASK 1 127.0.0.1:1\r\n",
    "-ASK 1 no..host:1\r\n",
    "-ASK 1 [::1]:70000\r\n",
    "-ASK -1 127.0.0.1:1\r\n",
    "-ASK\r\n",
    "-CLUSTERDOWN Hash slot not served\r\n",
    "-MOVED 1 \x01:1\r\n",
};

START_TEST(sent_nowhere)
{
    open_spent();
    say(first, "EVALSHA", nowhere[_i], 0);
    end_in_truth(10 + take_for(150));
}
END_TEST

/* ---- maps -------------------------------------------------------------------------------------------------------- */

/* Whatever the map was, with the true one all is well. Each is what the only node says, for as long as it likes. */
static const char *const maps[] = {
    "*0\r\n",
    "*-1\r\n",
    "$-1\r\n",
    ":1\r\n",
    "+OK\r\n",
    "-ERR This instance has cluster support disabled\r\n",
    "-NOPERM this user has no permissions to run the 'cluster|slots' command\r\n",
    "*1\r\n*0\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:0\r\n", /* TLS alone */
    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:-7\r\n",
    "*1\r\n*3\r\n:9\r\n:1\r\n*2\r\n$9\r\n127.0.0.1\r\n:7\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$8\r\nno..host\r\n:7\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:1\r\n", /* nobody is there */
    "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    "*2147483647\r\n",
    "*1\r\n*3\r\n$1\r\n0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:7\r\n",
    "$0\r\n\r\n",
};

START_TEST(a_map_of_nonsense)
{
    struct weir_policy policy = node_policy(BURST / 15, NODE_DAY, BURST);
    policy.mode = WEIR_STRICT;
    liar_clear(first);
    say(first, "CLUSTER", maps[_i], 0);
    node_open(&a, &policy);
    node_launch(&a, uri, node_patient());
    node_until(liar_count(first, "CLUSTER") >= 1);
    node_pause(100);
    be_true();
    node_until(node_stats(&a).store_up == 1);
    take_exactly(10);
    ck_assert_uint_eq(node_end(&a), 0);
    ck_assert_double_eq_tol(charged(), 10, 0.5);
    node_close(&a);
}
END_TEST

/* Where the server does not know its own name it is where it was asked. */
static const char *const nameless[] = {"$0\r\n\r\n", "$-1\r\n", "$1\r\n?\r\n", "$9\r\nlocalhost\r\n"};

START_TEST(a_map_without_an_address)
{
    char text[160];
    open_node(WEIR_STRICT, node_patient());
    node_end(&a);
    liar_clear(first);
    snprintf(text, sizeof text, "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n%s:%d\r\n", nameless[_i], liar_port(first));
    say(first, "CLUSTER", text, 0);
    node_start(&a, uri, node_patient());
    take_exactly(10);
    ck_assert_double_eq_tol(charged(), 10, 0.5);
    node_close(&a);
}
END_TEST

/* Half of the slots have a master that tells no port, a third range overlaps, one slot is nobody's: whoever has a
 * master is served. */
START_TEST(a_map_with_holes)
{
    char text[512];
    unsigned slot = slot_of_k();
    int n = snprintf(text, sizeof text, "*4\r\n"), room = (int)sizeof text;
    n += range(text + n, (size_t)(room - n), slot < 8192 ? 8192 : 0, slot < 8192 ? 16383 : 8191, "127.0.0.1", 0);
    n += range(text + n, (size_t)(room - n), slot > 50 ? slot - 50 : 0, slot, "127.0.0.1", liar_port(second));
    n += range(text + n, (size_t)(room - n), slot, slot < 16300 ? slot + 50 : 16383, "127.0.0.1", liar_port(first));
    range(text + n, (size_t)(room - n), slot, slot, "127.0.0.1", liar_port(first));
    open_node(WEIR_STRICT, node_patient());
    node_end(&a);
    liar_clear(first);
    say(first, "CLUSTER", text, 0);
    say(second, "CLUSTER", text, 0);
    node_start(&a, uri, node_patient());
    take_exactly(10);
    ck_assert_double_eq_tol(charged(), 10, 0.5);
    node_close(&a);
}
END_TEST

/* ---- without a limiter ------------------------------------------------------------------------------------------- */

/* A cluster of its own on a loop of its own, whose memory is counted. */
static struct crowd {
    uv_loop_t loop;
    uv_timer_t tick;
    struct weir__cluster *cluster;
    struct weir__uri uri;
    struct weir__link_script script;
    long bytes;
    int large, most; /* blocks as large as a link is, now and at most */
    unsigned requests, refuse;
    int up, closed;
} crowd;

enum { LARGE = 8192 };

static void *crowd_alloc(void *arg, size_t size)
{
    (void)arg;
    if (crowd.requests++ == crowd.refuse) {
        return NULL;
    }
    crowd.bytes += (long)size;
    crowd.large += size > LARGE;
    crowd.most = crowd.large > crowd.most ? crowd.large : crowd.most;
    void *block = malloc(size);
    ck_assert_ptr_nonnull(block);
    return memset(block, 0xa5, size);
}

static void crowd_release(void *arg, void *block, size_t size)
{
    (void)arg;
    crowd.bytes -= (long)size;
    crowd.large -= size > LARGE;
    memset(block, 0x5a, size);
    free(block);
}

static void crowd_state(void *arg, int up, enum weir__link_kind why)
{
    (void)arg;
    (void)why;
    crowd.up = up;
}

static void crowd_closed(void *arg)
{
    (void)arg;
    crowd.closed++;
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

/* What weir__cluster_open said. */
static int crowd_open(unsigned refuse)
{
    struct weir__link_config config = {.uri = &crowd.uri,
                                       .scripts = &crowd.script,
                                       .script_count = 1,
                                       .seed = 1,
                                       .allocator = {crowd_alloc, crowd_release, NULL},
                                       .on_state = crowd_state};
    memset(&crowd, 0, sizeof crowd);
    crowd.refuse = refuse;
    crowd.script = (struct weir__link_script){"one", "return 1", 8};
    ck_assert_int_eq(uv_loop_init(&crowd.loop), 0);
    uv_timer_init(&crowd.loop, &crowd.tick);
    uv_timer_start(&crowd.tick, on_tick, 1, 1);
    ck_assert_int_eq(weir__uri_parse(uri, &crowd.uri), 0);
    int status = weir__cluster_open(&crowd.cluster, &crowd.loop, &config);
    if (status == 0) {
        weir__cluster_start(crowd.cluster);
    }
    return status;
}

#define crowd_until(condition)                                                                                         \
    for (uint64_t began_ = uv_hrtime(); !(condition); uv_run(&crowd.loop, UV_RUN_ONCE)) {                              \
        ck_assert_msg(uv_hrtime() - began_ < NODE_WAIT_MS * NODE_MS, "never: %s", #condition);                         \
    }

static void crowd_close(void)
{
    if (crowd.cluster) {
        weir__cluster_close(crowd.cluster, crowd_closed, NULL);
        crowd_until(crowd.closed == 1);
    }
    uv_close((uv_handle_t *)&crowd.tick, NULL);
    ck_assert_int_eq(uv_run(&crowd.loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(uv_loop_close(&crowd.loop), 0);
    ck_assert_int_eq(crowd.bytes, 0);
}

/* A map of thousands of masters: no more connections are tried than a cluster has masters, and the true map ends them
 * all. */
START_TEST(a_map_of_too_many_masters)
{
    enum { RANGES = 4096, ROOM = RANGES * 64 };
    char *text = malloc(ROOM);
    ck_assert_ptr_nonnull(text);
    int n = snprintf(text, ROOM, "*%d\r\n", RANGES);
    for (unsigned i = 0; i < RANGES; i++) {
        char host[24];
        snprintf(host, sizeof host, "127.1.%u.%u", i / 250, i % 250 + 1); /* the loopback: refused at once */
        n += range(text + n, (size_t)(ROOM - n), i * 4, i * 4 + 3, host, 1);
    }
    say(first, "CLUSTER", text, 0);
    free(text);
    crowd_open(UINT32_MAX);
    crowd_until(crowd.large > 100);
    for (int i = 0; i < 50; i++) {
        uv_run(&crowd.loop, UV_RUN_ONCE);
    }
    ck_assert_int_le(crowd.most, 514); /* the cluster's own block, and one each */
    be_true();
    crowd_until(crowd.large <= 2);
    crowd_until(crowd.up);
    crowd_close();
}
END_TEST

static int told;

static void on_answer(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    (void)arg;
    (void)kind;
    (void)reply;
    told++;
}

/* MOVED, each time to a master that nobody has heard of, while the map can't be read. */
START_TEST(moved_to_ever_new_masters)
{
    static const char command[] = "*5\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\nv\r\n";
    char text[64];
    be_true();
    crowd_open(UINT32_MAX);
    crowd_until(crowd.up);
    /* a busy machine answers some too late: then more of them, and not before the way to the first is found again */
    for (int i = 0, sent = 0; i < 40 * 25 || (crowd.most <= 100 && i < 400 * 25); i += 25) {
        crowd_until(crowd.up);
        liar_clear(first);
        say(first, "CLUSTER", "*0\r\n", 0);
        for (int j = i; j < i + 25; j++) {
            snprintf(text, sizeof text, "-ASK 1 127.1.%d.%d:1\r\n", j / 250, j % 250 + 1);
            say(first, "EVALSHA", text, 1);
            sent +=
                weir__cluster_command(crowd.cluster, command, sizeof command - 1, 60 * NODE_MS, on_answer, NULL) == 0;
        }
        weir__cluster_flush(crowd.cluster);
        crowd_until(told == sent);
    }
    ck_assert_int_gt(crowd.most, 100);
    ck_assert_int_le(crowd.most, 514);
    crowd_close();
}
END_TEST

/* Every allocation fails once, on a way that leads through redirections, an ASK, a lost peer and a new map. */
static int walk(unsigned refuse)
{
    static const char command[] = "*5\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n$1\r\n1\r\n$1\r\nk\r\n$1\r\nv\r\n";
    be_true();
    send_on(first, "ASK", second, 2);
    send_on(first, "MOVED", second, 2);
    int status = crowd_open(refuse), sent = 0;
    told = 0;
    if (status != 0) {
        ck_assert_int_eq(status, WEIR_E_NOMEM);
        ck_assert_ptr_null(crowd.cluster);
    } else {
        crowd_until(crowd.up);
        for (int i = 0; i < 6; i++) {
            status = weir__cluster_command(crowd.cluster, command, sizeof command - 1, 1000 * NODE_MS, on_answer, NULL);
            ck_assert_msg(status == 0 || status == WEIR_E_NOMEM || status == WEIR_E_NOSYNC, "%d", status);
            sent += status == 0;
            weir__cluster_flush(crowd.cluster);
            if (i != 2) { /* the third one is in flight beside the fourth */
                crowd_until(told == sent);
            }
            if (i == 4) {
                liar_cut(first);
                liar_cut(second);
                crowd_until(!crowd.up);
                crowd_until(crowd.up);
            }
        }
    }
    int refused = crowd.requests > refuse;
    crowd_close();
    return refused;
}

START_TEST(every_allocation_fails_once)
{
    unsigned n = 0;
    while (walk(n)) {
        n++;
        ck_assert_uint_lt(n, 200);
    }
    ck_assert_uint_gt(n, 10);
}
END_TEST

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static Suite *suite(void)
{
    Suite *s = suite_create("cluster_lies");
    TCase *ask = tcase_create("ask"), *moved = tcase_create("moved"), *map = tcase_create("map");
    tcase_add_checked_fixture(ask, open_liars, close_liars);
    tcase_add_test(ask, strict_decisions_follow_ask);
    tcase_add_test(ask, reports_follow_ask);
    tcase_add_test(ask, ask_meets_a_server_without_scripts);
    tcase_add_test(ask, ask_meets_try_again);
    tcase_add_test(ask, a_decision_that_meets_try_again_is_the_outage_policys);
    tcase_add_loop_test(ask, ask_leads_to_one_that_dies, 0, COUNT(deaths));
    suite_add_tcase(s, ask);
    tcase_set_timeout(moved, 120);
    tcase_add_checked_fixture(moved, open_liars, close_liars);
    tcase_add_test(moved, moved_in_a_circle);
    tcase_add_test(moved, moved_to_itself);
    tcase_add_test(moved, ask_in_a_circle);
    tcase_add_loop_test(moved, sent_nowhere, 0, COUNT(nowhere));
    tcase_add_test(moved, moved_to_ever_new_masters);
    suite_add_tcase(s, moved);
    tcase_add_checked_fixture(map, open_liars, close_liars);
    tcase_add_loop_test(map, a_map_of_nonsense, 0, COUNT(maps));
    tcase_add_loop_test(map, a_map_without_an_address, 0, COUNT(nameless));
    tcase_add_test(map, a_map_with_holes);
    tcase_add_test(map, a_map_of_too_many_masters);
    tcase_add_test(map, every_allocation_fails_once);
    suite_add_tcase(s, map);
    return s;
}

int main(void)
{
    return suite_run(suite());
}
