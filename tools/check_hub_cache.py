#!/usr/bin/env python3
"""Check that hawser and huggingface_hub share a cache: each uses what the other has downloaded.

usage: check_hub_cache.py --hawser BINARY

Starts the server of the tests (src/hub/testing/hub_server.py), pulls one repo with hawser and another with
huggingface_hub, and then each with the other program, which must transfer nothing. Needs the packages of
tools/requirements-hub.txt. Exits with 1 if anything differs.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hawser", required=True)
    hawser = pathlib.Path(parser.parse_args().hawser).resolve()
    work = pathlib.Path(tempfile.mkdtemp(prefix="hawser-hub-"))
    for name in ("ours", "theirs"):
        repo = work / "server/models/org" / name
        repo.mkdir(parents=True)
        (repo / "config.json").write_text('{"model_type": "%s"}' % name)
        (repo / "tokenizer_config.json").write_text("{}")
        (repo / "model.safetensors").write_bytes(random.Random(name).randbytes(100_000))
    texts = work / "server/datasets/org/texts/data"
    texts.mkdir(parents=True)
    (texts / "train.jsonl").write_text('{"text": "a"}\n')
    program = [sys.executable, ROOT / "src/hub/testing/hub_server.py", work / "server"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as server:
        try:
            while not (work / "server/ports").exists():
                time.sleep(0.05)
            check(hawser, work, (work / "server/ports").read_text().split()[0])
        finally:
            server.stdin.close()
    shutil.rmtree(work)
    print("check_hub_cache: hawser and huggingface_hub use each other's downloads")


def check(hawser, work, port):
    os.environ.update(HF_ENDPOINT="http://127.0.0.1:" + port, HF_HUB_CACHE=str(work / "hub"), HF_TOKEN="secret",
                      HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_TELEMETRY="1")
    os.environ.pop("HF_HUB_OFFLINE", None)
    import huggingface_hub as hub  # reads the variables

    def pull(*arguments):
        return pathlib.Path(subprocess.run([hawser, "pull", *arguments], check=True, text=True, stderr=subprocess.DEVNULL,
                                           stdout=subprocess.PIPE).stdout.strip())

    def transfers():
        """The contents asked for since the last call."""
        log = work / "server/requests"
        found = [line for line in map(json.loads, log.read_text().splitlines()) if line["method"] == "GET"
                 and "/api/" not in line["path"]]
        log.write_text("")
        return len(found)

    def expect(condition, what):
        if not condition:
            sys.exit("check_hub_cache: " + what)

    files = ["config.json", "model.safetensors", "tokenizer_config.json"]
    ours = pull("org/ours")
    expect(transfers() > 0, "hawser has transferred nothing")
    expect(hub.snapshot_download("org/ours", local_files_only=True) == str(ours), "another snapshot, offline")
    expect(hub.snapshot_download("org/ours") == str(ours), "another snapshot")
    for name in files:
        expect(hub.try_to_load_from_cache("org/ours", name) == str(ours / name), "no " + name)
        expect(hub.hf_hub_download("org/ours", name) == str(ours / name), "another " + name)
    expect(transfers() == 0, "huggingface_hub transfers again what hawser has pulled")

    theirs = hub.snapshot_download("org/theirs")
    expect(transfers() > 0, "huggingface_hub has transferred nothing")
    expect(str(pull("org/theirs")) == theirs, "hawser has another snapshot")
    expect(transfers() == 0, "hawser transfers again what huggingface_hub has downloaded")

    data = pull("org/texts", "--dataset")
    expect(hub.snapshot_download("org/texts", repo_type="dataset", local_files_only=True) == str(data), "no data set")

    cache = hub.scan_cache_dir()
    expect(not cache.warnings, "warnings: %s" % cache.warnings)
    expect({(repo.repo_id, repo.repo_type, tuple(repo.refs)) for repo in cache.repos} ==
           {("org/ours", "model", ("main",)), ("org/theirs", "model", ("main",)), ("org/texts", "dataset", ("main",))},
           "scan_cache_dir finds other repos")


if __name__ == "__main__":
    main()
