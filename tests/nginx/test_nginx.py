# SPDX-License-Identifier: MIT
"""The nginx module in a real nginx: test_nginx.py BUILD [TEST...]. TAP on standard output. Builds the module first.

One bucket a host over all workers; charged once over internal redirects; nothing lost by reload, quit or kill.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True # nothing is left in the tree
import server # noqa: E402  pylint: disable=wrong-import-position
from server import Nginx, Redis, until # noqa: E402  pylint: disable=wrong-import-position

BUILD = sys.argv[1]
MODULE = ""
WEIR = os.path.join(BUILD, "tools", "weir")
DAY = 86400

ZONE = "weir_zone $arg_k zone=api rate=10/d;"
SERVER = "server { listen 127.0.0.1:@port@ reuseport; location / { weir zone=api; } }"

tests = []


def test(function):
    tests.append(function)
    return function


class Stage:
    """What one test has: a folder, perhaps a Redis, as many nginx as it starts. All of it is gone afterwards."""

    def __init__(self, folder):
        self.folder, self.redis, self.open = folder, None, []

    def start_redis(self):
        self.redis = Redis(self.folder)
        return self.redis

    def nginx(self, http, start=True, **more):
        folder = os.path.join(self.folder, f"nginx{len(self.open)}")
        os.mkdir(folder)
        nginx = Nginx(folder, MODULE, http, redis=self.redis.uri if self.redis else "", **more)
        self.open.append(nginx)
        return nginx.start() if start else nginx

    def inspect(self, policy, key, *more):
        out = subprocess.run([WEIR, "inspect", policy, key, "--json", "--redis", self.redis.uri, *more], timeout=20,
                             capture_output=True, text=True, check=False)
        assert out.returncode in (0, 1), out.stderr
        return json.loads(out.stdout)

    def close(self):
        for nginx in self.open:
            nginx.close()
        if self.redis:
            self.redis.close()


def equal(value, expected, what=""):
    assert value == expected, f"{what}: {value!r}, not {expected!r}"


# ---- decisions -------------------------------------------------------------------------------------------------------

@test
def one_bucket_over_all_workers(stage):
    nginx = stage.nginx(ZONE + SERVER.replace("weir zone", "add_header W $pid always; weir zone"), workers=4)
    workers, counts = set(), {}
    for _ in range(60):
        answer = nginx.get("/?k=a")
        workers.add(answer.getheader("W"))
        counts[answer.status] = counts.get(answer.status, 0) + 1
    equal(counts, {200: 10, 429: 50})
    assert len(workers) > 1, "only one worker was asked"
    equal(nginx.count(3, "/?k=b"), {200: 3}, "another key")
    equal(nginx.count(20, "/"), {200: 20}, "an empty key is not limited")


@test
def what_a_denied_client_is_told(stage):
    nginx = stage.nginx("weir_zone $arg_k zone=api rate=2/m;" + SERVER)
    answer = nginx.get("/?k=a")
    equal(answer.status, 200)
    equal(answer.getheader("RateLimit-Policy"), '"api";q=2;w=60')
    assert re.fullmatch(r'"api";r=1;t=30', answer.getheader("RateLimit")), answer.getheader("RateLimit")
    equal(answer.getheader("Retry-After"), None)
    equal(nginx.get("/?k=a").status, 200)
    answer = nginx.get("/?k=a")
    equal(answer.status, 429)
    wait = int(answer.getheader("Retry-After"))
    assert 28 <= wait <= 30, wait
    assert answer.getheader("RateLimit").startswith('"api";r=0;t='), answer.getheader("RateLimit")
    equal(len(answer.headers.get_all("RateLimit")), 1)


@test
def styles_and_status(stage):
    nginx = stage.nginx("weir_zone $arg_k zone=api rate=1/d;" + """server { listen 127.0.0.1:@port@; weir zone=api;
        location /legacy { weir_headers legacy; try_files /index.html =404; }
        location /both { weir_headers both; weir_status 418; try_files /index.html =404; }
        location /retry { weir_headers retry; try_files /index.html =404; }
        location /off { weir_headers off; weir_status 503; try_files /index.html =404; }
        location /free { weir off; try_files /index.html =404; } }""")
    expected = {"legacy": (429, False, True, True), "both": (418, True, True, True),
                "retry": (429, False, False, True), "off": (503, False, False, False)}
    for name, (status, draft, legacy, retry) in expected.items():
        equal(nginx.get(f"/{name}?k={name}").status, 200, name)
        answer = nginx.get(f"/{name}?k={name}")
        equal(answer.status, status, name)
        equal(answer.getheader("RateLimit") is not None, draft, name)
        equal(answer.getheader("X-RateLimit-Limit"), "1" if legacy else None, name)
        equal(answer.getheader("Retry-After") is not None, retry, name)
    equal(nginx.count(5, "/free?k=f"), {200: 5}, "weir off")


@test
def several_policies_all_or_none(stage):
    nginx = stage.nginx("""weir_zone $arg_k zone=each rate=3/d; weir_zone $server_port zone=all rate=5/d;
        server { listen 127.0.0.1:@port@; weir zone=each; weir zone=all; location / { } }""")
    equal(nginx.count(4, "/?k=a"), {200: 3, 429: 1}, "the client's own limit")
    answer = nginx.get("/?k=b")
    equal(answer.status, 200)
    equal(answer.getheader("RateLimit-Policy").count("q="), 2, "both policies are told")
    equal(nginx.count(3, "/?k=b"), {200: 1, 429: 2}, "what a denial charged to the other zone")
    equal(nginx.count(1, "/?k=c"), {429: 1}, "the host's limit")


@test
def costs(stage):
    nginx = stage.nginx(ZONE + """server { listen 127.0.0.1:@port@; location /four { weir zone=api cost=4; }
        location / { weir zone=api cost=$arg_cost; } }""")
    open(os.path.join(nginx.folder, "www", "four"), "w", encoding="ascii").close()
    equal(nginx.count(3, "/four?k=a"), {200: 2, 429: 1})
    equal(nginx.count(1, "/?k=a&cost=3"), {429: 1})
    equal(nginx.count(5, "/?k=a&cost=0"), {200: 5}, "nothing to pay")
    equal(nginx.count(1, "/?k=a&cost=2"), {200: 1})
    equal(nginx.count(5, "/?k=a&cost=-1"), {200: 5}, "no number")
    equal(nginx.count(1, "/?k=a&cost=1"), {429: 1})


@test
def dry_run(stage):
    nginx = stage.nginx(ZONE + """log_format s '$weir_status'; server { listen 127.0.0.1:@port@;
        access_log @folder@/access s; location / { weir zone=api; weir_dry_run on; } location /none { weir off; } }""")
    equal(nginx.count(12, "/?k=a"), {200: 12})
    equal(nginx.get("/?k=a").getheader("RateLimit"), None)
    equal(nginx.get("/none").status, 404)
    nginx.quit()
    with open(os.path.join(nginx.folder, "access"), encoding="ascii") as f:
        equal(f.read().split(), ["PASSED"] * 10 + ["REJECTED_DRY_RUN"] * 3 + ["-"])
    assert "denied, dry run, by zone" in nginx.logged()


@test
def ip_keys(stage):
    nginx = stage.nginx("""weir_zone $weir_ip zone=ip rate=2/d; server { listen 127.0.0.1:@port@; weir zone=ip;
        location / { add_header Ip $weir_ip always; } }""")
    answer = nginx.get()
    equal((answer.status, answer.getheader("Ip")), (200, "127.0.0.1"))
    equal(nginx.count(2), {200: 1, 429: 1})


# ---- charged once ----------------------------------------------------------------------------------------------------

@test
def internal_redirects_are_charged_once(stage):
    nginx = stage.nginx(ZONE + """weir_zone $arg_k zone=other rate=10/d;
        server { listen 127.0.0.1:@port@; weir zone=api;
        location / { index index.html; }
        location /tried { try_files /nothing @named; } location @named { empty_gif; }
        location /rewritten { rewrite ^ /index.html last; }
        location /unlimited { weir off; try_files /nothing @limited; }
        location @limited { weir zone=other; empty_gif; }
        error_page 404 /missing.html; location /missing.html { }
        location /subrequest { auth_request /auth; try_files /index.html =404; } location /auth { return 204; } }""")
    for path, status in (("/", 200), ("/tried", 200), ("/rewritten", 200), ("/unlimited", 200), ("/absent", 404),
                         ("/subrequest", 200)):
        key = path.strip("/") or "root"
        counts = nginx.count(10, f"{path}?k={key}")
        equal(counts, {status: 10}, path)
        counts = nginx.count(2, f"{path}?k={key}")
        equal(counts, {429: 2}, path + ", over the limit")


@test
def a_denial_s_own_page_is_free(stage):
    nginx = stage.nginx("weir_zone $arg_k zone=api rate=1/d;" + """server { listen 127.0.0.1:@port@; weir zone=api;
        location / { error_page 429 /slow.html; } location /slow.html { internal; return 429 slower; } }""")
    equal(nginx.get("/?k=a").status, 200)
    answer = nginx.get("/?k=a")
    equal((answer.status, answer.text), (429, "slower"))
    equal(len(answer.headers.get_all("Retry-After")), 1)


# ---- Redis, reload, quit ---------------------------------------------------------------------------------------------

SHARED = "weir_redis @redis@ interval=50ms; weir_zone $arg_k zone=api rate=100/d;"


def spent(stage, key):
    return 100 - stage.inspect("api", key)["level"]


def near(value, expected):
    assert abs(value - expected) < 0.5, f"{value}, not {expected}"


@test
def one_worker_reports_for_all(stage):
    stage.start_redis()
    nginx = stage.nginx(SHARED + SERVER, workers=4)
    nginx.count(1, "/?k=warm")
    until(lambda: stage.inspect("api", "warm")["known"], "Redis knows the policy")
    passed = nginx.count(40, "/?k=a")[200]
    assert passed > 4, passed # more than one a worker; some may be denied until Redis has told of the key
    until(lambda: abs(spent(stage, "a") - passed) < 0.5, f"{passed} are reported")
    found = stage.inspect("api", "a")
    equal(found["nodes"], 1, "processes that Redis knows")
    assert len(found["slices"]) <= 1, found


@test
def two_hosts_share_a_limit(stage):
    stage.start_redis()
    hosts = [stage.nginx(SHARED + SERVER) for _ in range(2)]
    passed = denied = 0
    while denied < 60: # in a row
        ok = hosts[(passed + denied) % 2].get("/?k=a").status == 200
        passed, denied = passed + ok, 0 if ok else denied + 1
        time.sleep(0.005)
    assert 97 <= passed <= 111, f"{passed} passed; 100, and 10 that may be lent"
    until(lambda: abs(spent(stage, "a") - passed) < 0.5, "all is reported")


@test
def quit_loses_nothing(stage):
    stage.start_redis()
    for how, key in ((signal.SIGQUIT, "quit"), (signal.SIGTERM, "term")):
        nginx = stage.nginx("weir_redis @redis@ interval=10s; weir_zone $arg_k zone=api rate=100/d;" + SERVER)
        passed = nginx.count(30, f"/?k={key}").get(200, 0)
        nginx.quit(how)
        equal(nginx.master.returncode, 0)
        near(spent(stage, key), passed)
        assert "exited on signal" not in nginx.logged(), nginx.logged()


@test
def reload_loses_nothing(stage):
    stage.start_redis()
    nginx = stage.nginx(SHARED + SERVER)
    nginx.count(1, "/?k=a")
    until(lambda: stage.inspect("api", "a")["known"], "Redis knows the policy")
    passed = 1
    for _ in range(4):
        passed += nginx.count(20, "/?k=a").get(200, 0)
        nginx.reload()
    assert passed >= 40, passed
    until(lambda: abs(spent(stage, "a") - passed) < 0.5, f"{passed} are reported")
    nginx.quit()
    near(spent(stage, "a"), passed)


@test
def reload_keeps_buckets_and_takes_new_numbers(stage):
    nginx = stage.nginx(ZONE + SERVER)
    equal(nginx.count(12, "/?k=a"), {200: 10, 429: 2})
    nginx.reload()
    equal(nginx.count(2, "/?k=a"), {429: 2}, "the bucket after a reload")
    nginx.configure("weir_zone $arg_k zone=api rate=4/d; weir_zone $arg_k zone=more rate=1/d;" +
                    SERVER.replace("} }", "} location /more { weir zone=more; empty_gif; } }"))
    nginx.reload()
    equal(nginx.count(6, "/?k=b"), {200: 4, 429: 2}, "new numbers")
    equal(nginx.count(2, "/more?k=b"), {200: 1, 429: 1}, "a new zone")
    nginx.configure("weir_keys 1000;" + ZONE + SERVER)
    nginx.reload()
    equal(nginx.count(11, "/?k=a"), {200: 10, 429: 1}, "another table begins anew")


@test
def reload_with_another_prefix(stage):
    stage.start_redis()
    nginx = stage.nginx(SHARED + SERVER)
    nginx.count(1, "/?k=a")
    until(lambda: stage.inspect("api", "a")["known"], "Redis knows the policy")
    nginx.configure(SHARED.replace("@redis@", "@redis@ prefix=other") + SERVER)
    nginx.reload()
    nginx.count(1, "/?k=a")
    until(lambda: stage.inspect("api", "a", "--prefix", "other")["known"], "Redis knows the policy by its new name")
    near(spent(stage, "a"), 1)
    assert "weir_redis:" not in nginx.logged(), nginx.logged()


@test
def a_module_that_is_loaded_by_a_reload(stage):
    nginx = stage.nginx("server { listen 127.0.0.1:@port@; location / { } }", start=False)
    nginx.module = ""
    nginx.configure("server { listen 127.0.0.1:@port@; location / { } }")
    nginx.start()
    nginx.module = MODULE
    nginx.configure(ZONE + SERVER.replace(" reuseport", ""))
    nginx.reload()
    equal(nginx.count(12, "/?k=a"), {200: 10, 429: 2})
    nginx.reload()
    equal(nginx.count(2, "/?k=a"), {429: 2})


@test
def a_bad_configuration_changes_nothing(stage):
    nginx = stage.nginx(ZONE + SERVER)
    equal(nginx.count(12, "/?k=a"), {200: 10, 429: 2})
    workers = nginx.children()
    nginx.configure("weir_zone $arg_k zone=api rate=500/d; nonsense;" + SERVER)
    nginx.master.send_signal(signal.SIGHUP)
    until(lambda: "nonsense" in nginx.logged(), "the reload is refused")
    equal(nginx.children(), workers)
    equal(nginx.count(3, "/?k=a"), {429: 3})
    nginx.configure(ZONE + SERVER)
    nginx.reload()
    equal(nginx.count(3, "/?k=a"), {429: 3})


@test
def a_killed_worker_is_reported_for(stage):
    stage.start_redis()
    nginx = stage.nginx(SHARED + SERVER)
    nginx.count(1, "/?k=a")
    until(lambda: stage.inspect("api", "a")["known"], "Redis knows the policy")
    passed = 1 + nginx.count(30, "/?k=a").get(200, 0)
    for pid in nginx.children():
        os.kill(pid, signal.SIGKILL)
        until(lambda: len(nginx.children()) == 2 and not server.alive(pid), "another worker takes its place")
        until(nginx.answers, "nginx answers")
        passed += nginx.count(5, "/?k=a").get(200, 0)
    assert passed > 8, passed
    until(lambda: abs(spent(stage, "a") - passed) < 0.5, f"{passed} are reported")


@test
def outages(stage):
    redis = stage.start_redis()
    nginx = stage.nginx("weir_redis @redis@ interval=50ms timeout=20ms;"
                        "weir_zone $arg_k zone=shut rate=100/d on_outage=closed;"
                        "weir_zone $arg_k zone=open rate=1/d on_outage=open; server { listen 127.0.0.1:@port@;"
                        "location /shut { weir zone=shut; empty_gif; } location /open { weir zone=open; empty_gif; } }")
    until(lambda: nginx.get("/shut?k=a").status == 200, "Redis is asked")
    redis.close()
    until(lambda: nginx.get("/shut?k=b").status == 503, "an outage is no client's fault")
    equal(nginx.get("/shut?k=b").getheader("RateLimit-Policy") is not None, True)
    equal(nginx.count(10, "/open?k=b"), {200: 10})
    assert "weir: " in nginx.logged()


# ---- what one sees ---------------------------------------------------------------------------------------------------

@test
def metrics_and_top(stage):
    stage.start_redis()
    nginx = stage.nginx("weir_stats_socket @folder@/stats;" + SHARED +
                        SERVER.replace("} }", "} location /metrics { weir_metrics; } }"), workers=3)
    nginx.count(1, "/?k=a")
    until(lambda: stage.inspect("api", "a")["known"], "Redis knows the policy")
    passed = 1 + nginx.count(20, "/?k=a")[200]
    answer = nginx.get("/metrics")
    equal((answer.status, answer.getheader("Content-Type")), (200, "text/plain; version=0.0.4"))
    assert 'weir_decisions_total{policy="api",result="allowed"' in answer.text, answer.text
    total = sum(int(line.split()[-1]) for line in answer.text.splitlines() if line.startswith("weir_decisions_total{")
                and 'result="allowed"' in line and 'policy="api"' in line)
    equal(total, passed, "decisions of all workers")
    path = os.path.join(nginx.folder, "stats")
    until(lambda: os.path.exists(path), "one worker listens")
    top = subprocess.run([WEIR, "top", path, "--frames", "1", "--interval", "200ms", "--json"], capture_output=True,
                         text=True, timeout=20, check=True)
    seen = json.loads(top.stdout)
    assert seen["pid"] in nginx.children(), seen
    equal([p["allowed"] for p in seen["policies"]], [passed])
    nginx.reload()
    until(lambda: os.path.exists(path), "one of the new workers listens")
    nginx.quit()
    assert not os.path.exists(path), "the socket stayed behind"


@test
def wrong_configurations(stage):
    wrong = {"weir_zone $arg_k zone=a rate=0/d;": "", "weir_zone $arg_k zone=a rate=10;": "not understood",
             "weir_zone $arg_k zone=a rate=10/x;": "not understood", "weir_zone $arg_k zone=a;": "needs zone",
             "weir_zone $arg_k rate=1/s;": "needs zone",
             "weir_zone $arg_k zone=a rate=1/s mode=strict;": "not understood",
             "weir_zone $arg_k zone=a rate=1/s; weir_zone $arg_k zone=a rate=1/s;": "another one",
             "weir_zone $arg_k zone=a rate=1/s mode=hybrid;": "needs weir_redis",
             "weir_zone $arg_k zone=a{b rate=1/s;": "",
             "server { weir zone=none; location / { } }": 'no weir_zone "none"',
             "weir_zone $arg_k zone=a rate=1/s; server { weir zone=a; weir off; location / { } }": "",
             "weir_zone $arg_k zone=a rate=1/s; server { weir zone=a cost=x; location / { } }": "is no number",
             "weir_redis redis://x; weir_redis redis://y;": "duplicate",
             "weir_redis redis://x interval=y;": "not understood",
             "weir_redis redis://x; weir_zone $arg_k zone=a rate=1/40d burst=100;": "", "weir_status 200;": "",
             "weir_keys 0; weir_zone $arg_k zone=a rate=1/s;": "out of range"}
    for http, said in wrong.items():
        holds, text = stage.nginx(http, start=False).check()
        assert not holds, http + " was accepted"
        assert said in text and "emerg" in text, f"{http}: {text}"
    holds, text = stage.nginx("weir_zone $arg_k zone=a rate=10r/s burst=20; weir_zone $arg_k zone=b rate=100/10s;"
                              "server { weir zone=a; weir zone=b; location / { } }", start=False).check()
    assert holds, text


@test
def under_load(stage):
    stage.start_redis()
    nginx = stage.nginx("weir_redis @redis@; weir_log_level info;"
                        "weir_zone $server_port zone=api rate=200/s burst=100;" + SERVER)
    nginx.get()
    until(lambda: stage.inspect("api", str(nginx.port))["known"], "Redis knows the policy")
    requests, took, refused = server.wrk(f"http://127.0.0.1:{nginx.port}/", seconds=2)
    passed = requests - refused
    assert refused > 0, "the load did not reach the limit"
    # burst, rate x time, what may be lent, one in doubt a key; the time is wrk's, which ends a little later
    assert 0.8 * 200 * took <= passed <= 100 + 200 * (took + 0.3) + 10 + 1, f"{passed} passed in {took} s"


def main():
    global MODULE
    missing = server.missing()
    if missing:
        print(f"1..1\nok 1 # SKIP without {', '.join(missing)}; ./run test --suite nginx installs what is needed")
        return 0
    MODULE = server.build_module(BUILD)
    failed = 0
    wanted = sys.argv[2:]
    chosen = [t for t in tests if not wanted or t.__name__ in wanted]
    print(f"1..{len(chosen)}")
    for number, function in enumerate(chosen, 1):
        with server.folder() as folder:
            stage = Stage(folder)
            try:
                function(stage)
                print(f"ok {number} - {function.__name__}", flush=True)
            except Exception:  # pylint: disable=broad-except
                failed += 1
                print(f"not ok {number} - {function.__name__}", flush=True)
                print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
                for nginx in stage.open:
                    print("".join("#   " + line + "\n" for line in nginx.logged().splitlines()[-15:]), flush=True)
            finally:
                stage.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
