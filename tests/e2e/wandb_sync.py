#!/usr/bin/env python3
"""wandb_sync.py PYTHON FOLDER...: uploads offline runs with the wandb package's own `wandb sync` to a server of this
script on the loopback device, and prints as JSON what arrived: the run, the rows of its history, and its exit code.

PYTHON is an interpreter that has the package. Nothing leaves this machine; the account and the key are invented.
"""

import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading

got = {"run": {}, "history": [], "summary": None, "exitcode": None, "operations": []}


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({})

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer({})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = json.loads(body or b"{}")
        if "file_stream" in self.path:
            self.stream(request)
            return self.answer({})
        name = request.get("operationName") or ""
        got["operations"].append(name)
        self.answer({"data": self.graphql(name, request.get("query", ""), request.get("variables") or {})})

    def stream(self, request):
        for file, chunk in (request.get("files") or {}).items():
            lines = [json.loads(line) for line in chunk.get("content", []) if line.strip()]
            if "history" in file:
                got["history"] += lines
            elif "summary" in file and lines:
                got["summary"] = lines[-1]
        if request.get("complete"):
            got["exitcode"] = request.get("exitcode")

    def graphql(self, name, query, variables):
        entity = {"id": "e", "name": "someone"}
        if "upsertBucket" in query:
            got["run"].update({key: variables.get(key) for key in
                               ("name", "project", "displayName", "groupName", "tags", "config", "state")
                               if variables.get(key) is not None})
            bucket = {"id": "r", "name": variables.get("name"), "displayName": variables.get("displayName"),
                      "description": "", "config": "{}", "sweepName": None, "historyLineCount": 0,
                      "project": {"id": "p", "name": variables.get("project"), "entity": entity}}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": []}}
        return {"viewer": {"id": "u", "entity": "someone", "username": "someone", "flags": "{}", "teams": {"edges": []}},
                "serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None},
                "model": None, "project": None}


def main():
    python, folders = sys.argv[1], sys.argv[2:]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "WANDB_API_KEY": "0" * 40,
                       "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_ERROR_REPORTING": "false"}
        done = subprocess.run([python, "-m", "wandb", "sync", "--yes", *folders], env=environment, cwd=home, text=True,
                              capture_output=True, timeout=120)
    print(done.stdout + done.stderr, file=sys.stderr)
    if "config" in got["run"]:
        got["run"]["config"] = json.loads(got["run"]["config"])
    print(json.dumps(got))
    return done.returncode


sys.exit(main())
