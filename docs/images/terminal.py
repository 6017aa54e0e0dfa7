"""Draws what stood on a terminal, colours included, as a picture.

python docs/images/terminal.py "roll run examples/arithmetic.yaml" 100 <docs/images/run.txt >docs/images/run.svg
python docs/images/terminal.py "kubectl get rljobs -w" 125 <docs/images/rljobs.txt >docs/images/rljobs.svg
"""

import re
import sys
from io import StringIO

from rich.console import Console
from rich.text import Text


def picture(title: str, width: int, screen: str) -> str:
    """Long lines go on in the next one, as a terminal of this width shows them. No font is fetched."""
    console = Console(file=StringIO(), record=True, width=width)
    for line in screen.splitlines():
        text = Text.from_ansi(line, style="bold" if line.startswith("$ ") else "")
        for start in range(0, max(1, len(text)), width):
            console.print(text[start : start + width])
    drawn = console.export_svg(title=title, unique_id="terminal")
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.stdout.write(picture(sys.argv[1], int(sys.argv[2]), sys.stdin.read()))
