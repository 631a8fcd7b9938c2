/* SPDX-License-Identifier: MIT */
/*
 * The stats socket, from a process that opens it to what `weir top` shows; and those who speak to it rudely.
 */
#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <uv.h>

#include "support/node.h"
#include "support/redis_server.h"
#include "support/suite.h"
#include "support/tool.h"

static struct redis_server *server;
static const char *uri;
static char path[128];
static struct tool_run run;

static void start_redis(void)
{
    server = redis_server_open(NULL);
    uri = redis_server_uri(server);
    snprintf(path, sizeof path, "%s/stats", redis_server_folder(server));
}

static void end_redis(void)
{
    redis_server_close(server);
}

static void start_node(struct node *node)
{
    struct weir_policy policy = node_policy(100000, NODE_SECOND, 0);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    options.stats_socket = path;
    options.timeout_ms = 5000; /* a busy machine is no outage */
    node_open(node, &policy);
    node_start(node, uri, &options);
}

static int exists(void)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- work to be seen --------------------------------------------------------------------------------------------- */

static weir_policy_id local, tight;

static void start_busy_node(struct node *node)
{
    struct weir_policy here = node_policy(1000000, NODE_SECOND, 0), few = node_policy(1, NODE_SECOND, 1);
    start_node(node);
    here.name = "only here";
    here.mode = WEIR_LOCAL;
    few.name = "tight";
    ck_assert_int_eq(weir_policy_add(node->w, &here, &local), 0);
    ck_assert_int_eq(weir_policy_add(node->w, &few, &tight), 0);
}

/* "hot key" is asked for ten times as often as each of two others, one of them local and one denied nearly always.
 * Returns how many of the ten were allowed. */
static int work_once(struct node *node)
{
    int allowed = 0;
    for (int i = 0; i < 10; i++) {
        allowed += node_take(node, "hot key", NULL) == WEIR_ALLOW;
    }
    weir_take(node->w, local, "cool=%", 6, 1, NULL);
    weir_take(node->w, tight, "denied", 6, 1, NULL);
    return allowed;
}

static _Atomic int working;

static void *work(void *node)
{
    while (atomic_load_explicit(&working, memory_order_relaxed)) {
        work_once(node);
        node_pause(1);
    }
    return NULL;
}

static double seconds(void)
{
    return (double)uv_hrtime() / 1e9;
}

/* The second of two frames. Its keys are those that were taken between two looks, and a thread has the CPU when it has:
 * runs until it shows all of them, the hottest first. */
static void run_until_shown(struct tool_run *frame)
{
    do {
        tool_run(&run, "top", path, "--json", "--frames", "2", "--interval", "200ms", "--keys", "7", NULL);
        ck_assert_msg(run.code == 0, "%s", run.err);
        const char *second = strchr(run.out, '\n');
        ck_assert_ptr_nonnull(second);
        snprintf(frame->out, sizeof frame->out, "%s", second + 1);
    } while (!strstr(frame->out, "\"hottest\": [{\"policy\": \"p\", \"key\": \"hot%20key\", \"length\": 7") ||
             !strstr(frame->out, "\"key\": \"cool%3D%25\"") || !strstr(frame->out, "\"key\": \"denied\""));
}

/* A member of the first object in the text that holds this one. */
static double number_of(const char *text, const char *object, const char *name)
{
    static struct tool_run part;
    const char *at = strstr(text, object);
    ck_assert_msg(at != NULL, "no %s in %s", object, text);
    snprintf(part.out, sizeof part.out, "%.*s", (int)strcspn(at, "}") + 1, at);
    return tool_number(&part, name);
}

/* What the second frame tells of a policy is what was decided since the first, over no less than the interval and no
 * more than it all took. */
static void check_rate(const struct tool_run *frame, const char *policy, const char *verdict, double most_s)
{
    char per_s[32];
    double decided = number_of(frame->out, policy, verdict) - number_of(run.out, policy, verdict), rate;
    snprintf(per_s, sizeof per_s, "%s_per_s", verdict);
    rate = number_of(frame->out, policy, per_s);
    ck_assert_msg(rate <= decided / 0.2 && rate >= decided / most_s, "%s: %g in %g s, %g a second", policy, decided,
                  most_s, rate);
}

START_TEST(top_shows_policies_and_hottest_keys)
{
    static struct tool_run frame;
    struct node node;
    pthread_t worker;
    start_busy_node(&node);
    atomic_store_explicit(&working, 1, memory_order_relaxed);
    ck_assert_int_eq(pthread_create(&worker, NULL, work, &node), 0);
    double begin = seconds();
    run_until_shown(&frame);
    double took = seconds() - begin;
    atomic_store_explicit(&working, 0, memory_order_relaxed);
    pthread_join(worker, NULL);
    ck_assert_double_eq(tool_number(&frame, "pid"), getpid());
    ck_assert_double_eq(tool_number(&frame, "keys"), 3);
    ck_assert_double_eq(tool_number(&frame, "store_up"), 1);
    ck_assert_double_ge(tool_number(&frame, "syncs"), 1);
    ck_assert_double_gt(number_of(frame.out, "\"key\": \"hot", "per_s"), 0);
    ck_assert_double_gt(number_of(frame.out, "\"key\": \"cool", "remaining"), 900000);
    check_rate(&frame, "\"name\": \"p\"", "allowed", took);
    check_rate(&frame, "\"name\": \"only%20here\"", "allowed", took);
    check_rate(&frame, "\"name\": \"tight\"", "denied", took);
    ck_assert_double_gt(number_of(frame.out, "\"name\": \"tight\"", "denied"), 0);
    ck_assert_double_eq(number_of(frame.out, "\"name\": \"only%20here\"", "denied"), 0);
    ck_assert_ptr_nonnull(strstr(frame.out, "\"mode\": \"local\""));
    node_close(&node);
}
END_TEST

START_TEST(top_for_a_person)
{
    struct node node;
    start_node(&node);
    tool_run(&run, "top", path, "--frames", "2", "--interval", "200ms", NULL);
    ck_assert_msg(run.code == 0, "%s", run.err);
    ck_assert_ptr_nonnull(strstr(run.out, "redis    up, answered"));
    ck_assert_ptr_nonnull(strstr(strstr(run.out, "hottest keys") + 1, "hottest keys")); /* twice */
    ck_assert_ptr_null(strchr(run.out, '\033'));                                        /* no terminal */
    node_close(&node);
    tool_run(&run, "top", path, NULL);
    ck_assert_int_eq(run.code, 3);
    ck_assert_ptr_nonnull(strstr(run.err, "No such file"));
}
END_TEST

/* ---- the socket -------------------------------------------------------------------------------------------------- */

static int connect_to(const char *to)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_ge(fd, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s", to);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

/* Ends of answers. */
static int count_ends(const char *answer)
{
    int n = 0;
    while ((answer = strstr(answer, "\nend\n")) != NULL) {
        answer++;
        n++;
    }
    return n;
}

/* What comes until the end of the nth answer, or of the connection. */
static const char *say_and_hear(int fd, const char *text, int n_answers)
{
    static char answer[65536];
    size_t used = 0;
    ssize_t n = send(fd, text, strlen(text), MSG_NOSIGNAL);
    (void)n;
    while (used < sizeof answer - 1 && (n = recv(fd, answer + used, sizeof answer - 1 - used, 0)) > 0) {
        used += (size_t)n;
        answer[used] = '\0';
        if (count_ends(answer) >= n_answers) {
            break;
        }
    }
    answer[used] = '\0';
    return answer;
}

static const char *say(int fd, const char *text)
{
    return say_and_hear(fd, text, 1);
}

START_TEST(off_by_default_and_private)
{
    struct weir_policy policy = node_policy(10, NODE_SECOND, 0);
    struct stat st;
    struct node node;
    node_open(&node, &policy);
    node_start(&node, uri, NULL);
    ck_assert(!exists());
    node_close(&node);
    start_node(&node);
    ck_assert_int_eq(lstat(path, &st), 0);
    ck_assert_uint_eq(st.st_mode, S_IFSOCK | 0600);
    node_close(&node);
    ck_assert(!exists());
}
END_TEST

START_TEST(a_dead_ones_socket_is_replaced)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct node node;
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    ck_assert(exists());
    start_node(&node);
    fd = connect_to(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    node_close(&node);
}
END_TEST

START_TEST(what_is_no_socket_is_left_alone)
{
    FILE *file = fopen(path, "w");
    struct node node;
    ck_assert_ptr_nonnull(file);
    fputs("precious", file);
    fclose(file);
    start_node(&node);
    node_until(node_said(&node, "it will be tried again"));
    node_close(&node);
    ck_assert(exists());
    ck_assert_int_eq(unlink(path), 0);
}
END_TEST

START_TEST(the_next_one_waits_for_its_turn)
{
    struct node a, b;
    start_node(&a);
    start_node(&b);
    node_until(node_said(&b, "another one listens there"));
    int fd = connect_to(path);
    ck_assert_ptr_nonnull(strstr(say(fd, "metrics\n"), "weir_build_info"));
    close(fd);
    node_close(&a);
    node_until((fd = connect_to(path)) >= 0);
    close(fd);
    node_close(&b);
    ck_assert(!exists());
}
END_TEST

START_TEST(paths)
{
    static char longest[200];
    struct weir_policy policy = node_policy(10, NODE_SECOND, 0);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_sync *sync;
    struct node node;
    node_open(&node, &policy);
    memset(longest, 'x', sizeof longest - 1);
    options.stats_socket = longest;
    ck_assert_int_eq(weir_sync_start(&sync, node.w, NULL, &options), WEIR_E_RANGE);
    options.stats_socket = "";
    ck_assert_int_eq(weir_sync_start(&sync, node.w, NULL, &options), WEIR_E_RANGE);
    options.stats_socket = "/nonexistent/folder/socket";
    node_start(&node, uri, &options);
    node_until(node_said(&node, "/nonexistent/folder/socket"));
    node_close(&node);
}
END_TEST

/* ---- what is said ------------------------------------------------------------------------------------------------ */

START_TEST(one_answer_a_line)
{
    struct node node;
    start_node(&node);
    int fd = connect_to(path);
    const char *answer = say(fd, "top 0\n");
    ck_assert_int_eq(strncmp(answer, "process pid=", 12), 0);
    ck_assert_ptr_nonnull(strstr(answer, "\ntable keys=0 max_keys="));
    ck_assert_ptr_nonnull(strstr(answer, "\nstore up=1 "));
    ck_assert_ptr_nonnull(strstr(answer, "\npolicy id=0 allowed=0 denied=0 limit=100000 per_ns=1000000000 "));
    ck_assert_ptr_null(strstr(answer, "\nkey "));
    answer = say(fd, "metrics\n");
    ck_assert_ptr_nonnull(strstr(answer, "# TYPE weir_decisions_total counter\n"));
    ck_assert_ptr_nonnull(strstr(answer, "\nend\n"));
    /* two at once are answered one after the other */
    answer = say_and_hear(fd, "metrics\ntop 3\nmetrics\n", 3);
    ck_assert_int_eq(count_ends(answer), 3);
    ck_assert_ptr_nonnull(strstr(answer, "\nend\nprocess pid="));
    ck_assert_int_eq(strcmp(answer + strlen(answer) - 5, "\nend\n"), 0);
    close(fd);
    node_close(&node);
}
END_TEST

static double rate_of(const char *answer, const char *key)
{
    const char *end = strstr(answer, key), *at = end;
    while (at > answer && at[-1] != '\n') {
        at--;
    }
    ck_assert_msg(end && (at = strstr(at, " per_s=")) && at < end, "no %s in %s", key, answer);
    return strtod(at + 7, NULL);
}

/* Between two looks, a quarter of a second apart. Those who look seldom, for want of a CPU, begin anew and are told of
 * no key; and a sync that had none may have put less in the hot key's slice than is asked for. Denials of one key
 * within a moment are counted now and then, a few at least. */
START_TEST(rates_are_those_of_what_was_taken)
{
    struct node node;
    const char *answer;
    double asked, answered, again, heard;
    int allowed;
    start_busy_node(&node);
    work_once(&node);
    int fd = connect_to(path);
    do {
        say(fd, "top 7\n");
        node_pause(250);
        asked = seconds();
        say(fd, "top 7\n");
        answered = seconds();
        allowed = 0;
        for (int i = 0; i < 100; i++) {
            allowed += work_once(&node);
        }
        node_pause(250);
        again = seconds();
        answer = say(fd, "top 7\n");
        heard = seconds();
    } while (!strstr(answer, " key=hot%20key\n") || !strstr(answer, " key=cool%3D%25\n") ||
             !strstr(answer, " key=denied\n") || allowed < 1000);
    double hot = rate_of(answer, " key=hot%20key\n"), cool = rate_of(answer, " key=cool%3D%25\n");
    double denied = rate_of(answer, " key=denied\n");
    ck_assert_msg(hot <= 1000 / (again - answered) + 0.1 && hot >= 1000 / (heard - asked) - 0.1,
                  "1000 tokens in %g to %g s, %g a second", again - answered, heard - asked, hot);
    ck_assert_msg(hot > 10 * cool - 1 && hot < 10 * cool + 1, "hot %g, cool %g", hot, cool);
    ck_assert_msg(denied > 0.1 * cool && denied < 2 * cool, "cool %g, denied %g", cool, denied);
    ck_assert_ptr_nonnull(strstr(answer, "\nkey policy=0 per_s="));
    ck_assert(strstr(answer, "key=hot") < strstr(answer, "key=cool"));
    close(fd);
    node_close(&node);
}
END_TEST

START_TEST(rude_ones_are_sent_away)
{
    static const char *const lines[] = {
        "\n",
        "GET / HTTP/1.1\n",
        "top 101\n",
        "top -1\n",
        "top 5x\n",
        "metrics \n",
        "a line that is longer than any that the other end would ever want to read, so"};
    int fds[20];
    struct node node;
    start_node(&node);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        int fd = connect_to(path);
        ck_assert_msg(strcmp(say(fd, lines[i]), "") == 0, "'%s' was answered", lines[i]);
        close(fd);
    }
    /* one who asks and goes; one who asks for much and reads nothing; more than there is room for */
    int fd = connect_to(path);
    ck_assert_int_eq(send(fd, "top 5\n", 6, MSG_NOSIGNAL), 6);
    close(fd);
    int deaf = connect_to(path);
    for (int i = 0; i < 200; i++) {
        send(deaf, "metrics\n", 8, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    for (int i = 0; i < 20; i++) {
        fds[i] = connect_to(path);
    }
    node_pause(50);
    for (int i = 0; i < 20; i++) {
        close(fds[i]);
    }
    close(deaf);
    node_until((fd = connect_to(path)) >= 0 && strstr(say(fd, "metrics\n"), "weir_store_up 1\n"));
    ck_assert_int_eq(node_take(&node, "k", NULL), WEIR_ALLOW);
    /* still connected, and waiting for an answer, when the sync ends */
    ck_assert_int_eq(send(fd, "top 5\n", 6, MSG_NOSIGNAL), 6);
    ck_assert_uint_eq(node_end(&node), 0);
    node_close(&node);
    close(fd);
}
END_TEST

static void on_closed(void *arg, int status, uint64_t unsent)
{
    (void)unsent;
    *(int *)arg = status == 0;
}

/* On the caller's loop: nothing of it keeps the loop alive, and all of it is gone at the end. */
START_TEST(on_the_callers_loop)
{
    struct weir_policy policy = node_policy(10, NODE_SECOND, 0);
    struct weir_sync_options options = WEIR_SYNC_OPTIONS_INIT;
    struct weir_sync *sync;
    struct node node;
    uv_loop_t loop;
    int closed = 0;
    node_open(&node, &policy);
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    options.uri = uri;
    options.stats_socket = path;
    ck_assert_int_eq(weir_sync_start(&sync, node.w, &loop, &options), 0);
    int fd = connect_to(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(send(fd, "top 5\n", 6, MSG_NOSIGNAL), 6);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0); /* returns */
    ck_assert_int_eq(weir_sync_close(sync, on_closed, &closed), 0);
    ck_assert_int_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert(!exists());
    close(fd);
    node_close(&(struct node){.w = node.w});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("watch");
    TCase *tcase = tcase_create("watch");
    tcase_add_checked_fixture(tcase, start_redis, end_redis);
    tcase_add_test(tcase, top_shows_policies_and_hottest_keys);
    tcase_add_test(tcase, top_for_a_person);
    tcase_add_test(tcase, off_by_default_and_private);
    tcase_add_test(tcase, a_dead_ones_socket_is_replaced);
    tcase_add_test(tcase, what_is_no_socket_is_left_alone);
    tcase_add_test(tcase, the_next_one_waits_for_its_turn);
    tcase_add_test(tcase, paths);
    tcase_add_test(tcase, one_answer_a_line);
    tcase_add_test(tcase, rates_are_those_of_what_was_taken);
    tcase_add_test(tcase, rude_ones_are_sent_away);
    tcase_add_test(tcase, on_the_callers_loop);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
