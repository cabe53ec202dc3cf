"""Print the oldest versions that the package says it works with, as constraints for pip.

    python .ci/oldest.py > oldest.txt && pip install -e '.[test]' -c oldest.txt
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
EXTRAS = ("tune", "plot", "zstd")   # what users install, besides the package itself

project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *(one for name in EXTRAS for one in extras[name])]:
    found = re.match(r"([\w.-]+)>=([\d.]+)", requirement)
    if found is None:
        sys.exit(f"error: {requirement!r} in {PROJECT.name} has no lower bound")
    print(f"{found[1]}=={found[2]}")
