#!/usr/bin/env python3
"""A server that speaks the Hub's HTTP API, for tests: one port for the Hub, another for the server of large files.

usage: hub_server.py FOLDER

FOLDER/models/ORG/NAME/ and FOLDER/datasets/ORG/NAME/ have the files of repos at `main`; NAME@REVISION those of another
revision, its slashes as %. Files of 1,000 bytes or more are large (LFS): the Hub redirects to the other port, and their
ETag is a SHA-256. FOLDER/rules.json says what goes wrong; a list is used up from its front:

  token: TEXT             accepted; another one is invalid
  gated: [REPO], private: [REPO]
  renamed: {OLD: NEW}     with a relative redirect
  api_status: [503, ...]  of lists of files
  status: {FILE: [500]}   of contents, before the others
  cut: {FILE: [BYTES]}    the connection is reset after that number of bytes; null: not
  stall: {FILE: [BYTES]}  nothing is sent for a minute after that number of bytes
  corrupt: {FILE: [1]}    the last byte is wrong
  short: {FILE: [BYTES]}  a complete response, of the first bytes alone
  no_range: true          Range is ignored
  no_blobs: true          lists have no sizes and ETags
  slow: SECONDS           before each content
  claim: {FILE: BYTES}    size in lists

Writes FOLDER/ports, "HUB OTHER", and FOLDER/requests, a JSON object a line. Ends when its standard input does.
"""
import hashlib
import http.server
import json
import os
import pathlib
import socket
import struct
import sys
import threading
import time
import urllib.parse

FOLDER = pathlib.Path(sys.argv[1])
LARGE = 1000
LOCK = threading.Lock()
RULES = {"text": None, "now": {}}


def rules():
    path = FOLDER / "rules.json"
    text = path.read_text() if path.exists() else "{}"
    if text != RULES["text"]:
        RULES.update(text=text, now=json.loads(text))
    return RULES["now"]


def take(name, file=None):
    """The next entry of a rule's list, of the file if it has lists of files."""
    with LOCK:
        entries = rules().get(name, [])
        if file is not None:
            entries = entries.get(file, []) if entries else []
        return entries.pop(0) if entries else None


def files_of(repo):
    return sorted(str(path.relative_to(repo)) for path in repo.rglob("*") if path.is_file())


def commit_of(repo):
    digest = hashlib.sha1(str(repo.relative_to(FOLDER)).encode())
    for name in files_of(repo):
        digest.update(name.encode() + (repo / name).read_bytes())
    return digest.hexdigest()


def etag_of(content):
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of_hub = True

    def log_message(self, *arguments):
        pass

    def answer(self, status, headers=(), body=b"", cut=None, stall=None):
        with LOCK, (FOLDER / "requests").open("a") as log:
            log.write(json.dumps({
                "server": "hub" if self.of_hub else "other", "method": self.command, "path": self.path,
                "status": status, "range": self.headers.get("Range"), "if_range": self.headers.get("If-Range"),
                "authorization": self.headers.get("Authorization")}) + "\n")
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        end = cut if cut is not None else stall
        self.wfile.write(body if end is None else body[:end])
        self.wfile.flush()
        if stall is not None:
            time.sleep(60)
        if cut is not None:
            # A reset, and not the end of the connection.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            time.sleep(0.05)
        if end is not None:
            self.close_connection = True
            self.connection.close()

    def reject(self, status, code, message):
        self.answer(status, [("X-Error-Code", code), ("X-Error-Message", message)], message.encode())

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.urlsplit(self.path).path
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        if not self.of_hub:
            return self.content(FOLDER / "/".join(parts))
        api = parts[0] == "api"
        parts = parts[1:] if api else parts
        kind = parts[0] if parts[0] in ("models", "datasets") else "models"
        parts = parts[1:] if parts[0] == kind else parts
        name, rest = "/".join(parts[:2]), parts[2:]
        if name in rules().get("renamed", {}):
            new = self.path.replace(name, rules()["renamed"][name], 1)
            return self.answer(307, [("Location", new)])
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token != rules().get("token", "secret"):
            return self.reject(401, "", "Invalid credentials in Authorization header")
        hidden = name in rules().get("private", []) and not token
        if hidden or not (FOLDER / kind / name).is_dir():
            return self.reject(404 if token else 401, "RepoNotFound", "Repository not found")
        revision = rest[1] if len(rest) > 1 else "main"
        repo = self.repo_at(kind, name, revision)
        if repo is None:
            return self.reject(404, "RevisionNotFound", "Invalid rev id: " + revision)
        if api:
            return self.tree(repo) if rest and rest[0] == "tree" else self.list(repo)
        if name in rules().get("gated", []):
            return self.reject(403 if token else 401, "GatedRepo", "Access to this repo is restricted")
        self.resolve(repo, "/".join(rest[2:]))

    def repo_at(self, kind, name, revision):
        main = FOLDER / kind / name
        others = sorted(main.parent.glob(main.name + "@*"))
        for repo in [main, *others]:
            known = "main" if repo == main else repo.name.split("@", 1)[1].replace("%", "/")
            if revision in (known, commit_of(repo)):
                return repo
        return None

    def list(self, repo):
        status = take("api_status")
        if status:
            return self.answer(status)
        siblings = []
        for name in files_of(repo):
            entry, content = {"rfilename": name}, (repo / name).read_bytes()
            if "blobs=true" in self.path and not rules().get("no_blobs"):
                entry.update(size=len(content), blobId=hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())
                if len(content) >= LARGE:
                    entry["lfs"] = {"sha256": etag_of(content), "size": len(content), "pointerSize": 130}
            claimed = rules().get("claim", {}).get(name)
            if claimed:
                entry.update(size=claimed, lfs={"sha256": etag_of(content), "size": claimed})
            siblings.append(entry)
        body = json.dumps({"id": "org/name", "sha": commit_of(repo), "siblings": siblings}).encode()
        self.answer(200, [("Content-Type", "application/json")], body)

    def tree(self, repo):
        """What huggingface_hub asks for."""
        entries = []
        for name in files_of(repo):
            content = (repo / name).read_bytes()
            entry = {"type": "file", "path": name, "size": len(content),
                     "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
            if len(content) >= LARGE:
                entry["lfs"] = {"oid": etag_of(content), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self.answer(200, [("Content-Type", "application/json")], json.dumps(entries).encode())

    def resolve(self, repo, name):
        path = repo / name
        if not path.is_file():
            return self.reject(404, "EntryNotFound", "Entry not found")
        content = path.read_bytes()
        headers = [("X-Repo-Commit", commit_of(repo)), ("X-Linked-Etag", '"%s"' % etag_of(content)),
                   ("X-Linked-Size", str(len(content)))]
        if len(content) < LARGE:
            return self.content(path, [*headers, ("ETag", '"%s"' % etag_of(content))])
        host = self.headers["Host"].split(":")[0]
        file = urllib.parse.quote(str(path.relative_to(FOLDER)))
        where = "http://%s:%d/%s?Signature=x" % (host, OTHER.server_port, file)
        self.answer(302, [*headers, ("Location", where)])

    def content(self, path, headers=()):
        time.sleep(rules().get("slow", 0))
        status = take("status", path.name)
        if status:
            return self.answer(status)
        content = path.read_bytes()
        etag = '"cdn-%s"' % hashlib.md5(content).hexdigest()
        if not headers:
            headers = [("ETag", etag)]
        if take("corrupt", path.name):
            content = content[:-1] + bytes([content[-1] ^ 1])
        content = content[:take("short", path.name)]
        ends = {"cut": take("cut", path.name), "stall": take("stall", path.name)}
        wanted, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if not wanted or rules().get("no_range") or (condition and condition != etag):
            return self.answer(200, headers, content, **ends)
        first = int(wanted.removeprefix("bytes=").split("-")[0])
        if first >= len(content):
            return self.answer(416)
        headers = [*headers, ("Content-Range", "bytes %d-%d/%d" % (first, len(content) - 1, len(content)))]
        self.answer(206, headers, content[first:], **ends)


class OtherHandler(Handler):
    of_hub = False


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):  # clients end transfers
        pass


HUB, OTHER = Server(("127.0.0.1", 0), Handler), Server(("127.0.0.1", 0), OtherHandler)
for server in (HUB, OTHER):
    threading.Thread(target=server.serve_forever, daemon=True).start()
(FOLDER / "ports.new").write_text("%d %d" % (HUB.server_port, OTHER.server_port))
os.rename(FOLDER / "ports.new", FOLDER / "ports")
sys.stdin.read()
os._exit(0)
