"""Says in one sentence what this machine lacks for the set-up; exit status 2 then."""

import importlib.util
import sys

LEAST = (3, 11)

if sys.version_info < LEAST:
    version = sys.version.split()[0]
    print(f"rankwatch needs Python 3.11, this is {version}: try make PYTHON=python3.12", file=sys.stderr)
    sys.exit(2)
if importlib.util.find_spec("ensurepip") is None:
    print("Python's venv module is not complete (Debian: apt-get install python3-venv)", file=sys.stderr)
    sys.exit(2)
