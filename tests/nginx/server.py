# SPDX-License-Identifier: MIT
"""nginx and redis-server of one's own: in a temporary folder, on unix sockets and a free port, ended by their pids.

Owns processes and the folder; must not know what is tested with them.
"""
import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

WAIT_S = 20
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "nginx")


def missing():
    """What must be installed for any of this."""
    commands = [name for name in ("nginx", "wrk", "make", "redis-server") if not shutil.which(name)]
    return commands + ([] if os.path.exists("/usr/share/nginx/src/conf_flags") else ["nginx-dev"])


def build_module(build):
    """The module, made anew where a source of it is newer."""
    build = os.path.abspath(build)
    out = os.path.join(build, "nginx")
    module = os.path.join(out, "ngx_http_weir_module.so")
    include = os.path.join(EXAMPLE, "..", "..", "include", "weir")
    sources = [os.path.join(folder, name) for folder in (EXAMPLE, include) for name in os.listdir(folder)]
    if not os.path.exists(module) or any(os.path.getmtime(s) > os.path.getmtime(module) for s in sources):
        subprocess.run([os.path.join(EXAMPLE, "build.sh"), out, build], check=True)
    return module


def until(condition, what):
    """Waits for a condition; a test that waits in vain fails."""
    end = time.monotonic() + WAIT_S
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("never: " + what)
        time.sleep(0.02)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Redis:
    def __init__(self, folder):
        self.socket = os.path.join(folder, "redis.sock")
        self.uri = "unix://" + self.socket
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL)
        until(lambda: os.path.exists(self.socket), "redis-server listens")

    def close(self):
        self.process.kill()
        self.process.wait()


class Nginx:
    """http: what stands inside http { }; @port@, @redis@ (its URI) and @folder@ are filled in."""

    def __init__(self, folder, module, http, workers=2, redis="", events=""):
        self.folder, self.module, self.workers, self.redis, self.events = folder, module, workers, redis, events
        self.port = free_port()
        self.pid_file = os.path.join(folder, "nginx.pid")
        self.log = os.path.join(folder, "error.log")
        os.makedirs(os.path.join(folder, "www"), exist_ok=True)
        with open(os.path.join(folder, "www", "index.html"), "w", encoding="ascii") as f:
            f.write("hello\n")
        self.configure(http)
        self.master = None

    def configure(self, http):
        load = f"load_module {self.module};" if self.module else ""
        temporary = "".join(f"{name}_temp_path {self.folder}/{name};" for name in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;" if os.getuid() == 0 else ""
        text = f"""{load} {user} daemon off; worker_processes {self.workers}; pid {self.pid_file};
            error_log {self.log} info; events {{ worker_connections 512; {self.events} }}
            http {{ access_log off; {temporary} root {self.folder}/www;
            {self.fill(http)} }}"""
        self.conf = os.path.join(self.folder, "nginx.conf")
        with open(self.conf, "w", encoding="ascii") as f:
            f.write(text)

    def fill(self, text):
        return text.replace("@port@", str(self.port)).replace("@redis@", self.redis).replace("@folder@", self.folder)

    def command(self, *more):
        return ["nginx", "-p", self.folder, "-e", self.log, "-c", self.conf, *more]

    def check(self):
        """nginx -t: (does it hold, what is said)."""
        done = subprocess.run(self.command("-t"), capture_output=True, text=True, timeout=WAIT_S, check=False)
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return done.returncode == 0, done.stderr + f.read()

    def start(self):
        with open(os.path.join(self.folder, "output"), "wb") as output:
            self.master = subprocess.Popen(self.command(), stderr=output)
        until(self.answers, "nginx answers: " + self.logged())
        return self

    def answers(self):
        if self.master.poll() is not None:
            raise AssertionError("nginx ended: " + self.logged())
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def logged(self):
        text = ""
        for name in ("output", "error.log"):
            with contextlib.suppress(OSError):
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as f:
                    text += f.read()
        return text

    def children(self):
        with contextlib.suppress(OSError):
            with open(f"/proc/{self.master.pid}/task/{self.master.pid}/children", encoding="ascii") as f:
                return [int(pid) for pid in f.read().split()]
        return []

    def reload(self):
        """Returns when every old worker has ended and the new ones serve."""
        old = self.children()
        self.master.send_signal(signal.SIGHUP)
        until(lambda: not any(alive(pid) for pid in old) and len(self.children()) == self.workers, "a reload is done")
        until(self.answers, "nginx answers")

    def get(self, path="/", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        response.text = response.read().decode("latin-1")
        connection.close()
        return response

    def count(self, n, path="/", headers=None):
        """How many of n requests are answered with each status."""
        counts = {}
        for _ in range(n):
            status = self.get(path, headers).status
            counts[status] = counts.get(status, 0) + 1
        return counts

    def quit(self, how=signal.SIGQUIT):
        if self.master and self.master.poll() is None:
            self.master.send_signal(how)
            self.master.wait(WAIT_S)

    def close(self):
        if self.master and self.master.poll() is None:
            workers = self.children()
            self.master.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.master.wait(5)
            if self.master.poll() is None:
                self.master.kill()
                self.master.wait()
            for pid in workers:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def folder():
    path = tempfile.mkdtemp(prefix="weir-nginx-")
    try:
        yield path
    finally:
        shutil.rmtree(path)


def wrk(url, seconds=1.0, threads=1, connections=8, lua=None):
    """(requests, seconds, answers that were not 2xx or 3xx)."""
    line = ["wrk", "-t", str(threads), "-c", str(connections), "-d", f"{max(1, round(seconds))}s"]
    if lua:
        line += ["-s", lua]
    out = subprocess.run(line + [url], capture_output=True, text=True, timeout=120, check=True).stdout
    refused = requests = took = 0
    for text in out.splitlines():
        words = text.split()
        if "requests in" in text:
            requests = int(words[0])
            took = float(words[3].rstrip(",").replace("ms", "e-3").replace("s", "").replace("m", "e0"))
        elif "Non-2xx" in text:
            refused = int(words[-1])
    return requests, took, refused
