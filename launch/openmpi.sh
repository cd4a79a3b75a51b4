#!/usr/bin/env bash
# Start one process per GPU, or one per machine, with Open MPI. Run this on the first machine.
#
#   launch/openmpi.sh PROCESSES CONFIG [OPTIONS ...]
#   MPIRUN_OPTIONS="--hostfile hosts --map-by ppr:8:node" launch/openmpi.sh 32 amazon_4096
#
# COORDINATOR is this machine's address and a free port; by default HOSTNAME:8476.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,7p' "$0" | cut -c3-; exit 2; }
processes=$1
shift
# shellcheck disable=SC2086  # MPIRUN_OPTIONS holds several words.
exec mpirun -np "$processes" ${MPIRUN_OPTIONS:-} \
  mlstm-jax train "$@" --distributed.coordinator "${COORDINATOR:-$(hostname):8476}"
