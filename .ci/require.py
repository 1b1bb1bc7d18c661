"""Says in one sentence what this machine lacks for the set-up; exit status 2 then."""

import importlib.util
import sys

if sys.version_info < (3, 11):
    sys.exit(f"rankwatch needs Python 3.11 or newer, this is {sys.version.split()[0]}: try make PYTHON=python3.12")
if importlib.util.find_spec("ensurepip") is None:
    print("Python's venv module is not complete (Debian: apt-get install python3-venv)", file=sys.stderr)
    sys.exit(2)
