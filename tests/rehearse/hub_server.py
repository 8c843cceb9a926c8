"""A double of the model hub on 127.0.0.1: models and data sets out of a folder.

    python hub_server.py FOLDER     # prints its address, and ends with the process that started it

FOLDER holds ``models/<owner>/<name>/…`` and ``datasets/<owner>/<name>/…``. Each request is a line
of ``FOLDER/requests.log``. ``FOLDER/faults.json``, read anew for each request, makes it misbehave:

    {"gated": [ids], "missing": [ids], "once": {"part of a path": status}, "down": false}

A gated repository answers 401 without a token and 403 with one. What stands under ``once`` answers
with that status the first time. A hub that is down closes every connection.
"""

import functools
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

API = re.compile(
    r"/api/(models|datasets)/([^/]+/[^/]+)"
    r"(?:/(revision|tree|paths-info|refs|auth-check)(?:/([^/]+))?(?:/(.*))?)?$"
)
RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")


def read_card(text: str) -> dict:
    """The YAML at the head of a README, between two lines of dashes."""
    return yaml.safe_load(text.split("---")[1])


def etag(path: Path) -> str:
    return _digest_of(path, path.stat().st_mtime_ns)


@functools.cache
def _digest_of(path: Path, changed: int) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


class Hub:
    """The repositories of a folder, and how they misbehave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.happened: set[str] = set()  # faults that happen once

    def faults(self) -> dict:
        file = self.folder / "faults.json"
        return json.loads(file.read_text()) if file.is_file() else {}

    def has(self, kind: str, repo: str) -> bool:
        missing = self.faults().get("missing", ())
        return repo not in missing and (self.folder / kind / repo).is_dir()

    def is_gated(self, repo: str) -> bool:
        return repo in self.faults().get("gated", ())

    def fault_of(self, path: str) -> int | None:
        """The status with which a path is refused this time."""
        with self.lock:
            for part, status in self.faults().get("once", {}).items():
                if part in path and part not in self.happened:
                    self.happened.add(part)
                    return status
        return None

    def files(self, kind: str, repo: str) -> dict[str, Path]:
        root = self.folder / kind / repo
        found = sorted(path for path in root.rglob("*") if path.is_file())
        return {str(path.relative_to(root)): path for path in found}

    def commit(self, kind: str, repo: str) -> str:
        files = [f"{name} {etag(path)}" for name, path in self.files(kind, repo).items()]
        return hashlib.sha1(" ".join([kind, repo, *files]).encode()).hexdigest()

    def log(self, line: str) -> None:
        with self.lock, (self.folder / "requests.log").open("a") as log:
            log.write(f"{line}\n")


class Handler(BaseHTTPRequestHandler):
    """Answers the requests that huggingface_hub and datasets make."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, message.encode(), X_Error_Code=code, X_Error_Message=message)

    def handle_any(self) -> None:
        posted = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        path = unquote(url.path)
        if self.hub.faults().get("down"):
            self.close_connection = True
            return
        if status := self.hub.fault_of(path):
            self.answer(status, b"try later", Retry_After="1")
            return
        if match := API.match(path):
            kind, repo, what, _, inside = match.groups()
            if self.admits(kind, repo, reads_files=what == "auth-check"):
                self.answer_api(kind, repo, what, inside or "", posted, parse_qs(url.query))
        elif match := RESOLVE.match(path):
            kind = "datasets" if match[1] else "models"
            if self.admits(kind, match[2], reads_files=True):
                self.answer_file(kind, match[2], match[4])
        else:
            self.answer(404)

    do_GET = do_HEAD = do_POST = handle_any

    def admits(self, kind: str, repo: str, reads_files: bool) -> bool:
        """Whether a repository is there and, for its files, open; else it has been refused."""
        has_token = bool(self.headers.get("Authorization"))
        if not self.hub.has(kind, repo):
            self.refuse(404 if has_token else 401, "RepoNotFound", "Repository not found")
            return False
        if reads_files and self.hub.is_gated(repo):
            message = f"Access to {repo} is restricted. You must have access to it and be logged in"
            self.refuse(403 if has_token else 401, "GatedRepo", message)
            return False
        return True

    def answer_api(
        self,
        kind: str,
        repo: str,
        what: str | None,
        inside: str,
        posted: bytes,
        query: Mapping[str, list[str]],
    ) -> None:
        commit = self.hub.commit(kind, repo)
        if what == "auth-check":
            self.answer(200)
        elif what == "refs":
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
            self.answer_json({"branches": [main], "tags": [], "converts": []})
        elif what == "paths-info":
            self.answer_json(self.path_entries(kind, repo, posted))
        elif what == "tree":
            recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
            entries = self.tree_entries(kind, repo, inside, recursive)
            if entries:
                self.answer_json(entries)
            else:
                self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            self.answer_json(self.description(kind, repo, commit))

    def description(self, kind: str, repo: str, commit: str) -> dict:
        files = self.hub.files(kind, repo)
        siblings = []
        for name, path in files.items():
            siblings.append({"rfilename": name, "size": path.stat().st_size})
        card = {}
        if "README.md" in files:
            card = read_card(files["README.md"].read_text(encoding="utf-8"))
        return {
            "_id": "0" * 24,
            "id": repo,
            "sha": commit,
            "author": repo.split("/")[0],
            "private": False,
            "gated": "manual" if self.hub.is_gated(repo) else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "cardData": card,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
            "siblings": siblings,
        }

    def path_entries(self, kind: str, repo: str, posted: bytes) -> list[dict]:
        """The entries of the files and folders that a request names."""
        files = self.hub.files(kind, repo)
        if "json" in self.headers.get("Content-Type", ""):
            paths = json.loads(posted)["paths"]
        else:
            paths = parse_qs(posted.decode())["paths"]
        if isinstance(paths, str):
            paths = [paths]
        entries = []
        for path in paths:
            if path in files:
                entries.append(_file_entry(path, files[path]))
            elif any(name.startswith(f"{path}/") for name in files):
                entries.append(_folder_entry(path))
        return entries

    def tree_entries(self, kind: str, repo: str, inside: str, recursive: bool) -> list[dict]:
        """The entries of a folder, or of all that is below it."""
        prefix = f"{inside}/" if inside else ""
        entries = []
        folders: dict[str, None] = {}
        for name, path in self.hub.files(kind, repo).items():
            if not name.startswith(prefix):
                continue
            parts = name.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                if recursive or depth == 1:
                    folders[prefix + "/".join(parts[:depth])] = None
            if recursive or len(parts) == 1:
                entries.append(_file_entry(name, path))
        return entries + [_folder_entry(name) for name in folders]

    def answer_file(self, kind: str, repo: str, name: str) -> None:
        commit = self.hub.commit(kind, repo)
        path = self.hub.files(kind, repo).get(name)
        if path is None:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            return
        headers = {"ETag": f'"{etag(path)}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        body = path.read_bytes()
        size = len(body)
        if self.command == "HEAD":
            self.answer(200, Content_Length=str(size), **headers)
        elif match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first = int(match[1])
            last = min(int(match[2] or size - 1), size - 1)
            headers["Content_Range"] = f"bytes {first}-{last}/{size}"
            self.answer(206, body[first : last + 1], **headers)
        else:
            self.answer(200, body, **headers)

    def log_message(self, message: str, *values: object) -> None:
        has_token = getattr(self, "headers", None) and self.headers.get("Authorization")
        token = " with token" if has_token else ""
        self.hub.log(f"{self.log_date_time_string()} {message % values}{token}")


def _file_entry(name: str, path: Path) -> dict:
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": etag(path)}


def _folder_entry(name: str) -> dict:
    return {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # many jobs may ask at once


def serve(folder: Path) -> None:
    """Answer requests until the process that started this one ends."""
    parent = os.getppid()
    Handler.hub = Hub(folder)
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    serve(Path(sys.argv[1]).resolve())
