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
import traceback

sys.dont_write_bytecode = True # nothing is left in the tree
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nginx"))
from server import Redis, folder, until  # noqa: E402  pylint: disable=wrong-import-position

PROGRAM = os.path.join(sys.argv[1], "examples", "http-server")
WEIR = os.path.join(sys.argv[1], "tools", "weir")


class Server:
    def __init__(self, uri, limit=10):
        self.process = subprocess.Popen([PROGRAM, "0", uri, str(limit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        self.port = int(line.rsplit(":", 1)[1].strip("/\n"))

    def get(self, path="/", method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path)
        response = connection.getresponse()
        response.text = response.read().decode()
        connection.close()
        return response

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        _, err = self.process.communicate(timeout=10)
        return self.process.returncode, err

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def level(redis, policy, key):
    out = subprocess.run([WEIR, "inspect", policy, key, "--json", "--redis", redis.uri], capture_output=True, text=True,
                         timeout=10, check=False)
    return json.loads(out.stdout).get("level", -1e9)


def a_client_over_its_limit_gets_429(redis):
    server = Server(redis.uri)
    try:
        until(lambda: server.get("/strict").status == 200, "Redis answers")
        statuses = [server.get().status for _ in range(30)]
        assert 9 <= statuses.count(200) <= 13, statuses # 10, one that may be lent, and what a minute's rate brings
        assert set(statuses) == {200, 429}, statuses
        answer = server.get()
        assert answer.status == 429 and answer.text == "slow down\n", answer.text
        assert int(answer.getheader("Retry-After")) >= 1
        assert answer.getheader("RateLimit").startswith('"client";r=0;t='), answer.getheader("RateLimit")
        assert answer.getheader("RateLimit-Policy") == '"client";q=10;w=60'
    finally:
        server.close()


def strict_is_exact_over_two_servers(redis):
    servers = [Server(redis.uri, 20) for _ in range(2)]
    try:
        for server in servers:
            until(lambda s=server: s.get().status != 503, "it serves")
        until(lambda: servers[0].get("/strict").status == 200, "Redis answers")
        passed = [1]
        until(lambda: servers[1].get("/strict").status == 200 and passed.append(1) is None, "Redis answers the other")

        def ask(server):
            for _ in range(15):
                if server.get("/strict").status == 200:
                    passed.append(1)

        threads = [threading.Thread(target=ask, args=(servers[i % 2],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 20 <= len(passed) <= 21, len(passed) # 21: a token comes back every 3 s
        answer = servers[0].get("/strict")
        assert answer.status == 429 and answer.getheader("Retry-After") in ("1", "2", "3"), answer.headers.items()
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


def the_end_loses_nothing(redis):
    for how in (signal.SIGTERM, signal.SIGINT):
        server = Server(redis.uri, 1000)
        try:
            until(lambda s=server: s.get("/strict").status == 200, "Redis answers")
            before = level(redis, "client", "127.0.0.1") if how == signal.SIGINT else 1000
            passed = [server.get().status for _ in range(40)].count(200)
            code, err = server.end(how)
            assert code == 0 and "not reported" not in err, (code, err)
            after = level(redis, "client", "127.0.0.1")
            assert before - passed - 1 <= after <= before - passed + 30, (before, passed, after) # 16 come back a second
        finally:
            server.close()


def main():
    tests = [a_client_over_its_limit_gets_429, strict_is_exact_over_two_servers,
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
