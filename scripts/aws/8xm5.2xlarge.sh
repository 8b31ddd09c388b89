#!/usr/bin/env bash
# The IST paper's speech tables (arXiv 1910.02120) on 8 CPU machines; reproduce.sh lists the options.
set -euo pipefail
here=$(dirname "$0")
exec "$here/reproduce.sh" 8xm5.2xlarge speech speech,speech-finals -- "$@"
