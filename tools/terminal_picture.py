#!/usr/bin/env python3
"""Run a command in a pseudoterminal and draw its screen as an SVG, for the pictures of docs/.

usage: terminal_picture.py [--columns N] [--shown TEXT] [--at REGEX] [--last N] OUT.svg -- COMMAND [ARGUMENT...]

--shown is the command line to draw above the output (default: the command). --at draws the screen when REGEX first
appears, and then interrupts the command. --last keeps the last N lines. Supports the control codes that Hawser writes:
line feed, carriage return, erase to end of line, bold, dim and the eight colours.
"""
import argparse
import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import sys
import termios
from xml.sax.saxutils import escape

WIDTH, HEIGHT, SIZE = 8.43, 19, 14  # character cell and font size, in pixels
MARGIN, BAR = 16, 28                # around the text; height of the title bar
COLOURS = ["#24292f", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#e6edf3"]
FOREGROUND, BACKGROUND, TITLE, FAINT = "#d6dce3", "#161b22", "#21262d", "#7d8590"


class Screen:
    """Lines of cells: (character, style); a style is (bold, dim, colour)."""

    def __init__(self):
        self.lines, self.column, self.style, self.rest = [[]], 0, (False, False, None), ""

    def feed(self, text):
        text = self.rest + text
        self.rest = ""
        for part in re.split(r"(\x1b\[[0-9;]*[A-Za-z]|\r|\n)", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self.lines.append([])
            elif part == "\x1b[K":
                del self.lines[-1][self.column:]
            elif part.startswith("\x1b["):
                if part.endswith("m"):
                    self.restyle(part[2:-1])
            elif part.startswith("\x1b"):
                self.rest = part  # an incomplete escape sequence
            else:
                self.put(part)

    def restyle(self, codes):
        for code in map(int, (codes or "0").split(";")):
            bold, dim, colour = self.style
            if code == 0:
                self.style = (False, False, None)
            elif code in (1, 2):
                self.style = (bold or code == 1, dim or code == 2, colour)
            elif 30 <= code <= 37:
                self.style = (bold, dim, COLOURS[code - 30])

    def put(self, text):
        line = self.lines[-1]
        for character in text:
            line += [(" ", self.style)] * (self.column - len(line))
            line[self.column:self.column + 1] = [(character, self.style)]
            self.column += 1

    def text(self):
        return "\n".join("".join(character for character, _ in line) for line in self.lines)


def watch(command, columns, at):
    """The screen at the command's end, or when `at` first appears."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(columns))
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    screen, found, pending = Screen(), False, b""
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        if found:
            continue
        # One frame at a time: each redrawn line ends where the next one begins.
        for piece in re.split(rb"(?<=\x1b\[K)|(?<=\n)", pending + data):
            try:
                screen.feed(piece.decode())
                pending = b""
            except UnicodeDecodeError:
                pending = piece
            if at and re.search(at, screen.text()):
                found = True
                os.kill(pid, signal.SIGINT)
                break
    os.waitpid(pid, 0)
    if at and not found:
        sys.exit(f"terminal_picture: the command did not print {at!r}")
    return screen


def runs(line):
    """Runs of cells with one style: (first column, text, style)."""
    out = []
    for column, (character, style) in enumerate(line):
        if out and out[-1][2] == style:
            out[-1][1] += character
        else:
            out.append([column, character, style])
    return out


def draw(lines, shown, columns):
    prompt = [("$", (False, False, COLOURS[2])), (" ", (False, False, None))]
    rows = []
    for i, part in enumerate(shown.split("\n")):
        start = prompt if i == 0 else [(" ", (False, False, None))] * 2
        rows.append(start + [(character, (True, False, None)) for character in part])
    rows += lines
    columns = max(columns, *map(len, rows))
    width, height = columns * WIDTH + 2 * MARGIN, len(rows) * HEIGHT + 2 * MARGIN + BAR
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
           f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, '
           f"'DejaVu Sans Mono', monospace\" font-size=\"{SIZE}\">",
           f"<title>{escape(shown)}</title>",
           f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
           f'<path d="M0 {BAR} V8 a8 8 0 0 1 8 -8 H{width - 8:.0f} a8 8 0 0 1 8 8 V{BAR} z" fill="{TITLE}"/>']
    out += [f'<circle cx="{18 + 18 * i}" cy="{BAR / 2:.0f}" r="5" fill="{FAINT}"/>' for i in range(3)]
    for row, line in enumerate(rows):
        y = BAR + MARGIN + row * HEIGHT + SIZE
        for column, text, (bold, dim, colour) in runs(line):
            if not text.strip():
                continue
            fill = FAINT if dim else colour or FOREGROUND
            weight = ' font-weight="bold"' if bold else ""
            # textLength keeps columns aligned in any font.
            out.append(f'<text x="{MARGIN + column * WIDTH:.1f}" y="{y}" fill="{fill}"{weight} '
                       f'textLength="{len(text) * WIDTH:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve">'
                       f"{escape(text)}</text>")
    return "\n".join([*out, "</svg>", ""])


def main():
    if "--" not in sys.argv:
        sys.exit(__doc__)
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1])
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--shown")
    parser.add_argument("--at")
    parser.add_argument("--last", type=int)
    parser.add_argument("out")
    options = parser.parse_args(sys.argv[1:split])
    command = sys.argv[split + 1:]
    lines = watch(command, options.columns, options.at).lines
    while lines and not lines[-1]:
        lines.pop()
    lines = lines[-options.last:] if options.last else lines
    with open(options.out, "w") as file:
        file.write(draw(lines, options.shown or shlex.join(command), options.columns))


if __name__ == "__main__":
    main()
