#!/usr/bin/env bash
# The acceptance on a machine with one GPU, without network: docs/testing.md, "On a GPU".
# usage: tests/gpu/acceptance.sh OUT_DIR [--rehearse] [PART ...]
# RANKWATCH_WHEELS: a folder of unpacked wheels. ACCEPTANCE_SECONDS: for all parts, 570 by default.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
path=$root/tests
for part in instrumentation agent diagnosis cli alerts dashboards reference_trainer; do
  path=$path:$root/$part
done
export PYTHONPATH=$path${RANKWATCH_WHEELS:+:$RANKWATCH_WHEELS}${PYTHONPATH:+:$PYTHONPATH}
export PATH=$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=${TMPDIR:-/tmp}/acceptance-pycache  # dozens of processes import the same
exec "${PYTHON:-python3}" -m gpu.acceptance "$@"
