#!/usr/bin/env bash
# The server of a bench. Makes keys where there are none, registers the devices' and stays until one of its processes ends.
set -euo pipefail

nodes=${FEDPFL_NODES:?number of clients}
name=${FEDPFL_SERVER:-server}                # under which devices reach it: the certificate's
keys=${FEDPFL_KEYS:-/keys/testbed}
state=${FEDPFL_STATE:-/var/lib/fedpfl}
superlink=127.0.0.1:${FEDPFL_SUPERLINK_PORT:-8000}
listen=${FEDPFL_LISTEN:-0.0.0.0:9092}
export FLWR_HOME=${FLWR_HOME:-$state/.flwr}

trap 'exit 143' TERM INT
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

fedpfl keys "$keys" --host "$name" --nodes "$nodes"
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "testbed"

[superlink.testbed]
address = "$superlink"
root-certificates = "$keys/ca.pem"
TOML

flower-superlink --host 127.0.0.1 --port "${superlink##*:}" --ssl-ca-certfile "$keys/ca.pem" \
    --ssl-certfile "$keys/server.pem" --ssl-keyfile "$keys/server.key" --enable-supernode-auth \
    --database "$state/superlink.db" --isolation process --superexec-auth-secret-file "$keys/superexec.secret" &
until (exec 3<> "/dev/tcp/127.0.0.1/${superlink##*:}") 2> /dev/null; do
    kill -0 $! || { echo "the SuperLink ended" >&2; exit 1; }
    sleep 0.5
done
flower-superexec --runtime-api-address "$superlink" --root-certificates "$keys/ca.pem" \
    --superexec-auth-secret-file "$keys/superexec.secret" &
fedpfl register "$keys"/nodes/node-*.pub --prune --record "$state/nodes.json"
# Last, because whoever asks for health asks this port.
fedpfl-bridge direct --listen "$listen" --tls-cert "$keys/server.pem" --tls-key "$keys/server.key" \
    --superlink "$superlink" --superlink-ca "$keys/ca.pem" &
wait -n || true
echo "one of the processes ended" >&2
exit 1
