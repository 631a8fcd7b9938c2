/* SPDX-License-Identifier: MIT */
/* The server of the rows R1 to R10. */
#include "redis_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <hiredis/hiredis.h>

#include "harness.h"

static redisReply *ask(struct bench_redis *redis, const char *command)
{
    redisReply *reply = redisCommand(redis->control, command);
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        bench_die("%s: %s", command, reply != NULL ? reply->str : redis->control->errstr);
    }
    return reply;
}

static void tell(struct bench_redis *redis, const char *command)
{
    freeReplyObject(ask(redis, command));
}

const char *bench_redis_open(struct bench_redis *redis)
{
    *redis = (struct bench_redis){.control = NULL};
    if (bench_cpus() < 2) {
        return "needs two CPUs";
    }
    if (private_redis_open(&redis->server) != 0) {
        return redis->server.error;
    }
    bench_pin(1);
    int up = private_redis_start(&redis->server) == 0 && private_redis_wait(&redis->server, 10000) == 0;
    bench_pin(0);
    if (!up) {
        private_redis_close(&redis->server);
        return redis->server.error;
    }
    /* Where that is allowed, whatever else this machine does doesn't stop a script in its middle. */
    (void)setpriority(PRIO_PROCESS, (id_t)redis->server.pid, -20);
    snprintf(redis->uri, sizeof redis->uri, "unix://%s", redis->server.socket);
    redis->control = redisConnectUnix(redis->server.socket);
    if (redis->control == NULL || redis->control->err) {
        bench_die("no second connection to redis-server");
    }
    tell(redis, "CONFIG SET slowlog-log-slower-than -1");
    tell(redis, "CONFIG SET slowlog-max-len 2000");
    return NULL;
}

void bench_redis_close(struct bench_redis *redis)
{
    redisFree(redis->control);
    private_redis_close(&redis->server);
}

int bench_redis_port(struct bench_redis *redis)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    socklen_t len = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM, 0), port = 0;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&any, len) == 0 && getsockname(fd, (struct sockaddr *)&any, &len) == 0) {
        port = ntohs(any.sin_port);
    }
    if (fd >= 0) {
        close(fd);
    }
    redisReply *reply = redisCommand(redis->control, "CONFIG SET port %d", port);
    if (reply == NULL || reply->type == REDIS_REPLY_ERROR) {
        port = 0;
    }
    freeReplyObject(reply);
    return port;
}

/* ---- what it says of itself -------------------------------------------------------------------------------------- */

static double info(struct bench_redis *redis, const char *command, const char *name)
{
    redisReply *reply = ask(redis, command);
    const char *at = strstr(reply->str, name);
    if (at == NULL) {
        bench_die("%s has no %s", command, name);
    }
    double value = at != NULL ? strtod(at + strlen(name), NULL) : 0;
    freeReplyObject(reply);
    return value;
}

/* By the kernel's clock, where it may be read: asking the server is work of its own. */
double bench_redis_cpu(struct bench_redis *redis)
{
    struct timespec spent;
    clockid_t clock;
    if (clock_getcpuclockid(redis->server.pid, &clock) == 0 && clock_gettime(clock, &spent) == 0) {
        return (double)spent.tv_sec + (double)spent.tv_nsec / 1e9;
    }
    return info(redis, "INFO cpu", "used_cpu_user:") + info(redis, "INFO cpu", "used_cpu_sys:");
}

double bench_redis_bytes(struct bench_redis *redis)
{
    return info(redis, "INFO stats", "total_net_input_bytes:");
}

/* ms that the server was ready to run and did not. */
static double waited_for_cpu(const struct bench_redis *redis)
{
    unsigned long long ran, waited = 0;
    char path[64];
    FILE *file;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)redis->server.pid);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fscanf(file, "%llu %llu", &ran, &waited) != 2) {
            waited = 0;
        }
        fclose(file);
    }
    return (double)waited / 1e6;
}

void bench_redis_watch(struct bench_redis *redis)
{
    redis->waited = waited_for_cpu(redis);
    tell(redis, "SLOWLOG RESET");
    tell(redis, "CONFIG SET slowlog-log-slower-than 50");
}

void bench_redis_watched(struct bench_redis *redis, double q, double *quantile, double *largest, double *waited)
{
    *waited = waited_for_cpu(redis) - redis->waited;
    tell(redis, "CONFIG SET slowlog-log-slower-than -1");
    redisReply *reply = ask(redis, "SLOWLOG GET 2000");
    double *ms = bench_alloc((reply->elements + 1) * sizeof *ms);
    size_t n = 0;
    for (size_t i = 0; i < reply->elements; i++) {
        const redisReply *one = reply->element[i];
        if (one->elements >= 4 && one->element[3]->elements > 0 &&
            strcasecmp(one->element[3]->element[0]->str, "EVALSHA") == 0) {
            ms[n++] = (double)one->element[2]->integer / 1e3;
        }
    }
    *quantile = n > 0 ? bench_quantile(ms, n, q) : 0.05;
    *largest = n > 0 ? ms[n - 1] : 0.05;
    free(ms);
    freeReplyObject(reply);
}

/* ---- what it is sent --------------------------------------------------------------------------------------------- */

void bench_redis_listen(struct bench_redis *redis)
{
    void *reply = NULL;
    redis->monitor = redisConnectUnix(redis->server.socket);
    if (redis->monitor == NULL || redis->monitor->err || (reply = redisCommand(redis->monitor, "MONITOR")) == NULL) {
        bench_die("MONITOR failed");
    }
    freeReplyObject(reply);
}

/* The words of a monitor's line, each in quotes, with C's escapes: unquoted in place. Returns how many there are. */
static size_t unquote(char *at, char *words[], size_t lens[], size_t room)
{
    static const char names[] = "nrtab", values[] = "\n\r\t\a\b";
    size_t n = 0;
    for (; *at == '"' && n < room; n++) {
        char *out = words[n] = at++;
        for (; *at != '"' && *at != '\0'; at++) {
            const char *name;
            if (*at != '\\') {
                *out++ = *at;
            } else if (*++at == 'x') {
                char hex[3] = {at[1], at[2], '\0'};
                *out++ = (char)strtoul(hex, NULL, 16);
                at += 2;
            } else {
                name = strchr(names, *at);
                *out++ = name != NULL ? values[name - names] : *at;
            }
        }
        at += (*at == '"') + (at[*at == '"'] == ' ');
        lens[n] = (size_t)(out - words[n]);
        *out = '\0'; /* at the closing quote or before it */
    }
    return n;
}

static char *copy(const char *text, size_t len)
{
    char *out = bench_alloc(len + 1);
    memcpy(out, text, len);
    out[len] = '\0';
    return out;
}

static void load(struct bench_redis *redis, const char *script, size_t len, char sha[41])
{
    redisReply *reply = redisCommand(redis->control, "SCRIPT LOAD %b", script, len);
    if (reply == NULL || reply->type != REDIS_REPLY_STRING || reply->len != 40) {
        bench_die("SCRIPT LOAD failed: %s", reply != NULL ? reply->str : redis->control->errstr);
    }
    if (reply != NULL) {
        memcpy(sha, reply->str, 41);
        freeReplyObject(reply);
    }
}

enum { SCRIPTS = 16, WORDS = 8 };

void bench_redis_heard(struct bench_redis *redis, struct bench_call *call)
{
    char *scripts[SCRIPTS], *words[WORDS];
    size_t lens[WORDS], n = 0;
    *call = (struct bench_call){.script = NULL};
    for (int lines = 0; lines < 1000 && call->field == NULL; lines++) {
        void *next = NULL;
        if (redisGetReply(redis->monitor, &next) != REDIS_OK) {
            bench_die("MONITOR ended");
        }
        redisReply *reply = next;
        char *at = strchr(reply->str, '"');
        size_t count = at != NULL ? unquote(at, words, lens, WORDS) : 0;
        if (count == 3 && strcmp(words[0], "SCRIPT") == 0 && n < SCRIPTS) {
            scripts[n++] = copy(words[2], lens[2]);
        } else if (count == WORDS && strcmp(words[0], "EVALSHA") == 0 && strcmp(words[2], "3") == 0) {
            for (size_t i = 0; i < n; i++) {
                char sha[41];
                load(redis, scripts[i], strlen(scripts[i]), sha);
                if (call->script == NULL && strcmp(sha, words[1]) == 0) {
                    call->script = copy(scripts[i], strlen(scripts[i]));
                }
            }
            for (size_t i = 0; i < 3; i++) {
                call->key[i] = copy(words[3 + i], lens[3 + i]);
            }
            call->field = copy(words[6], lens[6]);
            call->last = copy(words[7], lens[7]);
            call->last_len = lens[7];
        }
        freeReplyObject(reply);
    }
    while (n > 0) {
        free(scripts[--n]);
    }
    redisFree(redis->monitor);
    redis->monitor = NULL;
    if (call->script == NULL || call->field == NULL) {
        bench_die("no call of a loaded script was seen");
    }
}

void bench_call_free(struct bench_call *call)
{
    for (size_t i = 0; i < 3; i++) {
        free(call->key[i]);
    }
    free(call->script);
    free(call->field);
    free(call->last);
}

/* ---- redis-benchmark --------------------------------------------------------------------------------------------- */

/* The script with its last argument written into it. */
static void load_with(struct bench_redis *redis, const struct bench_call *call, char sha[41])
{
    size_t room = strlen(call->script) + 4 * call->last_len + 64, at;
    char *text = bench_alloc(room);
    at = (size_t)snprintf(text, room, "ARGV[2] = '");
    for (size_t i = 0; i < call->last_len; i++) {
        at += (size_t)snprintf(text + at, room - at, "\\%03u", (unsigned)(unsigned char)call->last[i]);
    }
    at += (size_t)snprintf(text + at, room - at, "'\n%s", call->script);
    load(redis, text, at, sha);
    free(text);
}

/* The number before the last "requests per second". */
static double last_rate(const char *text)
{
    static const char unit[] = " requests per second";
    const char *last = NULL;
    for (const char *at = text; (at = strstr(at, unit)) != NULL; at++) {
        last = at;
    }
    while (last != NULL && last > text && (last[-1] == '.' || (last[-1] >= '0' && last[-1] <= '9'))) {
        last--;
    }
    return last != NULL ? strtod(last, NULL) : 0;
}

double bench_redis_peer(struct bench_redis *redis, const struct bench_call *call, int port, unsigned pipeline,
                        unsigned count, unsigned keys, const char **why)
{
    static char text[1 << 20];
    char command[2048], where[160], filler[257], sha[41];
    if (system("command -v redis-benchmark >/dev/null 2>&1") != 0) {
        *why = "redis-benchmark is not installed (Debian: redis-tools)";
        return 0;
    }
    if (call->last_len >= sizeof filler || strlen(call->field) != 18) {
        bench_die("the call is not as it should be");
    }
    count = (count + pipeline - 1) / pipeline * pipeline; /* or it may find at its end that it has done too much */
    memset(filler, 'x', sizeof filler - 1);
    filler[call->last_len % sizeof filler] = '\0';
    load_with(redis, call, sha);
    snprintf(where, sizeof where, "-s '%s'", redis->server.socket);
    if (port != 0) {
        snprintf(where, sizeof where, "-h 127.0.0.1 -p %d", port);
    }
    snprintf(command, sizeof command,
             "exec redis-benchmark %s -q -c 1 -P %u -n %u -r %u EVALSHA %s 3 '%s' '%s' '%s' "
             "kuser:__rand_int__ %s 2>&1 </dev/null",
             where, pipeline, count, keys, sha, call->key[0], call->key[1], call->key[2], filler);
    FILE *pipe = popen(command, "r"); /* inherits the first CPU */
    size_t len = pipe != NULL ? fread(text, 1, sizeof text - 1, pipe) : 0;
    int status = pipe != NULL ? pclose(pipe) : -1;
    text[len] = '\0';
    double rate = last_rate(text);
    if (status != 0 || rate <= 0) {
        fprintf(stderr, "%s\n", text);
        *why = "redis-benchmark failed";
        return 0;
    }
    return rate;
}
