# The server of a testbed: SuperLink, SuperExec and the proxy before them, in one container (server.sh).
# Not built so far: no machine of ours has a container daemon. tests/deployment/test_docker.py checks files and commands.
#   docker build --file deploy/docker/server.Dockerfile --tag fedpfl-server .        # in the checkout
FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7

# The lock decides which files are taken, whatever an index offers. Without the CUDA libraries: docs/how-to/install.md.
ARG EXTRA_INDEX=https://pypi.org/simple
COPY deploy/requirements-server.txt /opt/fedpfl/requirements.txt
RUN pip install --no-cache-dir --extra-index-url "$EXTRA_INDEX" --require-hashes --only-binary :all: \
    --requirement /opt/fedpfl/requirements.txt

# The checkout is the app as well: `flwr run /opt/fedpfl/app`.
COPY . /opt/fedpfl/app
RUN pip install --no-cache-dir --no-index --no-deps --no-build-isolation /opt/fedpfl/app

COPY deploy/docker/server.sh /usr/local/bin/fedpfl-testbed-server
RUN useradd --uid 10001 --home-dir /var/lib/fedpfl --create-home fedpfl \
    && install -d -m 0700 -o fedpfl -g fedpfl /keys \
    && chmod 0755 /usr/local/bin/fedpfl-testbed-server
USER fedpfl
WORKDIR /var/lib/fedpfl
ENV HOME=/var/lib/fedpfl \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
VOLUME ["/keys", "/var/lib/fedpfl"]
# The proxy. The SuperLink itself listens on loopback only.
EXPOSE 9092
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=24 \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9092), 2).close()"]
ENTRYPOINT ["/usr/local/bin/fedpfl-testbed-server"]
