/* SPDX-License-Identifier: MIT */
/*
 * Links to masters, the map of slots, commands that are sent on. Invariants:
 *   - a slot's peer, and the peer of a trip, is one of `peers`: who leaves is taken out of both first;
 *   - a trip ends in finish, once: it is on its way in exactly one link, or in `waiting`;
 *   - callbacks come from the loop: from a link's, from the timer's or from that one's close callback.
 */
#include "sync/cluster.h"

#include <stdatomic.h>
#include <string.h>

#include <uv.h>

#include <hiredis/hiredis.h>

#include "sync/tls.h"

#define MS UINT64_C(1000000)
#define NEVER UINT64_MAX
#define REFRESH_NS (30000 * MS)  /* the map is read so often anyway */
#define REFRESH_MIN_NS (50 * MS) /* ... and at most so often where something hints at a change */
#define REFRESH_MAX_NS (1000 * MS)
#define KEEP_NS (10000 * MS) /* a node that ASK named is kept so long without a slot: it is about to get one */

/* As many masters as anybody runs: one who makes up names must not use up the host's descriptors. */
enum { REDIRECTIONS_MAX = 5, PEERS_MAX = 512 };

/* A node that we are connected to. */
struct peer {
    struct peer *next;
    struct weir__cluster *cluster;
    struct weir__link *link;
    struct weir__uri_host at;
    uint64_t asked_at; /* the last time that ASK named it */
    uint8_t up, was_up, serves, leaving;
};

/* A command on its way, or waiting for the peer to be up. */
struct trip {
    struct trip *next;
    struct weir__cluster *cluster;
    struct peer *peer;
    const void *bytes;
    size_t len;
    uint64_t deadline;
    weir__link_cb cb;
    void *arg;
    uint8_t redirections, asking;
};

struct weir__cluster {
    uv_loop_t *loop;
    uv_timer_t timer;
    struct weir__link_config config; /* of every link, but for uri, log and on_state */
    struct weir__uri uri;
    struct weir__tls tls;
    struct weir__link_script scripts[WEIR__LINK_SCRIPTS_MAX];
    struct peer *peers, *last_asked;
    struct peer *slots[WEIR__CLUSTER_SLOTS];
    struct trip *waiting, *spare;
    struct peer *answering; /* whose answer the owner is looking at */
    char sha[WEIR__LINK_SCRIPTS_MAX][48];
    uint64_t refresh_at, refreshed_at, refresh_gap;
    unsigned parts; /* not closed yet */
    uint8_t told_up, started, closing, refreshing;
    void (*log)(void *arg, enum weir_log_level level, const char *line);
    void (*on_state)(void *arg, int up, enum weir__link_kind why);
    void *arg;
    void (*close_cb)(void *arg);
    void *close_arg;
    _Atomic uint64_t reconnects;
};

static void refresh_soon(struct weir__cluster *cluster);

/* ---- trips ------------------------------------------------------------------------------------------------------- */

static struct trip *take_trip(struct weir__cluster *cluster)
{
    struct weir_allocator *mem = &cluster->config.allocator;
    struct trip *trip = cluster->spare;
    if (trip) {
        cluster->spare = trip->next;
    } else {
        trip = mem->alloc(mem->arg, sizeof *trip);
    }
    if (trip) {
        *trip = (struct trip){.cluster = cluster};
    }
    return trip;
}

static void spare_trip(struct trip *trip)
{
    trip->next = trip->cluster->spare;
    trip->cluster->spare = trip;
}

static void finish(struct trip *trip, enum weir__link_kind kind, const struct redisReply *reply)
{
    weir__link_cb cb = trip->cb;
    void *arg = trip->arg;
    spare_trip(trip);
    cb(arg, kind, reply);
}

static void on_trip(void *arg, enum weir__link_kind kind, const struct redisReply *reply);

/* ASKING's own answer is of no interest: what follows it says all. */
static void on_asking(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    (void)arg;
    (void)kind;
    (void)reply;
}

/* 0, or what weir__link_command says; the peer is up. */
static int send_trip(struct trip *trip)
{
    static const char asking[] = "*1\r\n$6\r\nASKING\r\n";
    uint64_t now = uv_hrtime();
    uint64_t left = trip->deadline > now ? trip->deadline - now : 0;
    int status = 0;
    if (trip->asking) {
        status = weir__link_command(trip->peer->link, asking, sizeof asking - 1, left, on_asking, NULL);
    }
    if (status == 0) {
        status = weir__link_command(trip->peer->link, trip->bytes, trip->len, left, on_trip, trip);
    }
    return status;
}

static void arm(struct weir__cluster *cluster);

/* To its peer, now or when that is up. */
static void route(struct trip *trip)
{
    if (!trip->peer->up) {
        trip->next = trip->cluster->waiting;
        trip->cluster->waiting = trip;
        arm(trip->cluster);
    } else if (send_trip(trip) != 0) {
        finish(trip, WEIR__LINK_LOST, NULL);
    }
}

/* Takes off those that wait for this peer (NULL: any), and whose deadline is not after `before`. */
static struct trip *take_waiting(struct weir__cluster *cluster, const struct peer *peer, uint64_t before)
{
    struct trip **at = &cluster->waiting, *taken = NULL, *trip;
    while ((trip = *at)) {
        if ((!peer || trip->peer == peer) && trip->deadline <= before) {
            *at = trip->next;
            trip->next = taken;
            taken = trip;
        } else {
            at = &trip->next;
        }
    }
    return taken;
}

static void finish_all(struct trip *trip, enum weir__link_kind kind)
{
    while (trip) {
        struct trip *next = trip->next;
        finish(trip, kind, NULL);
        trip = next;
    }
}

/* ---- peers ------------------------------------------------------------------------------------------------------- */

/* Is anybody there whom the map names? */
static void tell_state(struct weir__cluster *cluster, enum weir__link_kind why)
{
    int up = 0;
    for (const struct peer *peer = cluster->peers; peer; peer = peer->next) {
        up |= peer->up && peer->serves;
    }
    if (up != cluster->told_up && !cluster->closing) {
        cluster->told_up = (uint8_t)up;
        if (cluster->on_state) {
            cluster->on_state(cluster->arg, up, up ? WEIR__LINK_OK : why);
        }
    }
}

static void learn_scripts(struct weir__cluster *cluster, const struct peer *peer)
{
    for (size_t i = 0; i < cluster->config.script_count; i++) {
        memcpy(cluster->sha[i], weir__link_sha(peer->link, i), strlen(weir__link_sha(peer->link, i)) + 1);
    }
}

static void on_peer_up(struct peer *peer)
{
    struct weir__cluster *cluster = peer->cluster;
    struct trip *trip = take_waiting(cluster, peer, NEVER);
    if (peer->was_up) {
        atomic_fetch_add_explicit(&cluster->reconnects, 1, memory_order_relaxed);
    }
    peer->was_up = 1;
    learn_scripts(cluster, peer);
    while (trip) {
        struct trip *next = trip->next;
        route(trip);
        trip = next;
    }
}

static void on_peer_state(void *arg, int up, enum weir__link_kind why)
{
    struct peer *peer = arg;
    struct weir__cluster *cluster = peer->cluster;
    peer->up = (uint8_t)up;
    if (up) {
        on_peer_up(peer);
    }
    if (!up || !peer->serves) {
        refresh_soon(cluster);
    }
    tell_state(cluster, why);
}

static void on_peer_log(void *arg, enum weir_log_level level, const char *line)
{
    const struct weir__cluster *cluster = ((struct peer *)arg)->cluster;
    cluster->log(cluster->arg, level, line);
}

static void release_part(struct weir__cluster *cluster)
{
    struct weir_allocator mem = cluster->config.allocator;
    void (*cb)(void *) = cluster->close_cb;
    void *arg = cluster->close_arg;
    struct trip *trip;
    if (--cluster->parts > 0) {
        return;
    }
    while ((trip = cluster->spare)) {
        cluster->spare = trip->next;
        mem.release(mem.arg, trip, sizeof *trip);
    }
    weir__tls_deinit(&cluster->tls);
    weir__uri_wipe(&cluster->uri);
    mem.release(mem.arg, cluster, sizeof *cluster);
    if (cb) {
        cb(arg);
    }
}

static void on_peer_closed(void *arg)
{
    struct peer *peer = arg;
    struct weir__cluster *cluster = peer->cluster;
    struct peer **at = &cluster->peers;
    while (*at != peer) {
        at = &(*at)->next;
    }
    *at = peer->next;
    cluster->config.allocator.release(cluster->config.allocator.arg, peer, sizeof *peer);
    release_part(cluster);
}

static void leave(struct peer *peer)
{
    struct weir__cluster *cluster = peer->cluster;
    if (peer->leaving) {
        return;
    }
    peer->leaving = 1;
    peer->up = peer->serves = 0;
    for (int i = 0; i < WEIR__CLUSTER_SLOTS; i++) {
        if (cluster->slots[i] == peer) {
            cluster->slots[i] = NULL;
        }
    }
    if (cluster->last_asked == peer) {
        cluster->last_asked = NULL;
    }
    weir__link_close(peer->link, on_peer_closed, peer);
}

static struct peer *find_peer(struct weir__cluster *cluster, const struct weir__uri_host *at)
{
    struct peer *peer = cluster->peers;
    while (peer && (peer->leaving || peer->at.port != at->port || strcmp(peer->at.host, at->host) != 0)) {
        peer = peer->next;
    }
    return peer;
}

static int open_link(struct peer *peer)
{
    struct weir__cluster *cluster = peer->cluster;
    struct weir__link_config config = cluster->config;
    struct weir__uri uri = cluster->uri;
    uri.kind = WEIR__URI_SERVER;
    memcpy(uri.host, peer->at.host, sizeof uri.host);
    uri.port = peer->at.port;
    config.uri = &uri;
    config.scripts = cluster->scripts;
    config.cluster = 1;
    config.tls = uri.tls ? &cluster->tls : NULL;
    config.log = cluster->log ? on_peer_log : NULL;
    config.on_state = on_peer_state;
    config.arg = peer;
    config.seed = cluster->config.seed ? ++cluster->config.seed : 0;
    int status = weir__link_open(&peer->link, cluster->loop, &config);
    weir__uri_wipe(&uri);
    return status;
}

/* The peer at this address, made where there is none. NULL: it can't be. */
static struct peer *peer_at(struct weir__cluster *cluster, const struct weir__uri_host *at)
{
    struct weir_allocator *mem = &cluster->config.allocator;
    struct peer *peer = find_peer(cluster, at);
    if (peer || cluster->closing || cluster->parts > PEERS_MAX) {
        return peer;
    }
    peer = mem->alloc(mem->arg, sizeof *peer);
    if (!peer) {
        return NULL;
    }
    *peer = (struct peer){.cluster = cluster, .at = *at};
    if (open_link(peer) != 0) {
        mem->release(mem->arg, peer, sizeof *peer);
        return NULL;
    }
    cluster->parts++;
    peer->next = cluster->peers;
    cluster->peers = peer;
    weir__link_start(peer->link);
    return peer;
}

/* ---- the map ----------------------------------------------------------------------------------------------------- */

/* Who serves nothing is left, unless a slot is on its way there. */
static void leave_useless(struct weir__cluster *cluster)
{
    uint64_t now = uv_hrtime();
    for (struct peer *peer = cluster->peers; peer; peer = peer->next) {
        if (!peer->serves && (peer->asked_at == 0 || now - peer->asked_at > KEEP_NS)) {
            finish_all(take_waiting(cluster, peer, NEVER), WEIR__LINK_LOST);
            leave(peer);
        }
    }
}

/* Does a map name a master at all? */
static int is_map(const struct redisReply *reply)
{
    struct weir__slots_range range;
    size_t i = 0, n = reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0;
    while (i < n && weir__slots_range(reply->element[i], &range) != 0) {
        i++;
    }
    return i < n;
}

/* The map anew. A range that makes no sense (a master that has no port for us, say) is a hole in it, no more. -1: all
 * of it makes none, and nothing has changed. */
static int read_map(struct weir__cluster *cluster, const struct peer *from, const struct redisReply *reply)
{
    struct weir__slots_range range;
    int changed = 0;
    if (!is_map(reply)) {
        return -1;
    }
    for (struct peer *peer = cluster->peers; peer; peer = peer->next) {
        peer->serves = 0;
    }
    for (size_t i = 0; i < reply->elements; i++) {
        if (weir__slots_range(reply->element[i], &range) != 0) {
            continue;
        }
        if (!range.master.host[0]) {
            memcpy(range.master.host, from->at.host, sizeof range.master.host);
        }
        struct peer *peer = peer_at(cluster, &range.master);
        if (!peer) {
            continue; /* no memory, or too many: those slots are as they were, and the map is read again */
        }
        peer->serves = 1;
        for (unsigned slot = range.first; slot <= range.last; slot++) {
            changed |= cluster->slots[slot] != peer;
            cluster->slots[slot] = peer;
        }
    }
    if (changed) {
        cluster->refresh_gap = REFRESH_MIN_NS;
    }
    leave_useless(cluster);
    return 0;
}

static void on_map(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct peer *peer = arg;
    struct weir__cluster *cluster = peer->cluster;
    int good = kind == WEIR__LINK_OK && !cluster->closing && !peer->leaving && read_map(cluster, peer, reply) == 0;
    cluster->refreshing = 0;
    if (cluster->closing) {
        return;
    }
    tell_state(cluster, WEIR__LINK_LOST);
    /* Where none of those that the map names is up, nobody sends anything whose failure would hint at a change. */
    cluster->refresh_at = good ? uv_hrtime() + (cluster->told_up ? REFRESH_NS : REFRESH_MAX_NS) : NEVER;
    if (!good) {
        refresh_soon(cluster);
    }
    arm(cluster);
}

/* One after the other is asked, so that one that is out of date does not stay the only one. */
static struct peer *choose_peer(struct weir__cluster *cluster)
{
    struct peer *peer = cluster->last_asked ? cluster->last_asked->next : NULL;
    for (int round = 0; round < 2; round++) {
        for (; peer; peer = peer->next) {
            if (peer->up && weir__link_is_up(peer->link)) {
                return peer;
            }
        }
        peer = cluster->peers;
    }
    return NULL;
}

static void ask_for_map(struct weir__cluster *cluster)
{
    static const char slots[] = "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n";
    struct peer *peer = choose_peer(cluster);
    uint64_t timeout = cluster->config.connect_timeout_ns ? cluster->config.connect_timeout_ns : 1000 * MS;
    cluster->refresh_at = NEVER;
    cluster->refreshed_at = uv_hrtime();
    if (!peer) { /* nobody: whoever of those that the user named comes up first is asked */
        for (unsigned i = 0; i < cluster->uri.seed_count; i++) {
            peer_at(cluster, &cluster->uri.seeds[i]);
        }
        cluster->refresh_at = cluster->refreshed_at + REFRESH_MAX_NS; /* there may have been no memory for them */
        return;
    }
    cluster->last_asked = peer;
    if (weir__link_command(peer->link, slots, sizeof slots - 1, timeout, on_map, peer) != 0) {
        refresh_soon(cluster);
        return;
    }
    cluster->refreshing = 1;
    weir__link_flush(peer->link);
}

/* Something hints at a change. Asked in vain it is asked at greater and greater intervals. */
static void refresh_soon(struct weir__cluster *cluster)
{
    uint64_t at = cluster->refreshed_at + cluster->refresh_gap;
    if (cluster->refreshing || cluster->closing || cluster->refresh_at <= at) {
        return;
    }
    cluster->refresh_gap = cluster->refresh_gap * 2 < REFRESH_MAX_NS ? cluster->refresh_gap * 2 : REFRESH_MAX_NS;
    cluster->refresh_at = at;
    arm(cluster);
}

/* ---- the timer --------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    struct weir__cluster *cluster = timer->data;
    finish_all(take_waiting(cluster, NULL, uv_hrtime()), WEIR__LINK_TIMEOUT);
    if (!cluster->closing && cluster->refresh_at <= uv_hrtime()) {
        ask_for_map(cluster);
    }
    arm(cluster);
}

static void arm(struct weir__cluster *cluster)
{
    uint64_t next = cluster->refresh_at, now = uv_hrtime();
    for (const struct trip *trip = cluster->waiting; trip; trip = trip->next) {
        next = trip->deadline < next ? trip->deadline : next;
    }
    if (cluster->closing) {
        return;
    }
    if (next == NEVER) {
        uv_timer_stop(&cluster->timer);
        return;
    }
    uv_update_time(cluster->loop);
    uv_timer_start(&cluster->timer, on_timer, next > now ? (next - now + MS - 1) / MS : 0, 0);
}

/* ---- redirections ------------------------------------------------------------------------------------------------ */

/* 1: it goes elsewhere. It was not executed, so this breaks no promise of "at most once". */
static int redirect(struct trip *trip, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct weir__cluster *cluster = trip->cluster;
    struct weir__uri_host to;
    unsigned slot;
    if (trip->redirections == REDIRECTIONS_MAX || cluster->closing || trip->peer->leaving ||
        weir__slots_redirection(reply->str, reply->len, &slot, &to) != 0) {
        return 0;
    }
    if (!to.host[0]) {
        memcpy(to.host, trip->peer->at.host, sizeof to.host);
    }
    struct peer *peer = peer_at(cluster, &to);
    if (!peer) {
        return 0;
    }
    trip->redirections++;
    trip->peer = peer;
    trip->asking = kind == WEIR__LINK_ASK;
    if (kind == WEIR__LINK_MOVED) {
        peer->serves = 1;
        cluster->slots[slot] = peer;
        refresh_soon(cluster);
    } else {
        peer->asked_at = uv_hrtime();
    }
    route(trip);
    return 1;
}

static void on_trip(void *arg, enum weir__link_kind kind, const struct redisReply *reply)
{
    struct trip *trip = arg;
    struct weir__cluster *cluster = trip->cluster;
    if ((kind == WEIR__LINK_MOVED || kind == WEIR__LINK_ASK) && redirect(trip, kind, reply)) {
        return;
    }
    if (kind == WEIR__LINK_CLOSED && !cluster->closing) {
        kind = WEIR__LINK_LOST; /* that master is no more */
    }
    if (kind != WEIR__LINK_OK) {
        refresh_soon(cluster);
    }
    cluster->answering = trip->peer;
    finish(trip, kind, reply);
    cluster->answering = NULL;
}

/* ---- the interface ----------------------------------------------------------------------------------------------- */

int weir__cluster_open(struct weir__cluster **out, struct uv_loop_s *loop, const struct weir__link_config *config)
{
    struct weir_allocator mem = config->allocator;
    *out = NULL;
    if (config->uri->seed_count == 0 || config->script_count > WEIR__LINK_SCRIPTS_MAX) {
        return WEIR_E_INVAL;
    }
    struct weir__cluster *cluster = mem.alloc(mem.arg, sizeof *cluster);
    if (!cluster) {
        return WEIR_E_NOMEM;
    }
    memset(cluster, 0, sizeof *cluster);
    if (config->uri->tls) {
        struct weir__tls_options options = {config->tls_ca, config->tls_cert, config->tls_key, config->tls_server_name};
        int status = weir__tls_init(&cluster->tls, &options);
        if (status != 0) {
            mem.release(mem.arg, cluster, sizeof *cluster);
            return status;
        }
    }
    cluster->loop = loop;
    cluster->uri = *config->uri;
    cluster->config = *config;
    cluster->config.tls_ca = cluster->config.tls_cert = cluster->config.tls_key = NULL;
    cluster->config.tls_server_name = NULL;
    memcpy(cluster->scripts, config->scripts, config->script_count * sizeof cluster->scripts[0]);
    cluster->log = config->log;
    cluster->on_state = config->on_state;
    cluster->arg = config->arg;
    cluster->refresh_at = NEVER;
    cluster->refresh_gap = REFRESH_MIN_NS;
    uv_timer_init(loop, &cluster->timer);
    uv_unref((uv_handle_t *)&cluster->timer);
    cluster->timer.data = cluster;
    cluster->parts = 1;
    *out = cluster;
    return 0;
}

void weir__cluster_start(struct weir__cluster *cluster)
{
    if (!cluster->started && !cluster->closing) {
        cluster->started = 1;
        cluster->refresh_at = 0;
        arm(cluster);
    }
}

const char *weir__cluster_sha(const struct weir__cluster *cluster, size_t i)
{
    return cluster->sha[i];
}

int weir__cluster_command(struct weir__cluster *cluster, const void *bytes, size_t len, uint64_t timeout_ns,
                          weir__link_cb cb, void *arg)
{
    int slot = weir__slots_of_command(bytes, len);
    struct peer *peer = slot < 0 ? NULL : cluster->slots[slot];
    uint64_t now = uv_hrtime();
    if (cluster->closing) {
        return WEIR_E_CLOSED;
    }
    if (!peer || !weir__link_is_up(peer->link)) {
        refresh_soon(cluster);
        return slot < 0 ? WEIR_E_INVAL : WEIR_E_NOSYNC;
    }
    struct trip *trip = take_trip(cluster);
    if (!trip) {
        return WEIR_E_NOMEM;
    }
    trip->peer = peer;
    trip->bytes = bytes;
    trip->len = len;
    trip->deadline = timeout_ns < NEVER - now ? now + timeout_ns : NEVER;
    trip->cb = cb;
    trip->arg = arg;
    int status = send_trip(trip);
    if (status != 0) {
        spare_trip(trip);
    }
    return status;
}

void weir__cluster_flush(struct weir__cluster *cluster)
{
    for (struct peer *peer = cluster->peers; peer; peer = peer->next) {
        if (!peer->leaving) {
            weir__link_flush(peer->link);
        }
    }
}

void weir__cluster_fault(struct weir__cluster *cluster, enum weir__link_kind kind)
{
    if (cluster->answering && !cluster->answering->leaving) {
        weir__link_fault(cluster->answering->link, kind);
    }
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct weir__cluster *cluster = handle->data;
    finish_all(take_waiting(cluster, NULL, NEVER), WEIR__LINK_CLOSED);
    release_part(cluster);
}

void weir__cluster_close(struct weir__cluster *cluster, void (*cb)(void *arg), void *arg)
{
    cluster->closing = 1;
    cluster->close_cb = cb;
    cluster->close_arg = arg;
    for (struct peer *peer = cluster->peers; peer; peer = peer->next) {
        leave(peer);
    }
    uv_close((uv_handle_t *)&cluster->timer, on_timer_closed);
}

uint64_t weir__cluster_reconnects(const struct weir__cluster *cluster)
{
    return atomic_load_explicit(&cluster->reconnects, memory_order_relaxed);
}
