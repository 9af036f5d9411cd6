#!/usr/bin/env python3
"""Draws terminal output as an SVG picture: terminal_svg.py TITLE < output > picture.svg

A line that was redrawn with a carriage return shows its last state, as a terminal would leave it.
"""
import html
import re
import sys

SIZE, LEAD, PAD = 13, 19, 18


def screen(text):
    lines = []
    for line in text.split("\n"):
        line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line.rstrip("\r").split("\r")[-1])
        lines.append("".join(c if c.isprintable() else "·" for c in line))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def wrap(lines, columns):
    for line in lines:
        while len(line) > columns:
            yield line[:columns]
            line = line[columns:]
        yield line


def main():
    title = sys.argv[1] if len(sys.argv) > 1 else ""
    lines = list(wrap(screen(sys.stdin.buffer.read().decode()), 112))
    width, height = int(112 * SIZE * 0.602) + 2 * PAD, (len(lines) + 2) * LEAD + 2 * PAD
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">')
    print(f'<rect width="{width}" height="{height}" rx="10" fill="#14181f"/>')
    for i, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        print(f'<circle cx="{PAD + 6 + 20 * i}" cy="{PAD}" r="6" fill="{colour}"/>')
    print(f'<g font-family="ui-monospace,SFMono-Regular,Menlo,DejaVu Sans Mono,monospace" font-size="{SIZE}" xml:space="preserve">')
    print(f'<text x="{width // 2}" y="{PAD + 4}" fill="#8b949e" text-anchor="middle">{html.escape(title)}</text>')
    for n, line in enumerate(lines):
        colour = "#7ee787" if line.startswith(("$", "state")) else "#79c0ff" if "█" in line or "held-out" in line else "#e6edf3"
        print(f'<text x="{PAD}" y="{(n + 2) * LEAD + PAD}" fill="{colour}">{html.escape(line)}</text>')
    print("</g></svg>")


main()
