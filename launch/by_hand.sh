#!/usr/bin/env bash
# One process on each of several machines, started by hand: run this on each of them.
#
#   launch/by_hand.sh HEAD:PORT PROCESSES INDEX CONFIG [OPTIONS ...]
#   launch/by_hand.sh node1:8476 4 0 configs/amazon_4096.py --out /shared/runs/amazon
#
# HEAD is the machine of process 0, as the others reach it; PORT is free there. INDEX is 0 to
# PROCESSES - 1. Corpus and run folder lie on a file system that all share.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,9p' "$0" | cut -c3-; exit 2; }
coordinator=$1 processes=$2 index=$3
shift 3
exec mlstm-jax train "$@" --distributed.coordinator "$coordinator" \
  --distributed.processes "$processes" --distributed.index "$index"
