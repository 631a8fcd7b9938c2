/* SPDX-License-Identifier: MIT */
/*
 * The owner of a link, as a test needs one.
 */
#include "support/rig.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

static void *count_alloc(void *arg, size_t size)
{
    struct rig *rig = arg;
    if (++rig->allocations == rig->fail_at) {
        return NULL;
    }
    void *memory = malloc(size);
    if (memory) {
        memset(memory, 0xa5, size);
        rig->memory += (long)size;
    }
    return memory;
}

static void count_release(void *arg, void *memory, size_t size)
{
    struct rig *rig = arg;
    rig->memory -= (long)size;
    free(memory);
}

static void keep_log(void *arg, enum weir_log_level level, const char *line)
{
    struct rig *rig = arg;
    size_t room = sizeof rig->log - rig->log_len;
    int n = snprintf(rig->log + rig->log_len, room, "%d %s\n", (int)level, line);
    rig->log_len += (size_t)n < room ? (size_t)n : room - 1;
}

static void on_state(void *arg, int up, enum weir__link_kind why)
{
    struct rig *rig = arg;
    ck_assert_int_ne(rig->up, up);
    ck_assert_int_eq(up, why == WEIR__LINK_OK);
    ck_assert_int_eq(rig->closed, 0);
    rig->up = up;
    rig->why = why;
    rig->ups += up;
    rig->downs += !up;
    if (rig->close_on == (up ? 1 : 2)) {
        rig->close_on = 0;
        rig_close_link(rig);
    }
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

void rig_open(struct rig *rig, const char *uri)
{
    memset(rig, 0, sizeof *rig);
    ck_assert_int_eq(uv_loop_init(&rig->loop), 0);
    uv_timer_init(&rig->loop, &rig->tick);
    uv_timer_start(&rig->tick, on_tick, 1, 1);
    ck_assert_int_eq(weir__uri_parse(uri, &rig->uri), 0);
    rig->config.uri = &rig->uri;
    rig->config.connect_timeout_ns = 10000 * RIG_MS;
    rig->config.stall_ns = 100 * RIG_MS;
    rig->config.backoff_min_ns = 2 * RIG_MS;
    rig->config.backoff_max_ns = 20 * RIG_MS;
    rig->config.seed = 1;
    rig->config.allocator = (struct weir_allocator){count_alloc, count_release, rig};
    rig->config.log = keep_log;
    rig->config.on_state = on_state;
    rig->config.arg = rig;
}

void rig_start(struct rig *rig)
{
    ck_assert_int_eq(weir__link_open(&rig->link, &rig->loop, &rig->config), 0);
    weir__link_start(rig->link);
}

void rig_up(struct rig *rig)
{
    rig_start(rig);
    rig_wait(rig, rig->up);
    ck_assert_int_eq(weir__link_is_up(rig->link), 1);
}

static void on_answer(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct rig_answer *answer = arg;
    answer->calls++;
    ck_assert_int_eq(answer->calls, 1);
    ck_assert_int_eq(answer->rig->closed, 0);
    answer->kind = kind;
    answer->at = uv_hrtime();
    answer->had_reply = reply != NULL;
    if (kind == WEIR__LINK_OK) {
        ck_assert_ptr_nonnull(reply);
        ck_assert_int_ne(reply->type, REDIS_REPLY_ERROR);
    }
    if (reply && reply->str) {
        snprintf(answer->text, sizeof answer->text, "%s", reply->str);
    }
    free(answer->bytes);
    answer->bytes = NULL;
    if (answer->close_link) {
        rig_close_link(answer->rig);
    }
}

static void on_late(void *arg)
{
    struct rig_answer *answer = arg;
    answer->lates++;
    ck_assert_int_eq(answer->calls, 0);
    if (answer->close_late) {
        rig_close_link(answer->rig);
    }
}

int rig_send(struct rig *rig, struct rig_answer *answer, unsigned timeout_ms, const char *word, ...)
{
    const char *words[32] = {word};
    struct rig_answer kept = {
        .rig = rig, .close_link = answer->close_link, .patient = answer->patient, .close_late = answer->close_late};
    int n = 1;
    va_list args;
    va_start(args, word);
    while (n < 32 && (words[n] = va_arg(args, const char *))) {
        n++;
    }
    va_end(args);
    char *formatted;
    int len = redisFormatCommandArgv(&formatted, n, words, NULL);
    ck_assert_int_gt(len, 0);
    *answer = kept;
    answer->bytes = malloc((size_t)len);
    ck_assert_ptr_nonnull(answer->bytes);
    memcpy(answer->bytes, formatted, (size_t)len);
    redisFreeCommand(formatted);
    int status = weir__link_command_late(rig->link, answer->bytes, (size_t)len, timeout_ms * RIG_MS,
                                         answer->patient ? on_late : NULL, on_answer, answer);
    ck_assert_int_eq(answer->calls, 0); /* never from inside */
    if (status != 0) {
        free(answer->bytes);
        answer->bytes = NULL;
    }
    return status;
}

void rig_turn(struct rig *rig, uint64_t *deadline, const char *what)
{
    uint64_t now = uv_hrtime();
    if (*deadline == 0) {
        *deadline = now + RIG_WAIT_MS * RIG_MS;
    }
    ck_assert_msg(now < *deadline, "waited in vain for: %s\n%s", what, rig->log);
    uv_run(&rig->loop, UV_RUN_ONCE);
}

void rig_run(struct rig *rig, unsigned ms)
{
    uint64_t end = uv_hrtime() + ms * RIG_MS;
    while (uv_hrtime() < end) {
        uv_run(&rig->loop, UV_RUN_ONCE);
    }
}

static void on_closed(void *arg)
{
    struct rig *rig = arg;
    rig->closed++;
    rig->link = NULL;
}

void rig_close_link(struct rig *rig)
{
    rig->closing = 1;
    weir__link_close(rig->link, on_closed, rig);
    ck_assert_int_eq(rig->closed, 0);
}

void rig_close(struct rig *rig)
{
    if (rig->link && !rig->closing) {
        rig_close_link(rig);
    }
    uv_close((uv_handle_t *)&rig->tick, NULL);
    ck_assert_int_eq(uv_run(&rig->loop, UV_RUN_DEFAULT), 0);
    ck_assert_int_eq(rig->closed, rig->closing);
    ck_assert_int_eq(uv_loop_close(&rig->loop), 0);
    ck_assert_int_eq(rig->memory, 0);
}
