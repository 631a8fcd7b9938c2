/* SPDX-License-Identifier: MIT */
/*
 * sync/link.h on a real server: every kind of address and login, scripts that it has and that it lost, a server that is
 * killed, stopped and started again.
 */
#include <check.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "support/liar.h"
#include "support/redis_server.h"
#include "support/rig.h"
#include "support/suite.h"
#include "sync/link_state.h"

static struct redis_server *server;
static struct rig rig;

static void open_server(void)
{
    server = redis_server_open(&(struct redis_server_options){.tcp = 1});
}

static void open_locked_server(void)
{
    const char *args[] = {"--requirepass", "open sesame", "--user", "jane",   "on", ">s3cret", "~*",    "&*", "+@all",
                          "--user",        "mute",        "on",     "nopass", "~*", "&*",      "+@all", NULL};
    server = redis_server_open(&(struct redis_server_options){.tcp = 1, .args = args});
}

static void close_server(void)
{
    redis_server_close(server);
    server = NULL;
}

/* A link to this address comes up and gets an answer to each word. */
static void check_talk(const char *uri)
{
    struct rig_answer answer = {0};
    rig_open(&rig, uri);
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "ECHO", "hello", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_OK);
    ck_assert_str_eq(answer.text, "hello");
    ck_assert_msg(strstr(rig.log, "s3cret") == NULL && strstr(rig.log, "sesame") == NULL, "%s", rig.log);
}

static uint64_t errors(enum weir__link_kind kind)
{
    return weir__link_errors(rig.link, kind);
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

START_TEST(unix_socket)
{
    check_talk(redis_server_uri(server));
    rig_close(&rig);
}
END_TEST

START_TEST(ipv4)
{
    int on = 0;
    socklen_t len = sizeof on;
    check_talk(redis_server_tcp_uri(server));
    int fd = rig.link->adapter.context->fd;
    ck_assert_int_eq(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, &len), 0);
    ck_assert_int_ne(on, 0);
    ck_assert_int_ne(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(by_name)
{
    char uri[64];
    snprintf(uri, sizeof uri, "redis://localhost:%d", redis_server_port(server));
    check_talk(uri);
    rig_close(&rig);
}
END_TEST

static int has_ipv6(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    int ok = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return ok;
}

/* Where the machine has no ::1, the link must say that it can't get there. */
START_TEST(ipv6)
{
    char uri[64];
    snprintf(uri, sizeof uri, "redis://[::1]:%d", redis_server_port(server));
    if (has_ipv6()) {
        check_talk(uri);
    } else {
        rig_open(&rig, uri);
        rig_start(&rig);
        rig_wait(&rig, errors(WEIR__LINK_CONNECT) > 0);
    }
    rig_close(&rig);
}
END_TEST

static void on_squatter(uv_poll_t *handle, int status, int events)
{
    (void)handle;
    ck_abort_msg("event %d, status %d for a descriptor that is closed", events, status);
}

/* Case E11: libuv refuses the descriptor: it believes that it watches that number already. Several numbers are
 * prepared, for other threads open files too. */
START_TEST(attach_fails)
{
    enum { SQUATTERS = 8 };
    static uv_poll_t squatters[SQUATTERS];
    int pairs[SQUATTERS][2], still_open = 0;
    rig_open(&rig, redis_server_uri(server));
    for (int i = 0; i < SQUATTERS; i++) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), 0);
    }
    for (int i = 0; i < SQUATTERS; i++) {
        ck_assert_int_eq(uv_poll_init(&rig.loop, &squatters[i], pairs[i][0]), 0);
        ck_assert_int_eq(uv_poll_start(&squatters[i], UV_READABLE, on_squatter), 0);
    }
    uv_run(&rig.loop, UV_RUN_NOWAIT);
    rig_start(&rig);
    for (int i = 0; i < SQUATTERS; i++) {
        close(pairs[i][0]); /* the next sockets get these numbers */
    }
    rig_wait(&rig, errors(WEIR__LINK_SYSTEM) >= 3);
    ck_assert_int_eq(rig.ups, 0);
    for (int i = 0; i < SQUATTERS; i++) {
        still_open += fcntl(pairs[i][0], F_GETFD) >= 0;
    }
    ck_assert_int_le(still_open, 1); /* three attempts gave theirs back */
    for (int i = 0; i < SQUATTERS; i++) {
        uv_close((uv_handle_t *)&squatters[i], NULL);
        close(pairs[i][1]);
    }
    rig_wait(&rig, rig.up);
    rig_close(&rig);
}
END_TEST

/* ---- logins ------------------------------------------------------------------------------------------------------ */

static void check_login(const char *login, int ok)
{
    char uri[160];
    snprintf(uri, sizeof uri, "unix://%s%s", login, redis_server_socket(server));
    if (ok) {
        check_talk(uri);
    } else {
        rig_open(&rig, uri);
        rig_start(&rig);
        rig_wait(&rig, errors(WEIR__LINK_WRONGPASS) + errors(WEIR__LINK_NOAUTH) >= 2);
        ck_assert_int_eq(rig.ups, 0);
        ck_assert_ptr_null(strstr(rig.log, "s3cret"));
    }
    rig_close(&rig);
}

static const struct {
    const char *login;
    int ok;
} logins[] = {
    {":open%20sesame@", 1}, {"default:open%20sesame@", 1},
    {"jane:s3cret@", 1},    {"mute:@", 1},
    {"mute@", 1},           {"", 0},
    {":wrong@", 0},         {"jane:wrong@", 0},
    {"nobody:s3cret@", 0},  {"jane@", 0},
};

START_TEST(login)
{
    check_login(logins[_i].login, logins[_i].ok);
}
END_TEST

/* Someone sets a password while we are connected: old connections keep their rights, a new one has none. */
START_TEST(password_comes_later)
{
    check_talk(redis_server_uri(server));
    redis_server_do(server, "CONFIG", "SET", "requirepass", "s3cret", NULL);
    weir__link_fault(rig.link, WEIR__LINK_PROTOCOL);
    rig_wait(&rig, errors(WEIR__LINK_NOAUTH) >= 1);
    ck_assert_int_eq(rig.up, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(database)
{
    char uri[128];
    struct rig_answer answer = {0};
    snprintf(uri, sizeof uri, "%s?db=3", redis_server_uri(server));
    rig_open(&rig, uri);
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "SET", "here", "1", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_ptr_nonnull(strstr(redis_server_do(server, "INFO", "keyspace", NULL), "db3:keys=1"));
    rig_close(&rig);
}
END_TEST

START_TEST(no_such_database)
{
    char uri[128];
    snprintf(uri, sizeof uri, "%s?db=1000", redis_server_uri(server));
    rig_open(&rig, uri);
    rig_start(&rig);
    rig_wait(&rig, errors(WEIR__LINK_ERROR) >= 2);
    ck_assert_int_eq(rig.ups, 0);
    ck_assert_ptr_nonnull(strstr(rig.log, "out of range"));
    rig_close(&rig);
}
END_TEST

START_TEST(eviction_is_warned_of)
{
    redis_server_do(server, "CONFIG", "SET", "maxmemory-policy", "allkeys-random", NULL);
    check_talk(redis_server_uri(server));
    ck_assert_msg(strstr(rig.log, "maxmemory-policy is allkeys-random:") != NULL, "%s", rig.log);
    rig_close(&rig);
    redis_server_do(server, "CONFIG", "SET", "maxmemory-policy", "noeviction", NULL);
    check_talk(redis_server_uri(server));
    ck_assert_msg(strstr(rig.log, "maxmemory-policy") == NULL, "%s", rig.log);
    rig_close(&rig);
}
END_TEST

/* ---- scripts ----------------------------------------------------------------------------------------------------- */

static const struct weir__link_script scripts[] = {
    {"echo", "return ARGV[1]", 14},
    {"count", "return redis.call('INCR', KEYS[1])", 34},
    {"binary", "return '\xff\0\xfe'", 12},
};

static void take_scripts(void)
{
    rig.config.scripts = scripts;
    rig.config.script_count = sizeof scripts / sizeof scripts[0];
}

/* The server forgets its scripts with 100 calls in flight: each runs, once; there is one reload. */
START_TEST(scripts_are_forgotten)
{
    enum { CALLS = 100 };
    static struct rig_answer answers[CALLS];
    struct liar *proxy = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    rig_open(&rig, liar_uri(proxy));
    take_scripts();
    rig_up(&rig);
    ck_assert_uint_eq(liar_count(proxy, "SCRIPT"), 3);
    ck_assert_uint_eq(strlen(weir__link_sha(rig.link, 1)), 40);
    for (int round = 1; round <= 2; round++) {
        redis_server_do(server, "SCRIPT", "FLUSH", NULL);
        for (int i = 0; i < CALLS; i++) {
            ck_assert_int_eq(rig_send(&rig, &answers[i], 10000, "EVALSHA", weir__link_sha(rig.link, 1), "1", "n", NULL),
                             0);
        }
        for (int i = 0; i < CALLS; i++) {
            rig_wait(&rig, answers[i].calls);
            ck_assert_int_eq(answers[i].kind, WEIR__LINK_OK);
        }
        ck_assert_str_eq(redis_server_do(server, "GET", "n", NULL), round == 1 ? "100" : "200");
        ck_assert_uint_eq(liar_count(proxy, "SCRIPT"), round == 1 ? 6 : 9);
    }
    ck_assert_uint_eq(errors(WEIR__LINK_NOSCRIPT), 200);
    ck_assert_int_eq(rig.downs, 0);
    rig_close(&rig);
    liar_close(proxy);
}
END_TEST

/* Only the command that met NOSCRIPT is sent again. */
START_TEST(noscript_is_resent_alone)
{
    struct rig_answer evals[10] = {{0}}, incrs[10] = {{0}};
    rig_open(&rig, redis_server_uri(server));
    take_scripts();
    rig_up(&rig);
    redis_server_do(server, "SCRIPT", "FLUSH", NULL);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(rig_send(&rig, &evals[i], 10000, "EVALSHA", weir__link_sha(rig.link, 0), "0", "echoed", NULL),
                         0);
        ck_assert_int_eq(rig_send(&rig, &incrs[i], 10000, "INCR", "n", NULL), 0);
    }
    for (int i = 0; i < 10; i++) {
        rig_wait(&rig, evals[i].calls && incrs[i].calls);
        ck_assert_str_eq(evals[i].text, "echoed");
    }
    ck_assert_str_eq(redis_server_do(server, "GET", "n", NULL), "10");
    rig_close(&rig);
}
END_TEST

/* Flushed while they are loaded again, and once more. */
START_TEST(noscript_again_is_resent_again)
{
    struct rig_answer answer = {0};
    struct liar *proxy = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    rig_open(&rig, liar_uri(proxy));
    take_scripts();
    rig_up(&rig);
    liar_rule(proxy,
              &(struct liar_rule){
                  .command = "EVALSHA", .act = LIAR_REPLY, .text = "-NOSCRIPT No matching script.\r\n", .times = 3});
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "EVALSHA", weir__link_sha(rig.link, 1), "1", "n", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_OK);
    ck_assert_uint_eq(liar_count(proxy, "EVALSHA"), 4);
    ck_assert_str_eq(redis_server_do(server, "GET", "n", NULL), "1");
    rig_close(&rig);
    liar_close(proxy);
}
END_TEST

/* A reload does not help: told, after three more tries. */
START_TEST(noscript_for_ever_is_told)
{
    struct rig_answer answer = {0};
    struct liar *proxy = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    rig_open(&rig, liar_uri(proxy));
    take_scripts();
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "EVALSHA", "0000000000000000000000000000000000000000", "0", NULL),
                     0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_NOSCRIPT);
    ck_assert_uint_eq(liar_count(proxy, "EVALSHA"), 4);
    ck_assert_int_eq(rig.downs, 0);
    rig_close(&rig);
    liar_close(proxy);
}
END_TEST

/* After its deadline a command is never sent again: its bytes are gone. */
START_TEST(noscript_too_late)
{
    struct rig_answer answer = {0};
    struct liar *proxy = liar_open(&(struct liar_options){.upstream = redis_server_socket(server)});
    rig_open(&rig, liar_uri(proxy));
    take_scripts();
    rig.config.stall_ns = RIG_HOUR;
    rig_up(&rig);
    redis_server_do(server, "SCRIPT", "FLUSH", NULL);
    redis_server_pause(server);
    ck_assert_int_eq(rig_send(&rig, &answer, 30, "EVALSHA", weir__link_sha(rig.link, 1), "1", "n", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_TIMEOUT);
    ck_assert_int_eq(rig.up, 0);
    redis_server_resume(server);
    rig_wait(&rig, rig.up);
    rig_run(&rig, 20);
    ck_assert_uint_eq(liar_count(proxy, "EVALSHA"), 1);
    ck_assert_uint_eq(weir__link_late(rig.link), 1);
    ck_assert_str_eq(redis_server_do(server, "GET", "n", NULL), "(nil)");
    rig_close(&rig);
    liar_close(proxy);
}
END_TEST

/* ---- a server that comes and goes -------------------------------------------------------------------------------- */

START_TEST(killed_and_started_again)
{
    struct rig_answer answer = {0};
    rig_open(&rig, redis_server_uri(server));
    take_scripts();
    rig_up(&rig);
    redis_server_kill(server);
    rig_wait(&rig, !rig.up);
    ck_assert_int_eq(rig.why, WEIR__LINK_LOST);
    rig_run(&rig, 50);
    ck_assert_int_eq(rig.up, 0);
    redis_server_restart(server);
    rig_wait(&rig, rig.up);
    ck_assert_uint_eq(weir__link_reconnects(rig.link), 1);
    /* The scripts were loaded again with the connection. */
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "EVALSHA", weir__link_sha(rig.link, 0), "0", "x", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_str_eq(answer.text, "x");
    ck_assert_uint_eq(errors(WEIR__LINK_NOSCRIPT), 0);
    rig_close(&rig);
}
END_TEST

/* The connection ends and a deadline passes while the loop has no CPU: it finds both in one turn, waits for no more
 * than the end of the connection, and connects again. It was up, had a command unanswered for long, or was greeting. */
START_TEST(killed_while_the_loop_stands_still)
{
    struct rig_answer answer = {0}, late = {0};
    int up = _i < 2;
    rig_open(&rig, redis_server_uri(server));
    rig.config.stall_ns = 50 * RIG_MS;
    if (up) {
        rig_up(&rig);
    } else {
        rig.config.connect_timeout_ns = 50 * RIG_MS;
        rig_start(&rig);
    }
    redis_server_pause(server);
    if (up) {
        ck_assert_int_eq(rig_send(&rig, &answer, 20, "PING", NULL), 0);
        weir__link_flush(rig.link);
    }
    if (_i == 1) {
        ck_assert_int_eq(rig_send(&rig, &late, 10000, "PING", NULL), 0);
        rig_wait(&rig, answer.calls);
    }
    if (!up) {
        rig_wait(&rig, rig.link->state == WEIR__LINK_GREETING);
    }
    redis_server_kill(server);
    usleep(100000);
    rig_wait(&rig, errors(WEIR__LINK_CONNECT) > 0);
    ck_assert_int_eq(answer.calls, up);
    ck_assert_int_eq(rig.up, 0);
    redis_server_restart(server);
    rig_wait(&rig, rig.up);
    rig_close(&rig);
}
END_TEST

/* Stopped for a while: the deadline passes, nothing is lost, the answer comes late on the same connection. */
START_TEST(stopped_for_a_moment)
{
    struct rig_answer answer = {0};
    rig_open(&rig, redis_server_uri(server));
    rig.config.stall_ns = RIG_HOUR;
    rig_up(&rig);
    redis_server_pause(server);
    ck_assert_int_eq(rig_send(&rig, &answer, 50, "INCR", "n", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_TIMEOUT);
    ck_assert_int_eq(rig.up, 0);
    redis_server_resume(server);
    rig_wait(&rig, rig.up);
    ck_assert_uint_eq(weir__link_late(rig.link), 1);
    ck_assert_uint_eq(weir__link_reconnects(rig.link), 0);
    ck_assert_str_eq(redis_server_do(server, "GET", "n", NULL), "1");
    rig_close(&rig);
}
END_TEST

/* Stopped for longer: the connection is given up; the system accepts new ones for the server, but nobody greets. */
START_TEST(stopped_for_long)
{
    struct rig_answer answer = {0};
    rig_open(&rig, redis_server_uri(server));
    rig.config.stall_ns = 40 * RIG_MS;
    rig.config.connect_timeout_ns = 40 * RIG_MS;
    rig_up(&rig);
    uint64_t before = errors(WEIR__LINK_TIMEOUT); /* a busy machine may not be greeted in so short a time at once */
    redis_server_pause(server);
    ck_assert_int_eq(rig_send(&rig, &answer, 20, "PING", NULL), 0);
    rig_wait(&rig, errors(WEIR__LINK_TIMEOUT) >= before + 3); /* the command, and two greetings */
    ck_assert_int_eq(rig.up, 0);
    redis_server_resume(server);
    rig_wait(&rig, rig.up);
    ck_assert_int_eq(rig.downs, 1);
    rig_close(&rig);
}
END_TEST

/* A master that becomes a replica: the connection is dropped, for the name may lead to another server by now. */
START_TEST(master_becomes_replica)
{
    struct rig_answer answer = {0};
    rig_open(&rig, redis_server_tcp_uri(server));
    rig_up(&rig);
    redis_server_do(server, "REPLICAOF", "127.0.0.1", "1", NULL);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "SET", "a", "b", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_READONLY);
    rig_wait(&rig, rig.ups == 2);
    redis_server_do(server, "REPLICAOF", "NO", "ONE", NULL);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "SET", "a", "b", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_OK);
    rig_close(&rig);
}
END_TEST

/* What a real server says, where a test can make it say so. */
START_TEST(real_errors)
{
    struct rig_answer answer = {0};
    rig_open(&rig, redis_server_uri(server));
    rig_up(&rig);
    redis_server_do(server, "RPUSH", "list", "x", NULL);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "GET", "list", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_WRONGTYPE);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "EVAL", "return redis.call('GET', KEYS[1])", "1", "list", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_WRONGTYPE);
    redis_server_do(server, "CONFIG", "SET", "maxmemory", "1", NULL);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "SET", "a", "b", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_OOM);
    redis_server_do(server, "CONFIG", "SET", "maxmemory", "0", NULL);
    redis_server_do(server, "CONFIG", "SET", "min-replicas-to-write", "1", NULL);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "SET", "a", "b", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_NOREPLICAS);
    ck_assert_int_eq(rig.downs, 0);
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("connect");
    TCase *open = tcase_create("open");
    tcase_add_checked_fixture(open, open_server, close_server);
    tcase_add_test(open, unix_socket);
    tcase_add_test(open, ipv4);
    tcase_add_test(open, by_name);
    tcase_add_test(open, ipv6);
    tcase_add_test(open, attach_fails);
    tcase_add_test(open, password_comes_later);
    tcase_add_test(open, database);
    tcase_add_test(open, no_such_database);
    tcase_add_test(open, eviction_is_warned_of);
    tcase_add_test(open, scripts_are_forgotten);
    tcase_add_test(open, noscript_is_resent_alone);
    tcase_add_test(open, noscript_again_is_resent_again);
    tcase_add_test(open, noscript_for_ever_is_told);
    tcase_add_test(open, noscript_too_late);
    tcase_add_test(open, killed_and_started_again);
    tcase_add_loop_test(open, killed_while_the_loop_stands_still, 0, 3);
    tcase_add_test(open, stopped_for_a_moment);
    tcase_add_test(open, stopped_for_long);
    tcase_add_test(open, master_becomes_replica);
    tcase_add_test(open, real_errors);
    suite_add_tcase(suite, open);
    TCase *locked = tcase_create("locked");
    tcase_add_checked_fixture(locked, open_locked_server, close_server);
    tcase_add_loop_test(locked, login, 0, (int)(sizeof logins / sizeof logins[0]));
    suite_add_tcase(suite, locked);
    return suite_run(suite);
}
