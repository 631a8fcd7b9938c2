# SPDX-License-Identifier: MIT
"""What a limit costs nginx: nginx.py BUILD [--json] [--quick]. Needs nginx, nginx-dev, wrk and redis-server.

The same nginx, one worker on one CPU, wrk on another: without a limit, with limit_req, with weir in memory, and with
weir reconciled with a Redis. All in turn, again and again; a figure is the median over the rounds of the ratio within
a round. Besides requests a second it tells the worker's CPU time a request, which does not depend on how wrk kept up,
and, by valgrind where that is installed, the instructions that its event loop needs for a request, which depend on
nothing else that runs.
"""
import glob
import http.client
import json
import os
import shutil
import signal
import statistics
import sys

sys.dont_write_bytecode = True # nothing is left in the tree
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "nginx"))
import server  # noqa: E402  pylint: disable=wrong-import-position

COUNTED = (200, 1200) # requests; what the second run takes more is the cost of the difference

VARIANTS = ("no limit", "limit_req", "weir local", "weir hybrid")

# key, rate of limit_req, of weir: far above the load, or so low that nearly all is denied
WORKLOADS = {
    "allowed, one key": ("$binary_remote_addr", "rate=1000000r/s", "rate=1000000/s burst=1000000"),
    "allowed, 10,000 keys": ("$arg_k", "rate=1000000r/s", "rate=1000000/s burst=1000000"),
    "denied, one key": ("$binary_remote_addr", "rate=1r/m", "rate=1/m"),
}

KEYS = """
local n = 0
request = function()
    n = (n * 7919 + 104729) % 10000
    return wrk.format("GET", "/?k=user" .. n)
end
"""


def configuration(variant, workload):
    key, req, weir = WORKLOADS[workload]
    listen = "server { listen 127.0.0.1:@port@; keepalive_requests 1000000000; location / { %s empty_gif; } }"
    if variant == "limit_req":
        return (f"limit_req_zone {key} zone=z:16m {req}; limit_req_status 429; limit_req_log_level info;" +
                listen % f"limit_req zone=z {'burst=1000000 nodelay' if 'allowed' in workload else ''};")
    if variant.startswith("weir"):
        # a prefix each: what the one before was promised is not free for a minute
        prefix = "".join(c for c in workload if c.isalnum())
        redis = f"weir_redis @redis@ prefix={prefix};" if variant == "weir hybrid" else ""
        return (f"{redis} weir_log_level info; weir_zone {key} zone=z {weir};" +
                listen % "weir zone=z; weir_headers off;")
    return listen % ""


def cpu(pid):
    """Seconds that the process has run."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def prepare(folder, module, redis, variant, workload, kind=server.Nginx):
    home = os.path.join(folder, "".join(c for c in variant + workload if c.isalnum()))
    shutil.rmtree(home, ignore_errors=True)
    os.mkdir(home)
    nginx = kind(home, module, configuration(variant, workload), workers=1, redis=redis.uri)
    # quiet: what is denied is not logged by either module
    with open(nginx.conf, encoding="ascii") as f:
        text = f.read().replace(" info; events", " error; events")
    with open(nginx.conf, "w", encoding="ascii") as f:
        f.write(text.replace("worker_processes 1;", "worker_processes 1; worker_cpu_affinity 01;"))
    return nginx


class Counted(server.Nginx):
    def command(self, *more):
        return ["valgrind", "-q", "--tool=callgrind", "--trace-children=yes",
                "--separate-threads=yes", f"--callgrind-out-file={self.folder}/callgrind.%p", *super().command(*more)]

    def instructions(self, requests):
        """Of the worker's event loop, from its start to its end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        for i in range(requests):
            connection.request("GET", f"/?k=user{i * 7919 % 10000}")
            connection.getresponse().read()
        connection.close()
        worker = self.children()[0]
        self.quit(signal.SIGQUIT)
        for name in glob.glob(f"{self.folder}/callgrind.{worker}-01"):
            with open(name, encoding="utf-8") as f:
                for line in f:
                    if line.startswith("totals:"):
                        return int(line.split()[1])
        raise SystemExit("nginx: valgrind counted nothing")


def count(folder, module, redis, variant, workload):
    """Instructions a request; None without valgrind."""
    if not shutil.which("valgrind"):
        return None
    totals = []
    for requests in COUNTED:
        nginx = prepare(folder, module, redis, variant, workload, Counted)
        try:
            totals.append(nginx.start().instructions(requests))
        finally:
            nginx.close()
    return round((totals[1] - totals[0]) / (COUNTED[1] - COUNTED[0]))


class Bench:
    def __init__(self, folder, module, redis, workload):
        self.lua = None
        if "keys" in workload:
            self.lua = os.path.join(folder, "keys.lua")
            with open(self.lua, "w", encoding="ascii") as f:
                f.write(KEYS)
        self.servers = {v: prepare(folder, module, redis, v, workload).start() for v in VARIANTS}

    def close(self):
        for nginx in self.servers.values():
            nginx.close()

    def trial(self, variant, workload):
        """(requests a second, us of CPU a request); the answers must be those that the workload is about."""
        nginx = self.servers[variant]
        pid = nginx.children()[0]
        for _ in range(3): # a busy machine may give nobody a CPU for a second
            before = cpu(pid)
            requests, took, refused = server.wrk(f"http://127.0.0.1:{nginx.port}/", 1, 1, 16, self.lua)
            used = cpu(pid) - before
            if requests > 0:
                break
        if variant == "no limit" or "allowed" in workload:
            wrong = refused if variant != "weir hybrid" else max(0, refused - requests // 10)
        else:
            wrong = requests - refused > requests // 100
        if wrong or requests == 0:
            raise SystemExit(f"nginx: {variant}, {workload}: {refused} of {requests} were refused")
        return requests / took, used / requests * 1e6


def run(module, rounds):
    with server.folder() as folder:
        redis = server.Redis(folder)
        try:
            for workload in WORKLOADS:
                bench = Bench(folder, module, redis, workload)
                try:
                    for variant in VARIANTS: # once for nothing: every key has been seen, here and by Redis
                        url = f"http://127.0.0.1:{bench.servers[variant].port}/"
                        server.wrk(url, 4 if bench.lua else 1, 1, 16, bench.lua)
                    seen = {variant: [] for variant in VARIANTS}
                    for i in range(rounds):
                        for j in range(len(VARIANTS)):
                            variant = VARIANTS[(i + j) % len(VARIANTS)]
                            seen[variant].append(bench.trial(variant, workload))
                finally:
                    bench.close()
                for variant in VARIANTS:
                    yield row(workload, variant, seen, count(folder, module, redis, variant, workload))
        finally:
            redis.close()


def row(workload, variant, seen, instructions):
    pairs = list(zip(seen[variant], seen["no limit"]))
    return {"workload": workload, "variant": variant,
            "requests_per_s": round(statistics.median(r for r, _ in seen[variant])),
            "cpu_us": round(statistics.median(c for _, c in seen[variant]), 2),
            "requests_ratio": round(statistics.median(a[0] / b[0] for a, b in pairs), 3),
            "cpu_added_us": round(statistics.median(a[1] - b[1] for a, b in pairs), 2),
            "instructions": instructions}


def main():
    build, words = sys.argv[1], sys.argv[2:]
    if set(words) - {"--json", "--quick"}:
        print("nginx.py BUILD [--json] [--quick]", file=sys.stderr)
        return 2
    missing = server.missing()
    if missing:
        print("nginx: not there: " + ", ".join(missing), file=sys.stderr)
        return 2
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}) # wrk's and Redis' CPU; the workers choose their own
    module = server.build_module(build)
    if "--json" not in words:
        print(f"{'workload':22} {'variant':12} {'requests/s':>10} {'of none':>8} {'CPU us':>8} {'added':>7} "
              f"{'instructions':>13}")
    for r in run(module, 2 if "--quick" in words else 7):
        if "--json" in words:
            print(json.dumps(r), flush=True)
        else:
            print(f"{r['workload']:22} {r['variant']:12} {r['requests_per_s']:10} {r['requests_ratio']:8.3f} "
                  f"{r['cpu_us']:8.2f} {r['cpu_added_us']:7.2f} {r['instructions'] or '-':>13}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
