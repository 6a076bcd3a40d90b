"""The servers, buckets and clients of `.ci/archive-cost` and `.ci/archive-drills`: Python's standard library only."""
import asyncio, hashlib, json, math, multiprocessing, os, random, re, shutil, signal, socket, subprocess, sys, threading, time, urllib.request

# The hash of nothing.
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
# All processes that were started here.
CHILDREN = []
ARCHIVE_KEY, ARCHIVE_SECRET = "archive", "archive-secret"


class Proxy(threading.Thread):
    """Passes connections to a port. Each answer waits for a time of a log-normal distribution, if there is one. While the bucket is away,
    open connections are dropped, and new ones as soon as they are accepted."""

    def __init__(self, port, median_ms=None, p99_ms=None):
        super().__init__(daemon=True)
        self.target, self.median = port, median_ms and median_ms / 1000
        self.sigma = math.log(p99_ms / median_ms) / 2.3263 if median_ms else 0
        self.is_away, self.open = False, set()
        self.ready = threading.Event()

    def run(self):
        asyncio.run(self.serve())

    async def serve(self):
        self.loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await server.serve_forever()

    def set_away(self, is_away):
        self.is_away = is_away
        self.loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in self.open if is_away])

    async def connection(self, reader, writer):
        if self.is_away:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self.open |= {writer, up_writer}
        asked = asyncio.Event()

        async def upward():
            while data := await reader.read(1 << 18):
                asked.set()
                up_writer.write(data)
                await up_writer.drain()
            up_writer.close()

        async def downward():
            while data := await up_reader.read(1 << 18):
                if asked.is_set() and self.median:
                    asked.clear()
                    await asyncio.sleep(self.median * math.exp(random.gauss(0, self.sigma)))
                writer.write(data)
                await writer.drain()
            writer.close()

        await asyncio.gather(upward(), downward(), return_exceptions=True)
        self.open -= {writer, up_writer}


class Server:
    """A server, with its addresses."""

    def __init__(self, shoal, folder, name, options, environment=None):
        self.log = open(os.path.join(folder, name + ".log"), "a")
        self.data = os.path.join(folder, name + ".data")
        command = [shoal, "serve", "--data", self.data, "--size", "6G", "--listen", "127.0.0.1:0", "--log", "warn", *options]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **(environment or {})})
        CHILDREN.append(self.child)
        self.at = {}
        is_on = lambda option: option in options and options[options.index(option) + 1] != "off"
        for _ in range(1 + sum(map(is_on, ("--resp", "--s3", "--metrics")))):
            line = self.child.stdout.readline()
            if not line:
                sys.exit(f'no server: {open(self.log.name).read()}')
            kind, address = line.split(None, 1)
            self.at[kind] = address.strip()

    @property
    def redis(self):
        return self.at["Redis"].split("//")[1]

    def metrics(self):
        """The values of all series, by name and labels."""
        text = urllib.request.urlopen(self.at["Metrics"], timeout=30).read().decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}

    def processor_s(self):
        fields = open(f"/proc/{self.child.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_peak(self):
        """The most bytes that were resident."""
        return int(re.search(r"VmHWM:\s+(\d+) kB", open(f"/proc/{self.child.pid}/status").read()).group(1)) << 10

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait()
        self.log.close()
        return code

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.log.close()


class FolderBucket:
    """A folder. It is away while it has another name."""

    def __init__(self, folder):
        self.folder, self.environment = os.path.join(folder, "bucket"), {}
        os.makedirs(self.folder)

    def url(self):
        return f"file://{self.folder}"

    def set_away(self, is_away):
        names = [self.folder, self.folder + ".away"]
        os.rename(*(names if is_away else reversed(names)))

    def stop(self):
        shutil.rmtree(self.folder)


class ShoalBucket:
    """Shoal's S3 server behind a proxy."""

    def __init__(self, shoal, folder, median_ms=None, p99_ms=None):
        keys = os.path.join(folder, "keys")
        subprocess.run([shoal, "key", "create", "--allow", "all *", "--key-file", keys], check=True, capture_output=True)
        self.server = Server(shoal, folder, "bucket", ["--resp", "off", "--metrics", "127.0.0.1:0", "--console", "off", "--key-file", keys, "--s3", "127.0.0.1:0", "--cache", "64M"])
        endpoint = self.server.at["S3"]
        text = subprocess.run([shoal, "key", "env", "--key-file", keys, "--endpoint", endpoint], check=True, capture_output=True, text=True).stdout
        self.environment = dict(re.findall(r"export (\w+)='?([^'\n]*)'?", text))
        self.environment.pop("AWS_ENDPOINT_URL", None), self.environment.pop("AWS_ENDPOINT_URL_S3", None)
        self.environment["AWS_EC2_METADATA_DISABLED"] = "true"
        put = ["curl", "-sf", "-X", "PUT", "-H", f"x-amz-content-sha256: {EMPTY}", "--aws-sigv4", f"aws:amz:{self.environment.get('AWS_REGION', 'us-east-1')}:s3"]
        subprocess.run([*put, "--user", f"{self.environment['AWS_ACCESS_KEY_ID']}:{self.environment['AWS_SECRET_ACCESS_KEY']}", f"{endpoint}/archive"], check=True)
        self.proxy = Proxy(int(re.search(r":(\d+)", endpoint.split("//")[1]).group(1)), median_ms, p99_ms)
        self.proxy.start()
        self.proxy.ready.wait()

    def url(self, prefix="store"):
        return f"s3://archive/{prefix}?endpoint=http://127.0.0.1:{self.proxy.port}"

    def set_away(self, is_away):
        self.proxy.set_away(is_away)

    def stop(self):
        self.server.stop()


class OtherBucket:
    """A store that somebody else wrote, versitygw or MinIO: its command for a port and a folder."""

    def __init__(self, folder, command):
        self.folder = os.path.join(folder, "other")
        os.makedirs(os.path.join(self.folder, "archive"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {"AWS_ACCESS_KEY_ID": ARCHIVE_KEY, "AWS_SECRET_ACCESS_KEY": ARCHIVE_SECRET, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        root = {"ROOT_ACCESS_KEY": ARCHIVE_KEY, "ROOT_SECRET_KEY": ARCHIVE_SECRET, "MINIO_ROOT_USER": ARCHIVE_KEY, "MINIO_ROOT_PASSWORD": ARCHIVE_SECRET}
        log = open(os.path.join(folder, "other.log"), "w")
        self.child = subprocess.Popen(command(self.port, self.folder), stdout=log, stderr=log, env={**os.environ, **root})
        CHILDREN.append(self.child)
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        sys.exit(f"nothing answers at port {self.port}: {open(log.name).read()}")

    def url(self):
        return f"s3://archive/store?endpoint=http://127.0.0.1:{self.port}"

    def stop(self):
        self.child.kill()
        self.child.wait()
        shutil.rmtree(self.folder)


class Redis:
    """A client of the Redis protocol that sends commands in batches. An error is an exception."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = self.socket.makefile("rb", 1 << 20)

    def reply(self):
        line = self.input.readline()
        kind, text = line[:1], line[1:-2]
        if kind == b"+":
            return text
        if kind == b":":
            return int(text)
        if kind == b"$":
            return None if text == b"-1" else self.input.read(int(text) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(text))]
        raise OSError(line.decode(errors="replace") or "the server closed the connection")

    def batch(self, commands):
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            for word in command:
                parts += (b"$%d\r\n" % len(word), word, b"\r\n")
        self.socket.sendall(b"".join(parts))
        return [self.reply() for _ in commands]

    def call(self, *words):
        return self.batch([[word if isinstance(word, bytes) else str(word).encode() for word in words]])[0]

    def wait_archived(self, seconds=120):
        if self.call("WAIT", 1, seconds * 1000) != 1:
            raise OSError(f"WAIT: the writes are not in the archive after {seconds} s")


BLOCK = random.Random(55).randbytes(8 << 20)
# Of 1,000 values: their bytes, from and to. 2.4 KB in the mean.
SMALL = [(800, 16, 256), (150, 256, 4 << 10), (40, 4 << 10, 32 << 10), (10, 32 << 10, 200_000)]
# With values of some megabytes.
LARGE = [(800, 16, 256), (150, 256, 4 << 10), (45, 4 << 10, 200_000), (5, 1_000_000, 4 << 20)]


def key(name, number):
    return b"%s:%07d" % (name.encode(), number)


def value(of, version=0, sizes=SMALL):
    """The bytes of a version of a key: another length, start and contents for each."""
    digest = hashlib.blake2b(b"%d %b" % (version, of), digest_size=16).digest()
    number = int.from_bytes(digest, "little")
    at, among = (number >> 20) % 1_000, 0
    for share, least, most in sizes:
        among += share
        if at < among:
            break
    length = least + (number >> 40) % (most - least + 1)
    start = (number >> 80) % (len(BLOCK) - length)
    return digest + BLOCK[start : start + length - len(digest)]


def writes(redis, keys, each, batch=200):
    """Sends `each(key)`, a command, for all keys, in batches."""
    for at in range(0, len(keys), batch):
        redis.batch([each(of) for of in keys[at : at + batch]])


def differences(redis, keys, expected, batch=200):
    """Keys whose value is another one than that of `expected(keys)`."""
    wrong = []
    for at in range(0, len(keys), batch):
        some = keys[at : at + batch]
        found = redis.call("MGET", *some)
        wrong += [of for of, is_now, was in zip(some, found, expected(some)) if is_now != was]
    return wrong


class Load:
    """A process that overwrites keys in batches, at a rate or as fast as the server answers; one write of 20 is a delete."""

    def __init__(self, address, keys, rate=0, connections=1):
        spawn = multiprocessing.get_context("spawn")
        self.rate, self.done, self.longest = spawn.Value("d", rate), spawn.Value("Q", 0), spawn.Value("d", 0)
        self.stopped, self.failures = spawn.Event(), spawn.Queue()
        self.processes = [spawn.Process(target=Load.run, daemon=True, args=(self, address, keys[at::connections], connections)) for at in range(connections)]
        for process in self.processes:
            process.start()

    def __getstate__(self):
        return {name: member for name, member in self.__dict__.items() if name != "processes"}

    def run(self, address, keys, connections):
        try:
            self.write(Redis(address), keys, connections)
        except Exception as error:
            self.failures.put(f"{type(error).__name__}: {error}")

    def write(self, redis, keys, connections):
        version, at, due = 1, 0, time.monotonic()
        while not self.stopped.is_set():
            rate = self.rate.value
            count = max(1, min(100, int(rate / connections / 10))) if rate else 100
            commands = []
            for number, of in enumerate(keys[at : at + count], at):
                is_delete = (number + version) % 20 == 0
                commands.append([b"DEL", of] if is_delete else [b"SET", of, value(of, version)])
            start = time.monotonic()
            redis.batch(commands)
            took = time.monotonic() - start
            with self.done.get_lock():
                self.done.value += len(commands)
                self.longest.value = max(self.longest.value, took)
            at += count
            if at >= len(keys):
                version, at = version + 1, 0
            # A server that was slow gets no burst afterwards.
            due = max(due + count * connections / rate, time.monotonic() - 1) if rate else time.monotonic()
            time.sleep(max(0, due - time.monotonic()))

    def failure(self):
        if not self.failures.empty():
            return self.failures.get()
        return next((f"a client ended with code {process.exitcode}" for process in self.processes if process.exitcode), None)

    def stop(self):
        self.stopped.set()
        for process in self.processes:
            process.join()


def end_all():
    """Ends what a failure left running."""
    for child in CHILDREN:
        if child.poll() is None:
            child.kill()
            child.wait()


def command(shoal, words, environment=None):
    """Runs a command; returns its output as JSON, and its seconds."""
    start = time.monotonic()
    done = subprocess.run([shoal, *words], capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: exit code {done.returncode}: {done.stderr.strip()[-1000:]} {done.stdout.strip()[-1000:]}")
    return (json.loads(done.stdout) if "--json" in words else done.stdout), time.monotonic() - start
