/* SPDX-License-Identifier: MIT */
/*
 * rediss:// on a real server: who is trusted, who is not, what is said then, and that a connection carries what the
 * plain one does.
 */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>

#include "support/guard.h"
#include "support/liar.h"
#include "support/pem.h"
#include "support/port.h"
#include "support/redis_server.h"
#include "support/rig.h"
#include "support/suite.h"

static struct guard *guard;
static struct redis_server *server;
static struct rig rig;
static char port[8], ca[64], other_ca[64], server_crt[64], server_key[64], client_crt[64], client_key[64];

static void path_of(char *path, const char *name)
{
    snprintf(path, sizeof ca, "%s/%s", guard_folder(guard), name);
}

static void make_files(const char *server_names)
{
    guard = guard_open();
    struct pem *authority = pem_authority(guard_folder(guard), "ca");
    pem_certificate(authority, guard_folder(guard), "server", server_names);
    pem_certificate(authority, guard_folder(guard), "client", "DNS:client");
    pem_free(authority);
    pem_free(pem_authority(guard_folder(guard), "other"));
    path_of(ca, "ca.crt");
    path_of(other_ca, "other.crt");
    path_of(server_crt, "server.crt");
    path_of(server_key, "server.key");
    path_of(client_crt, "client.crt");
    path_of(client_key, "client.key");
}

static void open_server(const char *names, const char *auth_clients)
{
    make_files(names);
    snprintf(port, sizeof port, "%d", port_keep());
    const char *args[] = {"--tls-port",
                          port,
                          "--tls-cert-file",
                          server_crt,
                          "--tls-key-file",
                          server_key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          auth_clients,
                          NULL};
    server = redis_server_open(&(struct redis_server_options){.args = args});
}

static void open_by_address(void)
{
    open_server("IP:127.0.0.1,IP:::1", "no");
}

static void open_by_name(void)
{
    open_server("DNS:localhost", "no");
}

static void open_for_clients(void)
{
    open_server("IP:127.0.0.1", "yes");
}

static void close_server(void)
{
    redis_server_close(server);
    guard_close(guard);
}

static void open_rig(const char *host)
{
    char uri[64];
    snprintf(uri, sizeof uri, "rediss://%s:%s", host, port);
    rig_open(&rig, uri);
    rig.config.tls_ca = ca;
}

static void check_works(void)
{
    struct rig_answer answer = {0};
    rig_up(&rig);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "ECHO", "hello", NULL), 0);
    rig_wait(&rig, answer.calls);
    ck_assert_str_eq(answer.text, "hello");
    rig_close(&rig);
}

static void check_fails(const char *reason)
{
    rig_start(&rig);
    rig_wait(&rig, weir__link_errors(rig.link, WEIR__LINK_TLS) >= 2);
    ck_assert_int_eq(rig.ups, 0);
    ck_assert_msg(strstr(rig.log, reason) != NULL, "%s", rig.log);
    rig_close(&rig);
}

START_TEST(right_address)
{
    open_rig("127.0.0.1");
    check_works();
}
END_TEST

START_TEST(wrong_authority)
{
    open_rig("127.0.0.1");
    rig.config.tls_ca = other_ca;
    check_fails("signed certificate in certificate chain");
}
END_TEST

/* The system's authorities have never heard of ours. */
START_TEST(no_authority)
{
    open_rig("127.0.0.1");
    rig.config.tls_ca = NULL;
    check_fails("signed certificate in certificate chain");
}
END_TEST

START_TEST(right_name)
{
    open_rig("localhost");
    check_works();
}
END_TEST

START_TEST(wrong_address)
{
    open_rig("127.0.0.1");
    check_fails("IP address mismatch");
}
END_TEST

START_TEST(name_is_the_callers)
{
    open_rig("127.0.0.1");
    rig.config.tls_server_name = "localhost";
    check_works();
    open_rig("localhost");
    rig.config.tls_server_name = "example.org";
    check_fails("hostname mismatch");
}
END_TEST

START_TEST(client_is_asked_who_it_is)
{
    open_rig("127.0.0.1");
    check_fails("certificate"); /* required, or asked after: its alert may be lost behind its close */
    open_rig("127.0.0.1");
    rig.config.tls_cert = client_crt;
    rig.config.tls_key = client_key;
    check_works();
}
END_TEST

START_TEST(server_speaks_plain)
{
    struct liar *liar = liar_open(&(struct liar_options){.tcp = 1});
    char uri[64];
    snprintf(uri, sizeof uri, "rediss://127.0.0.1:%d", liar_port(liar));
    rig_open(&rig, uri);
    rig.config.tls_ca = ca;
    rig_start(&rig);
    rig_wait(&rig, weir__link_errors(rig.link, WEIR__LINK_TLS) >= 2); /* the liar closes what is no RESP */
    ck_assert_int_eq(rig.ups, 0);
    rig_close(&rig);
    liar_close(liar);
}
END_TEST

START_TEST(files_are_checked)
{
    open_rig("127.0.0.1");
    rig.config.tls_ca = "/nonexistent";
    ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_SYS);
    rig.config.tls_ca = server_key;
    ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_SYS);
    rig.config.tls_ca = ca;
    rig.config.tls_cert = client_crt;
    ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_INVAL);
    rig.config.tls_key = server_key; /* another certificate's */
    ck_assert_int_eq(weir__link_open(&rig.link, &rig.loop, &rig.config), WEIR_E_SYS);
    ck_assert_ptr_null(rig.link);
    ck_assert_uint_eq(ERR_peek_error(), 0); /* the host's queue is as it was */
    rig.config.tls_key = client_key;
    check_works();
}
END_TEST

/* A megabyte both ways, twice, while the host has errors of its own in this thread's queue. */
START_TEST(carries_much)
{
    enum { SIZE = 1000000, COPIES = 2 };
    static struct rig_answer sets[COPIES], gets[COPIES];
    char *value = malloc(SIZE + 1);
    ck_assert_ptr_nonnull(value);
    memset(value, 'x', SIZE);
    value[SIZE] = '\0';
    open_rig("127.0.0.1");
    rig_up(&rig);
    for (int i = 0; i < COPIES; i++) {
        ck_assert_int_eq(rig_send(&rig, &sets[i], 15000, "SET", "k", value, NULL), 0);
        ck_assert_int_eq(rig_send(&rig, &gets[i], 15000, "GET", "k", NULL), 0);
    }
    for (int i = 0; i < COPIES; i++) {
        while (!gets[i].calls) {
            ERR_put_error(ERR_LIB_USER, 0, 1, "host", 1);
            rig_run(&rig, 1);
        }
        ck_assert_str_eq(sets[i].text, "OK");
        ck_assert_int_eq(gets[i].kind, WEIR__LINK_OK);
    }
    ERR_clear_error();
    ck_assert_str_eq(redis_server_do(server, "STRLEN", "k", NULL), "1000000");
    ck_assert_int_eq(rig.downs, 0);
    rig_close(&rig);
    free(value);
}
END_TEST

START_TEST(killed_and_started_again)
{
    struct rig_answer answer = {0};
    signal(SIGPIPE, SIG_DFL);
    open_rig("127.0.0.1");
    rig_up(&rig);
    redis_server_kill(server);
    ck_assert_int_eq(rig_send(&rig, &answer, 10000, "PING", NULL), 0);
    weir__link_flush(rig.link);
    rig_wait(&rig, answer.calls);
    ck_assert_int_eq(answer.kind, WEIR__LINK_LOST);
    redis_server_restart(server);
    rig_wait(&rig, rig.ups == 2);
    rig_close(&rig);
}
END_TEST

START_TEST(closed_at_any_turn)
{
    open_rig("127.0.0.1");
    rig_start(&rig);
    for (int i = 0; i < _i; i++) {
        uv_run(&rig.loop, i < 3 ? UV_RUN_NOWAIT : UV_RUN_ONCE);
    }
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tls");
    TCase *address = tcase_create("certificate for an address");
    tcase_add_checked_fixture(address, open_by_address, close_server);
    tcase_add_test(address, right_address);
    tcase_add_test(address, wrong_authority);
    tcase_add_test(address, no_authority);
    tcase_add_test(address, server_speaks_plain);
    tcase_add_test(address, files_are_checked);
    tcase_add_test(address, carries_much);
    tcase_add_test(address, killed_and_started_again);
    tcase_add_loop_test(address, closed_at_any_turn, 0, 10);
    suite_add_tcase(suite, address);
    TCase *name = tcase_create("certificate for a name");
    tcase_add_checked_fixture(name, open_by_name, close_server);
    tcase_add_test(name, right_name);
    tcase_add_test(name, wrong_address);
    tcase_add_test(name, name_is_the_callers);
    suite_add_tcase(suite, name);
    TCase *clients = tcase_create("clients have certificates");
    tcase_add_checked_fixture(clients, open_for_clients, close_server);
    tcase_add_test(clients, client_is_asked_who_it_is);
    suite_add_tcase(suite, clients);
    return suite_run(suite);
}
