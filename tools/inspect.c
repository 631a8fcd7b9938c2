/* SPDX-License-Identifier: MIT */
/* Owns how a key in Redis is shown; must not know how it is fetched. */
#include "tools/inspect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/args.h"
#include "tools/exits.h"
#include "tools/json.h"
#include "tools/store.h"

static const char help[] =
    "usage: weir inspect POLICY KEY [OPTIONS]\n"
    "\n"
    "What Redis holds of one key: the bucket's level, the slices that processes hold of it, its debt, the generation\n"
    "that keeps it and its time to live. Reads only: nothing is written, no key is made, nothing is charged.\n"
    "\n"
    "  POLICY                its name\n"
    "  KEY                   as the processes give it\n" STORE_HELP "  --json                one JSON object\n"
    "  --help\n"
    "\n"
    "Exit status: 0 shown, 1 Redis does not know the policy or holds nothing of the key (which counts as full), 2 "
    "wrong\n"
    "command line, 3 Redis did not answer.\n"
    "\n"
    "Members of the JSON object: policy, key, shard, shards, limit, per_ns, burst, max_overshoot, version, nodes, "
    "known\n"
    "(Redis knows the policy), exists (it holds something of the key), level, free (not reserved), debt, reserved,\n"
    "generation, in_older, flip_s, ttl_s, recovering_s, epoch, slices: [node, holds (tokens reserved for it), "
    "rate_per_s, "
    "cap,\n"
    "demand_per_s, fallback_per_s, age_s, expired].\n";

enum { OPT_JSON = 256 };

static const struct option options[] = {
    STORE_OPTION_LINES,
    {"json", no_argument, NULL, OPT_JSON},
    ARGS_OPTIONS_END,
};

struct inspect {
    struct store_options store;
    int json;
    const char *policy, *key;
    struct store_key found;
};

static int set(void *out, int option, const char *text)
{
    struct inspect *i = out;
    if (option == OPT_JSON) {
        i->json = 1;
        return 0;
    }
    return store_set(&i->store, option, text);
}

static const struct args_command command = {
    .name = "inspect", .help = help, .options = options, .set = set, .least = 2, .most = 2};

static void print_node(char out[17], const uint8_t node[8])
{
    for (int i = 0; i < 8; i++) {
        snprintf(out + 2 * i, 3, "%02x", node[i]);
    }
}

static double debt_of(const struct weir__wire_seen *seen)
{
    return seen->total < 0 ? -seen->total : 0;
}

static void write_numbers(struct json *j, const struct weir__wire_numbers *n)
{
    json_count(j, "limit", n->limit);
    json_count(j, "per_ns", n->per_ns);
    json_count(j, "burst", n->burst);
    json_count(j, "max_overshoot", n->overshoot);
    json_count(j, "version", n->version);
}

static void write_slices(struct json *j, const struct store_key *found)
{
    json_list_begin(j, "slices");
    for (uint32_t i = 0; i < found->seen.n_slices && i < STORE_SLICES_MAX; i++) {
        const struct weir__wire_seen_slice *s = &found->slices[i];
        char node[17];
        print_node(node, s->node);
        json_item(j);
        json_text(j, "node", node);
        json_number(j, "holds", s->reserved);
        json_number(j, "rate_per_s", s->rate);
        json_number(j, "cap", s->cap);
        json_number(j, "demand_per_s", s->demand);
        json_number(j, "fallback_per_s", s->fallback);
        json_number(j, "age_s", s->age);
        json_flag(j, "expired", s->expired);
    }
    json_list_end(j);
}

static void write_object(const struct inspect *i, int known)
{
    const struct store_key *found = &i->found;
    const struct weir__wire_seen *seen = &found->seen;
    struct json j;
    json_open(&j, stdout);
    json_text(&j, "policy", i->policy);
    json_text(&j, "key", i->key);
    json_flag(&j, "known", known);
    json_count(&j, "shard", found->shard);
    json_count(&j, "shards", found->shards);
    if (known) {
        write_numbers(&j, &found->head.numbers);
        json_number(&j, "nodes", found->head.nodes);
        json_flag(&j, "exists", seen->exists);
        json_number(&j, "level", seen->total);
        json_number(&j, "free", seen->free);
        json_number(&j, "debt", debt_of(seen));
        json_number(&j, "reserved", seen->reserved);
        json_number(&j, "generation", seen->generation);
        json_flag(&j, "in_older", seen->older);
        json_number(&j, "flip_s", seen->flip);
        json_number(&j, "ttl_s", seen->exists && seen->ttl >= 0 ? seen->ttl : NAN);
        json_number(&j, "recovering_s", found->head.recovering);
        json_count(&j, "epoch", (uint64_t)found->head.epoch);
        write_slices(&j, found);
    }
    json_close(&j);
}

static void print_slices(const struct store_key *found)
{
    uint32_t n = found->seen.n_slices;
    if (n == 0) {
        puts("slices      none: no process holds a part of it");
        return;
    }
    printf("slices      %u, which may spend without asking\n", n);
    printf("  %-16s %10s %10s %10s %10s %10s %8s\n", "node", "holds", "rate/s", "cap", "demand/s", "fallback/s", "age");
    for (uint32_t i = 0; i < n && i < STORE_SLICES_MAX; i++) {
        const struct weir__wire_seen_slice *s = &found->slices[i];
        char node[17];
        print_node(node, s->node);
        printf("  %-16s %10.1f %10.1f %10.1f %10.1f %10.1f %6.0fms%s\n", node, s->reserved, s->rate, s->cap, s->demand,
               s->fallback, s->age * 1e3, s->expired ? "  expired: written off" : "");
    }
}

static void print_bucket(const struct inspect *i)
{
    const struct weir__wire_head *head = &i->found.head;
    const struct weir__wire_seen *seen = &i->found.seen;
    double rate = (double)head->numbers.limit / (double)head->numbers.per_ns * 1e9, debt = debt_of(seen);
    printf("level       %.1f of %llu tokens", seen->total, (unsigned long long)head->numbers.burst);
    if (!seen->exists) {
        printf(": Redis holds nothing of this key, which counts as full");
    } else if (seen->total < (double)head->numbers.burst) {
        printf(", full again in %.2f s", ((double)head->numbers.burst - seen->total) / rate);
    }
    printf("\ndebt        %.1f", debt);
    if (debt > 0) {
        printf(", repaid in %.3f s", debt / rate);
    }
    printf("\nreserved    %.1f in slices; %.1f %s\n", seen->reserved, seen->free < 0 ? -seen->free : seen->free,
           seen->free < 0 ? "of it lent" : "free");
}

static void print_text(const struct inspect *i)
{
    const struct weir__wire_head *head = &i->found.head;
    const struct weir__wire_seen *seen = &i->found.seen;
    const struct weir__wire_numbers *n = &head->numbers;
    printf("policy      %s: %llu tokens every %.9gs, burst %llu, max_overshoot %llu, version %llu\n", i->policy,
           (unsigned long long)n->limit, (double)n->per_ns / 1e9, (unsigned long long)n->burst,
           (unsigned long long)n->overshoot, (unsigned long long)n->version);
    printf("key         %s, in shard %u of %u; processes that reported there in the last minute: %.0f\n", i->key,
           i->found.shard, i->found.shards, head->nodes);
    print_bucket(i);
    print_slices(&i->found);
    printf("generation  %.0f; the next begins in %.1f s", seen->generation, seen->flip);
    if (seen->exists) {
        printf("; the key is in the %s one", seen->older ? "older" : "newer");
        printf(seen->ttl >= 0 ? ", ttl %.1f s" : ", without a ttl", seen->ttl);
    }
    putchar('\n');
    if (head->recovering > 0) {
        printf("recovering  state was lost; for %.1f s nothing is granted while processes tell what they saw\n",
               head->recovering);
    }
}

int inspect_main(int argc, char **argv)
{
    static struct inspect i = {.store = STORE_DEFAULTS};
    int first = args_options(&command, argc, argv, &i);
    if (first <= 0) {
        return first == 0 ? EXIT_DONE : EXIT_USAGE;
    }
    i.policy = argv[first];
    i.key = argv[first + 1];
    if (i.key[0] == '\0' || strlen(i.key) > WEIR_KEY_MAX || strlen(i.policy) > WEIR_NAME_MAX) {
        args_wrong(&command, "no key may be empty or longer than %u bytes, no name longer than %u", WEIR_KEY_MAX,
                   WEIR_NAME_MAX);
        return EXIT_USAGE;
    }
    if (store_look(&i.store, i.policy, i.key, strlen(i.key), &i.found) != 0) {
        fprintf(stderr, "weir inspect: %s\n", i.found.error);
        return EXIT_UNREACHED;
    }
    int known = i.found.head.status == WEIR__WIRE_APPLIED;
    if (i.json) {
        write_object(&i, known);
    } else if (known) {
        print_text(&i);
    } else {
        printf("Redis knows no policy '%s' under this prefix\n", i.policy);
    }
    return known && i.found.seen.exists ? EXIT_DONE : EXIT_NO;
}
