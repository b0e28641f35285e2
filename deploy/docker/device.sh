#!/usr/bin/env bash
# A device of a testbed: FEDPFL_CLIENTS clients from number FEDPFL_FIRST on. Stays until one of its processes ends.
set -euo pipefail

nodes=${FEDPFL_NODES:?number of clients of the whole testbed}
first=${FEDPFL_FIRST:?number of its first client}
clients=${FEDPFL_CLIENTS:?number of its clients}
superlink=${FEDPFL_SUPERLINK:-server:9092}
keys=${FEDPFL_KEYS:-/keys/testbed}
run=${FEDPFL_RUN:-/run/fedpfl}
port=${FEDPFL_PORT:-9094}                    # of its first SuperNode, on loopback
export FEDPFL_WORKER_SOCKET=$run/worker.sock FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
export FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS=3 FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES=3

trap 'exit 143' TERM INT
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

fedpfl-worker &
fedpfl-forkserver --socket "$run/forkserver.sock" &
until [[ -x $run/bin/flwr-clientapp ]]; do
    kill -0 $! || { echo "the fork server ended" >&2; exit 1; }
    sleep 0.2
done
export PATH=$run/bin:$PATH
for ((client = first; client < first + clients; client++)); do
    # Each SuperNode has a folder of its own: two that unpack the app into the same one read half of it.
    FLWR_HOME=$run/node-$client flower-supernode --superlink "$superlink" --root-certificates "$keys/ca.pem" \
        --auth-supernode-private-key "$keys/nodes/node-$(printf '%03d' "$client")" \
        --host 127.0.0.1 --port $((port + client - first)) \
        --node-config "partition-id=$client num-partitions=$nodes" &
done
wait -n || true
echo "one of the processes ended" >&2
exit 1
