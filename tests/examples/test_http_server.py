# SPDX-License-Identifier: MIT
"""examples/http_server.c asked as a client would: test_http_server.py BUILD. TAP on standard output."""
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True # nothing is left in the tree
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nginx"))
from server import Redis, folder, until  # noqa: E402  pylint: disable=wrong-import-position

PROGRAM = os.path.join(sys.argv[1], "examples", "http-server")
WEIR = os.path.join(sys.argv[1], "tools", "weir")
PATIENCE_S = 30
ATTEMPTS = 5 # where a machine that stands still may spoil one: of a slice that nobody tells of in time all is charged


class Server:
    def __init__(self, uri, limit=10):
        self.process = subprocess.Popen([PROGRAM, "0", uri, str(limit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1].strip("/\n"))

    def get(self, path="/", method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request(method, path)
        response = connection.getresponse()
        response.text = response.read().decode()
        connection.close()
        return response

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, err

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def level(redis, policy, key):
    out = subprocess.run([WEIR, "inspect", policy, key, "--json", "--redis", redis.uri, "--timeout", "20s"],
                         capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return json.loads(out.stdout).get("level", -1e9)


def denied(server, path="/"):
    """An answer that is no admission, and the first one of many."""
    answer = server.get(path)
    return answer if answer.status == 429 else None


def admits_its_limit(path):
    """Ten at once; True where it was not fewer."""
    redis = Redis(path)
    try:
        server = Server(redis.uri)
        try:
            until(lambda: server.get("/strict").status == 200, "Redis answers")
            began = time.monotonic()
            statuses = [server.get().status for _ in range(30)]
            most = 10 + 1 + 1 + (time.monotonic() - began) / 6 # one that may be lent, and what a minute's rate brings
            assert statuses.count(200) <= most, statuses
            assert set(statuses) == {200, 429}, statuses
            return statuses.count(200) >= 9
        finally:
            server.close()
    finally:
        redis.close()


def a_client_is_admitted_its_limit(_):
    for _attempt in range(ATTEMPTS):
        with folder() as path:
            if admits_its_limit(path):
                return
    raise AssertionError("less than the limit, each time")


def a_client_over_its_limit_gets_429(redis):
    server = Server(redis.uri)
    try:
        until(lambda: server.get("/strict").status == 200, "Redis answers")
        answer = until(lambda: denied(server), "over the limit")
        assert answer.text == "slow down\n", answer.text
        assert int(answer.getheader("Retry-After")) >= 1
        assert answer.getheader("RateLimit").startswith('"client";r=0;t='), answer.getheader("RateLimit")
        assert answer.getheader("RateLimit-Policy") == '"client";q=10;w=60'
    finally:
        server.close()


def strict_is_exact_over_two_servers(redis):
    servers = [Server(redis.uri, 20) for _ in range(2)]
    try:
        for server in servers:
            until(lambda s=server: "\nweir_store_up 1\n" in s.get("/metrics").text, "Redis answers")
        began = time.monotonic()
        passed, doubtful = [], []

        def ask(server):
            status = server.get("/strict").status
            if status == 200:
                passed.append(1)
            elif status != 429: # too late for an answer: it may have been charged all the same
                doubtful.append(status)
            return status

        def ask_often(server):
            for _ in range(15):
                ask(server)

        threads = [threading.Thread(target=ask_often, args=(servers[i % 2],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        most = 20 + 1 + (time.monotonic() - began) / 3 # a token comes back every 3 s
        assert 20 - len(doubtful) <= len(passed) <= most, (len(passed), doubtful, most)
        answer = until(lambda: denied(servers[0], "/strict"), "over the limit")
        assert answer.getheader("Retry-After") in ("1", "2", "3"), answer.headers.items()
    finally:
        for server in servers:
            server.close()


def an_outage_is_503_and_others_are_served_meanwhile(redis):
    server = Server(redis.uri)
    try:
        until(lambda: server.get("/strict").status == 200, "Redis answers")
        redis.process.send_signal(signal.SIGSTOP)
        waiting = socket.create_connection(("127.0.0.1", server.port), 10)
        waiting.sendall(b"GET /strict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert server.get("/metrics").status == 200 # while that one waits
        answer = b""
        while chunk := waiting.recv(4096):
            answer += chunk
        waiting.close()
        assert answer.startswith(b"HTTP/1.1 503"), answer
        redis.process.send_signal(signal.SIGCONT)
        until(lambda: server.get("/strict").status == 200, "Redis is back")
    finally:
        redis.process.send_signal(signal.SIGCONT)
        server.close()


def metrics_and_methods(redis):
    server = Server(redis.uri)
    try:
        server.get()
        text = server.get("/metrics").text
        assert 'weir_decisions_total{policy="client",result="allowed"' in text, text
        assert server.get(method="POST").status == 405
    finally:
        server.close()


def is_exact(redis, how):
    """Serves for a while and ends. Nothing is lost; True where nothing else was charged either."""
    server = Server(redis.uri, 1000)
    try:
        until(lambda: server.get("/strict").status == 200, "Redis answers")
        before, began = level(redis, "client", "127.0.0.1"), time.monotonic()
        before = 1000 if before < 0 else before # nobody has asked yet
        passed = [server.get().status for _ in range(40)].count(200)
        code, err = server.end(how)
        assert code == 0 and "not reported" not in err, (code, err)
        after = level(redis, "client", "127.0.0.1")
        back = (time.monotonic() - began) * 1000 / 60
        assert after <= before - passed + back + 1, (before, passed, after, back)
        return before - passed - 1 <= after
    finally:
        server.close()


def the_end_loses_nothing(redis):
    for how in (signal.SIGTERM, signal.SIGINT):
        assert any(is_exact(redis, how) for _ in range(ATTEMPTS)), "more was charged than passed, each time"


def main():
    tests = [a_client_is_admitted_its_limit, a_client_over_its_limit_gets_429, strict_is_exact_over_two_servers,
             an_outage_is_503_and_others_are_served_meanwhile, metrics_and_methods, the_end_loses_nothing]
    failed = 0
    print(f"1..{len(tests)}")
    for number, function in enumerate(tests, 1):
        with folder() as path:
            redis = Redis(path)
            try:
                function(redis)
                print(f"ok {number} - {function.__name__}", flush=True)
            except Exception:  # pylint: disable=broad-except
                failed += 1
                print(f"not ok {number} - {function.__name__}", flush=True)
                print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), flush=True)
            finally:
                redis.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
