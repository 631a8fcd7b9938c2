/* SPDX-License-Identifier: MIT */
/*
 * `weir demo` from its command line to its exit code: what it admits in each mode, with its Redis killed, frozen and
 * empty again under it, and that nothing of it stays behind however it ends.
 *
 * A pipe that only the tool and its children inherit tells when the last of them is gone; its temporary folders are
 * made in one of ours.
 */
#define _XOPEN_SOURCE 700 /* pseudo terminals */

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "support/suite.h"
#include "support/tool.h"

#define LIMIT 1000.0
#define BURST 1000.0
#define WORDS_MAX 16
#define RUNS_MOST 5

struct run {
    char folder[64];
    pid_t pid;
    int out;    /* its standard output and error */
    int others; /* ends once no process of the tool is left */
    int code;   /* exit code, or 128 + signal */
    char text[32768];
    size_t used;
};

static char tool[512];

static void keep_away(int fd)
{
    ck_assert_int_eq(fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
}

/* The words after "weir", one string. */
static char **split(char *line)
{
    static char *words[WORDS_MAX + 2];
    size_t n = 0;
    words[n++] = tool;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        ck_assert_uint_lt(n, WORDS_MAX);
        words[n++] = word;
    }
    words[n] = NULL;
    return words;
}

/* terminal: the slave of a pseudo terminal, or -1. path: of PATH; NULL: as it is. */
static void start(struct run *r, const char *arguments, int terminal, const char *path)
{
    char line[256];
    int out[2], others[2];
    memset(r, 0, sizeof *r);
    snprintf(r->folder, sizeof r->folder, "/tmp/weir-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(r->folder));
    snprintf(line, sizeof line, "%s", arguments);
    ck_assert_int_eq(pipe(out), 0);
    ck_assert_int_eq(pipe(others), 0);
    keep_away(out[0]);
    keep_away(others[0]);
    r->pid = fork();
    if (r->pid == 0) {
        int null = open("/dev/null", O_RDONLY);
        setsid();
        setenv("TMPDIR", r->folder, 1);
        if (path) {
            setenv("PATH", path, 1);
        }
        dup2(terminal >= 0 ? terminal : null, 0);
        dup2(terminal >= 0 ? terminal : out[1], 1);
        dup2(out[1], 2);
        close(out[1]); /* workers and redis-server hold others[1] alone */
        if (terminal >= 0) {
            ioctl(0, TIOCSCTTY, 0);
        }
        tool_exec(split(line));
        _exit(127);
    }
    ck_assert_int_gt(r->pid, 0);
    close(out[1]);
    close(others[1]);
    r->out = out[0];
    r->others = others[0];
}

/* Reads what comes within timeout_ms or until `fd` ends. */
static void listen_to(struct run *r, int fd, int timeout_ms)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (poll(&ready, 1, timeout_ms) == 1) {
        ssize_t n = read(fd, r->text + r->used, sizeof r->text - 1 - r->used);
        if (n <= 0) {
            break;
        }
        r->used += (size_t)n;
        ck_assert_uint_lt(r->used, sizeof r->text - 1);
    }
    r->text[r->used] = '\0';
}

static int folder_is_empty(const char *folder)
{
    return rmdir(folder) == 0;
}

/* Waits for the end; nothing may be left then. folders: those that a kill -9 of the tool leaves are taken away here. */
static void end(struct run *r, int folders)
{
    int status;
    char byte;
    struct pollfd ready = {.fd = r->others, .events = POLLIN};
    ck_assert_int_eq(waitpid(r->pid, &status, 0), r->pid);
    r->code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    ck_assert_msg(poll(&ready, 1, 20000) == 1 && read(r->others, &byte, 1) == 0, "a process was left behind");
    close(r->others);
    close(r->out);
    if (folders) {
        char command[128];
        snprintf(command, sizeof command, "rm -r %s/weir-*", r->folder);
        ck_assert_int_eq(system(command), 0); /* fails where there is none */
    }
    ck_assert_msg(folder_is_empty(r->folder), "something was left in %s", r->folder);
}

static void run(struct run *r, const char *arguments)
{
    start(r, arguments, -1, NULL);
    listen_to(r, r->out, 60000);
    end(r, 0);
}

/* ---- the object in the last line --------------------------------------------------------------------------------- */

static const char *last_line(struct run *r)
{
    ck_assert_msg(r->used > 0 && r->text[r->used - 1] == '\n', "no last line: '%s'", r->text);
    r->text[r->used - 1] = '\0';
    char *line = strrchr(r->text, '\n');
    line = line ? line + 1 : r->text;
    ck_assert_msg(line[0] == '{' && line[strlen(line) - 1] == '}', "no object: '%s'", line);
    return line;
}

static double member(const char *object, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *found = strstr(object, quoted);
    ck_assert_msg(found != NULL, "no member '%s' in %s", name, object);
    ck_assert_msg(strstr(found + 1, quoted) == NULL, "two members '%s' in %s", name, object);
    char *end_of_number;
    double n = strtod(found + strlen(quoted), &end_of_number);
    ck_assert_msg(end_of_number != found + strlen(quoted) && strchr(",}", *end_of_number), "'%s' is no number in %s",
                  name, object);
    return n;
}

/* What holds of every run in every mode, whatever happened to Redis. */
static const char *check_object(struct run *r, double processes, double seconds)
{
    const char *o = last_line(r);
    ck_assert_msg(r->code == 0, "exit code %d: %s", r->code, r->text);
    double admitted = member(o, "admitted"), lasted = member(o, "seconds"), bound = member(o, "bound");
    ck_assert_double_eq(member(o, "processes"), processes);
    ck_assert_double_eq(member(o, "limit_per_s"), LIMIT);
    ck_assert_double_eq(member(o, "burst"), BURST);
    ck_assert_double_eq(member(o, "max_overshoot"), BURST / 10);
    ck_assert_msg(lasted >= seconds && lasted < seconds + 2, "%g seconds: %s", lasted, o);
    ck_assert_msg(admitted <= LIMIT * lasted + BURST + bound, "too many: %s", o);
    ck_assert_msg(member(o, "overshoot") <= bound, "over: %s", o);
    ck_assert_double_eq(member(o, "offered"), admitted + member(o, "denied"));
    return o;
}

/* The processes were driven above the limit and admitted enough of it. least: of limit x seconds; the burst comes on
 * top. */
static int is_used(const char *o, double least)
{
    return member(o, "admitted") >= least * LIMIT * member(o, "seconds") && member(o, "denied") > 0;
}

static int is_all_told(const char *o)
{
    return member(o, "unsent") == 0 && member(o, "written_off") == 0;
}

/* A machine that lets a process stand still may make any one run lose a slice, be late with a reply or not be driven
 * enough. `check` fails the test for what no run may do, and returns 0 for what one that nobody held up would not. */
static void run_well(const char *arguments, int (*check)(struct run *r))
{
    static struct run r;
    for (int i = 0; i < RUNS_MOST; i++) {
        run(&r, arguments);
        if (check(&r)) {
            return;
        }
    }
    ck_abort_msg("%d runs, and none was as it should be: %s", RUNS_MOST, r.text);
}

static int is_good_hybrid(struct run *r)
{
    const char *o = check_object(r, 3, 3);
    ck_assert_ptr_nonnull(strstr(o, "\"mode\": \"hybrid\""));
    return is_used(o, 0.97) && is_all_told(o) && member(o, "sync_calls") >= 3 * 3;
}

START_TEST(hybrid_holds_the_limit)
{
    run_well("demo --seconds 3 --json", is_good_hybrid);
}
END_TEST

/* Redis decides: there is a round trip. */
static int is_good_strict(struct run *r)
{
    const char *o = check_object(r, 3, 3);
    ck_assert_ptr_nonnull(strstr(o, "\"mode\": \"strict\""));
    return is_used(o, 0.97) && member(o, "round_trip_ms") > 0;
}

START_TEST(strict_holds_the_limit)
{
    run_well("demo --seconds 3 --mode strict --json", is_good_strict);
}
END_TEST

/* No clock but one, no Redis: not a hair over. */
static int is_good_local(struct run *r)
{
    const char *o = check_object(r, 4, 3);
    ck_assert_double_eq(member(o, "overshoot"), 0);
    ck_assert_double_eq(member(o, "bound"), 0);
    ck_assert_double_eq(member(o, "sync_calls"), 0);
    ck_assert_double_eq(member(o, "degraded"), 0);
    return is_used(o, 0.97);
}

START_TEST(local_holds_the_limit_exactly)
{
    run_well("demo --seconds 3 --mode local --json --processes 4", is_good_local);
}
END_TEST

/* Somebody noticed that Redis was gone, and nobody stalled. */
static int is_good_without(const char *o)
{
    return is_used(o, 0.8) && member(o, "degraded") > 0 && member(o, "longest_call_ms") < 1000;
}

static int is_good_killed(struct run *r)
{
    return is_good_without(check_object(r, 3, 5));
}

START_TEST(a_killed_redis_stops_nobody)
{
    run_well("demo --seconds 5 --kill-at 1.5 --restart-at 2.5 --json", is_good_killed);
}
END_TEST

static int is_good_killed_strict(struct run *r)
{
    return is_good_without(check_object(r, 3, 4));
}

START_TEST(a_killed_redis_under_strict)
{
    run_well("demo --mode strict --seconds 4 --kill-at 1.5 --restart-at 2.2 --json", is_good_killed_strict);
}
END_TEST

static int is_good_frozen(struct run *r)
{
    const char *o = check_object(r, 3, 3);
    return is_used(o, 0.9) && is_all_told(o);
}

START_TEST(a_frozen_redis_does_not_go_over)
{
    run_well("demo --seconds 3 --stop-at 1 --json", is_good_frozen);
}
END_TEST

/* A limit that hardly refills (a token a minute) and a burst that lasts: what Redis has left tells what it was told. */
#define SLOW "demo --limit 1/min --burst 20000 --rate-factor 150000 --seconds 2.5 --json"

/* Tokens that Redis charged and nobody was admitted for; below 0: those of which it was never told. */
static double charged_in_vain(struct run *r)
{
    const char *o = last_line(r);
    ck_assert_msg(r->code == 0, "exit code %d: %s", r->code, r->text);
    return 20000 - member(o, "admitted") - member(o, "redis_remaining");
}

static int is_driven(const struct run *r)
{
    const char *o = strrchr(r->text, '{');
    return is_all_told(o) && member(o, "admitted") > 1000;
}

/* Nothing is forgotten, and nothing is charged twice. But a process that a busy machine stops for longer than a slice
 * lives is dead to Redis, which counts the slice as spent; it finds itself without one when it goes on. */
static int is_good_hybrid_total(struct run *r)
{
    double buried = charged_in_vain(r);
    const char *o = strrchr(r->text, '{');
    ck_assert_msg(!is_driven(r) || buried >= 0, "%g were forgotten: %s", -buried, r->text);
    return is_driven(r) && buried <= (member(o, "degraded") > 0 ? member(o, "max_overshoot") : 0);
}

START_TEST(redis_total_is_what_was_admitted)
{
    run_well(SLOW, is_good_hybrid_total);
}
END_TEST

START_TEST(redis_total_after_a_freeze)
{
    run_well(SLOW " --stop-at 1", is_good_hybrid_total);
}
END_TEST

/* A request that was answered too late was charged twice: by Redis and by the outage policy. */
static int is_good_strict_total(struct run *r)
{
    double twice = charged_in_vain(r);
    int on_time = member(strrchr(r->text, '{'), "degraded") == 0;
    ck_assert_msg(!is_driven(r) || (on_time ? twice == 0 : twice >= 0), "%g charged twice: %s", twice, r->text);
    return is_driven(r);
}

START_TEST(redis_total_of_strict_mode)
{
    run_well(SLOW " --mode strict", is_good_strict_total);
}
END_TEST

/* What the dead Redis had reserved is gone; what was admitted is not forgotten. */
static int is_good_empty(struct run *r)
{
    double more = -charged_in_vain(r);
    ck_assert_msg(!is_driven(r) || more <= 0, "%g more than the burst: %s", more, r->text);
    return is_driven(r);
}

START_TEST(an_empty_redis_gives_no_free_burst)
{
    run_well(SLOW " --kill-at 0.8 --restart-at 1.1", is_good_empty);
}
END_TEST

/* ---- however it ends --------------------------------------------------------------------------------------------- */

/* Until its Redis listens, and a little longer, so that its workers are there. */
static void await_redis(const struct run *r)
{
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/weir-*/redis.sock", r->folder);
    for (int turns = 0; glob(pattern, 0, NULL, &found) != 0; turns++) {
        ck_assert_msg(turns < 4000, "never: %s", pattern);
        usleep(5000);
    }
    globfree(&found);
    usleep(500000);
}

START_TEST(sigterm_ends_it_in_order)
{
    static struct run r;
    start(&r, "demo --seconds 30 --json", -1, NULL);
    await_redis(&r);
    ck_assert_int_eq(kill(r.pid, SIGTERM), 0);
    listen_to(&r, r.out, 20000);
    end(&r, 0);
    ck_assert_int_eq(r.code, 128 + SIGTERM);
    member(last_line(&r), "admitted");
}
END_TEST

#ifdef __linux__
START_TEST(its_children_die_with_it)
{
    static struct run r;
    start(&r, "demo --seconds 30 --json", -1, NULL);
    await_redis(&r);
    ck_assert_int_eq(kill(r.pid, SIGKILL), 0);
    end(&r, 1);
    ck_assert_int_eq(r.code, 128 + SIGKILL);
}
END_TEST
#endif

START_TEST(without_a_redis_server)
{
    static struct run r;
    start(&r, "demo --seconds 1 --json", -1, "/nowhere");
    listen_to(&r, r.out, 20000);
    end(&r, 0);
    ck_assert_int_eq(r.code, 1);
    ck_assert_msg(strstr(r.text, "redis-server is not installed") != NULL, "'%s'", r.text);
    ck_assert_msg(strstr(r.text, "apt-get install redis-server") != NULL, "'%s'", r.text);

    start(&r, "demo --seconds 0.5 --mode local --json", -1, "/nowhere"); /* needs none */
    listen_to(&r, r.out, 20000);
    end(&r, 0);
    ck_assert_int_eq(r.code, 0);
}
END_TEST

START_TEST(wrong_command_lines)
{
    static const char *const wrong[] = {
        "",
        "dem",
        "demo extra",
        "demo --frobnicate",
        "demo --limit 1000",
        "demo --limit 0/s",
        "demo --limit 2000000/s",
        "demo --burst -1",
        "demo --burst 0",
        "demo --mode fast",
        "demo --processes 0",
        "demo --processes 65",
        "demo --seconds 0",
        "demo --seconds",
        "demo --rate-factor 0",
        "demo --max-overshoot x",
        "demo --kill-at soon",
        "demo --mode local --kill-at 1",
        "demo --mode local --burst 2",
    };
    static struct run r;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        run(&r, wrong[i]);
        ck_assert_msg(r.code == 2, "'weir %s' gave %d: %s", wrong[i], r.code, r.text);
        ck_assert_msg(strstr(r.text, "--help") != NULL, "'weir %s' said: %s", wrong[i], r.text);
    }
}
END_TEST

START_TEST(help_and_version)
{
    static struct run r;
    run(&r, "--help");
    ck_assert_int_eq(r.code, 0);
    ck_assert_ptr_nonnull(strstr(r.text, "demo"));
    run(&r, "--version");
    ck_assert_int_eq(r.code, 0);
    ck_assert_str_eq(r.text, "weir 0.1.0\n");
    run(&r, "demo --help");
    ck_assert_int_eq(r.code, 0);
    ck_assert_ptr_nonnull(strstr(r.text, "--max-overshoot N"));
}
END_TEST

/* A frame a second, and the kill between two of them. */
static int is_good_text(struct run *r)
{
    ck_assert_msg(r->code == 0, "exit code %d: %s", r->code, r->text);
    ck_assert_ptr_null(strchr(r->text, '\x1b'));
    ck_assert_ptr_nonnull(strstr(r->text, "tokens in the worst window"));
    return strstr(r->text, "redis up") && strstr(r->text, "redis-server killed") && strstr(r->text, "redis down");
}

START_TEST(without_a_terminal_it_says_lines)
{
    run_well("demo --seconds 3.4 --kill-at 2.2", is_good_text);
}
END_TEST

/* ---- at a terminal ----------------------------------------------------------------------------------------------- */

/* Frames come for as long as nobody stops them: of what is heard the end is kept. */
static int hear(struct run *r, int master)
{
    struct pollfd ready = {.fd = master, .events = POLLIN};
    if (r->used > sizeof r->text / 2) {
        r->used = sizeof r->text / 4;
        memmove(r->text, r->text + strlen(r->text) - r->used, r->used);
    }
    ssize_t n = poll(&ready, 1, 20000) == 1 ? read(master, r->text + r->used, sizeof r->text / 4) : 0;
    r->used += n > 0 ? (size_t)n : 0;
    r->text[r->used] = '\0';
    return n > 0;
}

static void press(struct run *r, int master, const char *key, const char *effect)
{
    ck_assert_int_eq(write(master, key, 1), 1);
    r->text[r->used = 0] = '\0';
    while (!strstr(r->text, effect) && hear(r, master)) {
    }
    ck_assert_msg(strstr(r->text, effect) != NULL, "no '%s' after '%s'", effect, key);
}

static int open_terminal(int *slave)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_ge(master, 0);
    ck_assert_int_eq(grantpt(master) | unlockpt(master), 0);
    keep_away(master);
    *slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    ck_assert_int_ge(*slave, 0);
    keep_away(*slave);
    return master;
}

START_TEST(keys_at_a_terminal)
{
    static struct run r;
    struct termios before, after;
    int slave, master = open_terminal(&slave);
    ck_assert_int_eq(tcgetattr(slave, &before), 0);

    start(&r, "demo", slave, NULL); /* no --seconds: until q */
    press(&r, master, " ", "\x1b[?1049h");
    ck_assert_ptr_nonnull(strstr(r.text, "\x1b[?25l"));
    press(&r, master, "k", "redis-server killed (kill -9)");
    press(&r, master, "s", "strict mode");
    press(&r, master, "r", "started again, empty");
    press(&r, master, "q", "\x1b[?1049l");
    ck_assert_ptr_nonnull(strstr(r.text, "\x1b[?25h"));
    end(&r, 0);
    ck_assert_msg(r.code == 0, "exit code %d: %s", r.code, r.text);
    ck_assert_int_eq(tcgetattr(slave, &after), 0);
    ck_assert(after.c_lflag == before.c_lflag);
    ck_assert(memcmp(after.c_cc, before.c_cc, sizeof after.c_cc) == 0);
    close(slave);
    close(master);
}
END_TEST

/* Both modes share one state: a switch lends nothing. */
START_TEST(switching_modes_under_load)
{
    static struct run r;
    int slave, master = open_terminal(&slave);

    start(&r, "demo --seconds 30", slave, NULL);
    press(&r, master, " ", "\x1b[?1049h");
    usleep(1500000); /* the burst is used up */
    press(&r, master, "s", "strict mode");
    usleep(600000); /* slices of hybrid mode are over */
    press(&r, master, "s", "hybrid mode");
    usleep(600000);
    press(&r, master, "q", "decisions by the outage policy\r\n");
    end(&r, 0);
    ck_assert_msg(r.code == 0, "exit code %d: %s", r.code, r.text);
    ck_assert_ptr_nonnull(strstr(r.text, "  syncs "));
    close(slave);
    close(master);
}
END_TEST

int main(void)
{
    const char *folder = getenv("WEIR_BUILD_DIR");
    snprintf(tool, sizeof tool, "%s/tools/weir", folder ? folder : ".");
    Suite *suite = suite_create("demo");
    TCase *tcase = tcase_create("demo"), *paced = tcase_create("paced");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, strict_holds_the_limit);
    tcase_add_test(tcase, local_holds_the_limit_exactly);
    tcase_add_test(tcase, a_killed_redis_stops_nobody);
    tcase_add_test(tcase, a_killed_redis_under_strict);
    tcase_add_test(tcase, a_frozen_redis_does_not_go_over);
    tcase_add_test(tcase, redis_total_is_what_was_admitted);
    tcase_add_test(tcase, redis_total_after_a_freeze);
    tcase_add_test(tcase, redis_total_of_strict_mode);
    tcase_add_test(tcase, an_empty_redis_gives_no_free_burst);
    tcase_add_test(tcase, sigterm_ends_it_in_order);
#ifdef __linux__
    tcase_add_test(tcase, its_children_die_with_it);
#endif
    tcase_add_test(tcase, without_a_redis_server);
    tcase_add_test(tcase, wrong_command_lines);
    tcase_add_test(tcase, help_and_version);
    tcase_add_test(tcase, without_a_terminal_it_says_lines);
    tcase_add_test(tcase, keys_at_a_terminal);
    suite_add_tcase(suite, tcase);
    tcase_set_timeout(paced, 60);
    tcase_set_tags(paced, "pace"); /* sync threads that always come late leave shares unused */
    tcase_add_test(paced, hybrid_holds_the_limit);
    tcase_add_test(paced, switching_modes_under_load);
    suite_add_tcase(suite, paced);
    return suite_run(suite);
}
