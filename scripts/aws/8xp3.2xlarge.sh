#!/usr/bin/env bash
# The IST paper's CIFAR-10 tables (arXiv 1910.02120) on 8 machines with a V100; reproduce.sh lists the options.
# --data DIR gives CIFAR-10; without it, the data are made-up textures.
set -euo pipefail
here=$(dirname "$0")
exec "$here/reproduce.sh" 8xp3.2xlarge cifar10 cifar10,cifar10-finals -- "$@"
