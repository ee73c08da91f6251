#!/usr/bin/env python3
"""Check report.html and the site of docs/ in a browser, in wide and narrow windows, light and dark.

usage: check_pages.py --hawser BINARY [--site FOLDER] [--browser PROGRAM] [--pictures FOLDER]

Trains a tiny model, stops it by a kill, resumes it, and opens the page of the running process and the final one. On
every page, each text has a contrast of at least 4.5 and at least 11 px, nothing is wider than the window, and no script
fails. The page of a running process reloads itself and says when it is out of date. On the site, opened as files, all
pages are in the menu, search finds sections, and buttons copy code. Needs Debian's package chromium and
tools/requirements-pages.txt. Exits with 1 if anything is wrong.
"""

import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTHS = (1280, 400)
MODES = ("light", "dark")
MIN_CONTRAST, MIN_PIXELS = 4.5, 11

# Contrast and size of every visible text, by WCAG 2, with transparent colours blended over what is below them.
MEASURE = r"""
() => {
  const parse = text => {
    const n = text.match(/[\d.]+/g)?.map(Number);
    if (!n) return null;
    const srgb = text.startsWith("color(") ? n.slice(0, 3).map(x => 255 * x) : n.slice(0, 3);
    return [...srgb, n[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = c => {
    const [r, g, b] = c.slice(0, 3).map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const out = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const text = node.textContent.trim(), element = node.parentElement;
    if (!text || element.closest("script, style, title, template")) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const svg = element.ownerSVGElement, style = getComputedStyle(element);
    const chain = [];
    for (let at = element; at; at = at.parentElement) chain.push(at);
    let ground = [255, 255, 255, 1], opacity = 1;
    for (const at of chain.reverse()) {
      const of = getComputedStyle(at);
      if (!at.ownerSVGElement) ground = over(parse(of.backgroundColor) ?? [0, 0, 0, 0], ground);
      opacity *= Number(of.opacity);
    }
    const colour = parse(svg ? style.fill : style.color);
    colour[3] *= opacity;
    const [a, b] = [luminance(over(colour, ground)), luminance(ground)];
    out.push({ text: text.slice(0, 40), contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
               pixels: parseFloat(style.fontSize) * (svg ? svg.getScreenCTM().a : 1) });
  }
  return out;
}
"""

problems = []


def problem(where: str, what: str):
    problems.append(f"{where}: {what}")


class Browser:
    def __init__(self, chromium, pictures):
        self.chromium, self.pictures = chromium, pictures

    def open(self, path, width, mode, **options):
        """A page in a new window, and the errors of its scripts."""
        context = self.chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=mode,
                                            permissions=["clipboard-read", "clipboard-write"], **options)
        page, errors = context.new_page(), []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        return page, errors

    def measure(self, path):
        """Looks of a page; returns the number of its texts."""
        texts = 0
        for width in WIDTHS:
            for mode in MODES:
                page, errors = self.open(path, width, mode)
                where = f"{path.name}, {width} px, {mode}"
                for text in page.evaluate(MEASURE):
                    texts += 1
                    if text["contrast"] < MIN_CONTRAST:
                        problem(where, f"contrast {text['contrast']:.2f} of '{text['text']}'")
                    if text["pixels"] < MIN_PIXELS - 0.01:
                        problem(where, f"{text['pixels']:.1f} px: '{text['text']}'")
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    problem(where, f"is {wide} px wide")
                for error in errors:
                    problem(where, error)
                if self.pictures:
                    page.screenshot(path=self.pictures / f"{path.stem}-{width}-{mode}.png", full_page=True)
                page.context.close()
        return texts


def eventually(what: str, attempt, seconds: float = 120):
    end = time.monotonic() + seconds
    while not (result := attempt()):
        if time.monotonic() > end:
            sys.exit(f"check_pages: no {what} in {seconds:.0f} s")
        time.sleep(0.02)
    return result


def make_reports(hawser: pathlib.Path, folder: pathlib.Path):
    """The page of a killed process, and that of the run after a resume."""
    documents = [[(d * 31 + i * i * 7) % 96 for i in range(5 + d % 23)] for d in range(400)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"input_ids": d}) + "\n" for d in documents))
    recipe, run = folder / "check.yaml", folder / "run"
    recipe.write_text(
        f"""name: check
model: {{config: {ROOT / 'tests/golden/tiny/tied/config.json'}}}
data: {{train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}}
train: {{steps: 400000, global_batch_size: 4, evaluate_every: 50}}
optimizer: {{learning_rate: 1.0e-3, warmup_steps: 20}}
checkpoint: {{every_steps: 100}}
output: run
"""
    )
    fit = [str(hawser.resolve()), "fit", str(recipe), "--ranks", "1"]
    process = subprocess.Popen(fit, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        eventually("checkpoint and report", lambda: process.poll() is not None or (
            (run / "report.html").exists() and any((run / "checkpoints").glob("step-*/manifest.json"))))
    finally:
        process.send_signal(signal.SIGKILL)
        errors = process.communicate()[1]
    if not (run / "report.html").exists():
        sys.exit(f"check_pages: fit: {errors}")
    running = (run / "report.html").read_text()
    (folder / "running.html").write_text(running)
    done = int(sorted((run / "checkpoints").glob("step-*"))[-1].name[5:])
    last = subprocess.run([*fit, "--resume", "--set", f"train.steps={done + 100}"], capture_output=True, text=True)
    if last.returncode != 0:
        sys.exit(f"check_pages: fit --resume: {last.stderr}")
    (folder / "done.html").write_text((run / "report.html").read_text())
    return folder / "running.html", folder / "done.html"


def check_reports(browser, running, done):
    texts = browser.measure(done) + browser.measure(running)
    page, _ = browser.open(done, 1280, "light")
    if page.locator("meta[http-equiv=refresh]").count():
        problem("done.html", "reloads itself")
    charts = page.locator("figure.chart").count()
    if page.locator("figure.chart svg text", has_text=re.compile("^step$")).count() != charts or charts < 4:
        problem("done.html", "a chart has no x-axis title")
    if not page.locator("line.resume").count():
        problem("done.html", "the resume is not marked")
    page.context.close()

    page, _ = browser.open(running, 1280, "light")
    if "minutes" in page.locator("#stale").inner_text():
        problem("running.html", "is out of date at once")
    page.context.close()
    text = running.read_text()
    if not re.search(r"running</span>, step \d+ of 400000, <span class=\"quiet\">as of 20..-..-.. ..:..:.. UTC<", text):
        problem("running.html", "does not say that the run is running")
    old = running.with_name("old.html")
    old.write_text(re.sub(r'data-time="\d+"', 'data-time="1700000000"', text).replace('content="30"', 'content="1"'))
    page, _ = browser.open(old, 1280, "light")
    if "the run may have been killed" not in page.locator("#stale").inner_text():
        problem("old.html", "does not say that it is out of date")
    page.wait_for_event("load", timeout=30000)  # it is reloaded
    page.context.close()
    print(f"report.html: {charts} charts, {texts} texts in {len(WIDTHS)} widths and {len(MODES)} modes")


def check_site(browser, site):
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    texts = sum(browser.measure(page) for page in pages)
    for width in WIDTHS:
        page, _ = browser.open(site / "watching.html", width, "light")
        if width < 992:
            page.locator(".navbar-toggler").click()
        for wanted in pages:
            name = wanted.relative_to(site).as_posix()
            link = page.locator(f".pages a[href='{name}']:visible")
            if link.count() != 1:
                problem(f"watching.html, {width} px", f"{link.count()} links to {name} in the menu")
        page.context.close()

    page, errors = browser.open(site / "index.html", 1280, "light")
    page.locator("[data-bs-target='#mkdocs_search_modal']").click()
    page.locator("#mkdocs-search-query").fill("report.html reloads killed")
    page.locator("#mkdocs-search-results article a").first.wait_for()
    for text in page.evaluate(MEASURE):
        if text["contrast"] < MIN_CONTRAST:
            problem("search", f"contrast {text['contrast']:.2f} of '{text['text']}'")
    page.locator("#mkdocs-search-query").press("Enter")
    page.wait_for_url("**/watching.html#the-report")
    page.locator("[data-bs-target='#mkdocs_search_modal']").click()
    page.locator("#mkdocs-search-query").fill("noSuchWordAnywhere")
    page.get_by_text("No section contains all of these words.").wait_for()
    for error in errors:
        problem("search", error)
    page.context.close()

    page, _ = browser.open(site / "fine-tune.html", 1280, "light")
    for start, wanted in (("$ hawser plan chandlery.yaml", "hawser plan chandlery.yaml"),
                          ("hawser recipe init", "hawser recipe init --model")):
        block = page.locator("div.highlight", has=page.locator("pre", has_text=start)).first
        block.hover()
        block.locator("button.copy").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        if not copied.startswith(wanted) or "needed" in copied:
            problem("fine-tune.html", f"copied {copied!r}")
    if not page.locator(".highlight .gp, .highlight .nb, .highlight .nt").count():
        problem("fine-tune.html", "code is not highlighted")
    page.context.close()
    print(f"site: {len(pages)} pages, {texts} texts, search and copy buttons, opened as files")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hawser", required=True, type=pathlib.Path)
    parser.add_argument("--site", type=pathlib.Path, default=ROOT / "build/site", help="default: build/site")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--pictures", type=pathlib.Path, help="folder for screenshots of every page")
    arguments = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sys.exit("check_pages: not installed: playwright; pip install -r tools/requirements-pages.txt")
    if not (arguments.site / "index.html").exists():
        sys.exit(f"check_pages: {arguments.site}: no site; run tools/docs")
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        reports = make_reports(arguments.hawser, pathlib.Path(folder))
        chromium = playwright.chromium.launch(executable_path=arguments.browser)
        browser = Browser(chromium, arguments.pictures)
        check_reports(browser, *reports)
        check_site(browser, arguments.site.resolve())
        chromium.close()
    for line in problems:
        print(line)
    print(f"check_pages: {len(problems)} problems", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
