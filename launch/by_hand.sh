#!/usr/bin/env bash
# Start one process on each of several machines by hand: run this script on each of them.
#
#   launch/by_hand.sh HEAD:PORT PROCESSES INDEX CONFIG [OPTIONS ...]
#   launch/by_hand.sh node1:8476 4 0 amazon_4096 --out /shared/runs/amazon
#
# HEAD is the machine of process 0, by a name or address that the others can reach. PORT is a free
# port there. INDEX is 0 to PROCESSES - 1, a different one on each machine. The run folder must be
# on a file system that all machines share, and the corpus on it or copied to each machine.
set -euo pipefail
[ $# -ge 4 ] || { sed -n '2,9p' "$0" | cut -c3-; exit 2; }
coordinator=$1 processes=$2 index=$3
shift 3
exec mlstm-jax train "$@" --distributed.coordinator "$coordinator" \
  --distributed.processes "$processes" --distributed.index "$index"
