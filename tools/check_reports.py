"""Check a run's metrics as read by TensorBoard, Prometheus' parser, a real MLflow server and `wandb sync`.

usage: check_reports.py --hawser BINARY [--steps N]

Trains a tiny model with all sinks enabled, reads the metrics back with the real packages, compares every number with
metrics.jsonl, and repeats this after a resume. Needs the packages of tools/requirements-reports.txt. Exits with 1 if
anything differs.
"""

import argparse
import gzip
import http.server
import importlib.util
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXPERIMENT = "check reports"
# Key of metrics.jsonl: name of the curve.
CURVES = {
    "loss": "loss/train",
    "grad_norm": "optimizer/grad_norm",
    "lr": "optimizer/lr",
    "tokens_per_second": "speed/tokens_per_second",
    "step_seconds": "speed/step_seconds",
    "peak_arena_bytes": "memory/reserved_bytes",
    "targets": "data/targets",
    "validation_loss": "loss/validation",
}


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def eventually(what: str, attempt, seconds: float = 300):
    end = time.monotonic() + seconds
    while True:
        try:
            result = attempt()
            if result is not None:
                return result
        except OSError:
            pass
        if time.monotonic() > end:
            sys.exit(f"check_reports: no {what} in {seconds:.0f} s")
        time.sleep(0.05)


def metrics_of(run: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check(condition: bool, what: str):
    if not condition:
        sys.exit(f"check_reports: {what}")


def same(a: list[tuple[int, float]], b: list[tuple[int, float]], relative: float, what: str):
    check([step for step, _ in a] == [step for step, _ in b], f"{what}: steps differ: {len(a)} and {len(b)}")
    for (step, x), (_, y) in zip(a, b):
        check(math.isclose(x, y, rel_tol=relative, abs_tol=1e-30), f"{what}, step {step}: {x} and {y}")


def check_tensorboard(run: pathlib.Path, metrics: list[dict]):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = events.Tags()
    for key, name in CURVES.items():
        wanted = [(m["step"], m[key]) for m in metrics if key in m]
        same([(e.step, e.value) for e in events.Scalars(name)], wanted, 1e-6, f"TensorBoard {name}")
        times = [(m["step"], m["time"]) for m in metrics if key in m]
        same([(e.step, e.wall_time) for e in events.Scalars(name)], times, 1e-15, f"TensorBoard {name}, time")
    check({"recipe", "environment", "data"} <= set(tags["tensors"]), f"TensorBoard: texts are {tags['tensors']}")
    recipe = events.Tensors("recipe")[0].tensor_proto.string_val[0].decode()
    check("| train.micro_batch_size | 1 | default |" in recipe, "TensorBoard: the recipe differs: " + recipe)
    print(f"TensorBoard: {len(CURVES)} curves of {len(metrics)} steps, and the texts agree")


def check_prometheus(port: int):
    from prometheus_client.parser import text_string_to_metric_families

    def scrape():
        text, kind = get(f"http://127.0.0.1:{port}/metrics")
        check(kind.startswith("text/plain; version=0.0.4"), f"Prometheus: {kind}")
        families = {family.name: family for family in text_string_to_metric_families(text)}
        return families if "hawser_train_loss_nats" in families else None

    families = eventually("step in Prometheus", scrape)
    for family in families.values():
        check(family.documentation != "" and family.type in ("gauge", "counter"), f"Prometheus: {family}")
    check(families["hawser_steps"].type == "counter", "Prometheus: hawser_steps_total is not a counter")
    check(families["hawser_steps"].samples[0].value >= 1, "Prometheus: no step")
    check(families["hawser_info"].samples[0].labels["run"] == "check", "Prometheus: wrong run name")
    lint = subprocess.run(["curl", "--silent", "--fail", f"http://127.0.0.1:{port}/metrics"], capture_output=True)
    check(lint.returncode == 0 and b"hawser_steps_total" in lint.stdout, "Prometheus: curl failed")
    print(f"Prometheus: {len(families)} families during the run; curl works too")


def check_mlflow(server: str, metrics: list[dict]) -> str:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    runs = client.search_runs([experiment.experiment_id])
    check(len(runs) == 1, f"MLflow has {len(runs)} runs")
    run = runs[0]
    check(run.info.status == "FINISHED" and run.info.run_name == "check", f"MLflow: {run.info}")
    check(run.data.params["data.sequence_length"] == "24", f"MLflow: {run.data.params}")
    for key, name in CURVES.items():
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda m: m.step)
        wanted = [m for m in metrics if key in m]
        same([(m.step, m.value) for m in history], [(m["step"], m[key]) for m in wanted], 1e-12, f"MLflow {name}")
        times = [(m["step"], 1000 * m["time"]) for m in wanted]
        same([(m.step, m.timestamp) for m in history], times, 1e-15, f"MLflow {name}, time")
    print(f"MLflow: run {run.info.run_id}: {len(CURVES)} curves of {len(metrics)} steps, {len(run.data.params)} parameters")
    return run.info.run_id


class WandbServer(http.server.BaseHTTPRequestHandler):
    """Answers the requests of `wandb sync` and keeps what it uploads."""

    protocol_version = "HTTP/1.1"
    uploads: dict = {}

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        else:
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def answer(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_PUT(self):
        self.uploads[self.path.rpartition("/")[2]] = self.body().decode()
        self.answer({})

    def do_POST(self):
        data = self.body()
        if self.path.endswith("/file_stream"):
            sent = json.loads(data)
            for name, part in sent.get("files", {}).items():
                lines = self.uploads.setdefault("stream", {}).setdefault(name, [])
                lines[part["offset"]:] = part["content"]
            self.uploads["exit"] = sent.get("exitcode", self.uploads.get("exit"))
            self.answer({"exitcode": None, "limits": {}})
        elif self.path.endswith("/graphql"):
            request = json.loads(data)
            query, variables, answer = request["query"], request.get("variables", {}), {}
            if "upsertBucket" in query:
                given = {key: value for key, value in variables.items() if value is not None}
                self.uploads["run"] = {**self.uploads.get("run", {}), **given}
                project = {"id": "1", "name": variables.get("project"), "entity": {"id": "1", "name": "me"}}
                bucket = {"id": "1", "name": variables.get("name"), "displayName": variables.get("displayName"),
                          "config": "{}", "project": project, "historyLineCount": None}  # fmt: skip
                answer = {"upsertBucket": {"bucket": bucket, "inserted": True}}
            elif "createRunFiles" in query:
                url = f"http://127.0.0.1:{self.server.server_port}/put/"
                files = [{"name": name, "uploadUrl": url + name} for name in variables["files"]]
                answer = {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
            self.answer({"data": answer})
        else:
            self.answer({})

    def log_message(self, *_):
        pass


def check_wandb(run: pathlib.Path, metrics: list[dict]) -> str:
    WandbServer.uploads = uploads = {}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WandbServer)
    server.handle_error = lambda *_: None  # the client closes its connections without a word
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {**os.environ, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": 40 * "k"}
    (folder,) = (run / "wandb").iterdir()
    program = pathlib.Path(sys.executable).with_name("wandb")
    command = [program, "sync", "--yes", folder]
    sync = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    server.shutdown()
    check(sync.returncode == 0 and "run" in uploads, f"wandb sync ended with {sync.returncode}: {sync.stderr}")
    history = [json.loads(line) for line in uploads["stream"]["wandb-history.jsonl"]]
    summary = json.loads(uploads["stream"]["wandb-summary.json"][-1])
    for key, name in CURVES.items():
        wanted = [(m["step"], m[key]) for m in metrics if key in m]
        same([(h["_step"], h[name]) for h in history if name in h], wanted, 1e-15, f"W&B {name}")
        check(summary[name] == wanted[-1][1], f"W&B: the summary of {name} is {summary[name]}")
    same([(h["_step"], h["_timestamp"]) for h in history], [(m["step"], m["time"]) for m in metrics], 1e-12, "W&B time")
    check(uploads["exit"] == 0, f"W&B: exit code {uploads['exit']}")
    config = json.loads(uploads["run"]["config"])
    check(config["data"]["value"]["sequence_length"] == 24, f"W&B: the recipe is {config}")
    check(uploads["run"]["project"] == "checks" and uploads["run"]["displayName"] == "check", f"W&B: {uploads['run']}")
    print(f"W&B: run {uploads['run']['name']}: {len(CURVES)} curves of {len(metrics)} steps, uploaded by its client")
    return uploads["run"]["name"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hawser", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the run (default: a temporary one)")
    arguments = parser.parse_args()
    wanted = ("mlflow", "prometheus_client", "tensorboard", "wandb")
    missing = [name for name in wanted if not importlib.util.find_spec(name)]
    check(not missing, f"not installed: {', '.join(missing)}; pip install -r tools/requirements-reports.txt")
    with tempfile.TemporaryDirectory() as folder:
        work(arguments, pathlib.Path(folder))


def work(arguments, scratch: pathlib.Path):
    folder = arguments.keep or scratch
    folder.mkdir(parents=True, exist_ok=True)
    documents = [[(d * 31 + i * i * 7) % 96 for i in range(5 + d % 23)] for d in range(40)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"input_ids": d}) + "\n" for d in documents))
    prometheus, server_port = free_port(), free_port()
    server = f"http://127.0.0.1:{server_port}"
    recipe = folder / "check.yaml"
    recipe.write_text(
        f"""name: check
model: {{config: {ROOT / 'tests/golden/tiny/tied/config.json'}}}
data: {{train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}}
train: {{steps: {arguments.steps}, global_batch_size: 4, evaluate_every: 50}}
optimizer: {{learning_rate: 1.0e-3, warmup_steps: 20}}
output: run
report: {{tensorboard: true, prometheus_port: {prometheus}, mlflow: "{server}", mlflow_experiment: {EXPERIMENT},
         wandb: true, wandb_project: checks}}
"""
    )
    run = folder / "run"
    log = (scratch / "mlflow.log").open("w")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{scratch}/mlflow.db",
               "--artifacts-destination", str(scratch / "artifacts"), "--host", "127.0.0.1", "--port", str(server_port),
               "--workers", "1"]  # fmt: skip
    mlflow_server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually("MLflow server", lambda: get(server + "/health")[0] or None)
        fit = [str(arguments.hawser.resolve()), "fit", str(recipe), "--ranks", "1"]
        running = subprocess.Popen(fit, stderr=subprocess.PIPE, text=True)
        check_prometheus(prometheus)
        errors = running.communicate()[1]
        check(running.returncode == 0 and "warning" not in errors, f"fit ended with {running.returncode}:\n{errors}")
        check_tensorboard(run, metrics_of(run))
        first = check_mlflow(server, metrics_of(run))
        first_wandb = check_wandb(run, metrics_of(run))

        more = [*fit, "--resume", "--set", f"train.steps={arguments.steps + 50}"]
        again = subprocess.run(more, stderr=subprocess.PIPE, text=True)
        check(again.returncode == 0 and "warning" not in again.stderr, f"resume: {again.stderr}")
        check(len(metrics_of(run)) == arguments.steps + 50, "metrics.jsonl: steps are missing after the resume")
        check_tensorboard(run, metrics_of(run))
        check(check_mlflow(server, metrics_of(run)) == first, "MLflow: the resumed run has another id")
        check(check_wandb(run, metrics_of(run)) == first_wandb, "W&B: the resumed run has another id")
    finally:
        os.killpg(mlflow_server.pid, 15)
        mlflow_server.wait()
    print("all metrics agree with metrics.jsonl")


if __name__ == "__main__":
    main()
